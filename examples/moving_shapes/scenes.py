"""What a clip shows, in words and in formulas: shapes, colours, motions, backgrounds, prompts.

`shapes.py` draws from these on the GPU, `checker.py` judges by them with numpy alone. Both must mean the same
thing by "triangle", so the formulas are here once, written for either library.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

FRAMES = 17
SIZE_PX = 128
RADIUS_PX = (16.0, 26.0)
SPEED_PX_PER_FRAME = (1.6, 3.0)

EXTENT = 1.3
"""Farthest point of any shape from its centre, in radii."""

SHAPES = ("circle", "square", "triangle", "cross")
AREA = {"circle": 3.1416, "square": 3.1684, "triangle": 2.1954, "cross": 2.88}
"""Area of each shape in squared radii; tells a radius from a number of pixels."""

COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.90, 0.15, 0.15),
    "green": (0.15, 0.80, 0.20),
    "blue": (0.20, 0.30, 0.95),
    "yellow": (0.95, 0.85, 0.15),
    "white": (0.97, 0.97, 0.97),
    "purple": (0.65, 0.20, 0.85),
}
MOTIONS: dict[str, tuple[int, int]] = {
    "moving left": (-1, 0),
    "moving right": (1, 0),
    "moving up": (0, -1),
    "moving down": (0, 1),
    "holding still": (0, 0),
}
"""Direction in image coordinates: columns to the right, rows downwards."""

BACKGROUNDS: dict[str, tuple[float, float]] = {"dark": (0.08, 0.08), "grey": (0.50, 0.50), "gradient": (0.10, 0.60)}
"""Grey level of the top and the bottom row; straight in between."""


@dataclass(frozen=True)
class Scene:
    """What a prompt fixes. Place, radius and speed are left open."""

    colour: str
    shape: str
    motion: str
    background: str

    @property
    def prompt(self) -> str:
        return f"a {self.colour} {self.shape} {self.motion} on {self.background} background"


SCENES = tuple(
    Scene(colour, shape, motion, background)
    for shape, colour, motion, background in product(SHAPES, COLOURS, MOTIONS, BACKGROUNDS)
)
PROMPTS = tuple(scene.prompt for scene in SCENES)
"""All 360, in the order of the rows of ``prompts.safetensors``."""


def parse_prompt(prompt: str) -> Scene:
    """The scene that a prompt describes.

    Raises:
        ValueError: the prompt isn't one of the 360.
    """
    try:
        return SCENES[PROMPTS.index(prompt)]
    except ValueError:
        raise ValueError(f"not a prompt of this model: {prompt!r}; an example is {PROMPTS[0]!r}") from None


def signed_distance(shape: str, x: Any, y: Any, xp: Any) -> Any:
    """Distance from a shape's outline in radii, negative inside. ``xp`` is numpy or torch; x, y are its arrays.

    The distance is exact along edges, which is where antialiasing needs it, and an approximation beyond corners.
    """
    if shape == "circle":
        return xp.sqrt(x * x + y * y) - 1.0
    if shape == "square":
        return xp.maximum(abs(x), abs(y)) - 0.89
    if shape == "triangle":  # equilateral, its point upwards, about its centroid; y grows downwards
        return xp.maximum(y + 0.0 * x, 0.8660254 * abs(x) - 0.5 * y) - 0.65
    if shape == "cross":
        wide = xp.maximum(abs(x) - 1.1, abs(y) - 0.4)
        tall = xp.maximum(abs(x) - 0.4, abs(y) - 1.1)
        return xp.minimum(wide, tall)
    raise ValueError(f"no such shape: {shape!r}")
