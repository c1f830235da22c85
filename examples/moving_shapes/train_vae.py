"""Stage ``vae``: the video VAE, first on small crops, then on whole clips.

Crops around the shape make the first phase fast and full of edges. The second phase is not optional: attention
sees four times as many pixels in a whole frame, and until then reconstructions of whole clips are poor.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from examples.moving_shapes.generate import LatentVae, round_to_fp16, to_clip
from examples.moving_shapes.loop import Loop, Recipe, log, mixed
from examples.moving_shapes.scenes import FRAMES, SIZE_PX
from examples.moving_shapes.shapes import Clips, draw, random_clips
from examples.moving_shapes.vae import VideoVae, compile_norms

CROP_PX = 64
CROP_FRAMES = 9
CROP_BATCH = 32
CLIP_BATCH = 16
CROP_JITTER_PX = 24

SHAPE_WEIGHT = 2.0
"""Added to the loss of covered pixels, which are few. L1 alone has the background as its optimum early on."""
FIRST_FRAME_WEIGHT = 1.0
"""Added to the loss of a clip's first frame in the second phase: no frame before it helps to decode it."""
KL_WEIGHT = 1e-4


def random_crop(clips: Clips, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Frames and coverage of a window of 64 × 64 pixels and 9 frames, somewhere around the shape."""
    count, device = len(clips.scene), generator.device
    first = torch.randint(FRAMES - CROP_FRAMES + 1, (count,), generator=generator, device=device).float()
    middle = clips.centre(first[:, None] + (CROP_FRAMES - 1) / 2)[:, 0]
    jitter = (torch.rand(count, 2, generator=generator, device=device) * 2 - 1) * CROP_JITTER_PX
    corner = (middle + jitter - CROP_PX / 2).round().clamp(0, SIZE_PX - CROP_PX)
    return draw(clips, corner=corner, size=CROP_PX, first=first, frames=CROP_FRAMES)


def vae_loss(vae: VideoVae, frames: Tensor, covered: Tensor, first_frame_weight: float) -> Tensor:
    """Weighted L1 and squared error, error of the gradients, and a little KL."""
    clip = to_clip(frames)
    with mixed(frames.device):
        mean, log_variance = vae.encode(clip)
        out = vae.decode(mean + torch.randn_like(mean) * (0.5 * log_variance).exp())
    error = out - clip
    weight = 1 + SHAPE_WEIGHT * covered[:, None]
    weight[:, :, 0] *= 1 + first_frame_weight
    absolute = error.abs()
    pixels = (weight * absolute).mean() + 2 * (weight * error.square()).mean()
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    return pixels + 0.5 * edges + KL_WEIGHT * kl


def train_vae(device: torch.device, seconds: tuple[float, float], max_steps: int, *, small: bool = False) -> LatentVae:
    """The trained VAE with fp16 values, and its latents' statistics. ``seconds`` are those of the two phases."""
    torch.manual_seed(0)
    generator = torch.Generator(device).manual_seed(1)
    vae = VideoVae().to(device)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        compile_norms()
    crops = Recipe(seconds[0], 2e-3, max_steps, floor=0.25, weight_decay=0.0, ema=0.995, name="vae, crops")
    loop = Loop(vae.parameters(), crops)
    while loop.running():
        clips = random_clips(2 if small else CROP_BATCH, generator)
        loop.step(vae_loss(vae, *random_crop(clips, generator), 0.0))
    loop.finish()
    whole = Recipe(seconds[1], 5e-4, max_steps, warm_steps=20, weight_decay=0.0, ema=0.99, name="vae, whole clips")
    loop = Loop(vae.parameters(), whole)
    while loop.running():
        clips = random_clips(1 if small else CLIP_BATCH, generator)
        loop.step(vae_loss(vae, *draw(clips), FIRST_FRAME_WEIGHT))
    loop.finish()
    round_to_fp16(vae)
    return measure_latents(vae, generator, 4 if small else 512)


@torch.no_grad()
def measure_latents(vae: VideoVae, generator: torch.Generator, count: int) -> LatentVae:
    """Mean and standard deviation of each latent channel over ``count`` clips, and the VAE that applies them."""
    plain = torch.zeros(16, device=generator.device)
    raw = encode_random(LatentVae(vae, plain, plain + 1), generator, count)[0]
    mean, std = raw.mean(dim=(0, 2, 3, 4)), raw.std(dim=(0, 2, 3, 4))
    log(
        f"  latents: std {std.min():.3f} to {std.max():.3f}, absmax once normalised "
        f"{((raw - mean.view(1, -1, 1, 1, 1)) / std.view(1, -1, 1, 1, 1)).abs().max():.1f}"
    )
    # As config.json will hold them, so that what is trained on is what is shipped.
    rounded = [torch.tensor([round(x, 6) for x in t.tolist()], device=generator.device) for t in (mean, std)]
    return LatentVae(vae, *rounded)


@torch.no_grad()
def encode_random(
    latent_vae: LatentVae, generator: torch.Generator, count: int, batch: int = 64
) -> tuple[Tensor, Tensor]:
    """Normalised latents of random clips, and their scenes."""
    latents, scenes = [], []
    for start in range(0, count, batch):
        clips = random_clips(min(batch, count - start), generator)
        with mixed(generator.device):
            latents.append(latent_vae.encode(draw(clips)[0]))
        scenes.append(clips.scene)
    return torch.cat(latents), torch.cat(scenes)


def psnr(frames: Tensor, reference: Tensor) -> float:
    return float(-10 * torch.log10(functional.mse_loss(frames, reference)))
