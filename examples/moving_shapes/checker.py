"""Judges whether a clip shows what its prompt asks for. Needs numpy only.

A generated clip has no single right answer: the prompt leaves place, size and speed open. So each attribute is
measured from the pixels and compared with the prompt's word, without a reference clip:

* **background**: the median of each row (a shape never covers half of one) against the three drawn backgrounds;
* **colour**: of each frame, the median of the pixels that differ most from the background; the nearest of the
  six must be the prompt's in all but `WRONG_FRAMES` of the frames;
* **shape**: the mask's overlap with each of the four shapes; the best one must be the prompt's;
* **motion**: a straight line through the mask's centroids.

**IoU** is how well the mask is filled: intersection over union of the mask and the *prompted* shape drawn at the
mask's own centroid with the mask's own area, mean over all frames. It is 1 for a perfect drawing anywhere in the
frame and at any size; lumps, holes, stray spots and wrong corners lower it. A frame without a mask counts as 0.
Agreement alone says little, since a lumpy square still passes as one; read IoU, and its lowest tenth, beside it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from examples.moving_shapes.scenes import (
    AREA,
    BACKGROUNDS,
    COLOURS,
    MOTIONS,
    SHAPES,
    Scene,
    parse_prompt,
    signed_distance,
)

ATTRIBUTES = ("shape", "colour", "motion", "background")

WRONG_FRAMES = 2
"""So many frames may have another colour (or no shape) before the clip's colour counts as wrong."""

MIN_AREA_PX = 200
"""A mask smaller than this is no shape; the smallest that is drawn has 562 pixels (a triangle of radius 16)."""

STILL_PX_PER_FRAME = 0.5
SPEED_LIMITS_PX_PER_FRAME = (1.0, 4.0)
MAX_PATH_ERROR_PX = 2.0
MAX_BACKGROUND_ERROR = 0.08
MIN_CONTRAST = 0.12

Floats = NDArray[np.float32]


class Moments(NamedTuple):
    """Of the mask in each frame: area in pixels, column and row of the centroid (0 where the mask is empty)."""

    area: Floats
    cx: Floats
    cy: Floats


def check(frames: NDArray[np.generic], prompt: str) -> dict[str, float]:
    """Agreement of a clip with its prompt: 0 or 1 for shape, colour, motion, background and ``all``; and ``iou``.

    Args:
        frames: [T, H, W, 3], uint8, or floating point in [0, 1] (values outside are clipped).
        prompt: one of the 360 prompts.
    """
    wanted = parse_prompt(prompt)
    clip = _as_float(frames)
    background = _row_medians(clip)
    masks, colours = _masks(clip, background)
    moments = _moments(masks)
    overlap = {shape: _fitted_iou(masks, moments, shape) for shape in SHAPES}
    found = {
        "shape": max(SHAPES, key=lambda shape: overlap[shape].mean()) == wanted.shape,
        "colour": _colour_is(colours, wanted),
        "motion": _motion(moments) == wanted.motion,
        "background": _background(background) == wanted.background,
    }
    if not masks.any():
        found["shape"] = False
    out = {name: float(found[name]) for name in ATTRIBUTES}
    out["all"] = float(all(found.values()))
    out["iou"] = float(overlap[wanted.shape].mean())
    return out


def _as_float(frames: NDArray[np.generic]) -> Floats:
    if frames.ndim != 4 or frames.shape[-1] != 3:
        raise ValueError(f"frames must be [T, H, W, 3], not {frames.shape}")
    if frames.dtype == np.uint8:
        return frames.astype(np.float32) / np.float32(255)
    return np.clip(np.nan_to_num(frames.astype(np.float32)), 0, 1)


def _row_medians(clip: Floats) -> Floats:
    """[T, H, 3]. Every third column is enough for a median."""
    return np.median(clip[:, :, ::3], axis=2).astype(np.float32)


