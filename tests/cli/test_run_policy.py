"""`hvdc run --policy`: a cut for each video, by the names and options of `hvdc plan simulate`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hvdc.errors import UsageError
from hvdc.pipeline.run_policy import RUN_POLICIES, PolicyChoice, RunPolicy, policy_of
from hvdc.plan.rates import load_rates
from hvdc.plan.scenarios import POLICIES
from tests.cli.runs import EXECUTIONS, needs_gpu, ran, refused, run

av = pytest.importorskip("av")
pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.usefixtures("runtime_cache")

ROOT = Path(__file__).resolve().parents[2]
TABLE = load_rates(ROOT / "examples" / "rates" / "galaxy-s25-49-frames-b.toml")


def test_all_simulated_policies_run_but_the_one_that_stops_the_gpu() -> None:
    assert set(POLICIES) - set(RUN_POLICIES) == {"on-demand"}


def test_deadlines_are_those_of_the_simulator() -> None:
    """A factor of a reference, which is given or that of the table's solo rates; or seconds."""
    assert policy_of(PolicyChoice(), None) is None
    assert policy_of(PolicyChoice("replan"), None) == RunPolicy("replan", 0.0, None, None)
    by_table = policy_of(PolicyChoice("deadline"), TABLE)
    assert by_table is not None
    assert by_table.deadline_s == pytest.approx(1375.5, rel=1e-3), "the paper's 1,375 s"
    assert by_table.since == "start"
    given = policy_of(PolicyChoice("deadline", deadline_factor=2.0, reference_s=10.0, since="arrival"), None)
    assert given == RunPolicy("deadline", 0.0, 20.0, "arrival")
    assert given.arguments == [
        "--policy", "deadline", "--handoff-s", 0.0, "--deadline-s", 20.0, "--deadline-from", "arrival"
    ]  # fmt: skip
    assert policy_of(PolicyChoice("deadline", deadline_s=3.0), TABLE) == RunPolicy(
        "deadline", 0.0 if TABLE.handoff_s is None else TABLE.handoff_s.value, 3.0, "start"
    )


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (PolicyChoice("deadline"), "needs a deadline"),
        (PolicyChoice("deadline", deadline_factor=2.0), "no rates are given"),
        (PolicyChoice("deadline", deadline_s=0.0), "above 0"),
        (PolicyChoice("deadline", deadline_s=float("nan")), "above 0"),
        (PolicyChoice("deadline", deadline_s=1.0, deadline_factor=1.5), "not both"),
        (PolicyChoice("deadline", deadline_factor=-1.0, reference_s=2.0), "above 0"),
    ],
)
def test_deadlines_that_are_none(choice: PolicyChoice, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        policy_of(choice, None)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--policy", "on-demand"), "--policy"),
        (("--mode", "dp", "--policy", "replan"), "mode dp has no cut"),
        (("--mode", "npu", "--policy", "adaptive"), "mode npu has no cut"),
        (("--mode", "hetero-tensor", "--policy", "replan"), "--policy would have no effect"),
        (("--policy", "replan", "--cut", 3), "policy replan chooses the cut of each video"),
        (
            ("--policy", "replan", "--deadline-s", 3),
            "policy replan knows no deadline",
        ),
        (("--deadline-factor", 3), "--deadline-factor would have no effect"),
        (("--policy", "adaptive", "--deadline-from", "start"), "--deadline-from would have no effect"),
        (("--policy", "deadline"), "policy deadline needs a deadline"),
        (("--policy", "deadline", "--deadline-s", -1), "a deadline is above 0"),
        (("--policy", "deadline", "--reference-s", 0), "a reference is above 0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_built(
    runnable_artifact: Path, embeds: Path, out: Path, more: tuple[object, ...], words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("hvdc.pipeline.run.find_runtime", None)
    refused(run(runnable_artifact, embeds, out, *more), out, words)


@needs_gpu
def test_each_video_has_a_cut_and_a_reason(runnable_artifact: Path, embeds: Path, out: Path) -> None:
    given = ("--policy", "adaptive", "--seeds", "0:2", "--no-decode")
    done = run(runnable_artifact, embeds, out, *given)
    assert done.status == 0, done.err
    said = re.findall(r"^note: video (\d): cut (\d+) of 12: a block takes", done.err, re.MULTILINE)
    report = json.loads((out / "run.json").read_text())["report"]
    assert [(int(video), int(cut)) for video, cut in said] == [(v["video"], v["cut"]) for v in report["videos"]]
    cuts = [v["cut"] for v in report["videos"]]
    shown = f"{min(cuts)} to {max(cuts)}" if len(set(cuts)) > 1 else f"{cuts[0]}"
    line = f"cut       {shown} of 12 blocks, chosen for each video by policy adaptive"
    assert line in done.out
    assert [v["gpu_blocks"] for v in report["videos"]] == cuts


@needs_gpu
def test_a_run_goes_on_and_keeps_its_cuts(runnable_artifact: Path, embeds: Path, out: Path) -> None:
    given = ("--policy", "deadline", "--deadline-s", 30, "--deadline-from", "arrival", "--no-decode", "--seeds", "0:2")
    facts = ran(runnable_artifact, embeds, out, *given)
    assert (facts["policy"], facts["deadline_s"], facts["deadline_from"]) == ("deadline", 30.0, "arrival")
    assert facts["cut_source"] == "measured"
    cuts = [v["cut"] for v in facts["videos"]]
    assert all(0 <= cut <= EXECUTIONS for cut in cuts)
    assert json.loads((out / "run.json").read_text()).get("cut") is None, "there is none for all of them"
    again = ran(runnable_artifact, embeds, out, *given, "--resume")
    assert (again["finished"], again["skipped"]) == (0, len(cuts))
    assert [v["cut"] for v in again["videos"]] == cuts
    assert [v["choice"] for v in again["videos"]] == [v["choice"] for v in facts["videos"]]
    (out / "results" / "video-000001.safetensors").unlink()
    rest = ran(runnable_artifact, embeds, out, *given, "--resume")
    assert (rest["finished"], rest["skipped"]) == (1, len(cuts) - 1)
    assert [v["cut"] for i, v in enumerate(rest["videos"]) if i != 1] == [cut for i, cut in enumerate(cuts) if i != 1]
    for other in (
        ("--policy", "replan"),
        ("--policy", "deadline", "--deadline-s", 31, "--deadline-from", "arrival"),
        (),
    ):
        done = run(runnable_artifact, embeds, out, *other, "--no-decode", "--seeds", "0:2", "--resume")
        assert (done.status, "mode, cut, policy, share" in done.err) == (2, True)
