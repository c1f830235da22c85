"""Tiles become whole frames: neighbours fade into each other over what they share.

The formula is that of ``blend_v`` and ``blend_h`` of diffusers' ``AutoencoderKLWan``: over a fade of n pixels, pixel i
is ``before · (1 - i / n) + own · (i / n)``; first from the tile above, then from the tile on the left, both of which
are themselves blended by then.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from exporters.decoder.tiles import Span, Tile, TilePlan
from exporters.tensor import Float32Array


class Mosaic:
    """Frames [T, rows, columns, channels] that are put together from tiles, ``scale`` pixels per latent pixel.

    Tiles come in the plan's order, frames of a tile in any pieces. Beside the frames it keeps the strips of blended
    tiles that later ones fade from.
    """

    def __init__(self, plan: TilePlan, *, frames: int, scale: int, channels: int) -> None:
        rows, columns = plan.latent_shape
        self.plan = plan
        self.scale = scale
        self.frames: Float32Array = np.zeros((frames, rows * scale, columns * scale, channels), np.float32)
        self._right: dict[tuple[int, int], Float32Array] = {}
        self._below: dict[tuple[int, int], Float32Array] = {}

    def put(self, tile: Tile, first_frame: int, values: Float32Array) -> None:
        """Frames ``first_frame`` … of ``tile``: float32 [t, rows, columns, channels] of the whole tile."""
        at = slice(first_frame, first_frame + values.shape[0])
        values = values.copy()
        if tile.rows.fade:
            _fade(values, self._below[tile.row - 1, tile.column][at], self._inside(tile.rows), axis=1)
        if tile.columns.fade:
            _fade(values, self._right[tile.row, tile.column - 1][at], self._inside(tile.columns), axis=2)
        rows, columns = self._kept(tile.rows), self._kept(tile.columns)
        self.frames[at, self._pixels(tile.rows), self._pixels(tile.columns)] = values[:, rows, columns]
        self._keep_strips(tile, at, values)

    def _keep_strips(self, tile: Tile, at: slice, values: Float32Array) -> None:
        """What the tiles on the right and below will fade from; what no tile needs any more is forgotten."""
        place = tile.row, tile.column
        if tile.column + 1 < len(self.plan.columns):
            after = self._strip(tile.columns, self.plan.columns[tile.column + 1])
            self._store(self._right, place, at, values[:, :, after])
        if tile.row + 1 < len(self.plan.rows):
            after = self._strip(tile.rows, self.plan.rows[tile.row + 1])
            self._store(self._below, place, at, values[:, after])
        if at.stop == len(self.frames):
            self._right.pop((tile.row, tile.column - 1), None)
            self._below.pop((tile.row - 1, tile.column), None)

    def _store(
        self, strips: dict[tuple[int, int], Float32Array], place: tuple[int, int], at: slice, strip: Float32Array
    ) -> None:
        if place not in strips:
            strips[place] = np.zeros((len(self.frames), *strip.shape[1:]), np.float32)
        strips[place][at] = strip

    def _pixels(self, span: Span) -> slice:
        """What a tile gives, in pixels of the frame."""
        return slice(span.keep_start * self.scale, span.keep_stop * self.scale)

    def _kept(self, span: Span) -> slice:
        """The same in pixels of the tile."""
        return slice((span.keep_start - span.start) * self.scale, (span.keep_stop - span.start) * self.scale)

    def _inside(self, span: Span) -> slice:
        """Where a tile fades, in its pixels."""
        start = (span.keep_start - span.start) * self.scale
        return slice(start, start + span.fade * self.scale)

    def _strip(self, span: Span, following: Span) -> slice:
        """Where ``following`` fades, in the pixels of the tile of ``span`` before it."""
        start = (following.keep_start - span.start) * self.scale
        return slice(start, start + following.fade * self.scale)


def _fade(values: Float32Array, before: Float32Array, where: slice, *, axis: int) -> None:
    """Blends ``before`` into ``values`` in place, over ``where`` along ``axis``."""
    count = where.stop - where.start
    share: npt.NDArray[np.float64] = np.arange(count) / count
    weight = share.reshape([count if i == axis else 1 for i in range(values.ndim)])
    index = tuple(where if i == axis else slice(None) for i in range(values.ndim))
    values[index] = before * (1 - weight).astype(np.float32) + values[index] * weight.astype(np.float32)
