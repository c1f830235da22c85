"""Move outliers of the activations into the weights, offline, without changing the function or adding work at run time.

A channel of a GEMM input that is divided by s, while the columns of the weights that read it are multiplied by s, gives
the same product (SmoothQuant, arXiv 2211.10438). Where the division can be folded into something that is stored
anyway, it costs nothing. In a DCM block there are seven such **sites**:

- the AdaLN-modulated inputs of self-attention and of the up projection: shift and (1 + scale) of the tables ÷ s;
- the input of cross-attention's query: gain and bias of `norm2` ÷ s;
- the values of both attentions, and with them the inputs of both output projections: rows of `to_v`, its bias and its
  B ÷ s;
- queries against keys of both attentions: gain of `norm_q` ÷ s, gain of `norm_k` · s. Self-attention rotates adjacent
  channels into each other, so that both of a pair have one s.

Both experts share the base weights, so they share s. The adapters' A read the same inputs: their columns are multiplied
too. The input of the down projection leaves GELU, which does not commute with a factor: it has no site; nor has the
text, which all blocks share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from quant.calibration.statistics import Statistics
from quant.source import Float32Array, Float64Array, Shape


@dataclass(frozen=True)
class Site:
    """Where a factor s may be moved. ``divided`` and ``multiplied`` are GEMM inputs that become x / s and x · s.

    ``columns``: linears whose columns are multiplied. ``rows``: a linear whose rows, bias and B rows are divided.
    ``gains`` and ``inverse_gains``: vectors of the block that are divided, multiplied. ``adaln``: the table's row of
    the shift; the scale's follows it. ``paired``: adjacent channels share a factor.
    """

    name: str
    divided: tuple[str, ...]
    multiplied: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: str | None = None
    gains: tuple[str, ...] = ()
    inverse_gains: tuple[str, ...] = ()
    adaln: int | None = None
    paired: bool = False


def sites(shape: Shape) -> tuple[Site, ...]:
    """The sites of every block of a model."""
    found = [
        Site("attn1.input", ("attn1.input",), columns=("attn1.to_q", "attn1.to_k", "attn1.to_v"), adaln=0),
        Site("ffn.input", ("ffn.net.0.proj.input",), columns=("ffn.net.0.proj",), adaln=3),
    ]
    if shape.cross_attn_norm:
        gains = ("norm2.weight", "norm2.bias")
        found.append(Site("attn2.input", ("attn2.to_q.input",), columns=("attn2.to_q",), gains=gains))
    for attn in ("attn1", "attn2"):
        values = (f"{attn}.value", f"{attn}.to_out.0.input")
        found.append(Site(f"{attn}.value", values, columns=(f"{attn}.to_out.0",), rows=f"{attn}.to_v"))
        found.append(
            Site(
                f"{attn}.query",
                (f"{attn}.query",),
                (f"{attn}.key",),
                gains=(f"{attn}.norm_q.weight",),
                inverse_gains=(f"{attn}.norm_k.weight",),
                paired=attn == "attn1",
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class Rescaling:
    """Factors ``[layers, channels]`` float32 for some sites, and what they do to a model's numbers."""

    shape: Shape
    factors: Mapping[str, Float32Array]

    def tensor(self, name: str, rows: Float32Array, first_row: int = 0) -> Float32Array:
        """Rows of a canonical tensor, from ``first_row`` on, as the rescaled model has them. Others pass unchanged."""
        if not name.startswith("blocks."):
            return rows
        _, block, local = name.split(".", 2)
        for site in sites(self.shape):
            if site.name not in self.factors:
                continue
            s = self.factors[site.name][int(block)]
            span = s[first_row : first_row + rows.shape[0]]
            if local in site.gains:
                rows = rows / span
            elif local in site.inverse_gains:
                rows = rows * span
            elif any(local in (f"{linear}.weight", f"{linear}.lora_A.weight") for linear in site.columns):
                rows = rows * s
            elif site.rows is not None and local == f"{site.rows}.bias":
                rows = rows / span
            elif site.rows is not None and local in (f"{site.rows}.weight", f"{site.rows}.lora_B.weight"):
                rows = rows / span[:, None]
        return rows

    def adaln(self, table: Float32Array) -> Float32Array:
        """The modulation table ``[steps, layers, 6, width]`` of the rescaled model."""
        out = table.copy()
        for site in sites(self.shape):
            if site.adaln is not None and site.name in self.factors:
                s = self.factors[site.name]
                out[:, :, site.adaln] = table[:, :, site.adaln] / s
                scale = table[:, :, site.adaln + 1].astype(np.float64)
                out[:, :, site.adaln + 1] = ((1.0 + scale) / s - 1.0).astype(np.float32)
        return out

    def activations(self, name: str, channel_absmax: Float32Array) -> Float32Array:
        """What calibration would see: largest magnitudes ``[steps, layers, channels]`` of a GEMM input, rescaled."""
        for site in sites(self.shape):
            if site.name in self.factors and name in site.divided:
                return channel_absmax / self.factors[site.name]
            if site.name in self.factors and name in site.multiplied:
                return channel_absmax * self.factors[site.name]
        return channel_absmax


