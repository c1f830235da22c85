"""Where the tiles of a latent lie, and which pixels each gives: pure data.

The decoder's graph has a fixed size, and one of a whole frame exceeds the memory that the phone's compiler grants a
graph, so each frame is decoded in spatial tiles. All frames of a tile are decoded before the next tile, so that one
tile's caches are live. The default is the paper's (appendix B.3): 60 × 40 latent pixels, three tiles for 60 × 104.

Neighbours overlap, and within the overlap one fades linearly into the other, as in diffusers' ``tiled_decode``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Placement = Literal["even", "diffusers"]


@dataclass(frozen=True)
class TileSettings:
    """The size of a tile and what two neighbours share at least, in latent pixels.

    ``placement``:

    - ``"even"``: all tiles have one size, so one graph decodes them all. There are as few as can be, spread evenly
      from edge to edge; where they share more than the overlap, they fade in the middle of what they share. A latent
      that is smaller than a tile is one tile of its own size.
    - ``"diffusers"``: as ``AutoencoderKLWan.tiled_decode`` places them. A tile starts at every multiple of the tile's
      size less the overlap, and is cut at the edge, so there are several sizes. For comparisons.
    """

    rows: int = 60
    columns: int = 40
    overlap_rows: int = 8
    overlap_columns: int = 8
    placement: Placement = "even"

    def __post_init__(self) -> None:
        """Raises ValueError for a tile without pixels, or an overlap of more than half of it."""
        for size, overlap, axis in (
            (self.rows, self.overlap_rows, "rows"),
            (self.columns, self.overlap_columns, "columns"),
        ):
            if size < 1:
                raise ValueError(f"a tile has at least one latent pixel each way, not {size} {axis}")
            if not 0 <= 2 * overlap <= size:
                raise ValueError(
                    f"tiles of {size} {axis} cannot overlap by {overlap}: at most half of a tile is shared"
                )
        if self.placement not in ("even", "diffusers"):
            raise ValueError(f"placement is 'even' or 'diffusers', not {self.placement!r}")


@dataclass(frozen=True)
class Span:
    """One tile along one axis, in latent pixels from the latent's edge.

    The tile decodes [``start``, ``stop``). Of that it gives [``keep_start``, ``keep_stop``) to the picture, the first
    ``fade`` pixels of which fade from the tile before into this one.
    """

    start: int
    stop: int
    keep_start: int
    keep_stop: int
    fade: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Tile:
    """One tile: its place in the grid and its spans."""

    row: int
    column: int
    rows: Span
    columns: Span

    @property
    def shape(self) -> tuple[int, int]:
        """Latent pixels, rows × columns."""
        return self.rows.size, self.columns.size


@dataclass(frozen=True)
class TilePlan:
    """The tiles of a latent: every pair of ``rows`` and ``columns``."""

    rows: tuple[Span, ...]
    columns: tuple[Span, ...]

    def __iter__(self) -> Iterator[Tile]:
        """The tiles in the order in which they're decoded: row by row, from the left."""
        for i, rows in enumerate(self.rows):
            for j, columns in enumerate(self.columns):
                yield Tile(i, j, rows, columns)

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)

    @property
    def latent_shape(self) -> tuple[int, int]:
        """Latent pixels of the whole, rows × columns."""
        return self.rows[-1].keep_stop, self.columns[-1].keep_stop

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The different sizes of tiles, each of which needs graphs of its own."""
        return tuple(dict.fromkeys(tile.shape for tile in self))


def plan_tiles(rows: int, columns: int, settings: TileSettings | None = None) -> TilePlan:
    """The tiles of a latent of ``rows`` × ``columns`` pixels.

    Raises ValueError for a latent without pixels.
    """
    if rows < 1 or columns < 1:
        raise ValueError(f"a latent has at least one pixel each way, not {rows} × {columns}")
    s = settings or TileSettings()
    if s.placement == "even":
        return TilePlan(_even(rows, s.rows, s.overlap_rows), _even(columns, s.columns, s.overlap_columns))
    if rows <= s.rows and columns <= s.columns:  # diffusers doesn't tile then
        return TilePlan(_spans([(0, rows)], [0]), _spans([(0, columns)], [0]))
    return TilePlan(_strided(rows, s.rows, s.overlap_rows), _strided(columns, s.columns, s.overlap_columns))


def _even(length: int, size: int, overlap: int) -> tuple[Span, ...]:
    if length <= size:
        return _spans([(0, length)], [0])
    count = -(-(length - overlap) // (size - overlap))
    starts = [round(i * (length - size) / (count - 1)) for i in range(count)]
    return _spans([(start, start + size) for start in starts], [0] + [overlap] * (count - 1))


def _strided(length: int, size: int, overlap: int) -> tuple[Span, ...]:
    extents = [(start, min(start + size, length)) for start in range(0, length, size - overlap)]
    sizes = [stop - start for start, stop in extents]
    fades = [0] + [min(a, b, overlap) for a, b in pairwise(sizes)]
    return _spans(extents, fades)


def _spans(extents: list[tuple[int, int]], fades: list[int]) -> tuple[Span, ...]:
    """Spans whose fades lie in the middle of what a tile shares with the one before."""
    keep = [0]
    for (_, stop_before), (start, _), fade in zip(extents, extents[1:], fades[1:], strict=False):
        keep.append(start + (stop_before - start - fade) // 2)
    keep.append(extents[-1][1])
    return tuple(
        Span(start, stop, keep[i], keep[i + 1], fade)
        for i, ((start, stop), fade) in enumerate(zip(extents, fades, strict=True))
    )
