"""The decoder's steps as ONNX nodes, in forms that Qualcomm's HTP takes.

Sources: ``WanRMS_norm``, ``WanResidualBlock``, ``WanAttentionBlock``, ``WanResample`` and ``WanCausalConv3d`` of
diffusers. Values are float32 [1, C, T, h, w] unless stated. What the HTP refuses (QAIRT 2.51, V79, INT8) decides the
forms: no Sqrt, norm operator or ReduceL2 above rank 4, and no operator on shapes. A feature map changes its rank only
where a 2-D convolution needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from exporters.decoder.builder import GraphBuilder, Value
from exporters.decoder.geometry import CACHE_FRAMES, Cache, Step
from exporters.decoder.weights import DecoderWeights

Variant = Literal["first", "later"]
"""``first`` decodes the first latent frame, without temporal upsampling; ``later`` each other one."""

NORMALIZE_EPS = 1e-12
"""The least norm that ``torch.nn.functional.normalize`` divides by."""


@dataclass(frozen=True)
class Blocks:
    """Adds steps of one ``variant`` to ``b``. ``caches`` are those of the tile, by the name of their convolution."""

    b: GraphBuilder
    weights: DecoderWeights
    variant: Variant
    caches: Mapping[str, Cache]

    def step(self, x: Value, step: Step) -> Value:
        """``x`` after ``step``."""
        match step.kind:
            case "affine":
                return self._affine(x)
            case "conv_in":
                return self._causal(x, step.name)
            case "resnet":
                return self._resnet(x, step)
            case "attention":
                return self._attention(x, step)
            case "upsample":
                return self._upsample(x, step)
            case "head":
                return self._causal(self._silu(self._rms(x, "norm_out"), "act_out"), step.name, "frames")

    # ---- convolutions ----

    def _affine(self, x: Value) -> Value:
        """Undoes the latent's normalisation and applies the post-quant convolution, as one 1×1×1 convolution."""
        weight, bias = self.weights.affine(self.b)
        return self.b.conv(x, weight, bias, "post_quant_conv", before=(0, 0, 0), after=(0, 0, 0))

    def _causal(self, x: Value, name: str, out: str = "") -> Value:
        """A convolution over each frame and the two before it, and its cache.

        In a `first` graph the two frames before are the convolution's zero padding, and the cache is [0, x]; in a
        `later` graph they are the cache of the frame before, and the new one is the last two of all frames.
        """
        b, cache = self.b, self.caches[name]
        weight, bias = self.weights.conv(b, f"decoder.{name}")
        side = weight.shape[3] // 2
        if self.variant == "first":
            b.output(b.pad_front(x, 2, CACHE_FRAMES - 1, cache.output_name))
            return b.conv(x, weight, bias, out or name, before=(CACHE_FRAMES, side, side), after=(0, side, side))
        frames = self._remembered(x, cache)
        return b.conv(frames, weight, bias, out or name, before=(0, side, side), after=(0, side, side))

    def _remembered(self, x: Value, cache: Cache) -> Value:
        """The cached frames in front of ``x``; writes the cache for the next latent frame."""
        b = self.b
        frames = b.concat([b.input(cache.input_name, cache.shape), x], 2, f"{cache.name}.frames")
        count = frames.shape[2]
        b.output(b.slice(frames, 2, count - CACHE_FRAMES, count, cache.output_name))
        return frames

    def _forget(self, x: Value, cache: Cache) -> None:
        """Writes a cache of zeros, computed as x - x: a constant would be as large as the feature map, and x · 0 in
        FP16 ends the emulator of QAIRT 2.51."""
        zeros = self.b.elementwise("Sub", f"{cache.name}.zeros", x, x)
        self.b.output(self.b.concat([zeros] * CACHE_FRAMES, 2, cache.output_name))

    # ---- norm, activation, residual block ----

    def _rms(self, x: Value, name: str) -> Value:
        """``normalize(x, dim=1) · √C · gamma``: x / √(mean of squares + ε) · gamma over the channels.

        The square root is taken at rank 4, for which only the one-channel mean is reshaped. ε = 1e-24 / C stands for
        ``normalize``'s least norm of 1e-12: where all channels are 0 the result is 0, elsewhere ε is lost in float32.
        """
        b = self.b
        mean = self._mean_square(x, name)
        if len(x.shape) == 4:
            root = self._root(mean, x.shape[1], name)
        else:
            flat = b.reshape(mean, (1, 1, mean.shape[2] * mean.shape[3], mean.shape[4]), f"{name}.mean.flat")
            root = b.reshape(self._root(flat, x.shape[1], name), mean.shape, f"{name}.rms.volume")
        gamma = self.weights.gamma(b, f"decoder.{name}", len(x.shape))
        return b.elementwise("Mul", name, b.elementwise("Div", f"{name}.unit", x, root), gamma)

    def _mean_square(self, x: Value, name: str) -> Value:
        b = self.b
        square = b.elementwise("Mul", f"{name}.square", x, x)
        shape = (x.shape[0], 1, *x.shape[2:])
        return b.op("ReduceMean", [square, b.numbers(1)], f"{name}.mean", shape, keepdims=1)

    def _root(self, mean: Value, channels: int, name: str) -> Value:
        b = self.b
        eps = b.floats(f"{name}.eps", np.full((1, 1, 1, 1), NORMALIZE_EPS**2 / channels, np.float32))
        return b.elementwise("Sqrt", f"{name}.rms", b.elementwise("Add", f"{name}.mean.eps", mean, eps))

    def _silu(self, x: Value, name: str) -> Value:
        return self.b.elementwise("Mul", name, x, self.b.elementwise("Sigmoid", f"{name}.sigmoid", x))

    def _resnet(self, x: Value, step: Step) -> Value:
        b, name = self.b, step.name
        y = self._causal(self._silu(self._rms(x, f"{name}.norm1"), f"{name}.act1"), f"{name}.conv1")
        y = self._causal(self._silu(self._rms(y, f"{name}.norm2"), f"{name}.act2"), f"{name}.conv2")
        if step.width != step.out:
            weight, bias = self.weights.conv(b, f"decoder.{name}.conv_shortcut")
            x = b.conv(x, weight, bias, f"{name}.conv_shortcut", before=(0, 0, 0), after=(0, 0, 0))
        return b.elementwise("Add", name, y, x)

    # ---- attention ----

    def _attention(self, x: Value, step: Step) -> Value:
        """Attention with one head among the pixels of the one frame; q's weights carry the factor 1/√C."""
        b, name = self.b, step.name
        _, channels, frames, rows, columns = x.shape
        assert frames == 1, x  # noqa: S101 - the middle block lies before every temporal upsampling
        image, pixels = (1, channels, rows, columns), rows * columns
        y = self._rms(b.reshape(x, image, f"{name}.image"), f"{name}.norm")
        parts = []
        for part, (weight, bias) in self.weights.qkv(b, f"decoder.{name}").items():
            z = b.conv(y, weight, bias, f"{name}.{part}", before=(0, 0), after=(0, 0))
            parts.append(b.reshape(z, (1, 1, channels, pixels), f"{name}.{part}.pixels"))
        q, k, v = parts
        rows_of_q = b.transpose(q, (0, 1, 3, 2), f"{name}.q.rows")
        scores = b.op("MatMul", [rows_of_q, k], f"{name}.scores", (1, 1, pixels, pixels))
        shares = b.op("Softmax", [scores], f"{name}.shares", scores.shape, axis=-1)
        rows_of_v = b.transpose(v, (0, 1, 3, 2), f"{name}.v.rows")
        seen = b.op("MatMul", [shares, rows_of_v], f"{name}.seen", rows_of_v.shape)
        y = b.reshape(b.transpose(seen, (0, 1, 3, 2), f"{name}.seen.channels"), image, f"{name}.seen.image")
        weight, bias = self.weights.conv(b, f"decoder.{name}.proj")
        y = b.conv(y, weight, bias, f"{name}.proj", before=(0, 0), after=(0, 0))
        return b.elementwise("Add", name, b.reshape(y, x.shape, f"{name}.proj.volume"), x)

    # ---- upsampling ----

    def _upsample(self, x: Value, step: Step) -> Value:
        """Twice the height and width at half the channels and, in a `later` graph, twice the frames ``in_time``.

        The time convolution makes 2C channels, of which the first C are the earlier and the last C the later of two
        frames (``WanResample``). Once frames come before channels, that is a reshape: [t, 2C, h, w] is [2t, C, h, w].
        A `first` graph skips it and leaves a cache of zeros.
        """
        b, name = self.b, step.name
        if step.in_time:
            time_conv = f"{name}.time_conv"
            if self.variant == "first":
                self._forget(x, self.caches[time_conv])
            else:
                x = self._causal(x, time_conv)
        _, channels, frames, rows, columns = x.shape
        if frames > 1:
            x = b.transpose(x, (0, 2, 1, 3, 4), f"{name}.by_frame")
        frames *= channels // step.width
        images = b.reshape(x, (frames, step.width, rows, columns), f"{name}.images")
        large = self._twice(images, f"{name}.resample.0")
        weight, bias = self.weights.conv(b, f"decoder.{name}.resample.1")
        y = b.conv(large, weight, bias, f"{name}.resample.1", before=(1, 1), after=(1, 1))
        if frames == 1:
            return b.reshape(y, (1, step.out, 1, 2 * rows, 2 * columns), name)
        y = b.reshape(y, (1, frames, step.out, 2 * rows, 2 * columns), f"{name}.volume")
        return b.transpose(y, (0, 2, 1, 3, 4), name)

    def _twice(self, x: Value, name: str) -> Value:
        """Each pixel of [N, C, h, w] four times: nearest, which at a factor of two is also ``nearest-exact``."""
        scales = self.b.floats("scales.twice", np.array([1, 1, 2, 2], np.float32))
        count, channels, rows, columns = x.shape
        return self.b.op(
            "Resize", [x, "", scales], name, (count, channels, 2 * rows, 2 * columns),
            mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
