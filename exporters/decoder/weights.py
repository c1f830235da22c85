"""The decoder's tensors in the forms that the graphs use, named after what they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from exporters.decoder.builder import GraphBuilder, Value
from exporters.tensor import Float32Array, Tensor, check_finite

Float64 = np.float64


@dataclass(frozen=True)
class DecoderWeights:
    """``tensors`` under diffusers' names, with the mean and the standard deviation of the latents, one a channel."""

    tensors: Mapping[str, Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def read(self, name: str) -> Float32Array:
        """The whole tensor, float32.

        Raises:
            CheckpointError: it cannot be read, or holds a value that is not finite.
        """
        tensor = self.tensors[name]
        return check_finite(tensor, tensor.read())

    def conv(self, b: GraphBuilder, name: str) -> tuple[Value, Value]:
        """Weight and bias of a convolution as they are."""
        return self._plain(b, f"{name}.weight"), self._plain(b, f"{name}.bias")

    def gamma(self, b: GraphBuilder, name: str, rank: int) -> Value:
        """The gain of a norm, [1, C, 1, …] of ``rank``."""
        key = f"{name}.gamma"
        shape = (1, self.tensors[key].shape[0]) + (1,) * (rank - 2)
        return b.weight(key, shape, lambda: self.read(key).reshape(shape))

    def affine(self, b: GraphBuilder) -> tuple[Value, Value]:
        """``W(z · std + mean) + bias`` as one convolution of z: W · std and bias + W · mean, folded in float64."""
        weight, bias = "post_quant_conv.weight", "post_quant_conv.bias"

        def folded_weight() -> Float32Array:
            std = np.array(self.std, Float64).reshape(1, -1, 1, 1, 1)
            return (self.read(weight) * std).astype(np.float32)

        def folded_bias() -> Float32Array:
            matrix = self.read(weight).astype(Float64)[:, :, 0, 0, 0]
            return (self.read(bias) + matrix @ np.array(self.mean, Float64)).astype(np.float32)

        return (
            b.weight("latent_affine.weight", self.tensors[weight].shape, folded_weight),
            b.weight("latent_affine.bias", self.tensors[bias].shape, folded_bias),
        )

    def qkv(self, b: GraphBuilder, name: str) -> dict[str, tuple[Value, Value]]:
        """``to_q``, ``to_k`` and ``to_v`` of the fused ``to_qkv``; to_q is multiplied by 1/√C in float64."""
        width = self.tensors[f"{name}.proj.bias"].shape[0]
        parts: dict[str, tuple[Value, Value]] = {}
        for i, part in enumerate(("q", "k", "v")):
            factor = width**-0.5 if part == "q" else 1.0
            weight = self._part(b, name, part, "weight", i * width, width, factor)
            parts[part] = weight, self._part(b, name, part, "bias", i * width, width, factor)
        return parts

    def _part(self, b: GraphBuilder, name: str, part: str, kind: str, start: int, count: int, factor: float) -> Value:
        key = f"{name}.to_qkv.{kind}"

        def read() -> Float32Array:
            rows = self.read(key)[start : start + count]
            return (rows.astype(Float64) * factor).astype(np.float32)

        return b.weight(f"{name}.to_{part}.{kind}", (count, *self.tensors[key].shape[1:]), read)

    def _plain(self, b: GraphBuilder, key: str) -> Value:
        return b.weight(key, self.tensors[key].shape, lambda: self.read(key))
