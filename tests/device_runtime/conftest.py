"""The C programs, built once for all tests, with AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from device_runtime.build import build_host, why_not
from tests.device_runtime.programs import Checker


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> path of the programs of the preset ``host-asan``."""
    reason = why_not("host-asan")
    if reason:
        pytest.skip(f"the C reader is not tested: {reason}")
    return build_host("host-asan", tmp_path_factory.mktemp("host-asan"))


@pytest.fixture
def checker(programs: dict[str, Path]) -> Iterator[Checker]:
    """A running ``hvdc_check``; a sanitizer's report or a leak fails the test that asked."""
    with Checker(programs["hvdc_check"]) as running:
        yield running
