"""Figures that code under test makes, to look into."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


def figures_of(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``module.new_figure`` makes from now on."""
    made: list[Any] = []
    figure = module.new_figure
    monkeypatch.setattr(module, "new_figure", lambda w, h: made.append(figure(w, h)) or made[-1])
    return made
