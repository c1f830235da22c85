"""A block whose linears both engines share: the solver's answer for each, and the share that the runtime takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hvdc.errors import UsageError
from hvdc.plan.costs import Costs
from hvdc.plan.gemm_table import Measured, measured_gemms
from hvdc.plan.gemms import DCM_WAN21_49_FRAMES, BlockSizes, Gemm, block_gemms
from hvdc.plan.rates import RateTable
from hvdc.plan.tensor import Decision, SharedBlock, best_share, decide


@dataclass(frozen=True)
class TensorPlan:
    """``unmeasured``: GEMMs of the block that the table has no times of; with any there is no ``shared``. Nor is there
    where the GEMMs are the table's own, which are no block."""

    measured: Measured
    decisions: tuple[Decision, ...]
    unmeasured: tuple[Gemm, ...]
    shared: SharedBlock | None

    @property
    def solved_linears_s(self) -> float | None:
        """Seconds of a block's linears in each execution where each has its own best partition."""
        if self.shared is None:
            return None
        return sum(d.chosen.total_s for d in self.decisions if not d.gemm.once_per_prompt)

    @property
    def tensor_block_s(self) -> tuple[float, ...] | None:
        """Seconds of each block execution in the runtime's mode ``hetero-tensor``; None: not known.

        Raises UsageError where block and GEMM times contradict each other.
        """
        shared, alone_s = self.shared, self.measured.npu_block_s
        if shared is None or alone_s is None:
            return None
        return tuple(shared.block_s(seconds) for seconds in alone_s)


def plan_tensor(measured: Measured, sizes: BlockSizes | None = None) -> TensorPlan:
    """Decide for each GEMM of a block of these ``sizes``; None: of DCM-Wan2.1 with the table's tokens, or, where the
    table is of GEMMs alone, for its own. Raises UsageError as the solver does, and for a rate table of other sizes."""
    if sizes is None and measured.tokens is None:
        return TensorPlan(measured, tuple(decide(g, measured.engines) for g in measured.gemms), (), None)
    if sizes is None:
        sizes = replace(DCM_WAN21_49_FRAMES, tokens=measured.tokens or 0)
    if measured.tokens not in (None, sizes.tokens):
        raise UsageError(
            f"the rate table {measured.name!r} was measured at another clip length",
            expected=f"{sizes.tokens:,} tokens",
            found=f"{measured.tokens:,}",
            fix="take the table of this clip length, or one of GEMMs alone",
        )
    gemms = block_gemms(sizes)
    known = [g for g in gemms if measured.engines.measured(g)]
    if not known:
        raise UsageError(
            f"the table {measured.name!r} has no time of any linear of this model on both engines",
            expected=", ".join(sorted({f"{g.in_features} to {g.out_features} channels" for g in gemms})),
            fix="measure them"
            + ("" if measured.tokens else ", or leave the artifact out to plan the table's own GEMMs"),
        )
    unmeasured = tuple(g for g in gemms if g not in known)
    shared = None if unmeasured else best_share(gemms, measured.engines)
    return TensorPlan(measured, tuple(decide(g, measured.engines) for g in known), unmeasured, shared)


def shared_block_costs(table: RateTable, sizes: BlockSizes | None = None) -> Costs:
    """The table's costs. Where it has no ``tensor_block_s`` but GEMM times, a block whose linears both engines share
    takes what `plan_tensor` says for the best share of a block of these ``sizes``; it stays unknown where that cannot
    be planned.

    Raises UsageError as `RateTable.costs` does, and where block and GEMM times contradict each other.
    """
    costs = table.costs()
    if costs.tensor_block_s is not None or not table.gemm or table.exchange is None:
        return costs
    return replace(costs, tensor_block_s=plan_tensor(measured_gemms(table), sizes).tensor_block_s)
