"""A small decoder with random weights, its float graphs, and what is measured of them; made once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from exporters.decoder.geometry import DecoderGeometry
from exporters.decoder.graphs import stage_graphs, whole_graph
from quant.decoder.encodings import Encodings, Settings, choose_encodings
from quant.decoder.graph import Graphs, Structure, structure
from quant.decoder.ports import float_ports
from quant.decoder.qdq import quantise
from quant.decoder.ranges import Ranges, observe
from quant.decoder.stream import Float32Array
from tests.exporters.decoder.vaes import in_memory, latent

SMALL = DecoderGeometry(base_dim=8, z_dim=4, dim_mult=(1, 4), num_res_blocks=1, temporal_upsample=(True,))
"""Attention, an upsampling in time, a shortcut: all kinds of nodes that the large one has."""
ROWS, COLUMNS = 3, 4
STAGES = (("mid",), ("up0",), ("up1",))


def float_graphs(rows: int = ROWS, columns: int = COLUMNS, groups: Sequence[Sequence[str]] | None = None) -> Graphs:
    decoder = in_memory(SMALL)
    if groups is None:
        return Graphs.of(*(whole_graph(decoder, v, rows, columns).model() for v in ("first", "later")))
    return Graphs.of(
        *([g.model() for g in stage_graphs(decoder, v, rows, columns, groups)] for v in ("first", "later"))
    )


def clip(seed: int, frames: int = 3, rows: int = ROWS, columns: int = COLUMNS) -> Float32Array:
    return latent(frames, rows, columns, SMALL, seed)


@cache
def graphs() -> Graphs:
    return float_graphs()


@cache
def known() -> Structure:
    return structure(graphs())


@cache
def ranges() -> Ranges:
    return observe(graphs(), [clip(seed) for seed in range(10, 16)], known())


MIXED = frozenset({"latent", "mid_block.resnets.0", "up_blocks.1.resnets.0.act1", "frames"})
"""Sixteen bits at a port, for a sum, for a cache, and for frames; beside the roots."""


def encodings(wide: frozenset[str] | None = None, settings: Settings | None = None) -> Encodings:
    return choose_encodings(known(), ranges(), known().root_groups | MIXED if wide is None else wide, settings)


@cache
def quantised(wide: frozenset[str] | None = None) -> Graphs:
    return quantise(graphs(), encodings(wide))


def behind_floats(found: Graphs) -> Graphs:
    return Graphs(tuple(map(float_ports, found.first)), tuple(map(float_ports, found.later)))


def psnr_db(found: Float32Array, reference: Float32Array) -> float:
    return float(-10 * np.log10(np.square(found.astype(np.float64) - reference).mean()))
