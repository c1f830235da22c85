"""From ranges to encodings: what integer stands for what number, for each tensor of a decoder's graphs.

An encoding is affine, real = (code - zero_point) · scale, with unsigned codes of 8 or 16 bits; 0 is always exact,
because convolutions pad with it. The rules:

- tensors that only move values have one encoding, and so has a cache: where a call writes it, where the next reads it,
  and the frames of which it is a slice (`quant.decoder.graph.Group`);
- what a sigmoid or a softmax gives lies in [0, 1] by definition: 256 or 65,536 codes of one step each;
- ``frames`` span [-1, 1] whatever was seen: their codes are also the clamp;
- the shares of an attention, and what they weigh, always have 16 bits;
- a group is *narrow* (8 bits) or *wide* (16 bits). A narrow one is widened without loss where a wide node reads it;
- a square root under which everything rounds to 0 would be divided by: its epsilon becomes one step of the mean
  (`Encodings.epsilon`), which also holds for a black picture.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from quant.decoder.errors import DecoderQuantError
from quant.decoder.graph import FRAMES, Group, Key, Structure
from quant.decoder.ranges import Ranges

CodeType = Literal["uint8", "uint16"]
CODES: Mapping[CodeType, int] = {"uint8": 1 << 8, "uint16": 1 << 16}
_TINY = 2.0**-100
"""The least scale: below, a product of scales leaves FP32's normal numbers."""


