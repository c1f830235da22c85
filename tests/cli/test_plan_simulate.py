"""``hvdc plan simulate`` and ``hvdc plan slo``: what they print, what they refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdc.cli import plan_options
from hvdc.plan.scenarios import POLICIES
from hvdc.plan.stages import MODES
from tests.cli.test_plan_cut import fitting
from tests.commands import Result, environment, hvdc

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
B = EXAMPLES / "rates" / "galaxy-s25-49-frames-b.toml"
A = EXAMPLES / "rates" / "galaxy-s25-49-frames-a.toml"
THROTTLES = EXAMPLES / "drift" / "gpu-throttles.toml"


def simulate(*more: object, rates: Path = B) -> Result:
    return hvdc("plan", "simulate", "--rates", rates, *more)


def slo(*more: object, rates: Path = B) -> Result:
    return hvdc("plan", "slo", "--rates", rates, *more)


def test_every_configuration_in_a_table() -> None:
    done = simulate()
    assert (done.status, done.err) == (0, "")
    title, header, *rows = done.out.splitlines()
    assert title.startswith("10 videos, galaxy-s25-49-frames-b; latency of a video from its first block")
    assert "in 1375 s" in header
    assert [row.split()[0] for row in rows] == list(MODES)
    assert {"51", "677.0", "5.32"} <= set(rows[2].split())
    assert "916.7" in rows[0]


@pytest.mark.parametrize("plan", [simulate, slo])
def test_an_artifact_must_fit_its_table(plan: Callable[..., Result], tiny_artifact: Path, tmp_path: Path) -> None:
    rates = fitting(tmp_path, tiny_artifact)
    done = plan(tiny_artifact, rates=rates)
    assert (done.status, done.out) == (0, plan(rates=rates).out)
    done = plan(tiny_artifact)
    assert done.status == 2
    assert "was measured on another" in done.err
    assert plan(tmp_path / "none.hvdc", rates=rates).status == 4


def test_json_has_all_of_it() -> None:
    facts = simulate("--json", "--videos", 30, "--power", "idle=1", "--power", "gpu=3", "--power", "npu=5").json()
    assert (facts["videos"], facts["cut"], facts["seed"], facts["deadline_from"]) == (30, 51, 0, "start")
    assert facts["deadline_s"] == pytest.approx(1375.05)
    by_mode = {c["mode"]: c for c in facts["configurations"]}
    assert list(by_mode) == list(MODES)
    hetero = by_mode["hetero"]
    assert hetero["period_s"] == pytest.approx(677, abs=0.01)
    assert hetero["deadline"]["compliant_per_hour"] == pytest.approx(5.318, abs=0.001)
    assert hetero["latency_s"].keys() == hetero["service_s"].keys() == {"mean", "p50", "p95", "max"}
    assert hetero["gpu"].keys() == {"idle_fraction", "idle_s_per_video"}
    assert hetero["energy_j_per_video"] == pytest.approx(hetero["energy_j"] / 30)
    assert (hetero["cuts"], hetero["slots"], by_mode["dp"]["cuts"]) == ([51, 51], 2, [0, 180])


def test_a_seed_repeats_a_simulation() -> None:
    more = ("--jitter", 0.05, "--arrivals", "poisson:4", "--videos", 50, "--json")
    assert simulate(*more, "--seed", 1).out == simulate(*more, "--seed", 1).out
    assert simulate(*more, "--seed", 1).out != simulate(*more, "--seed", 2).out


def test_some_configurations_in_the_order_of_the_runtime() -> None:
    facts = simulate("--mode", "hetero", "--mode", "npu", "--cut", 60, "--slots", 3, "--json").json()
    assert [(c["mode"], c["slots"]) for c in facts["configurations"]] == [("npu", 3), ("hetero", 3)]
    assert facts["configurations"][1]["period_s"] == pytest.approx(60 * 13.2745, rel=1e-6)


def test_a_cut_that_is_placed_may_be_asked_for_as_in_run() -> None:
    assert (
        simulate("--mode", "hetero", "--cut", "auto", "--json").json() == simulate("--mode", "hetero", "--json").json()
    )


def test_policies_under_a_drift() -> None:
    done = simulate("--mode", "hetero", "--policy", "all", "--drift", THROTTLES, "--videos", 60, "--json")
    by = {c["policy"]: c for c in done.json()["configurations"]}
    assert list(by) == list(POLICIES)
    assert done.json()["drift"] == "GPU throttles to 1.5 times its time"
    assert by["replan"]["period_s"] < by["static"]["period_s"] * 0.8
    assert "hetero, replan" in simulate("--mode", "hetero", "--policy", "replan").out


def test_arrivals_from_a_trace_count_latency_from_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0\n100\n200\n9000\n")
    done = simulate("--mode", "npu", "--arrivals", tmp_path / "a.txt", "--json").json()
    assert (done["videos"], done["deadline_from"]) == (4, "arrival")
    assert done["configurations"][0]["latency_s"]["max"] == pytest.approx(3 * 916.7 - 200)
    assert "from its arrival" in simulate("--arrivals", tmp_path / "a.txt").out
    assert (
        simulate("--arrivals", tmp_path / "a.txt", "--deadline-from", "start", "--json").json()["deadline_from"]
        == "start"
    )
    assert simulate("--arrivals", tmp_path / "a.txt", "--videos", 2, "--json").json()["videos"] == 2


def solo_less(tmp_path: Path) -> Path:
    """Table b without the NPU's solo rate."""
    text = B.read_text("utf-8")
    begin = text.index("[npu.solo_block_s]")
    path = tmp_path / "rates.toml"
    path.write_text(text[:begin] + text[text.index("[", begin + 1) :], "utf-8")
    return path


