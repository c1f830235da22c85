"""Draws clips and turns prompts into embeddings, on any device.

The drawing is antialiased from signed distances, so that a shape may move by fractions of a pixel. A clip can be
drawn in part (a window of pixels, a few frames), because the VAE first learns from such parts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from examples.moving_shapes.scenes import (
    BACKGROUNDS,
    COLOURS,
    EXTENT,
    FRAMES,
    MOTIONS,
    PROMPTS,
    RADIUS_PX,
    SCENES,
    SHAPES,
    SIZE_PX,
    SPEED_PX_PER_FRAME,
    signed_distance,
)

TEXT_TOKENS = 16
TEXT_WIDTH = 64
END = "</s>"
WORDS = (
    "a",
    "on",
    "background",
    *COLOURS,
    *SHAPES,
    *dict.fromkeys(word for motion in MOTIONS for word in motion.split()),
    *BACKGROUNDS,
    END,
)
_WORD_SEED = 7


def prompt_embeddings() -> Tensor:
    """[360, 16, 64] fp32: a fixed random vector for each word, then ``</s>``, then zeros.

    The vectors are rounded to fp16, which is how they are shipped; training uses the rounded ones. The zeros
    take part in attention, as umT5's padding does in Wan.
    """
    vectors = _word_vectors()
    out = torch.zeros(len(PROMPTS), TEXT_TOKENS, TEXT_WIDTH)
    for row, prompt in enumerate(PROMPTS):
        for column, word in enumerate([*prompt.split(), END]):
            out[row, column] = vectors[WORDS.index(word)]
    return out


def null_embedding() -> Tensor:
    """[16, 64]: the empty prompt of classifier-free guidance, ``</s>`` and zeros."""
    out = torch.zeros(TEXT_TOKENS, TEXT_WIDTH)
    out[0] = _word_vectors()[WORDS.index(END)]
    return out


def _word_vectors() -> Tensor:
    generator = torch.Generator().manual_seed(_WORD_SEED)
    return torch.randn(len(WORDS), TEXT_WIDTH, generator=generator).half().float()


def save_prompts(path: Path) -> None:
    """``prompt_embeds`` [360, 16, 64] in fp16; the metadata lists the prompts in the order of the rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"format": "hvdc-prompts", "prompts": json.dumps(list(PROMPTS))}
    save_file({"prompt_embeds": prompt_embeddings().half()}, path, metadata=metadata)


def load_prompts(path: Path) -> tuple[list[str], Tensor]:
    """The prompts and their embeddings [prompts, 16, 64] in fp32."""
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["prompts"]), file.get_tensor("prompt_embeds").float()


@dataclass(frozen=True)
class Clips:
    """Parameters of a batch of clips: what the prompt says (``scene``, a row of `SCENES`) and what it leaves open."""

    scene: Tensor  # [B] int64
    radius: Tensor  # [B] pixels
    start: Tensor  # [B, 2] column and row of the centre in frame 0, pixels
    velocity: Tensor  # [B, 2] pixels per frame

    def centre(self, frame: Tensor) -> Tensor:
        """[B, T, 2] for frame numbers [B, T]."""
        return self.start[:, None] + self.velocity[:, None] * frame[..., None]


def _table(rows: list[tuple[float, ...]] | list[int], like: Tensor) -> Tensor:
    return torch.tensor(rows, device=like.device)


def random_clips(count: int, generator: torch.Generator, scene: Tensor | None = None) -> Clips:
    """Clips whose shape stays within the frame, of random scenes unless ``scene`` names them."""
    device = generator.device

    def uniform(low: float | Tensor, high: float | Tensor, *size: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *size, generator=generator, device=device)

    if scene is None:
        scene = torch.randint(len(SCENES), (count,), generator=generator, device=device)
    radius = uniform(*RADIUS_PX)
    direction = _table([MOTIONS[s.motion] for s in SCENES], scene)[scene]
    velocity = direction * uniform(*SPEED_PX_PER_FRAME)[:, None]
    travel = velocity * (FRAMES - 1)
    margin = (EXTENT * radius + 1)[:, None]
    low = margin - travel.clamp(max=0)
    high = SIZE_PX - 1 - margin - travel.clamp(min=0)
    return Clips(scene, radius, uniform(low, high, 2), velocity)


def draw(
    clips: Clips,
    *,
    corner: Tensor | None = None,
    size: int = SIZE_PX,
    first: Tensor | None = None,
    frames: int = FRAMES,
) -> tuple[Tensor, Tensor]:
    """Frames [B, T, H, W, 3] in [0, 1], and how much of each pixel is covered, [B, T, H, W].

    Args:
        corner: [B, 2] column and row of the drawn window's first pixel; the frame's own corner if None.
        size: edge of the window in pixels.
        first: [B] number of the first frame drawn; 0 if None.
    """
    device, count = clips.scene.device, len(clips.scene)
    corner = torch.zeros(count, 2, device=device) if corner is None else corner
    first = torch.zeros(count, device=device) if first is None else first
    pixel = torch.arange(size, device=device, dtype=torch.float32)
    cols, rows = corner[:, :1] + pixel, corner[:, 1:] + pixel  # [B, size]
    centre = clips.centre(first[:, None] + torch.arange(frames, device=device))
    x = (cols[:, None, None, :] - centre[:, :, None, None, 0]) / clips.radius[:, None, None, None]
    y = (rows[:, None, :, None] - centre[:, :, None, None, 1]) / clips.radius[:, None, None, None]
    kind = _table([SHAPES.index(s.shape) for s in SCENES], clips.scene)[clips.scene]
    distance = torch.zeros(count, frames, size, size, device=device)
    # Asking a GPU which shapes there are would cost more than drawing all four.
    present = set(kind.tolist()) if device.type == "cpu" else range(len(SHAPES))
    for index, shape in enumerate(SHAPES):
        if index not in present:
            continue
        distance = torch.where((kind == index)[:, None, None, None], signed_distance(shape, x, y, torch), distance)
    covered = (0.5 - distance * clips.radius[:, None, None, None]).clamp(0, 1)
    colour = _table([COLOURS[s.colour] for s in SCENES], clips.scene)[clips.scene][:, None, None, None, :]
    ends = _table([BACKGROUNDS[s.background] for s in SCENES], clips.scene)[clips.scene]
    grey = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * rows / (SIZE_PX - 1)
    grey = grey[:, None, :, None, None]
    return grey + (colour - grey) * covered[..., None], covered
