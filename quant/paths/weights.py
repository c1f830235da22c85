"""A model's weights on a compute device, each in the form that an arithmetic reads, made once and kept."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quant.source import TensorSource


class Weights:
    """Tensors of a `TensorSource` on a device. A form that was made is kept until the object goes."""

    def __init__(self, source: TensorSource, device: torch.device | str = "cpu") -> None:
        self.source = source
        self.shape = source.shape
        self.steps = tuple(source.steps)
        self.device = torch.device(device)
        self.adaln = torch.tensor(source.tables.adaln, device=self.device)
        """float32 [steps, layers, 6, width]."""
        self.head_table = torch.tensor(source.tables.head, device=self.device)
        self.rope_frequencies = source.tables.rope_frequencies
        self._kept: dict[tuple[str, str], Tensor] = {}

    def values(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor in a float dtype; `lora_B` multiplied by alpha / rank."""

        def make() -> Tensor:
            return torch.tensor(self.source.values(name)).to(self.device).to(dtype)

        return self._keep(name, str(dtype), make)

    def codes(self, name: str) -> Tensor:
        """A weight's INT8 codes ``[n, k]``."""
        return self._pair(name)[0]

    def scales(self, name: str) -> Tensor:
        """A weight's FP32 scales ``[n]``."""
        return self._pair(name)[1]

    def widened(self, name: str) -> Tensor:
        """A weight as the NPU widens it: ``fp16(q · s)`` ``[n, k]``."""

        def make() -> Tensor:
            held = self._kept.get((name, "codes"))
            if held is not None:
                return (held.float() * self.scales(name)[:, None]).half()
            q, s = self.source.quantized(name)  # not kept: the NPU reads nothing else
            return (torch.tensor(q).float() * torch.tensor(s)[:, None]).half().to(self.device)

        return self._keep(name, "widened", make)

    def _pair(self, name: str) -> tuple[Tensor, Tensor]:
        """Codes and scales, quantised once."""
        if (name, "codes") not in self._kept:
            q, s = self.source.quantized(name)
            self._kept[name, "codes"] = torch.tensor(q).to(self.device)
            self._kept[name, "scales"] = torch.tensor(s).to(self.device)
        return self._kept[name, "codes"], self._kept[name, "scales"]

    def _keep(self, name: str, form: str, make: Callable[[], Tensor]) -> Tensor:
        key = (name, form)
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]