def test_what_a_table_lacks_is_said(tmp_path: Path) -> None:
    done = simulate(rates=solo_less(tmp_path))
    assert done.status == 0, done.err
    assert "npu is not simulated: the rate table has no solo rate of the npu" in done.out
    assert "without a deadline" in done.err
    assert simulate("-q", rates=solo_less(tmp_path)).err == ""
    facts = simulate("--json", rates=solo_less(tmp_path)).json()
    assert [c["mode"] for c in facts["configurations"] if "why_not" in c] == ["npu"]
    assert facts["deadline_s"] is None
    given = simulate("--reference-s", 917, "--json", rates=solo_less(tmp_path)).json()
    assert given["deadline_s"] == pytest.approx(1.5 * 917)
    assert simulate("--mode", "npu", rates=solo_less(tmp_path)).status == 2


def test_slo_over_deadlines() -> None:
    done = slo("--videos", 100, "--mode", "npu", "--mode", "hetero", "--mode", "dp")
    assert done.status == 0, done.err
    title, header, *rows = done.out.splitlines()
    assert "reference 916.7 s" in title
    assert header.split()[-3:] == ["npu", "hetero", "dp"]
    assert [row.split()[:2] for row in rows] == [
        ["1.25", "1146"], ["1.5", "1375"], ["1.75", "1604"], ["2", "1833"], ["2.25", "2063"], ["2.5", "2292"],
        ["2.75", "2521"], ["3", "2750"],
    ]  # fmt: skip
    assert rows[0].split()[2:4] == ["3.93", "0.00"]
    assert rows[1].split()[2:4] == ["3.93", "5.32"]


