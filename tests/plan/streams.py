"""Costs and streams for tests of the simulation."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from hvdc.plan.costs import Costs, EngineCosts, uniform
from hvdc.plan.results import StreamResult, summarise
from hvdc.plan.stages import Mode
from hvdc.plan.stream import simulate


def costs(
    gpu_s: float = 13.27,
    npu_s: float = 3.178,
    decode_s: float = 267.0,
    *,
    handoff_s: float = 0.0,
    executions: int = 180,
    gpu_solo_s: float | None = None,
    npu_solo_s: float | None = None,
    tensor_s: float | None = 3.3,
) -> Costs:
    """The same seconds for every block; solo rates are the co-run ones unless they are given."""

    def engine(shared_s: float, solo_s: float | None) -> EngineCosts:
        return EngineCosts(uniform(shared_s if solo_s is None else solo_s, executions), uniform(shared_s, executions))

    tensor = None if tensor_s is None else uniform(tensor_s, executions)
    return Costs(executions, engine(gpu_s, gpu_solo_s), engine(npu_s, npu_solo_s), decode_s, handoff_s, tensor)


def at_once(made: Costs, mode: Mode, videos: int, **more: Any) -> StreamResult:
    """Of a stream whose videos are all asked for at the start."""
    return summarise(simulate(made, mode, (0.0,) * videos, **more))


SECONDS = st.floats(0.01, 100.0)
"""A block."""
DECODES = st.floats(0.0, 1000.0)


@st.composite
def block_costs(draw: st.DrawFn, executions: int = 12) -> Costs:
    """Other seconds for every block."""
    values = st.lists(SECONDS, min_size=executions, max_size=executions).map(tuple)
    gpu, npu = draw(values), draw(values)
    return Costs(executions, EngineCosts(gpu, gpu), EngineCosts(npu, npu), draw(DECODES), 0.0, npu)
