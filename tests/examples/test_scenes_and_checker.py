"""The checker accepts what the prompt draws and rejects each attribute drawn otherwise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from examples.moving_shapes.checker import ATTRIBUTES, check
from examples.moving_shapes.scenes import FRAMES, PROMPTS, SCENES, SIZE_PX, Scene, parse_prompt
from examples.moving_shapes.shapes import (
    TEXT_TOKENS,
    WORDS,
    draw,
    load_prompts,
    null_embedding,
    prompt_embeddings,
    random_clips,
    save_prompts,
)
from tests.long import LONG


def drawn(scene: Scene, seed: int = 0) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    clips = random_clips(1, generator, torch.tensor([SCENES.index(scene)]))
    return (draw(clips)[0][0] * 255).round().byte().numpy()


WANTED = Scene("green", "square", "moving up", "grey")
WRONG = {
    "shape": [replace(WANTED, shape=shape) for shape in ("circle", "triangle", "cross")],
    "colour": [replace(WANTED, colour=colour) for colour in ("red", "blue", "yellow", "white", "purple")],
    "motion": [replace(WANTED, motion=m) for m in ("moving left", "moving right", "moving down", "holding still")],
    "background": [replace(WANTED, background=background) for background in ("dark", "gradient")],
}


def every_triple() -> list[int]:
    """A third of the prompts, in which any shape, colour, motion and background meet by threes."""
    values = [list(dict.fromkeys(getattr(scene, name) for scene in SCENES)) for name in ATTRIBUTES]
    places = [[v.index(getattr(s, n)) for v, n in zip(values, ATTRIBUTES, strict=True)] for s in SCENES]
    rows = [row for row, place in enumerate(places) if sum(place) % 3 == 0]
    for left_out in range(len(ATTRIBUTES)):
        kept = [values[i] for i in range(len(ATTRIBUTES)) if i != left_out]
        triples = {tuple(p for i, p in enumerate(places[row]) if i != left_out) for row in rows}
        assert len(triples) == math.prod(map(len, kept))
    return rows


def test_a_clip_of_every_prompt_passes() -> None:
    """In a random place, size and speed. `make test-long` draws all of the 360."""
    generator = torch.Generator().manual_seed(3)
    for part in torch.tensor(range(len(SCENES)) if LONG else every_triple()).split(6):
        frames, covered = draw(random_clips(len(part), generator, part))
        assert float(covered[..., 0].max()) == 0.0, "a shape leaves the frame"
        for row, clip in zip(part.tolist(), (frames * 255).round().byte().numpy(), strict=True):
            result = check(clip, PROMPTS[row])
            assert result["all"] == 1.0, (PROMPTS[row], result)
            assert result["iou"] > 0.95, (PROMPTS[row], result)


@pytest.mark.parametrize(("attribute", "scene"), [(a, s) for a, scenes in WRONG.items() for s in scenes])
def test_a_wrong_attribute_is_found_and_no_other(attribute: str, scene: Scene) -> None:
    result = check(drawn(scene), WANTED.prompt)
    assert {name: result[name] for name in ATTRIBUTES} == {name: float(name != attribute) for name in ATTRIBUTES}
    assert result["all"] == 0.0


def test_another_shape_has_a_low_iou() -> None:
    right = check(drawn(WANTED), WANTED.prompt)["iou"]
    assert right > 0.97
    assert all(check(drawn(scene), WANTED.prompt)["iou"] < 0.9 for scene in WRONG["shape"])


def test_a_hole_and_a_spot_lower_the_iou() -> None:
    clip = drawn(replace(WANTED, motion="holding still"))
    background = clip[0, 0, 0]
    row, column = np.argwhere((clip[0] != background).any(axis=-1)).mean(axis=0).astype(int)
    spot, hole = clip.copy(), clip.copy()
    spot[:, 2:12, 2:12] = clip[0, row, column]
    hole[:, row - 4 : row + 4, column - 4 : column + 4] = background
    whole = check(clip, replace(WANTED, motion="holding still").prompt)["iou"]
    for damaged in (spot, hole):
        assert check(damaged, replace(WANTED, motion="holding still").prompt)["iou"] < whole - 0.04


def test_three_frames_of_another_colour_are_too_many() -> None:
    clip, other = drawn(WANTED), drawn(replace(WANTED, colour="red"))
    two, three = clip.copy(), clip.copy()
    two[:2], three[:3] = other[:2], other[:3]
    assert check(two, WANTED.prompt)["colour"] == 1.0
    assert check(three, WANTED.prompt)["colour"] == 0.0


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, float("nan")])
def test_an_empty_clip_shows_nothing(value: float) -> None:
    result = check(np.full((FRAMES, SIZE_PX, SIZE_PX, 3), value, np.float32), WANTED.prompt)
    assert result["all"] == result["shape"] == result["colour"] == result["motion"] == result["iou"] == 0.0


def test_noise_shows_nothing() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (FRAMES, SIZE_PX, SIZE_PX, 3)).astype(np.uint8)
    assert check(noise, WANTED.prompt)["all"] == 0.0


def test_float_and_uint8_frames_are_judged_alike() -> None:
    clip = drawn(WANTED)
    assert check(clip, WANTED.prompt) == check(clip.astype(np.float64) / 255, WANTED.prompt)


def test_frames_of_another_layout_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[T, H, W, 3\]"):
        check(np.zeros((3, FRAMES, SIZE_PX, SIZE_PX), np.uint8), WANTED.prompt)


def test_an_unknown_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="not a prompt"):
        parse_prompt("a red circle")


def test_prompts_are_distinct_and_have_distinct_embeddings() -> None:
    assert len(set(PROMPTS)) == len(SCENES) == 360
    embeddings = prompt_embeddings()
    assert embeddings.shape == (360, TEXT_TOKENS, 64)
    assert len(torch.unique(embeddings.flatten(1), dim=0)) == 360
    assert len(set(WORDS)) == len(WORDS)
    assert not embeddings[:, 9:].any()
    assert torch.equal(null_embedding()[0], embeddings[0, 8])


def test_prompts_are_saved_as_they_are_trained_on(tmp_path) -> None:
    save_prompts(tmp_path / "p.safetensors")
    prompts, embeddings = load_prompts(tmp_path / "p.safetensors")
    assert prompts == list(PROMPTS)
    assert torch.equal(embeddings, prompt_embeddings())


def test_a_window_is_a_part_of_the_whole_drawing() -> None:
    clips = random_clips(3, torch.Generator().manual_seed(5))
    whole, covered = draw(clips)
    corner, first = torch.tensor([[10.0, 20.0], [0.0, 64.0], [33.0, 7.0]]), torch.tensor([0.0, 8.0, 3.0])
    part, part_covered = draw(clips, corner=corner, size=64, first=first, frames=9)
    for i in range(3):
        (x, y), t = corner[i].int().tolist(), int(first[i])
        torch.testing.assert_close(part[i], whole[i, t : t + 9, y : y + 64, x : x + 64], atol=1e-5, rtol=0)
        torch.testing.assert_close(part_covered[i], covered[i, t : t + 9, y : y + 64, x : x + 64], atol=1e-5, rtol=0)