def test_slo_as_json() -> None:
    facts = slo(
        "--factors", "1.25,1.5", "--policy", "deadline", "--policy", "static", "--mode", "hetero", "--json"
    ).json()
    assert facts["reference_s"] == pytest.approx(916.7)
    first, second = facts["points"]
    assert [(c["mode"], c["policy"]) for c in first["compliant_per_hour"]] == [
        ("hetero", "static"),
        ("hetero", "deadline"),
    ]
    assert first["compliant_per_hour"][0]["videos_per_hour"] == 0
    assert first["compliant_per_hour"][1]["videos_per_hour"] > 3.93
    assert second["deadline_s"] == pytest.approx(1375.05)
    given = slo("--factors", "1", "--reference-s", "2000", "--mode", "hetero", "--json").json()
    assert given["points"][0]["compliant_per_hour"][0]["videos_per_hour"] > 5


def test_long_simulations_show_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_options, "LONG", 1000)
    done = simulate("--mode", "npu", "--mode", "hetero", "--videos", 1500)
    assert "simulate 2/2 hetero" in done.err
    assert simulate("--mode", "npu", "--videos", 1500, "-q").err == ""
    assert "simulate 2/2" in slo("--mode", "npu", "--mode", "hetero", "--videos", 1500).err
    assert slo("--mode", "npu", "--videos", 10).err == ""


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--videos", 0), "one video at least"),
        (("--videos", 10_000_000), "too many videos"),
        (("--cut", 181), "no cut"),
        (("--cut", "best-ish"), "no cut"),
        (("--slots", 0), "in flight"),
        (("--slots", 17), "in flight"),
        (("--jitter", -1), "jitter"),
        (("--jitter", "nan"), "jitter"),
        (("--arrivals", "sometimes"), "arrivals cannot be read"),
        (("--arrivals", "even:0"), "no rate of arrivals"),
        (("--drift", "nowhere.toml"), "drift cannot be read"),
        (("--drift", B), "drift is not valid"),
        (("--reference-s", 0), "a reference is above 0"),
        (("--mode", "cpu"), "--mode"),
        (("--policy", "luck"), "--policy"),
        (("--policy", "replan", "--mode", "npu"), "not among the modes"),
        (("--rates", "nowhere.toml"), "rate table cannot be read"),
    ],
)
@pytest.mark.parametrize("command", [simulate, slo])
def test_what_is_refused_is_a_sentence(command: object, more: tuple[object, ...], says: str) -> None:
    done = command(*more)  # type: ignore[operator]
    assert done.status == 2
    assert says in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--deadline-factor", 1, "--deadline-s", 3), "not both"),
        (("--deadline-factor", 0), "a deadline factor is above 0"),
        (("--deadline-s", "nan"), "a deadline is above 0"),
        (("--power", "gpu=3"), "three powers"),
        (("--power", "fan=3"), "no power"),
    ],
)
def test_what_simulate_refuses(more: tuple[object, ...], says: str) -> None:
    done = simulate(*more)
    assert (done.status, says in done.err) == (2, True), done.err


@pytest.mark.parametrize("factors", ["0", "x", "3:1:1"])
def test_what_slo_refuses(factors: str) -> None:
    done = slo("--factors", factors)
    assert (done.status, "no deadline factors" in done.err) == (2, True)


def test_a_table_without_a_decoder_is_refused() -> None:
    done = simulate(rates=A)
    assert (done.status, "co-run time of the decoder" in done.err) == (2, True)


def test_errors_are_json_too() -> None:
    assert simulate("--cut", 999, "--json").json()["error"]["what"] == "this is no cut"


def test_nothing_heavy_is_imported() -> None:
    """A simulation of a few videos is there at once."""
    code = (
        "import sys; from hvdc.cli.main import run; "
        f"status = run(['plan', 'simulate', '--rates', {str(B)!r}, '--json']); "
        "sys.exit(status or sorted({'torch', 'onnx', 'numpy', 'matplotlib', 'diffusers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_title_says_what_the_numbers_are_of() -> None:
    assert "videos/h and idle are of the steady part" in simulate().out.splitlines()[0]
    one = simulate("--videos", 1).out.splitlines()[0]
    assert one.startswith("1 video, ")
    assert "steady" not in one, "there is none"
