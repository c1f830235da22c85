"""Loads and saves the model's files, and makes clips from prompts.

    python -m examples.moving_shapes.generate "a red circle moving left on dark background" --seed 3 -o clip.png

The steps are the product's own (`exporters.schedule`): six of them, x in fp32, the expert chosen by timestep.
"""

from __future__ import annotations

import argparse
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from examples.moving_shapes.dit import EXPERTS, LATENT_SHAPE, TRANSFORMER_CONFIG, Expert, MovingShapesTransformer
from examples.moving_shapes.shapes import load_prompts
from examples.moving_shapes.vae import VAE_CONFIG, VideoVae
from exporters.schedule import DCM_TIMESTEPS, Step, make_schedule

MODEL = Path(__file__).parent / "model"
WEIGHTS = "diffusion_pytorch_model.safetensors"


def round_to_fp16(module: nn.Module) -> None:
    """Gives every parameter the value that its saved form will have."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.half().float())


def _save(folder: Path, module: nn.Module, config: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().half().cpu().contiguous() for name, value in module.state_dict().items()}
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def save_transformer(folder: Path, model: MovingShapesTransformer) -> None:
    """DCM's single file in fp16, and `config.json`."""
    _save(folder, model, TRANSFORMER_CONFIG)


def load_transformer(folder: Path, device: str | torch.device = "cpu") -> MovingShapesTransformer:
    model = MovingShapesTransformer()
    model.load_state_dict({name: value.float() for name, value in load_file(folder / WEIGHTS).items()})
    return model.to(device).eval()


class LatentVae(nn.Module):
    """The VAE together with the normalisation of its latents."""

    def __init__(self, vae: VideoVae, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.vae = vae
        self.register_buffer("mean", mean.view(1, -1, 1, 1, 1).float())
        self.register_buffer("std", std.view(1, -1, 1, 1, 1).float())

    def encode(self, frames: Tensor) -> Tensor:
        """Normalised latents [B, 16, 5, 16, 16] of frames [B, T, H, W, 3] in [0, 1]: the posterior's mean."""
        mean, _ = self.vae.encode(to_clip(frames))
        return (mean - self.mean) / self.std

    def decode(self, latents: Tensor) -> Tensor:
        """Frames [B, T, H, W, 3] in [0, 1]."""
        return to_frames(self.vae.decode(latents * self.std + self.mean))


def to_clip(frames: Tensor) -> Tensor:
    return frames.permute(0, 4, 1, 2, 3) * 2 - 1


def to_frames(clip: Tensor) -> Tensor:
    return (clip.clamp(-1, 1) * 0.5 + 0.5).permute(0, 2, 3, 4, 1)


def save_vae(folder: Path, latent_vae: LatentVae) -> None:
    """diffusers' state dict in fp16, and `config.json` with the latents' mean and standard deviation."""
    numbers = {
        "latents_mean": [round(x, 6) for x in latent_vae.mean.flatten().tolist()],
        "latents_std": [round(x, 6) for x in latent_vae.std.flatten().tolist()],
    }
    _save(folder, latent_vae.vae, {**VAE_CONFIG, **numbers})


def load_vae(folder: Path, device: str | torch.device = "cpu") -> LatentVae:
    vae = VideoVae()
    vae.load_state_dict({name: value.float() for name, value in load_file(folder / WEIGHTS).items()})
    config = json.loads((folder / "config.json").read_text("utf-8"))
    both = LatentVae(vae, torch.tensor(config["latents_mean"]), torch.tensor(config["latents_std"]))
    return both.to(device).eval()


def seeded_noise(seeds: Iterable[int]) -> Tensor:
    """[B, 16, 5, 16, 16] fp32: for each seed, what PyTorch's CPU generator gives."""
    return torch.cat([torch.randn(1, *LATENT_SHAPE, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


@torch.no_grad()
def denoise(
    model: MovingShapesTransformer,
    noise: Tensor,
    text: Tensor,
    timesteps: Sequence[float] = DCM_TIMESTEPS,
    experts: Mapping[str, Expert] = EXPERTS,
    steps: slice = slice(None),
) -> Tensor:
    """Euler steps from ``noise``; ``experts`` may replace what an expert's steps use, ``steps`` runs a part."""
    x = noise.float()
    for step in make_schedule(timesteps)[steps]:
        x = x + euler_move(model, x, text, step, experts)
    return x


def euler_move(
    model: MovingShapesTransformer, x: Tensor, text: Tensor, step: Step, experts: Mapping[str, Expert]
) -> Tensor:
    timestep = torch.full((len(x),), step.timestep, device=x.device)
    return model(x, timestep, text, experts[step.expert]).float() * step.step_size


def write_png(path: Path, image: NDArray[np.uint8]) -> None:
    """[H, W, 3] as an 8-bit RGB PNG, without an imaging library. Rows are stored as differences to the row above."""
    height, width, _ = image.shape
    flat = image.reshape(height, width * 3)
    above = np.vstack([np.zeros((1, width * 3), np.uint8), flat[:-1]])
    lines = np.hstack([np.full((height, 1), 2, np.uint8), flat - above])

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + data)


def contact_sheet(
    clips: NDArray[np.uint8], columns: Sequence[int] = (0, 4, 8, 12, 16), gap: int = 4
) -> NDArray[np.uint8]:
    """A row for each clip [N, T, H, W, 3], with the frames ``columns`` beside each other."""
    n, _, height, width, _ = clips.shape
    sheet = np.full((n * (height + gap) - gap, len(columns) * (width + gap) - gap, 3), 255, np.uint8)
    for row, clip in enumerate(clips):
        for column, frame in enumerate(columns):
            top, left = row * (height + gap), column * (width + gap)
            sheet[top : top + height, left : left + width] = clip[frame]
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes one clip and writes five of its frames side by side.")
    parser.add_argument("prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("-o", "--out", type=Path, default=Path("clip.png"))
    args = parser.parse_args()
    prompts, text = load_prompts(args.model / "prompts.safetensors")
    if args.prompt not in prompts:
        parser.error(f"not a prompt of this model; an example is {prompts[0]!r}")
    row = prompts.index(args.prompt)
    latents = denoise(load_transformer(args.model / "transformer"), seeded_noise([args.seed]), text[row : row + 1])
    with torch.no_grad():
        frames = load_vae(args.model / "vae").decode(latents)
    write_png(args.out, contact_sheet((frames * 255).round().byte().numpy()))
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
