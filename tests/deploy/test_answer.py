"""What `hvdc deploy` says of a device's numbers: right, wrong, not known. Programs of a phone are scripts here; the
runtime's own ones are tried in test_run_device.py and in the last tests below."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvdc.deploy.compared import compared_text, read_compared
from tests.adb_peer import Peer
from tests.answers import header_of, put, sealed, stored, table_of
from tests.artifacts import Spec, forget_answer
from tests.commands import hvdc
from tests.deploy.artifacts import BENCH, PROGRAMS, deployed, phone_artifact, script, whole_version, with_runtime
from tests.deploy.test_run_device import board as board
from tests.deploy.test_run_device import clips as clips
from tests.deploy.test_run_device import runtime_cache as runtime_cache

ROW = {"engine": "npu", "expert": "detail", "step": 5, "block": 29, "values": 61440, "different": 0, "max_abs": 0,
       "relative": 0, "decides": "limit", "limit": 8e-4, "right": True}  # fmt: skip
OFF = ROW | {"different": 61000, "max_abs": 0.01, "relative": 3.4e-4}
WRONG = ROW | {"different": 61440, "max_abs": 2.5, "relative": 0.31, "right": False}


def answering(*rows: dict[str, Any], status: int = 0, place: str = "Hexagon v79", **more: Any) -> bytes:
    """A phone's `hvdc_bench` that reports so with --answer, and as ever without."""
    report = {"tokens": 40, "npu": {"place": place}, "gpu": {"device": "Adreno"}, "answers": list(rows)} | more
    said = f"echo '{json.dumps(report)}'; exit {status}"
    return script(f"""case " $* " in *" --answer "*) {said};; esac; echo '{json.dumps(BENCH)}'""")


@pytest.fixture
def phone(peer: Peer, tmp_path: Path) -> Callable[..., Path]:
    """``phone(program)``: an artifact with a stored answer, whose `hvdc_bench` is this one."""

    def make(program: bytes, spec: Spec | None = None) -> Path:
        artifact = phone_artifact(tmp_path / "a.hvdc", spec)
        with_runtime(artifact, PROGRAMS | {"hvdc_bench": program}, answer=True)
        return artifact

    return make


def test_the_answer_goes_along(phone: Callable[..., Path], peer: Peer) -> None:
    artifact = phone(answering(ROW))
    done = deployed(artifact)
    assert done.status == 0, done.err
    whole_version(peer, artifact, "a")
    assert (artifact / "runtime" / "answer.bin").exists(), "and so it is among what arrived"
    assert "ok        npu block: 40 tokens on Hexagon v79: equal to the stored answer to the bit" in done.out


def test_what_rounding_explains_is_right(phone: Callable[..., Path]) -> None:
    done = deployed(phone(answering(ROW, OFF)))
    assert done.status == 0, done.err
    assert "off from the stored answer by 3.4e-04 of what a block changes; up to 8e-04 is rounding" in done.out


def test_wrong_numbers_fail_and_say_what_to_do(phone: Callable[..., Path]) -> None:
    done = deployed(phone(answering(ROW, WRONG, status=6), Spec(calibrated=True)), "--json")
    assert done.status == 5
    tried = {t["name"]: t for t in done.json()["smoke_test"]}
    assert [tried[f"{engine} block"]["state"] for engine in ("npu", "gpu")] == ["failed", "failed"]
    text = tried["npu block"]["text"]
    assert "block 29 (detail expert) differs by 3.1e-01 of what it changes, where at most 8e-04 is allowed" in text
    assert "results of this engine on this device are wrong. Take the other engine alone (hvdc run --mode" in text
    assert "both at once" not in tried, "of wrong engines it says nothing"


@pytest.mark.parametrize(
    ("rows", "status", "words"),
    [
        ([ROW | {"right": False}], 0, "differs by 0.0e+00"),
        ([ROW | {"relative": None, "different": 9, "right": False}], 6, "numbers that are not finite"),
        ([WRONG | {"decides": "bits", "limit": 0}], 6, "where no bit may differ"),
        ([], 0, "its report cannot be read"),
        ([ROW | {"block": "x"}], 0, "its report cannot be read"),
        ([ROW | {"limit": True}], 0, "its report cannot be read"),
        ([ROW, "x"], 0, "its report cannot be read"),
        ([ROW], 139, '"right": true'),
    ],
)
def test_whatever_a_device_reports(rows: list[Any], status: int, words: str, phone: Callable[..., Path]) -> None:
    done = deployed(phone(answering(*rows, status=status)))
    assert done.status == 5
    line = next(line for line in done.out.splitlines() if "npu block" in line)
    assert line.startswith("failed")
    assert words in done.out


