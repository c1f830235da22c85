"""Values that the library would take and silently misread are refused before it sees them."""

from __future__ import annotations

import pytest

from exporters.qnn.errors import QnnError
from exporters.qnn.options import SOCS, Limits, QnnOptions


def test_the_default_is_the_snapdragon_8_elite() -> None:
    options = QnnOptions()
    assert SOCS[options.soc].name == "Snapdragon 8 Elite (SM8750)"
    assert options.provider()["soc_model"] == "69"
    assert options.provider()["htp_arch"] == "79"


@pytest.mark.parametrize("soc", SOCS)
def test_every_known_pair_is_valid(soc: int) -> None:
    assert QnnOptions(soc, SOCS[soc].arch).arch == SOCS[soc].arch


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"soc": 9999}, "SoC number is not known"),
        ({"soc": "69"}, "must be a whole number"),
        ({"soc": True}, "must be a whole number"),
        ({"arch": 75}, "contradict each other"),
        ({"soc": 57}, "contradict each other"),
        ({"vtcm_mb": 0}, "this much VTCM"),
        ({"vtcm_mb": 99}, "this much VTCM"),
        ({"optimization": 0}, "no such optimisation level"),
        ({"optimization": 9}, "no such optimisation level"),
        ({"share_weights": 1}, "share_weights must be"),
    ],
)
def test_a_bad_value_is_refused(values: dict, said: str) -> None:
    with pytest.raises(QnnError, match=said) as caught:
        QnnOptions(**values)
    assert caught.value.found


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"memory_bytes": -1}, {"seconds": float("nan")}])
def test_a_limit_is_above_zero(limits: dict) -> None:
    with pytest.raises(QnnError, match="above zero"):
        Limits(**limits)


def test_options_survive_json() -> None:
    options = QnnOptions(57, 75, 4, 1, True)
    assert QnnOptions(**options.to_json()) == options
