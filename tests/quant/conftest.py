"""One small model with two experts, its statistics and scales, for all tests of the numeric paths."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import Tensor

from quant.calibration.modes import activation_scales
from quant.calibration.statistics import Statistics
from quant.paths.weights import Weights
from quant.scales import Scales
from tests.exporters.models import Values
from tests.quant.models import calibrated, drawn, one_thread, prompt, tensors_of, weights_of


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="session")
def tensors() -> Values:
    return tensors_of()


@pytest.fixture(scope="session")
def weights(tensors: Values) -> Weights:
    return weights_of(tensors)


@pytest.fixture(scope="session")
def embeds() -> Tensor:
    return prompt()


@pytest.fixture(scope="session")
def noise() -> Tensor:
    return drawn()


@pytest.fixture(scope="session")
def statistics(weights: Weights, embeds: Tensor, noise: Tensor) -> Statistics:
    return calibrated(weights, embeds, noise)


@pytest.fixture(scope="session")
def scales(weights: Weights, statistics: Statistics) -> Scales:
    return activation_scales(statistics, weights.steps, "per-step")