def _masks(clip: Floats, background: Floats) -> tuple[NDArray[np.bool_], Floats]:
    """Where each frame shows something other than background, [T, H, W], and its colour, [T, 3] (NaN: nothing)."""
    masks = np.zeros(clip.shape[:3], bool)
    colours = np.full((len(clip), 3), np.nan, np.float32)
    for t, frame in enumerate(clip):
        # Channel by channel: numpy is slow along a last dimension of three.
        difference = [frame[..., c] - background[t, :, c, None] for c in range(3)]
        squared = sum(d * d for d in difference)
        # The smallest shape covers 3.4 % of the frame, so the 98th percentile lies inside any of them.
        rank = int(squared.size * 0.98)
        peak = np.partition(squared, rank, axis=None)[rank]
        if peak < MIN_CONTRAST**2:
            continue
        colour = np.median(frame[squared > 0.6**2 * peak], axis=0)
        # Where a pixel lies on the way from its row's background (0) to the shape's colour (1).
        way = colour - background[t]
        length = np.maximum((way * way).sum(axis=-1), 1e-4)
        mask = sum(d * way[:, c, None] for c, d in enumerate(difference)) > 0.5 * length[:, None]
        if mask.sum() >= MIN_AREA_PX:
            masks[t], colours[t] = mask, colour
    return masks, colours


def _moments(masks: NDArray[np.bool_]) -> Moments:
    cols = masks.sum(axis=1, dtype=np.float32)
    rows = masks.sum(axis=2, dtype=np.float32)
    area = rows.sum(axis=1)
    some = np.maximum(area, 1)
    return Moments(area, cols @ _numbers(masks.shape[2]) / some, rows @ _numbers(masks.shape[1]) / some)


def _numbers(count: int) -> Floats:
    return np.arange(count, dtype=np.float32)


def _fitted_iou(masks: NDArray[np.bool_], moments: Moments, shape: str) -> Floats:
    """For each frame, intersection over union with ``shape`` at the mask's centroid, of the mask's area."""
    out = np.zeros(len(masks), np.float32)
    for t, (area, cx, cy) in enumerate(zip(*moments, strict=True)):
        if area == 0:
            continue
        radius = np.sqrt(area / np.float32(AREA[shape]))
        x = (_numbers(masks.shape[2])[None, :] - cx) / radius
        y = (_numbers(masks.shape[1])[:, None] - cy) / radius
        ideal = signed_distance(shape, x, y, np) < 0
        common = np.count_nonzero(ideal & masks[t])
        out[t] = common / (np.count_nonzero(ideal) + area - common)
    return out


def _colour_is(colours: Floats, wanted: Scene) -> bool:
    names, table = list(COLOURS), np.array(list(COLOURS.values()), np.float32)
    distance = np.linalg.norm(colours[:, None] - table[None], axis=-1)
    right = np.argmin(np.nan_to_num(distance, nan=9.0), axis=1) == names.index(wanted.colour)
    return int((~(right & np.isfinite(colours).all(axis=1))).sum()) <= WRONG_FRAMES


def _motion(moments: Moments) -> str:
    """The word for a straight, even path through the centroids; empty when there is none."""
    area, cx, cy = moments
    seen = area > 0
    if seen.sum() < len(area) - WRONG_FRAMES:
        return ""
    t = _numbers(len(area))[seen]
    path = np.stack([cx[seen], cy[seen]], axis=1)
    slope, start = np.polyfit(t, path, 1)
    error = np.sqrt(((path - (t[:, None] * slope + start)) ** 2).sum(axis=1).mean())
    speed = float(np.linalg.norm(slope))
    if error > MAX_PATH_ERROR_PX:
        return ""
    if speed < STILL_PX_PER_FRAME:
        return "holding still"
    if not SPEED_LIMITS_PX_PER_FRAME[0] <= speed <= SPEED_LIMITS_PX_PER_FRAME[1]:
        return ""
    moving = [name for name, direction in MOTIONS.items() if float(np.dot(slope, direction)) > 0.9 * speed]
    return moving[0] if moving else ""


def _background(rows: Floats) -> str:
    """The nearest drawn background; empty when none is near."""
    profile = rows.mean(axis=0)
    down = np.linspace(0, 1, len(profile), dtype=np.float32)[:, None]
    error = {
        name: float(np.abs(profile - (top + (bottom - top) * down)).mean())
        for name, (top, bottom) in BACKGROUNDS.items()
    }
    best = min(error, key=lambda name: error[name])
    return best if error[best] < MAX_BACKGROUND_ERROR else ""