@dataclass(frozen=True)
class Encoding:
    """real = (code - ``zero_point``) · ``scale``, ``scale`` being an FP32 number, codes from 0 up."""

    scale: float
    zero_point: int
    dtype: CodeType

    @property
    def low(self) -> float:
        """The number of code 0."""
        return -self.zero_point * self.scale

    @property
    def high(self) -> float:
        """The number of the last code."""
        return (CODES[self.dtype] - 1 - self.zero_point) * self.scale

    def widened(self) -> Encoding:
        """16 bits in which each code of this 8-bit encoding is exact: 256 steps for one."""
        assert self.dtype == "uint8", self  # noqa: S101 - a slip of this package
        return Encoding(self.scale / 256, self.zero_point * 256, "uint16")

    def quantise(self, values: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Codes, as QuantizeLinear gives them: halves to even, clipped."""
        steps = np.rint(values.astype(np.float32) / np.float32(self.scale)) + np.float32(self.zero_point)
        codes: npt.NDArray[Any] = np.clip(steps, 0, CODES[self.dtype] - 1).astype(self.dtype)
        return codes

    def dequantise(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """float32 numbers, as DequantizeLinear gives them."""
        numbers: npt.NDArray[np.float32] = (codes.astype(np.int32) - self.zero_point).astype(np.float32)
        return numbers * np.float32(self.scale)


def affine(low: float, high: float, dtype: CodeType) -> Encoding:
    """The finest encoding of ``low`` … ``high`` and 0 in which 0 is exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    last = CODES[dtype] - 1
    scale = float(np.float32(max((high - low) / last, _TINY)))
    zero_point = int(np.clip(np.rint(-low / scale), 0, last))
    return Encoding(scale, zero_point, dtype)


def shares(dtype: CodeType) -> Encoding:
    """Numbers of [0, 1): one step is 1/256 or 1/65,536."""
    return Encoding(1.0 / CODES[dtype], 0, dtype)


def frame_codes(dtype: CodeType) -> Encoding:
    """[-1, 1] with an exact 0: with 8 bits from -128/127, which a caller clamps."""
    half = CODES[dtype] // 2
    return Encoding(float(np.float32(1.0 / (half - 1))), half, dtype)


@dataclass(frozen=True)
class Settings:
    """How ranges become encodings.

    ``percentile``: which share of the values an 8-bit encoding spans, in percent, the rest cut evenly from both ends;
    100 spans all. 16 bits always span all.

    ``headroom`` and ``wide_headroom``: by how much an encoding of 8 and of 16 bits spans more than what was seen.

    The defaults are measured on four clips of the example model that calibration with twelve others had not seen:
    8 bits everywhere gave 41.2 dB with a headroom of 1 (its worst clip 36.2, by values cut off), 44.0 with 1.1, 45.7
    with 1.25 and 43.5 with 1.5; a percentile of 99.99 gave 44.3 with 1.25 (its worst clip 41.4).
    """

    percentile: float = 100.0
    headroom: float = 1.25
    wide_headroom: float = 2.0

    def __post_init__(self) -> None:
        """Raises ValueError for a headroom below 1."""
        if not min(self.headroom, self.wide_headroom) >= 1:
            raise ValueError(f"a headroom is at least 1, not {min(self.headroom, self.wide_headroom)}")


@dataclass(frozen=True)
class Pair:
    """The encodings of one group: ``stored`` where it is read and written, ``other`` of the other width, for nodes of
    that width."""

    stored: Encoding
    other: Encoding


@dataclass(frozen=True)
class Encodings:
    """Of every group by name, and of every tensor by its group."""

    pairs: Mapping[str, Pair]
    group_of: Mapping[Key, str]

    def pair(self, key: Key) -> Pair:
        """Of a tensor.

        Raises:
            DecoderQuantError: nothing is known of it.
        """
        if key not in self.group_of:
            raise DecoderQuantError(
                "there is no encoding for a tensor", where=f"{key.name!r} of the {key.variant} graph",
                fix="observe the ranges of graphs of the same decoder, in the same stages",
            )  # fmt: skip
        return self.pairs[self.group_of[key]]

    def stored(self, key: Key) -> Encoding:
        """Where a tensor is read and written."""
        return self.pair(key).stored

    @property
    def wide(self) -> tuple[str, ...]:
        """Names of the groups with 16 bits."""
        return tuple(name for name, pair in self.pairs.items() if pair.stored.dtype == "uint16")

    def to_json(self) -> str:
        """As text, the same for equal encodings."""
        pairs = {name: [asdict(pair.stored), asdict(pair.other)] for name, pair in self.pairs.items()}
        tensors = [[key.variant, key.name, group] for key, group in self.group_of.items()]
        return json.dumps({"groups": pairs, "tensors": tensors}, indent=1)

    @staticmethod
    def from_json(text: str) -> Encodings:
        """What `to_json` wrote."""
        content = json.loads(text)
        pairs = {name: Pair(*(Encoding(**e) for e in both)) for name, both in content["groups"].items()}
        return Encodings(pairs, {Key(variant, name): group for variant, name, group in content["tensors"]})


def choose_encodings(
    known: Structure, ranges: Ranges, wide: Collection[str] = (), settings: Settings | None = None
) -> Encodings:
    """Encodings of all groups, of which ``wide`` and those of the attention get 16 bits.

    Raises:
        DecoderQuantError: a name in ``wide`` that is no group, or a group without a range.
        ValueError: a percentile that the ranges cannot give.
    """
    if strange := sorted(set(wide) - set(known.groups)):
        raise DecoderQuantError("this is no group of tensors", where=repr(strange[0]))
    settings = settings or Settings()
    wide = {*wide, *known.attention}
    pairs = {}
    for group in known.groups.values():
        narrow, full = _encodings(group, ranges, settings)
        pairs[group.name] = Pair(full, narrow) if group.name in wide else Pair(narrow, narrow.widened())
    return Encodings(pairs, dict(known.group_of))


def _encodings(group: Group, ranges: Ranges, settings: Settings) -> tuple[Encoding, Encoding]:
    """With 8 and with 16 bits."""
    if group.fixed:
        return shares("uint8"), shares("uint16")
    if any(key.name == FRAMES for key in group.keys):
        return frame_codes("uint8"), frame_codes("uint16")
    missing = [key for key in group.sources if key not in ranges.ranges]
    if missing:
        raise DecoderQuantError("a tensor's range is not known", where=f"{missing[0].name!r} of {missing[0].variant}")
    seen = [ranges.ranges[key] for key in group.sources if ranges.ranges[key].high >= ranges.ranges[key].low]
    if not seen:
        raise DecoderQuantError("no value was seen of a tensor", where=repr(group.name))
    cut = [r.within(settings.percentile) for r in seen]
    more, wide_more = settings.headroom, settings.wide_headroom
    return (
        affine(min(low for low, _ in cut) * more, max(high for _, high in cut) * more, "uint8"),
        affine(min(r.low for r in seen) * wide_more, max(r.high for r in seen) * wide_more, "uint16"),
    )
