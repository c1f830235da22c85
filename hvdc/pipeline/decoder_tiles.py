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

from exporters.decoder.blocks import Variant
from exporters.decoder.geometry import DecoderGeometry, stages
from exporters.decoder.tiles import TileSettings
from exporters.qnn.errors import QnnError
from hvdc.config import CompileConfig
from hvdc.errors import UsageError
from hvdc.files import write_durably
from hvdc.pipeline.cache import cache_folder, locked

WHOLE_BYTES_PER_VALUE, LAST_BYTES_PER_VALUE, FRONT_BYTES_PER_VALUE = 34, 28, 40
"""Bytes that a `later` graph needs for each value of a feature map of its last stage: a graph of all stages, of the
decoder's last stage alone, and of stages without that one.

Measured at 60 × 104 latent pixels: Qualcomm's compiler (QAIRT 2.51) estimated 5,070,188 KB for the whole decoder of
Wan 2.1 and 4,099,937 KB for its last stage, which has 96 channels on 4 frames of 480 × 832, and 3,048,942,336 bytes
for the stage before it, 192 channels on 4 frames of 240 × 416."""

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
    """Attempts for a latent of ``rows`` × ``columns``, largest tile first; with `decoder_tile` set, of that tile.

    A tile is tried as one graph, then with its last stage apart: the last stage has the largest feature maps, so that
    a tile does not fit where that stage alone does not.

    Raises UsageError for a tile that is larger than the latent.
    """

    def __init__(self, geometry: DecoderGeometry, latent: tuple[int, int], config: CompileConfig, tools: str) -> None:
        self._geometry, self._latent, self._config, self._tools = geometry, latent, config, tools
        target = config.described_target()
        self._graph_limit, self._context_limit = target.graph_limit_bytes.value, target.context_limit_bytes.value
        self._memory = cache_folder("decoders") / "refused.json"
        self._stages = {stage.name: stage for stage in stages(geometry)}
        if config.decoder_tile != "auto":
            self._given()

    def graph_bytes(self, attempt: Attempt, variant: Variant = "later") -> tuple[int, ...]:
        """Predicted memory of each graph of a variant; those of `later` need most."""
        return tuple(self._group_bytes(attempt.tile, group, variant) for group in attempt.groups)

    def loaded_bytes(self, attempt: Attempt) -> int:
        """Predicted memory of what must be loaded together to decode a later frame.

        Graphs with shared weights are one context. That its memory is that of its largest graph, since they run one
        after another, is assumed: no phone has loaded one. Contexts of their own each keep theirs."""
        every = self.graph_bytes(attempt)
        return max(every) if self._config.decoder_share_weights else sum(every)

    def attempts(self) -> Iterator[Attempt]:
        """In order; those that were refused before, by this compiler, or are predicted to be are left out.

        Of a tile that was asked for, all are tried if nothing would be left."""
        refused = self._refused()

        def hopeful(attempt: Attempt) -> bool:
            return (
                self._key(attempt) not in refused
                and max(self.graph_bytes(attempt)) <= self._graph_limit
                and self.loaded_bytes(attempt) <= self._context_limit
            )

        if self._config.decoder_tile == "auto":
            yield from filter(hopeful, self._all())
        else:
            every = list(self._all())
            yield from list(filter(hopeful, every)) or every

    def first_that_compiles(self, build: Callable[[Attempt], T], say: Say) -> T:
        """What ``build`` made of the first attempt that the compiler took. Raises QnnError, that of the last one."""
        error: QnnError | None = None
        for attempt in self.attempts():
            say(f"{attempt.text}: about {self.loaded_bytes(attempt) / 2**20:,.0f} MiB of graph memory predicted")
            try:
                return build(attempt)
            except QnnError as refusal:
                if not (refusal.too_large or refusal.stopped):
                    raise
                error = refusal
                if refusal.too_large:  # what a limit of time or memory stopped may go well another day
                    self._remember(attempt, refusal)
                say(f"{attempt.text} do not compile: {refusal.what} ({refusal.found})")
        if error is None:
            raise QnnError(
                "no tile fits the compiler's memory", where="decoder_tile", found="all were refused before",
                fix=f"remove {self._memory} to try them again, or choose a --decoder-tile",
            )  # fmt: skip
        raise error

    def _all(self) -> Iterator[Attempt]:
        names = tuple(self._stages)
        for tile in self._tiles() if self._config.decoder_tile == "auto" else [self._given()]:
            yield Attempt(tile, (names,))
            if len(names) > 1:
                yield Attempt(tile, (names[:-1], names[-1:]))

    def _group_bytes(self, tile: TileSettings, group: tuple[str, ...], variant: Variant) -> int:
        last, stage = next(reversed(self._stages)), self._stages[group[-1]]
        per_value = FRONT_BYTES_PER_VALUE
        if group[-1] == last:
            per_value = WHOLE_BYTES_PER_VALUE if len(group) > 1 else LAST_BYTES_PER_VALUE
        channels = max(step.out for step in stage.steps if step.kind == "resnet")
        frames = stage.frames if variant == "later" else 1
        return per_value * channels * frames * stage.scale**2 * tile.rows * tile.columns

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
        with locked(self._memory):
            held = self._refused() | {self._key(attempt): f"{refusal.what}: {refusal.found}"}
            write_durably(self._memory, (json.dumps(held, indent=1, sort_keys=True) + "\n").encode())


def _settings(rows: int, columns: int) -> TileSettings:
    return TileSettings(rows, columns, min(OVERLAP, rows // 2), min(OVERLAP, columns // 2))


def _part(length: int, parts: int) -> int:
    """The size of ``parts`` equal tiles that share the overlap."""
    return -(-(length + (parts - 1) * OVERLAP) // parts)
