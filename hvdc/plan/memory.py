"""Weight memory of each way to run the model: the paper's Table 3, computed from what an artifact holds.

Pure arithmetic on byte totals, in bytes; no torch, no files. "The paper" is HeteroVDiff, section 6.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it needs NumPy, and arithmetic doesn't
    from hvdc.artifact.manifest import Parameters, Totals

MIB = 1 << 20
GIB = 1 << 30
FP16_BYTES = 2


@dataclass(frozen=True)
class WeightBytes:
    """What an artifact's weights take, and the parameter counts that the FP16 rows need."""

    totals: Totals
    parameters: Parameters

    @property
    def artifact_bytes(self) -> int:
        """S: attention base, feed-forward pair, scales and adapter, each held once."""
        return self.base_bytes + self.totals.adapter_bytes

    @property
    def base_bytes(self) -> int:
        t = self.totals
        return t.attention_base_bytes + t.ffn_base_bytes + t.base_scale_bytes

    @property
    def npu_transient_bytes(self) -> int:
        """One block's feed-forward pair dequantised to FP16."""
        return self.parameters.ffn_pair * FP16_BYTES

    @property
    def gpu_transient_bytes(self) -> int:
        """One block's feed-forward pair staged in INT8."""
        return self.parameters.ffn_pair


@dataclass(frozen=True)
class Row:
    """One configuration: weights held, transient copies, their sum, and how it is counted."""

    name: str
    weight_bytes: int
    transient_bytes: int
    note: str

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.transient_bytes


def memory_table(w: WeightBytes) -> list[Row]:
    """The rows of Table 3 in the order of the paper's text."""
    s, npu, gpu = w.artifact_bytes, w.npu_transient_bytes, w.gpu_transient_bytes
    merged = 2 * (w.base_bytes + w.totals.attention_base_bytes)
    fp16 = 2 * FP16_BYTES * (w.parameters.base - w.parameters.text_embedder)
    return [
        Row("artifact", s, 0, "stored once"),
        Row("two engines, one copy", s, npu + gpu, "NPU: FP16 feed-forward pair; GPU: staged pair"),
        Row("data parallel", 2 * s, npu, "as the paper counts: without the GPU's staging"),
        Row("one merged INT8 copy per engine", merged, npu, "the detail expert as a second attention base"),
        Row("one FP16 copy per engine", fp16, 0, "base parameters without the text projection (our reading)"),
    ]
