"""What a table of activation scales may hold, and what an artifact of the version before makes of a calibrated one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdc.artifact import records
from hvdc.artifact.calibration import GemmInput, factors_fault, table_fault
from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.index_read import parse_index
from hvdc.artifact.manifest import INDEX_NAME
from hvdc.artifact.reader import open_artifact
from quant.weights import SMALLEST_SCALE
from tests.artifact_blobs import Spec, gemm_inputs, scale_table
from tests.artifacts import make_artifact
from tests.malformed.make import CORPUS

STEPS = ("semantic", "semantic", "detail", "detail")
INPUTS = gemm_inputs(Spec())
VALUES = [0.0, -0.0, 0.5, 0.25, -0.5, 2.0**-126, 2.0**-127, np.inf, np.nan, 3e38]


def test_the_smallest_scale_is_the_quantisers() -> None:
    assert records.SMALLEST_NORMAL == SMALLEST_SCALE


def allowed(table: np.ndarray, step: int, block: int, column: int) -> bool:
    """The rule, one value at a time."""
    item, value = INPUTS[column], table[step, block, column]
    if STEPS[step] not in item.experts:
        return bool(value == 0 and not np.signbit(value))
    same = item.per == "step" or value == table[STEPS.index(STEPS[step]), block, column]
    return bool(2.0**-126 <= value < np.inf and same)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 9),
    changes=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 2), st.sampled_from(VALUES)), max_size=3
    ),
)
def test_the_first_value_that_cannot_be_is_found(seed: int, changes: list[tuple[int, int, int, float]]) -> None:
    table = scale_table(np.random.default_rng(seed), INPUTS, STEPS, 2)
    assert table_fault(table, INPUTS, STEPS) is None
    for step, block, column, value in changes:
        table[step, block, column] = value
    wrong = [place for place in np.ndindex(table.shape) if not allowed(table, *place)]
    fault = table_fault(table, INPUTS, STEPS)
    assert (fault[0] if fault else None) == (wrong[0] if wrong else None)


@pytest.mark.parametrize("value", VALUES)
def test_a_smoothing_factor_is_something_to_divide_by(value: float) -> None:
    fault = factors_fault(np.array([[1, 1], [1, value]], np.float32))
    assert (fault is None) == (2.0**-126 <= value < np.inf)
    assert fault is None or fault[0] == (1, 1)


def test_a_reader_of_1_0_refuses_a_calibrated_artifact_by_its_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    """And accepts the index of an uncalibrated one that a newer compiler wrote."""
    monkeypatch.setattr(records, "KNOWN_FEATURES", 0)
    with pytest.raises(ArtifactError) as caught:
        parse_index((CORPUS / "base-calibrated" / INDEX_NAME).read_bytes())
    assert caught.value.code is Code.INDEX_FEATURE


def test_an_uncalibrated_index_differs_from_1_0_in_the_minor_version_only(tmp_path: Path) -> None:
    with open_artifact(make_artifact(tmp_path / "a.hvdc", Spec())) as artifact:
        header = artifact.index.header
        found = tuple(int(header[name]) for name in ("minor", "required_features", "section_count"))
        assert found == (records.MINOR, 0, 5)
    assert records.GEOMETRY.bytes == 176


def test_inputs_are_named_in_the_order_of_the_table(tmp_path: Path) -> None:
    with open_artifact(make_artifact(tmp_path / "a.hvdc", Spec(calibrated=True))) as artifact:
        names = [artifact.index.text(int(row["name"])) for row in artifact.index.inputs]
        held = artifact.manifest.calibration
        assert held is not None
        assert names == [i.name for i in held.inputs]
        assert artifact.tensor(records.ACTIVATION_SCALES_NAME).shape == (3, 2, len(names))


def test_one_input_is_enough() -> None:
    item = GemmInput(name="x", per="expert", experts=("detail",))
    table = np.array([[[0.0]], [[0.5]], [[0.5]]], np.float32)
    assert table_fault(table, (item,), ("semantic", "detail", "detail")) is None
