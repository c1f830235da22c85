"""The transformer for training and for evaluating: Wan2.1's forward pass with DCM's second expert.

Parameter names are those of DCM's file (`….base_layer.weight`, `….lora_A.lora1.weight`,
`condition_embedder_lora.…`), so the state dict is what gets shipped. The residual stream is fp32, as official
Wan keeps it; under autocast the linears and the attention are bf16, and time embedding and head stay fp32.

An `Expert` says which parts a step uses. The two of DCM are `SEMANTIC` and `DETAIL`; any other combination is a
mistake that a runtime could make, and is there to be measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.moving_shapes.shapes import TEXT_TOKENS, TEXT_WIDTH

WIDTH = 256
HEADS = 2
LAYERS = 4
FFN_WIDTH = 768
RANK = 16
ALPHA_OVER_RANK = 2.0
FREQ_DIM = 256
PATCH = (1, 2, 2)
CHANNELS = 16
LATENT_SHAPE = (CHANNELS, 5, 16, 16)
"""Channels, frames, rows, columns of a clip's latents."""

EPS = 1e-6
ROPE_THETA = 10000.0
ADAPTER = "lora1"

TRANSFORMER_CONFIG: dict[str, Any] = {
    "_class_name": "WanTransformer3DModel",
    "patch_size": list(PATCH),
    "num_attention_heads": HEADS,
    "attention_head_dim": WIDTH // HEADS,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "text_dim": TEXT_WIDTH,
    "text_len": TEXT_TOKENS,
    "freq_dim": FREQ_DIM,
    "ffn_dim": FFN_WIDTH,
    "num_layers": LAYERS,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "eps": EPS,
    "rope_max_seq_len": 1024,
}


class Expert(NamedTuple):
    """The parts that a step uses; the embedder and the head by their expert's name."""

    adapter_scale: float
    embedder: str
    head: str


SEMANTIC = Expert(0.0, "semantic", "semantic")
DETAIL = Expert(ALPHA_OVER_RANK, "detail", "detail")
EXPERTS = {"semantic": SEMANTIC, "detail": DETAIL}


