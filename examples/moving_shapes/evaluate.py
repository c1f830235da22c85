"""Stage ``evaluate``: agreement and IoU of the trained model, and of a runtime that gets something wrong.

    python -m examples.moving_shapes.evaluate --clips 256

Everything is computed in fp32 from the fp16 files, as a reference would. Agreement cannot see most mistakes of a
runtime, because a model can make a good clip in a slightly wrong way; the distance of the latents from the right
ones can. So both are printed: ``distance`` is ‖z - z_ref‖ / ‖z_ref‖ over all clips, ``median`` of each clip's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from examples.moving_shapes.checker import ATTRIBUTES, check
from examples.moving_shapes.dit import ALPHA_OVER_RANK, DETAIL, SEMANTIC, Expert, MovingShapesTransformer
from examples.moving_shapes.generate import (
    MODEL,
    LatentVae,
    contact_sheet,
    denoise,
    load_transformer,
    load_vae,
    seeded_noise,
    write_png,
)
from examples.moving_shapes.loop import log
from examples.moving_shapes.scenes import PROMPTS
from examples.moving_shapes.shapes import draw, load_prompts, random_clips

EVEN_TIMESTEPS = (1000.0, 988.9, 973.1, 944.4, 897.5, 788.7)
"""What the sampler computes when the six hand-picked timesteps are forgotten (rounded to tenths)."""


def _with_detail(expert: Expert) -> dict[str, Expert]:
    return {"semantic": SEMANTIC, "detail": expert}


MISTAKES: dict[str, dict[str, Any]] = {
    "semantic expert in all steps": {"experts": _with_detail(SEMANTIC)},
    "adapter off": {"experts": _with_detail(DETAIL._replace(adapter_scale=0.0))},
    "adapter scale 1, not 2": {"experts": _with_detail(DETAIL._replace(adapter_scale=ALPHA_OVER_RANK / 2))},
    "semantic head in detail steps": {"experts": _with_detail(DETAIL._replace(head="semantic"))},
    "semantic embedder in detail steps": {"experts": _with_detail(DETAIL._replace(embedder="semantic"))},
    "the wrong schedule": {"timesteps": EVEN_TIMESTEPS},
}
"""Name -> what `denoise` is given instead."""


def exact_fp32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def evaluation_rows(count: int) -> list[int]:
    """Rows of the prompts that are evaluated; each prompt at most once up to 360."""
    order = torch.randperm(len(PROMPTS), generator=torch.Generator().manual_seed(11)).tolist()
    return [order[i % len(order)] for i in range(count)]


def distances(latents: Tensor, reference: Tensor) -> tuple[float, float]:
    """‖z - z_ref‖ / ‖z_ref‖ over all clips, and the median of the clips' own."""
    difference, norm = (latents - reference).flatten(1).norm(dim=1), reference.flatten(1).norm(dim=1)
    return float(difference.norm() / norm.norm()), float((difference / norm).median())


@torch.no_grad()
def decode_in_parts(vae: LatentVae, latents: Tensor, batch: int = 16) -> np.ndarray:
    """uint8 frames [N, T, H, W, 3]."""
    return np.concatenate([_bytes(vae.decode(latents[i : i + batch])) for i in range(0, len(latents), batch)])


def _bytes(frames: Tensor) -> np.ndarray:
    return (frames * 255).round().byte().cpu().numpy()


def check_all(clips: np.ndarray, rows: Sequence[int]) -> dict[str, float]:
    """Means over the clips, and the lowest tenth of IoU (``iou_p10``)."""
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(check, clips, [PROMPTS[row] for row in rows]))
    out = {name: float(np.mean([r[name] for r in results])) for name in (*ATTRIBUTES, "all", "iou")}
    out["iou_p10"] = float(np.percentile([r["iou"] for r in results], 10))
    return out