@pytest.mark.parametrize("rows", [7, None, {"x": 1}, [[]], [{}]])
def test_a_report_without_rows_is_none(rows: object) -> None:
    assert read_compared({"answers": rows}) == ()


def test_a_sentence_for_each_wrong_block() -> None:
    wrong = read_compared({"answers": [WRONG, ROW | {"block": 0, "right": False, "relative": 1.0}]})
    assert compared_text(wrong).count("differs by") == 2


def test_the_portable_engine_has_to_give_every_bit(phone: Callable[..., Path]) -> None:
    """It can add exactly, so that it is asked twice."""
    reports = [
        json.dumps({"tokens": 40, "npu": {"place": "portable"}, "answers": [row]})
        for row in (WRONG | {"decides": "bits"}, OFF)
    ]
    exact, fast = (f"echo '{report}'; exit {status}" for report, status in zip(reports, (6, 0), strict=True))
    done = deployed(phone(script(f"""case " $* " in *" exact "*) {exact};; *) {fast};; esac""")))
    assert done.status == 5
    assert "failed    npu block: with exact sums: 40 tokens, as a portable program on processors: block 29" in done.out


def test_the_portable_engine_gives_every_bit(phone: Callable[..., Path]) -> None:
    done = deployed(phone(answering(ROW, place="portable")))
    assert done.status == 0, done.err
    assert "equal to the stored answer to the bit; with exact sums equal to the bit" in done.out


def test_programs_that_are_older_than_the_answer(phone: Callable[..., Path]) -> None:
    refusal = "hvdc_bench: --answer is no option, or one argument too many; see hvdc_bench --help"
    older = script(
        f"""case " $* " in *" --answer "*) echo '{refusal}' >&2; exit 2;; esac; echo '{json.dumps(BENCH)}'"""
    )
    done = deployed(phone(older))
    assert done.status == 0, done.err
    assert "ok        npu block: the artifact's weights were mapped and a block of 256 tokens executed" in done.out
    assert "not tried npu numbers: the artifact's programs are older than its answer: hvdc runtime build" in done.out


def test_an_artifact_from_before_answers(artifact: Path, peer: Peer) -> None:
    done = deployed(artifact)
    assert done.status == 0, done.err
    assert "ok        npu block: the artifact's weights were mapped" in done.out
    assert "not tried npu numbers: the artifact holds no answer to compare with: hvdc runtime build --into" in done.out


# --- the runtime's own programs ------------------------------------------------------------------------------------


def smoke(artifact: Path, *, status: int) -> dict[str, tuple[str, str]]:
    done = deployed(artifact, "--force", "--json")
    assert done.status == status, done.err
    return {t["name"]: (t["state"], t["text"]) for t in done.json()["smoke_test"]}


def test_a_device_that_is_right(clips: Path, board: Peer) -> None:
    tried = smoke(clips, status=0)
    assert tried["npu block"][1].endswith("; with exact sums equal to the bit")
    assert "npu numbers" not in tried
    if tried["GPU dot products"][0] == "ok":
        assert tried["gpu block"][1].endswith(": equal to the stored answer to the bit")


def test_a_device_that_is_wrong(clips: Path, board: Peer) -> None:
    """As if the last block's kernels were wrong there: another input asks for other numbers."""
    data = bytearray(stored(clips))
    last = [i for i, row in enumerate(table_of(data)) if row["block"] > 0]
    table_of(data)["hidden_seed"][last] += 1
    put(clips, sealed(data))
    tried = smoke(clips, status=5)
    due = [tried["npu block"]] + ([tried["gpu block"]] if tried["GPU dot products"][0] == "ok" else [])
    for state, text in due:
        assert state == "failed"
        assert "block 1 (detail expert) differs by" in text
        assert "block 0" not in text
        assert "results of this engine on this device are wrong" in text


def test_a_damaged_answer_is_not_sent(clips: Path, board: Peer) -> None:
    data = bytearray(stored(clips))
    header_of(data)["rows"] = 0
    put(clips, sealed(data))
    done = deployed(clips, "--force")
    assert done.status == 4
    assert "DATA_ANSWER" in done.err
    assert "hvdc runtime build --into ARTIFACT computes it anew" in done.err
    assert list(board.phone.target.iterdir()) == []
    assert hvdc("runtime", "build", "--into", clips, "-q").status == 0
    assert hvdc("validate", clips).status == 0


def test_without_one_it_is_not_known(clips: Path, board: Peer) -> None:
    forget_answer(clips)
    tried = smoke(clips, status=0)
    assert tried["npu block"][0] == "ok"
    assert tried["npu numbers"][0] == "not tried"
    assert "hvdc runtime build --into ARTIFACT" in tried["npu numbers"][1]