def smoothing_factors(
    shape: Shape,
    channel_absmax: Mapping[str, Float32Array],
    weight_absmax: Mapping[str, Float32Array],
    strength: float,
) -> dict[str, Float32Array]:
    """SmoothQuant's factors ``s = a^strength / w^(1 − strength)``, a and w the largest magnitudes of activation and
    weights.

    ``channel_absmax``: GEMM input -> ``[steps, layers, channels]``. ``weight_absmax``: linear -> ``[layers, in]``, the
    largest magnitude in each column of its weight (an adapter's A read with it). Queries are balanced against keys,
    where nothing but the square root makes sense: ``s = √(q / k)``. Factors of a site are divided by their geometric
    mean, and rounded to powers of 2^(1/8), so that the result does not hang on the last bits of a measured maximum.
    """
    found = {}
    for site in sites(shape):
        a = _largest(channel_absmax[site.divided[-1]])
        if site.paired:
            a = _over_pairs(a)
        if site.multiplied:
            b = _largest(channel_absmax[site.multiplied[0]])
            s = np.sqrt(a / (_over_pairs(b) if site.paired else b))
        else:
            w = np.maximum.reduce([weight_absmax[linear] for linear in site.columns]).astype(np.float64)
            s = a**strength / np.maximum(w, 1e-8) ** (1.0 - strength)
        logs = np.log2(np.clip(s, 1e-8, 1e8))
        logs -= logs.mean(axis=1, keepdims=True)
        found[site.name] = np.exp2(np.round(np.clip(logs, -LIMIT_LOG2, LIMIT_LOG2) * 8.0) / 8.0).astype(np.float32)
    return found


LIMIT_LOG2 = 8.0
"""Factors stay within 2^±8: a channel that never fires must not blow its weights up."""


def _largest(channel_absmax: Float32Array) -> Float64Array:
    """Over the steps, each step measured by its own largest value: each has its own scale."""
    peak = channel_absmax.max(axis=-1, keepdims=True)
    mean = np.mean(peak, axis=0, keepdims=True)
    relative = channel_absmax.astype(np.float64) / np.maximum(peak, 1e-12) * mean
    floor = 1e-6 * np.maximum(relative.max(axis=(0, 2)), 1e-30)  # a silent channel has no say
    found: Float64Array = np.maximum(relative.max(axis=0), floor[:, None])
    return found


def _over_pairs(a: Float64Array) -> Float64Array:
    pairs = a.reshape(*a.shape[:-1], -1, 2).max(axis=-1)
    repeated: Float64Array = np.repeat(pairs, 2, axis=-1)
    return repeated


def rescaled_statistics(rescaling: Rescaling, statistics: Statistics) -> Statistics:
    """The maxima that calibration would see; its histograms are of the model before, and must not be used."""
    channels = {name: rescaling.activations(name, values) for name, values in statistics.channel_absmax.items()}
    return replace(statistics, channel_absmax=channels)
