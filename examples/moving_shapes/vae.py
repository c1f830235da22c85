"""The video VAE for training: `AutoencoderKLWan`'s arithmetic over whole clips, with its parameter names.

diffusers' class runs a clip in chunks of four frames and keeps caches between them, which is right for long
videos and slow to train. Here the whole clip passes at once. The two are equal because every convolution looks
only backwards in time; the one irregularity is that the first frame skips the temporal resampling.

Tensors are [B, T, H, W, C] inside: a 3-D convolution becomes a 2-D one over three stacked frames, whose
channels-last form is the fast one on a GPU. The state dict is `AutoencoderKLWan`'s own and loads strictly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

BASE_WIDTH = 16
LATENT_CHANNELS = 16
WIDTHS = (16, 32, 64, 64)
"""Channels of the four resolutions: ``base_dim`` times ``dim_mult``."""
DOWN_IN_TIME = (False, True, True)

VAE_CONFIG: dict[str, Any] = {
    "_class_name": "AutoencoderKLWan",
    "base_dim": BASE_WIDTH,
    "z_dim": LATENT_CHANNELS,
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 1,
    "attn_scales": [],
    "temperal_downsample": list(DOWN_IN_TIME),
    "dropout": 0.0,
}
"""`config.json` of the saved VAE, to which training adds ``latents_mean`` and ``latents_std``."""

FIRST_LOG_VARIANCE = -6.0
"""Where the posterior starts. At 0 its noise drowns what the decoder should learn from."""


def rms_silu(x: Tensor, gamma: Tensor) -> Tensor:
    """SiLU of Wan's RMS norm over the last dimension: x / ‖x‖ · √C · gamma, in fp32, returned in x's type."""
    wide = x.float()
    wide = wide * torch.rsqrt((wide * wide).sum(-1, keepdim=True).clamp_min(1e-24)) * (x.shape[-1] ** 0.5) * gamma
    return functional.silu(wide).to(x.dtype)


_rms_silu: Callable[[Tensor, Tensor], Tensor] = rms_silu
_mark_dynamic: Callable[[Tensor, int], None] | None = None


def compile_norms() -> None:
    """Fuses norm and activation into one kernel each way; for CUDA."""
    global _rms_silu, _mark_dynamic
    import torch._dynamo as dynamo

    dynamo.config.recompile_limit = 64
    _rms_silu, _mark_dynamic = torch.compile(rms_silu), dynamo.maybe_mark_dynamic


class NormSilu(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if _mark_dynamic is not None:  # one compiled kernel a width, whatever the batch and the resolution
            _mark_dynamic(rows, 0)
        return _rms_silu(rows, self.gamma.flatten()).view_as(x)


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int = 1, padding: int = 0) -> Tensor:
    """A 2-D convolution of each frame of [B, T, H, W, C]."""
    b, t = x.shape[:2]
    images = x.flatten(0, 1).permute(0, 3, 1, 2)  # channels-last strides, so nothing is copied
    weight = weight.contiguous(memory_format=torch.channels_last)
    out = functional.conv2d(images, weight, bias, stride, padding).permute(0, 2, 3, 1).contiguous()
    return out.unflatten(0, (b, t))


class CausalConv3d(nn.Conv3d):
    """A convolution over this frame and the two before it; kernel (3, 3, 3), (3, 1, 1) or (1, 1, 1)."""

    def forward(self, x: Tensor) -> Tensor:
        taps = self.kernel_size[0]
        if taps == 1:
            return functional.linear(x, self.weight.flatten(1), self.bias)
        return self.on_stacked(_stack(functional.pad(x, (0, 0, 0, 0, 0, 0, taps - 1, 0))))

    def on_stacked(self, stacked: Tensor) -> Tensor:
        """The convolution of frames that already lie beside each other in the channels, oldest first."""
        weight = self.weight.transpose(1, 2).flatten(1, 2)  # [out, 3·in, kh, kw]
        if self.kernel_size[1] == 1:
            return functional.linear(stacked, weight.flatten(1), self.bias)
        return conv2d(stacked, weight, self.bias, padding=1)


def _stack(x: Tensor, stride: int = 1) -> Tensor:
    """Each frame with the two after it, in the channels: [B, T, …, C] -> [B, (T - 3) / stride + 1, …, 3C]."""
    count = (x.shape[1] - 3) // stride + 1
    return torch.cat([x[:, i : i + stride * (count - 1) + 1 : stride] for i in range(3)], dim=-1)


class ResidualBlock(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm1 = NormSilu(width)
        self.conv1 = CausalConv3d(width, out, 3)
        self.norm2 = NormSilu(out)
        self.conv2 = CausalConv3d(out, out, 3)
        self.conv_shortcut = CausalConv3d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.norm2(self.conv1(self.norm1(x)))) + self.conv_shortcut(x)


class Attention(nn.Module):
    """Attention with one head among the pixels of a frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.Module()
        self.norm.gamma = nn.Parameter(torch.ones(width, 1, 1))
        self.to_qkv = nn.Conv2d(width, 3 * width, 1)
        self.proj = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.flatten(2, 3)
        normed = functional.normalize(pixels.float(), dim=-1) * (x.shape[-1] ** 0.5) * self.norm.gamma.flatten()
        q, k, v = functional.linear(normed.to(x.dtype), self.to_qkv.weight.flatten(1), self.to_qkv.bias).chunk(
            3, dim=-1
        )
        out = functional.scaled_dot_product_attention(q, k, v)
        return functional.linear(out, self.proj.weight.flatten(1), self.proj.bias).view_as(x) + x


class MidBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([Attention(width)])
        self.resnets = nn.ModuleList([ResidualBlock(width, width), ResidualBlock(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class Downsample(nn.Module):
    """Half the height and width and, ``in_time``, half the frames after the first."""

    def __init__(self, width: int, in_time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.Identity(), nn.Conv2d(width, width, 3, stride=2))
        self.time_conv = CausalConv3d(width, width, (3, 1, 1), stride=(2, 1, 1)) if in_time else None

    def forward(self, x: Tensor) -> Tensor:
        conv = self.resample[1]
        x = conv2d(functional.pad(x, (0, 0, 0, 1, 0, 1)), conv.weight, conv.bias, stride=2)
        if self.time_conv is None or x.shape[1] == 1:
            return x
        return torch.cat([x[:, :1], self.time_conv.on_stacked(_stack(x, stride=2))], dim=1)


class Upsample(nn.Module):
    """Twice the height and width at half the channels and, ``in_time``, twice the frames after the first."""

    def __init__(self, width: int, in_time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.Identity(), nn.Conv2d(width, width // 2, 3, padding=1))
        self.time_conv = CausalConv3d(width, 2 * width, (3, 1, 1)) if in_time else None

    def forward(self, x: Tensor) -> Tensor:
        if self.time_conv is not None and x.shape[1] > 1:
            later = self.time_conv(x[:, 1:])  # the first frame is not seen by the later ones here
            b, t, h, w, c = later.shape
            later = later.view(b, t, h, w, 2, c // 2).permute(0, 1, 4, 2, 3, 5).reshape(b, 2 * t, h, w, c // 2)
            x = torch.cat([x[:, :1], later], dim=1)
        b, t, h, w, c = x.shape
        x = x[:, :, :, None, :, None].expand(b, t, h, 2, w, 2, c).reshape(b, t, 2 * h, 2 * w, c)
        conv = self.resample[1]
        return conv2d(x, conv.weight, conv.bias, padding=1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_in = CausalConv3d(3, WIDTHS[0], 3)
        blocks: list[nn.Module] = []
        for level, (width, out) in enumerate(zip((WIDTHS[0], *WIDTHS[:-1]), WIDTHS, strict=True)):
            blocks.append(ResidualBlock(width, out))
            if level < len(DOWN_IN_TIME):
                blocks.append(Downsample(out, DOWN_IN_TIME[level]))
        self.down_blocks = nn.ModuleList(blocks)
        self.mid_block = MidBlock(WIDTHS[-1])
        self.norm_out = NormSilu(WIDTHS[-1])
        self.conv_out = CausalConv3d(WIDTHS[-1], 2 * LATENT_CHANNELS, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        return self.conv_out(self.norm_out(self.mid_block(x)))


class UpBlock(nn.Module):
    def __init__(self, width: int, out: int, upsample: Upsample | None) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([ResidualBlock(width, out), ResidualBlock(out, out)])
        self.upsamplers = nn.ModuleList([upsample]) if upsample is not None else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.resnets[1](self.resnets[0](x))
        return x if self.upsamplers is None else self.upsamplers[0](x)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        levels = WIDTHS[::-1]
        self.conv_in = CausalConv3d(LATENT_CHANNELS, levels[0], 3)
        self.mid_block = MidBlock(levels[0])
        blocks, width = [], levels[0]
        for level, out in enumerate(levels):
            last = level == len(levels) - 1
            blocks.append(UpBlock(width, out, None if last else Upsample(out, DOWN_IN_TIME[::-1][level])))
            width = out // 2
        self.up_blocks = nn.ModuleList(blocks)
        self.norm_out = NormSilu(levels[-1])
        self.conv_out = CausalConv3d(levels[-1], 3, 3)

    def forward(self, z: Tensor) -> Tensor:
        x = self.mid_block(self.conv_in(z))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(self.norm_out(x))


class VideoVae(nn.Module):
    """Clips [B, 3, T, H, W] in [-1, 1] to latents [B, 16, (T - 1) / 4 + 1, H / 8, W / 8] and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.quant_conv = CausalConv3d(2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, 1)
        self.post_quant_conv = CausalConv3d(LATENT_CHANNELS, LATENT_CHANNELS, 1)
        self.decoder = Decoder()
        with torch.no_grad():
            self.quant_conv.bias[LATENT_CHANNELS:] += FIRST_LOG_VARIANCE

    def encode(self, clip: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the posterior, not normalised."""
        moments = self.quant_conv(self.encoder(clip.permute(0, 2, 3, 4, 1).contiguous())).float()
        mean, log_variance = moments.permute(0, 4, 1, 2, 3).chunk(2, dim=1)
        return mean, log_variance.clamp(-30.0, 20.0)

    def decode(self, z: Tensor) -> Tensor:
        """The clip, not clipped to [-1, 1]. ``z`` is not normalised."""
        out = self.decoder(self.post_quant_conv(z.permute(0, 2, 3, 4, 1).contiguous()))
        return out.float().permute(0, 4, 1, 2, 3)
