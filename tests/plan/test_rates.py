"""Rate tables: typed, strict, every number with its source; what is not known is absent and said where it is needed."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvdc.errors import UsageError
from hvdc.plan.costs import EngineCosts
from hvdc.plan.cut import Rates
from hvdc.plan.rate_fields import BlockRate, EngineRates, Gemm, Idle, Reported
from hvdc.plan.rates import RateTable, load_rates, rates_toml, require_fitting

TEXT = """
name = "phone"
device = "a phone on a desk"
target = "sm8750"
date = 2026-11-30
thermal = "cold"
frames = 17
tokens = 7800
steps = 2
layers = 3
semantic_steps = 1
[gpu.solo_block_s]
per_block = [1, 2, 3]
source = "measured today"
[gpu.co_run_block_s]
value = 13.5
source = "measured today"
[npu.solo_block_s]
per_execution = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
source = "measured today"
[npu.co_run_block_s]
per_step = [3.0, 4.0]
source = "measured today"
[decode.co_run_s]
value = 0.0
source = "nothing is decoded"
[decode.solo_s]
value = 7.0
source = "measured today"
[handoff_s]
value = 0.25
source = "measured today"
[tensor_block_s]
value = 2.5
source = "measured today"
[power_w.gpu]
value = 4.5
source = "measured today"
[[gemm]]
name = "ffn.net.2"
tokens = 7800
in_features = 8960
out_features = 1536
engine = "npu"
seconds = 0.125
source = "measured today"
[[reported]]
name = "period_s"
value = 30.0
is_input = true
source = "a page of a book"
"""


def table(tmp_path: Path, text: str = TEXT) -> Path:
    path = tmp_path / "rates.toml"
    path.write_text(text, "utf-8")
    return path


def values(**more: Any) -> dict[str, Any]:
    return tomllib.loads(TEXT) | more


def test_a_table_is_read(tmp_path: Path) -> None:
    read = load_rates(table(tmp_path))
    assert (read.executions, read.date) == (6, datetime.date(2026, 11, 30))
    assert read.rates == Rates(13.5, 3.5, 0.0), "means, where blocks differ"
    assert not read.is_uniform
    costs = read.costs()
    assert costs.gpu == EngineCosts((1, 2, 3, 1, 2, 3), (13.5,) * 6)
    assert costs.npu == EngineCosts((1, 2, 3, 4, 5, 6), (3, 3, 3, 4, 4, 4))
    assert (costs.executions, costs.decode_s, costs.decode_solo_s, costs.handoff_s) == (6, 0.0, 7.0, 0.25)
    assert costs.tensor_block_s == (2.5,) * 6
    assert {figure.name: figure.value for figure in read.reported}["period_s"] == 30.0


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    read = load_rates(table(tmp_path))
    assert load_rates(table(tmp_path, rates_toml(read))) == read


@given(
    st.floats(0, 1e9, exclude_min=True),
    st.lists(st.floats(1e-9, 1e9), min_size=3, max_size=3),
    st.text(st.characters(exclude_categories=("Cs",)), min_size=10),
    st.dates(),
)
def test_any_number_and_text_survives_the_file(
    value: float, blocks: list[float], source: str, date: datetime.date
) -> None:
    gpu = {"solo_block_s": {"value": value, "source": source}}
    npu = {"co_run_block_s": {"per_block": blocks, "source": source}}  # of two engines: solo and co-run rates are alike
    written = RateTable.model_validate(values(gpu=gpu, npu=npu, date=date))
    assert RateTable.model_validate(tomllib.loads(rates_toml(written))) == written


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("layers = 3", "layers = 3\nlayer = 1", "no key 'layer'"),
        ("value = 13.5\n", "", r"'gpu\.co_run_block_s' .* one of value, per_block, per_step, per_execution, not none"),
        ("value = 13.5", "value = 13.5\nper_step = [1.0, 2.0]", "not value and per_step"),
        ("value = 13.5", "value = 0", r"'gpu\.co_run_block_s\.value' .* greater than 0"),
        ("value = 13.5", "value = -3.0", r"'gpu\.co_run_block_s\.value' .* greater than 0"),
        ("value = 13.5", "value = nan", r"'gpu\.co_run_block_s\.value' .* finite"),
        ("value = 13.5", "value = inf", r"'gpu\.co_run_block_s\.value' .* finite"),
        ("value = 13.5", "value = true", r"'gpu\.co_run_block_s\.value' .* number"),
        ("[1, 2, 3]", "[1, nan, 3]", r"'gpu\.solo_block_s\.per_block\.1' .* finite"),
        ("[1, 2, 3]", "[1, 0, 3]", r"'gpu\.solo_block_s\.per_block\.1' .* greater than 0"),
        ("[1, 2, 3]", "[1, 2]", r"gpu\.solo_block_s\.per_block has 2 values, not 3, for 2 steps of 3 blocks"),
        ("[3.0, 4.0]", "[3.0]", r"npu\.co_run_block_s\.per_step has 1 values, not 2"),
        ("5.0, 6.0]", "5.0]", r"npu\.solo_block_s\.per_execution has 5 values, not 6"),
        ("value = 0.0", "value = -1.0", r"'decode\.co_run_s\.value' .* equal to 0"),
        ("value = 0.25", "value = nan", r"'handoff_s\.value' .* finite"),
        ('"nothing is decoded"', '"?"', r"'decode\.co_run_s\.source' .* 10 characters"),
        ('source = "nothing is decoded"', "", r"lacks 'decode\.co_run_s\.source'"),
        ("steps = 2", "steps = 0", "'steps' .* equal to 1"),
        ("steps = 2", "steps = 2.0", "'steps' .* integer"),
        ("steps = 2", "steps = 1000000000", "'steps' .* equal to 1000"),
        ("value = 13.5", "value = 1e300", r"'gpu\.co_run_block_s\.value' .* equal to 1000000000"),
        ("semantic_steps = 1", "semantic_steps = 3", "semantic_steps is 3, of 2 steps"),
        ("thermal", "warmth", "no key 'warmth'|lacks 'thermal'"),
        ("date = 2026-11-30", 'date = "yesterday"', "'date' .* date"),
        ('engine = "npu"', 'engine = "cpu"', r"'gemm\.0\.engine' .* 'gpu' or 'npu'"),
        ("seconds = 0.125", "seconds = -1.0", r"'gemm\.0\.seconds' .* greater than 0"),
        ('target = "sm8750"', 'target = "SM 8750"', "'target' .* pattern"),
        ("name = ", "name ", "cannot be read"),
    ],
)
def test_a_table_is_strict(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(UsageError, match=message) as caught:
        load_rates(table(tmp_path, TEXT.replace(old, new, 1)))
    assert str(tmp_path) in caught.value.where


@pytest.mark.parametrize("text", ["13 s", "13270 ms", "13.5", "13,5"])
def test_a_unit_is_refused_with_the_one_that_is_expected(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"'gpu\.co_run_block_s\.value'") as caught:
        load_rates(table(tmp_path, TEXT.replace("value = 13.5", f'value = "{text}"')))
    assert caught.value.expected == "seconds, as a number without quotes and unit: 13.27"
    assert caught.value.found == repr(text)


def test_watts_are_watts(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_rates(table(tmp_path, TEXT.replace("value = 4.5", 'value = "4.5 W"')))
    assert caught.value.expected.startswith("watts, as a number")


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        load_rates(tmp_path / "none.toml")
    assert "none.toml" in caught.value.where


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("gpu", r"it has no gpu\.co_run_block_s$"),
        ("npu", r"it has no npu\.co_run_block_s$"),
        ("decode", r"it has no decode\.co_run_s$"),
    ],
)
def test_what_is_not_known_is_said_where_it_is_needed(without: str, message: str) -> None:
    known = RateTable.model_validate({key: value for key, value in values().items() if key != without})
    with pytest.raises(UsageError) as caught:
        _ = known.rates
    assert re.search(message, caught.value.what)
    if without == "decode":
        with pytest.raises(UsageError, match="no co-run time of the decoder"):
            known.costs()
    else:
        assert getattr(known.costs(), without) == EngineCosts(None, None)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "9" * 10_000,
        TEXT.replace("date = 2026-11-30", "date = 2026-13-45"),
        TEXT + "\n[handoff_s]\nvalue = 1.0\n",
        "\0",
    ],
    ids=["nested", "digits", "date", "twice", "nul"],
)
def test_what_is_no_toml_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_rates(table(tmp_path, text))


def test_a_folder_and_other_bytes_are_no_table(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    for path in (tmp_path, tmp_path / "latin.toml"):
        with pytest.raises(UsageError, match="cannot be read"):
            load_rates(path)


LINES = TEXT.splitlines()


@given(
    st.lists(
        st.tuples(st.integers(0, len(LINES) - 1), st.sampled_from([*LINES, "value = -1", "x", "[gpu]", "a.b = 1"]))
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exchanged_lines_are_a_table_or_a_sentence(tmp_path: Path, changes: list[tuple[int, str]]) -> None:
    lines = list(LINES)
    for at, line in changes:
        lines[at] = line
    path = table(tmp_path, "\n".join(lines))
    read, said = None, ""
    try:
        read = load_rates(path)
    except UsageError as error:
        said = error.what
    assert said.count("\n") == 0
    assert said or (read is not None and load_rates(table(tmp_path, rates_toml(read))) == read)


def test_the_mean_of_equal_blocks_is_their_value(tmp_path: Path) -> None:
    same = f"per_execution = {[13.2745] * 6}"
    assert load_rates(table(tmp_path, TEXT.replace("value = 13.5", same))).rates.gpu_block_s == 13.2745


def test_the_documents_table_is_valid_and_every_key_is_documented(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "RATES.md").read_text("utf-8")
    example = text.split("```toml\n", 1)[1].split("```", 1)[0]
    assert load_rates(table(tmp_path, example)).rates == Rates(13.27, pytest.approx(3.2), 267.0)
    keys = [
        *RateTable.model_fields,
        *(k for m in (EngineRates, BlockRate, Gemm, Idle, Reported) for k in m.model_fields),
    ]
    assert [key for key in keys if not re.search(rf"\b{key}\b", text)] == []


IDLE = {"engine": "gpu", "cut": 2, "seconds": 5.0, "source": "measured today"}


@pytest.mark.parametrize(
    "idle", [[IDLE], [IDLE, IDLE], [IDLE, IDLE | {"cut": 7}], [IDLE | {"cut": k} for k in (1, 2, 3)]]
)
def test_idle_times_are_of_two_cuts(tmp_path: Path, idle: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="two different cuts of 0 to 6"):
        RateTable.model_validate(values(idle=idle))


def test_a_table_of_another_clip_length_does_not_fit() -> None:
    read = RateTable.model_validate(values())
    fits = {"tokens": 7_800, "steps": 2, "layers": 3, "frames": 17, "semantic_steps": 1}
    require_fitting(read, **fits)
    for sizes in ({"tokens": 20_280}, {"steps": 4}, {"layers": 18}, {"frames": 49}):
        with pytest.raises(UsageError, match="another model or clip length"):
            require_fitting(read, **(fits | sizes))
    with pytest.raises(UsageError, match="another schedule"):
        require_fitting(read, **(fits | {"semantic_steps": 2}))


def test_a_byte_order_mark_is_no_part_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(TEXT, "utf-8-sig")
    assert load_rates(path).name == "phone"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("value = 13.5", "value = 13500.0"),
        ("per_step = [3.0, 4.0]", "per_step = [3000.0, 4000.0]"),
        ("value = 0.0", "value = 7000.0"),
    ],
)
def test_mixed_units_are_said(tmp_path: Path, old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(UsageError, match="not in seconds"):
        load_rates(table(tmp_path, TEXT.replace(old, new)))
