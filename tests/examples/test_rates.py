"""The example rate tables: they are what their derivation prints, and they say what the paper's text gives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from examples.rates.derive import DEPLOYED, main, tables
from exporters.schedule import DCM_TIMESTEPS, make_schedule
from hvdc.errors import UsageError
from hvdc.plan.rates import RateTable, load_rates

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "rates"
NAMES = [
    "galaxy-s25-17-frames",
    "galaxy-s25-25-frames",
    "galaxy-s25-33-frames",
    "galaxy-s25-49-frames-a",
    "galaxy-s25-49-frames-b",
]


def table(name: str) -> RateTable:
    return load_rates(FOLDER / f"{name}.toml")


def test_the_tables_are_what_the_derivation_prints() -> None:
    assert {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.toml")} == tables()


def test_the_derivation_prints_all_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["derive.py"])
    main()
    printed = capsys.readouterr().out
    assert all(text in printed for text in tables().values())


def test_a_number_that_a_sentence_does_not_have_is_refused() -> None:
    assert DEPLOYED.number("51") == 51
    for text in ("5", "52", "1.0"):
        with pytest.raises(ValueError, match="does not stand in"):
            DEPLOYED.number(text)


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_named_as_its_file_and_of_the_released_schedule(name: str) -> None:
    read = table(name)
    assert read.name == name
    steps = make_schedule()
    assert read.steps == len(DCM_TIMESTEPS)
    assert read.semantic_steps == sum(step.expert == "semantic" for step in steps)
    assert {"17": 7_800, "25": 10_920, "33": 14_040, "49": 20_280}[name.split("-")[2]] == read.tokens


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_sentence_of_the_paper(name: str) -> None:
    read = table(name)
    sources = [rate.source for _, rate in read.block_rates()]
    sources += [rate.source for rate in (read.decode.solo_s, read.decode.co_run_s) if rate is not None]
    sources += [entry.source for entry in (*read.idle, *read.reported)]
    assert sources
    assert all(source.startswith("paper, section ") for source in sources)


def test_b_has_the_rates_of_section_6_and_says_what_they_were_computed_from() -> None:
    b = table("galaxy-s25-49-frames-b")
    assert (b.rates.gpu_block_s, b.rates.npu_block_s) == (
        pytest.approx(677 / 51, abs=5e-5),
        pytest.approx((677 - 267) / 129, abs=5e-5),
    )
    assert b.rates.decode_s == 267
    inputs = {figure.name: figure.value for figure in b.reported if figure.is_input}
    assert inputs == {"npu_only_period_s": 916.7, "period_s": 677, "deployed_cut": 51, "deployed_decode_s": 267}


def test_a_has_idle_times_and_no_co_run_rates() -> None:
    a = table("galaxy-s25-49-frames-a")
    assert [(idle.engine, idle.cut, idle.seconds) for idle in a.idle] == [("gpu", 30, 356), ("npu", 60, 121)]
    assert a.gpu.solo_block_s is not None
    assert a.gpu.co_run_block_s is None
    assert a.npu.co_run_block_s is None
    assert a.decode.co_run_s is None
    with pytest.raises(UsageError, match="does not place a cut") as caught:
        _ = a.rates
    assert "the cut that `hvdc plan cut` finds" in caught.value.fix


@pytest.mark.parametrize("name", NAMES[:3])
def test_shorter_clips_have_figures_and_no_rates(name: str) -> None:
    read = table(name)
    assert read.reported
    assert not list(read.block_rates())
    with pytest.raises(UsageError, match="no co-run"):
        read.costs()
