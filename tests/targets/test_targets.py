"""Target descriptions: every number typed, positive and with a source."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest
from pydantic import ValidationError

from hvdc.errors import UsageError
from hvdc.targets import TargetDescription, load_target, target_names


@pytest.mark.parametrize("name", target_names())
def test_every_number_has_a_source(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert len(target.limits()) == 7
    for limit in target.limits().values():
        assert limit.value > 0
        assert any(word in limit.source for word in ("paper", "measured", "ggml", "HexKL", "ai-hub")), limit.source


def test_the_phone_of_the_paper() -> None:
    target = load_target("sm8750")
    assert target.hexagon_arch == "v79"
    assert target.region_cap_bytes.value == 511 * 2**20
    assert target.mapping_budget_bytes.value == 3200 * 2**20
    assert target.graph_limit_bytes.value == 3_670_016 * 2**10
    assert target.vtcm_bytes.value == 8 * 2**20


def test_an_unknown_target_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no target 'sm9999'") as caught:
        load_target("sm9999")
    assert "sm8750" in caught.value.expected


def description() -> dict[str, object]:
    return tomllib.loads(resources.files("hvdc.targets").joinpath("sm8750.toml").read_text("utf-8"))


@pytest.mark.parametrize(
    "change",
    [
        {"vtcm_bytes": 8_388_608},
        {"vtcm_bytes": {"value": 8_388_608}},
        {"vtcm_bytes": {"value": 0, "source": "paper, section 1"}},
        {"vtcm_bytes": {"value": "8 MiB", "source": "paper, section 1"}},
        {"vtcm_bytes": {"value": 8_388_608.0, "source": "paper, section 1"}},
        {"vtcm_bytes": {"value": 1, "source": "?"}},
        {"vtcm_mib": {"value": 8, "source": "paper, section 1"}},
    ],
    ids=["no source", "no source key", "zero", "text", "float", "empty source", "unknown key"],
)
def test_a_description_is_strict(change: dict[str, object]) -> None:
    TargetDescription.model_validate(description())
    with pytest.raises(ValidationError):
        TargetDescription.model_validate(description() | change)