class AdaptedLinear(nn.Module):
    """y = W x + b + scale · B (A x). With scale 0 the factors are not computed."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.base_layer = nn.Linear(width, out)
        self.lora_A = nn.ModuleDict({ADAPTER: nn.Linear(width, RANK, bias=False)})
        self.lora_B = nn.ModuleDict({ADAPTER: nn.Linear(RANK, out, bias=False)})
        nn.init.zeros_(self.lora_B[ADAPTER].weight)

    def forward(self, x: Tensor, scale: float) -> Tensor:
        out = self.base_layer(x)
        return out + scale * self.lora_B[ADAPTER](self.lora_A[ADAPTER](x)) if scale else out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair of adjacent channels of [B, heads, L, 128] by its angle; cos and sin are [L, 64]."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def rope_tables(frames: int, rows: int, cols: int) -> tuple[Tensor, Tensor]:
    """cos and sin [L, 64] of each token's angles: 22 pairs for the frame, 21 for the row, 21 for the column."""
    head = WIDTH // HEADS
    spatial = 2 * (head // 6)
    grid = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in (frames, rows, cols)), indexing="ij")
    angles = []
    for axis, dims in zip(grid, (head - 2 * spatial, spatial, spatial), strict=True):
        frequency = ROPE_THETA ** -(torch.arange(0, dims, 2, dtype=torch.float64) / dims)
        angles.append(axis.flatten()[:, None] * frequency)
    angle = torch.cat(angles, dim=1)
    return angle.cos().float(), angle.sin().float()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q = AdaptedLinear(WIDTH, WIDTH)
        self.to_k = AdaptedLinear(WIDTH, WIDTH)
        self.to_v = AdaptedLinear(WIDTH, WIDTH)
        self.to_out = nn.ModuleList([AdaptedLinear(WIDTH, WIDTH)])
        self.norm_q = nn.RMSNorm(WIDTH, eps=EPS)
        self.norm_k = nn.RMSNorm(WIDTH, eps=EPS)

    def forward(self, x: Tensor, context: Tensor, scale: float, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)

        v = heads(self.to_v(context, scale))
        q = heads(functional.rms_norm(self.to_q(x, scale).float(), (WIDTH,), self.norm_q.weight, EPS))
        k = heads(functional.rms_norm(self.to_k(context, scale).float(), (WIDTH,), self.norm_k.weight, EPS))
        if rope is not None:
            q, k = rotate(q, *rope), rotate(k, *rope)
        out = functional.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v)
        return self.to_out[0](out.transpose(1, 2).flatten(2), scale)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        up = nn.Module()
        up.proj = nn.Linear(WIDTH, FFN_WIDTH)
        self.net = nn.ModuleList([up, nn.Identity(), nn.Linear(FFN_WIDTH, WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        return self.net[2](functional.gelu(self.net[0].proj(x), approximate="tanh"))


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return functional.layer_norm(x.float(), (WIDTH,), weight, bias, EPS)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn1 = Attention()
        self.attn2 = Attention()
        self.norm2 = nn.LayerNorm(WIDTH, eps=EPS)
        self.ffn = FeedForward()
        self.scale_shift_table = nn.Parameter(torch.randn(1, 6, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor, text: Tensor, modulation: Tensor, scale: float, rope: tuple[Tensor, Tensor]) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.scale_shift_table + modulation).chunk(6, dim=1)
        normed = layer_norm(x) * (1 + scale1) + shift1
        x = x + self.attn1(normed, normed, scale, rope) * gate1
        x = x + self.attn2(layer_norm(x, self.norm2.weight, self.norm2.bias), text, scale, None)
        return x + self.ffn(layer_norm(x) * (1 + scale2) + shift2) * gate2


class LinearPair(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(width, WIDTH)
        self.linear_2 = nn.Linear(WIDTH, WIDTH)


def sinusoid(timestep: Tensor) -> Tensor:
    """[B, 256]: cosines, then sines."""
    half = FREQ_DIM // 2
    exponent = -math.log(10000.0) * torch.arange(half, dtype=torch.float32, device=timestep.device) / half
    angle = timestep.float()[:, None] * exponent.exp()
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


class ConditionEmbedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time_embedder = LinearPair(FREQ_DIM)
        self.time_proj = nn.Linear(WIDTH, 6 * WIDTH)
        self.text_embedder = LinearPair(TEXT_WIDTH)

    def forward(self, timestep: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The head's vector [B, 1, d], the blocks' modulation [B, 6, d], and the text [B, tokens, d]."""
        time, words = self.time_embedder, self.text_embedder
        with torch.autocast(timestep.device.type, enabled=False):
            vector = time.linear_2(functional.silu(time.linear_1(sinusoid(timestep))))
            modulation = self.time_proj(functional.silu(vector)).unflatten(1, (6, -1))
        return vector[:, None], modulation, words.linear_2(functional.gelu(words.linear_1(text), approximate="tanh"))


@dataclass(frozen=True)
class _Grid:
    frames: int
    rows: int
    cols: int


class MovingShapesTransformer(nn.Module):
    """Velocity of latents [B, 16, T, H, W] at timesteps [B] in (0, 1000], for text [B, 16, 64]."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv3d(CHANNELS, WIDTH, PATCH, PATCH)
        self.condition_embedder = ConditionEmbedder()
        self.condition_embedder_lora = ConditionEmbedder()
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.proj_out = nn.Linear(WIDTH, CHANNELS * math.prod(PATCH))
        self.proj_out_lora = nn.Linear(WIDTH, CHANNELS * math.prod(PATCH))
        self.scale_shift_table = nn.Parameter(torch.randn(1, 2, WIDTH) / WIDTH**0.5)
        self._rope: dict[tuple[_Grid, torch.device], tuple[Tensor, Tensor]] = {}

    def rope(self, grid: _Grid, device: torch.device) -> tuple[Tensor, Tensor]:
        if (grid, device) not in self._rope:
            cos, sin = rope_tables(grid.frames, grid.rows, grid.cols)
            self._rope[grid, device] = (cos.to(device), sin.to(device))
        return self._rope[grid, device]

    def forward(self, latents: Tensor, timestep: Tensor, text: Tensor, expert: Expert = SEMANTIC) -> Tensor:
        embedder = self.condition_embedder if expert.embedder == "semantic" else self.condition_embedder_lora
        head = self.proj_out if expert.head == "semantic" else self.proj_out_lora
        b, _, frames, rows, cols = latents.shape
        grid = _Grid(frames, rows // 2, cols // 2)
        # A patch is one matrix row: the convolution's stride is its kernel.
        patches = latents.unflatten(3, (-1, 2)).unflatten(5, (-1, 2)).permute(0, 2, 3, 5, 1, 4, 6).reshape(b, -1, 64)
        x = functional.linear(patches, self.patch_embedding.weight.flatten(1), self.patch_embedding.bias).float()
        vector, modulation, text = embedder(timestep, text)
        rope = self.rope(grid, latents.device)
        for block in self.blocks:
            x = block(x, text, modulation, expert.adapter_scale, rope)
        with torch.autocast(latents.device.type, enabled=False):
            shift, scale = (self.scale_shift_table + vector).chunk(2, dim=1)
            out = functional.linear(layer_norm(x) * (1 + scale) + shift, head.weight, head.bias)
        # Channels come last within a patch on the way out.
        out = out.view(b, frames, grid.rows, grid.cols, 2, 2, CHANNELS).permute(0, 6, 1, 2, 4, 3, 5)
        return out.reshape(b, CHANNELS, frames, rows, cols)

    def start_detail_expert(self) -> None:
        """The detail expert begins as the semantic one: its own copies, and factors that add nothing."""
        self.condition_embedder_lora.load_state_dict(self.condition_embedder.state_dict())
        self.proj_out_lora.load_state_dict(self.proj_out.state_dict())
        for module in self.modules():
            if isinstance(module, AdaptedLinear):
                nn.init.kaiming_uniform_(module.lora_A[ADAPTER].weight, a=math.sqrt(5))
                nn.init.zeros_(module.lora_B[ADAPTER].weight)

    def detail_parameters(self) -> list[nn.Parameter]:
        return [parameter for name, parameter in self.named_parameters() if "lora" in name]

    def base_parameters(self) -> list[nn.Parameter]:
        return [parameter for name, parameter in self.named_parameters() if "lora" not in name]


def compile_blocks(model: MovingShapesTransformer) -> None:
    """Compiles a block; all of them share the result. For CUDA: on a CPU compiling costs more than it saves."""
    import torch._dynamo as dynamo

    # One version for each batch size and adapter scale: versions for all of them take several times as long to make.
    dynamo.config.specialize_float = True
    dynamo.config.recompile_limit = 64
    for block in model.blocks:
        block.compile(dynamic=False)
