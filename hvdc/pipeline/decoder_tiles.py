"""Which tile a decoder is compiled for: the largest that the phone's compiler takes, tried from the top.

A compiler refuses a graph that needs more memory than one graph may have. How much that is can be predicted well
enough to leave out hopeless attempts, and an attempt that failed all the same is remembered with what it was told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeVar

from exporters.decoder.geometry import DecoderGeometry, stages
from exporters.decoder.tiles import TileSettings
from exporters.qnn.errors import QnnError
from hvdc.config import CompileConfig
from hvdc.errors import UsageError
from hvdc.pipeline.cache import cache_folder
from hvdc.pipeline.workspace import write_durably
from hvdc.targets import load_target

GRAPH_BYTES_PER_VALUE = 34
"""Bytes that a `later` graph needs for each value of a feature map of its last stage.

Measured: Qualcomm's compiler (QAIRT 2.51) estimated 5,070,188 KB for the whole decoder of Wan 2.1 at 60 × 104 latent
pixels, whose last stage has 96 channels on 4 frames of 480 × 832."""

SMALLEST_SIDE = 8
OVERLAP = 8
"""Latent pixels that tiles share at least, as in the paper and in diffusers."""

TILE = re.compile(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})")
T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Attempt:
    """A tile, and the stages of each of the graphs that it is compiled as."""

    tile: TileSettings
    groups: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        parts = "" if len(self.groups) == 1 else f" in {len(self.groups)} graphs"
        return f"tiles of {self.tile.rows} × {self.tile.columns} latent pixels{parts}"


class TilePlanner:
    """Attempts for a latent of ``rows`` × ``columns``, largest tile first; with `decoder_tile` set, that one alone.

    A tile is tried as one graph, then with its last stage apart, for what the compiler plans is not all predicted.
    The last stage has the largest feature maps, so that a tile that is predicted not to fit does not fit apart either.

    Raises UsageError for a tile that is larger than the latent.
    """

    def __init__(self, geometry: DecoderGeometry, latent: tuple[int, int], config: CompileConfig, tools: str) -> None:
        self._geometry, self._latent, self._config, self._tools = geometry, latent, config, tools
        self._limit_bytes = load_target(config.target).graph_limit_bytes.value
        self._memory = cache_folder("decoders") / "refused.json"
        self._stages = tuple(stage.name for stage in stages(geometry))
        if config.decoder_tile != "auto":
            self._given()

    def graph_bytes(self, tile: TileSettings) -> int:
        """Predicted memory of a `later` graph of all stages."""
        g = self._geometry
        pixels = tile.rows * tile.columns * g.spatial_scale**2 * g.temporal_scale
        return GRAPH_BYTES_PER_VALUE * g.base_dim * pixels

    def attempts(self) -> Iterator[Attempt]:
        """In order; those that were refused before, by this compiler, or are predicted to be are left out."""
        refused = self._refused()
        for attempt in self._all():
            if self._config.decoder_tile != "auto" or (
                self._key(attempt) not in refused and self.graph_bytes(attempt.tile) <= self._limit_bytes
            ):
                yield attempt

    def first_that_compiles(self, build: Callable[[Attempt], T], say: Say) -> T:
        """What ``build`` made of the first attempt that the compiler took. Raises QnnError, that of the last one."""
        error: QnnError | None = None
        for attempt in self.attempts():
            say(f"{attempt.text}: about {self.graph_bytes(attempt.tile) / 2**20:,.0f} MiB of graph memory predicted")
            try:
                return build(attempt)
            except QnnError as refusal:
                if self._config.decoder_tile != "auto" or not refusal.too_large:
                    raise
                error = refusal
                self._remember(attempt, refusal)
                say(f"{attempt.text} do not compile: {refusal.what} ({refusal.found})")
        if error is None:
            raise QnnError(
                "no tile fits the compiler's memory", where="decoder_tile", found="all were refused before",
                fix=f"remove {self._memory} to try them again, or choose a --decoder-tile",
            )  # fmt: skip
        raise error

    def _all(self) -> Iterator[Attempt]:
        whole = (self._stages,)
        if self._config.decoder_tile != "auto":
            yield Attempt(self._given(), whole)
            return
        head_apart = (self._stages[:-1], self._stages[-1:])
        for tile in self._tiles():
            yield Attempt(tile, whole)
            if len(self._stages) > 1:
                yield Attempt(tile, head_apart)

    def _tiles(self) -> Iterator[TileSettings]:
        """The whole latent, then always the longer side of the tile in one part more."""
        (rows, columns), parts, seen = self._latent, [1, 1], set()
        while True:
            size = _part(rows, parts[0]), _part(columns, parts[1])
            if size not in seen:
                seen.add(size)
                yield _settings(*size)
            longer = 0 if size[0] > size[1] else 1
            if size[longer] <= SMALLEST_SIDE or parts[longer] >= self._latent[longer]:
                return
            parts[longer] += 1

    def _given(self) -> TileSettings:
        hit = TILE.fullmatch(self._config.decoder_tile)
        size = (int(hit[1]), int(hit[2])) if hit else (0, 0)
        if not hit or size[0] > self._latent[0] or size[1] > self._latent[1]:
            raise UsageError(
                "the decoder's tile is not possible", where="--decoder-tile",
                expected=f"auto, or ROWSxCOLUMNS of latent pixels up to {self._latent[0]}x{self._latent[1]}",
                found=self._config.decoder_tile, fix="--decoder-tile auto",
            )  # fmt: skip
        return _settings(*size)

    def _key(self, attempt: Attempt) -> str:
        facts = [asdict(self._geometry), asdict(attempt.tile), attempt.groups, self._config.decoder_optimization]
        return f"{self._tools}: {json.dumps(facts)}"

    def _refused(self) -> dict[str, str]:
        try:
            held = json.loads(self._memory.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return held if isinstance(held, dict) else {}

    def _remember(self, attempt: Attempt, refusal: QnnError) -> None:
        held = self._refused() | {self._key(attempt): f"{refusal.what}: {refusal.found}"}
        write_durably(self._memory, (json.dumps(held, indent=1, sort_keys=True) + "\n").encode())


def _settings(rows: int, columns: int) -> TileSettings:
    return TileSettings(rows, columns, min(OVERLAP, rows // 2), min(OVERLAP, columns // 2))


def _part(length: int, parts: int) -> int:
    """The size of ``parts`` equal tiles that share the overlap."""
    return -(-(length + (parts - 1) * OVERLAP) // parts)
