"""Rate tables: typed, strict, every number with its source."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from hvdc.errors import UsageError
from hvdc.plan.cut import Rates
from hvdc.plan.rates import RateTable, load_rates, require_fitting

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "rates").glob("*.toml"))
TEXT = """
name = "phone"
target = "sm8750"
conditions = "both engines at work"
frames = 49
tokens = 20280
steps = 6
layers = 30
[gpu_block_s]
value = 13.5
source = "measured today"
[npu_block_s]
value = 3
source = "measured today"
[decode_s]
value = 0.0
source = "nothing is decoded"
"""


def table(tmp_path: Path, text: str = TEXT) -> Path:
    path = tmp_path / "rates.toml"
    path.write_text(text, "utf-8")
    return path


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_valid_and_names_its_source(path: Path) -> None:
    rates = load_rates(path)
    assert rates.name == path.stem
    for rate in (rates.gpu_block_s, rates.npu_block_s, rates.decode_s):
        assert "paper, section" in rate.source or "measured" in rate.source


def test_a_table_is_read(tmp_path: Path) -> None:
    read = load_rates(table(tmp_path))
    assert read.rates == Rates(13.5, 3.0, 0.0)
    assert read.executions == 180


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("layers = 30", "layers = 30\nlayer = 1", "no key 'layer'"),
        ("value = 13.5\n", "", r"lacks 'gpu_block_s\.value'"),
        ("value = 13.5", "value = 0", r"'gpu_block_s\.value' .* greater than 0"),
        ("value = 13.5", "value = nan", r"'gpu_block_s\.value' .* finite"),
        ("value = 13.5", "value = inf", r"'gpu_block_s\.value' .* finite"),
        ("value = 13.5", 'value = "13.5"', r"'gpu_block_s\.value' .* number"),
        ("value = 13.5", "value = true", r"'gpu_block_s\.value' .* number"),
        ("value = 0.0", "value = -1.0", r"'decode_s\.value' .* equal to 0"),
        ('"measured today"\n[npu', '"?"\n[npu', r"'gpu_block_s\.source' .* 10 characters"),
        ("steps = 6", "steps = 0", "'steps' .* equal to 1"),
        ("steps = 6", "steps = 6.0", "'steps' .* integer"),
        ("conditions", "condition", "lacks 'conditions'"),
        ('target = "sm8750"', 'target = "sm1"', "no target 'sm1'"),
        ("name = ", "name ", "cannot be read"),
    ],
)
def test_a_table_is_strict(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(UsageError, match=message):
        load_rates(table(tmp_path, TEXT.replace(old, new, 1)))


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        load_rates(tmp_path / "none.toml")
    assert "none.toml" in caught.value.where


def test_a_table_of_another_clip_length_does_not_fit() -> None:
    read = RateTable.model_validate(tomllib.loads(TEXT))
    require_fitting(read, tokens=20_280, steps=6, layers=30)
    for sizes in ({"tokens": 7_800}, {"steps": 4}, {"layers": 18}):
        with pytest.raises(UsageError, match="another model or clip length"):
            require_fitting(read, **({"tokens": 20_280, "steps": 6, "layers": 30} | sizes))