def real_clips(rows: Sequence[int], device: str | torch.device, batch: int = 32) -> Tensor:
    """Drawn clips of these prompts, [N, T, H, W, 3]."""
    generator = torch.Generator(device).manual_seed(12)
    scene = torch.tensor(rows, device=device)
    return torch.cat([draw(random_clips(len(part), generator, part))[0] for part in scene.split(batch)])


def print_header() -> None:
    names = " | ".join((*ATTRIBUTES, "all", "IoU", "IoU p10", "distance", "median"))
    log(f"| {'':34} | {names} |")
    log("|---|---|---|---|---|---|---|---|---|---|")


def print_row(name: str, row: dict[str, float]) -> None:
    agreement = " | ".join(f"{row[key]:.3f}" for key in (*ATTRIBUTES, "all", "iou", "iou_p10"))
    distance = f"{row['distance']:.4f} | {row['median']:.4f}" if "distance" in row else "– | –"
    log(f"| {name:34} | {agreement} | {distance} |")


@torch.no_grad()
def evaluate(
    model: Path,
    device: torch.device,
    clips: int,
    out: Path | None = None,
    teacher: MovingShapesTransformer | None = None,
    student_only: bool = False,
) -> dict[str, dict[str, float]]:
    """Prints the table; writes ``results.json`` and ``samples.png`` to ``out``. Needs `exact_fp32` on a GPU."""
    started = time.monotonic()
    rows = evaluation_rows(clips)
    vae = load_vae(model / "vae", device)
    student = load_transformer(model / "transformer", device)
    _, embeddings = load_prompts(model / "prompts.safetensors")
    text = embeddings[rows].to(device)
    noise = seeded_noise(range(clips)).to(device)
    table: dict[str, dict[str, float]] = {}

    def add(name: str, frames: np.ndarray, latents: Tensor | None = None) -> None:
        table[name] = check_all(frames, rows)
        if latents is not None:
            table[name]["distance"], table[name]["median"] = distances(latents, reference)
        print_row(name, table[name])
        if out is not None:
            (out / "results.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")

    print_header()
    if not student_only:
        real = real_clips(rows, device)
        add("real clips (the checker's ceiling)", _bytes(real))
        coded = torch.cat([vae.encode(part) for part in real.split(16)])
        add("VAE reconstruction", decode_in_parts(vae, coded))
    reference = denoise_in_parts(student, noise, text)
    if teacher is not None:
        from examples.moving_shapes.train_experts import teacher_path

        parts = zip(noise.split(64), text.split(64), strict=True)
        latents = torch.cat([teacher_path(teacher, x, t)[-1] for x, t in parts])
        add("teacher, 50 steps with guidance", decode_in_parts(vae, latents), latents)
    frames = decode_in_parts(vae, reference)
    add("student, six steps", frames, reference)
    if out is not None:
        write_png(out / "samples.png", contact_sheet(frames[:8]))
        log("samples.png shows, from the top: " + "; ".join(PROMPTS[row] for row in rows[:8]))
    for name, changes in () if student_only else MISTAKES.items():
        latents = denoise_in_parts(student, noise, text, **changes)
        add(name, decode_in_parts(vae, latents), latents)
    log(f"  evaluated {clips} clips on {device} in {time.monotonic() - started:.1f} s")
    return table


def denoise_in_parts(model: MovingShapesTransformer, noise: Tensor, text: Tensor, **changes: Any) -> Tensor:
    parts = zip(noise.split(32), text.split(32), strict=True)
    return torch.cat([denoise(model, x, t, **changes) for x, t in parts])


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints agreement, IoU and latent distances of the example model.")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--clips", type=int, default=256)
    parser.add_argument("--student-only", action="store_true", help="one row: the model as it should be run")
    parser.add_argument("--out", type=Path, help="folder for results.json and samples.png")
    args = parser.parse_args()
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    exact_fp32()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    evaluate(args.model, device, args.clips, args.out, student_only=args.student_only)


if __name__ == "__main__":
    main()
