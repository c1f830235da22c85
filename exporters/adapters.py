"""The detail expert: rank-r factors of the attention linears, and an embedding block and head of its own.

`collect` sorts the keys of a file, whatever their spelling; `assemble` turns what it found into canonical
tensors of one rank and one ``alpha / rank``. Decisions, all of them exact in what the model computes:

- a linear without a pair of factors gets zero factors and is listed;
- where ranks differ, smaller factors are padded with zeros to the largest;
- where ``alpha / rank`` differs, the largest becomes the model's and the rest of it goes into B, in float32.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from exporters.config import AlphaConfig
from exporters.errors import CheckpointError
from exporters.files import shorten
from exporters.geometry import check_shapes
from exporters.lora_keys import detail_name, parse_factor, unusable
from exporters.model import ATTENTION_LINEARS, EMBEDDER, HEAD, Geometry, detail_tensors
from exporters.recognise import MODEL_OF_WIDTH
from exporters.tensor import Float32Array, Tensor

DCM_ALPHA_OVER_RANK = 2.0
"""DCM's file holds no alpha; its own code injects the adapter with ``r=128, lora_alpha=256``
(fastvideo/sample/inference_wan.py, `LoraConfig`)."""

_DETAIL_FIX = (
    "DCM's detail expert is factors + embedding block + head: use DCM's single file, or an adapter file that also "
    f"holds {EMBEDDER['detail']}.* and {HEAD['detail']}.*"
)


@dataclass
class Parts:
    """The adapter keys of one file, sorted. ``rest`` is everything that is no part of an adapter."""

    factors: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    alphas: dict[str, Tensor] = field(default_factory=dict)
    own: dict[str, Tensor] = field(default_factory=dict)
    rest: dict[str, Tensor] = field(default_factory=dict)
    prefixes: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Detail:
    """The detail expert in canonical form: ``tensors`` is exactly `detail_tensors` of the geometry with ``rank``."""

    tensors: dict[str, Tensor]
    rank: int
    alpha_over_rank: float
    alpha_source: str
    notes: tuple[str, ...] = ()
    left_out_energy: Mapping[str, float] = field(default_factory=dict)


def collect(tensors: Mapping[str, Tensor], where: str, *, alone: bool) -> Parts:
    """Sorts a file's tensors. ``alone``: the file has no base, so an embedder in it is the detail expert's.

    Raises:
        CheckpointError: a tensor of the adapter cannot be used, adapts something else than attention, or is
            there twice (two adapters in one file).
    """
    parts = Parts()
    refused: dict[str, str] = {}
    adapters: dict[str, str] = {}
    for key, tensor in tensors.items():
        why = unusable(key) if alone or "lora" in key or "dora" in key else None
        if why:
            refused[key] = why
            continue
        factor = parse_factor(key)
        if factor is None:
            own = detail_name(key) if alone else None
            if own is None:
                parts.rest[key] = tensor
            elif own in parts.own:
                raise _twice(own, parts.own[own], tensor, where)
            else:
                parts.own[own] = tensor
            continue
        if not factor.known or ".".join(factor.stem.split(".")[2:]) not in ATTENTION_LINEARS:
            refused[key] = f"adapts {factor.stem!r}" if factor.known else "no module of a Wan block has this name"
            continue
        adapters.setdefault(factor.adapter, key)
        parts.prefixes.add(factor.prefix)
        slot = (factor.stem, factor.part)
        if slot in parts.factors:
            raise _twice(".".join(slot), parts.factors[slot], tensor, where)
        parts.factors[slot] = tensor
    parts.alphas = {stem: parts.factors.pop((stem, part)) for stem, part in list(parts.factors) if part == "alpha"}
    if refused:
        raise _refused(refused, where)
    named = {k: v for k, v in adapters.items() if k}
    if len(named) > 1:
        raise CheckpointError(
            "this file holds several adapters, and hvdc compiles one",
            where=where,
            found=shorten(sorted(named)),
            fix="save the one adapter that you want into a file of its own",
        )
    return parts


def _twice(name: str, one: Tensor, other: Tensor, where: str) -> CheckpointError:
    return CheckpointError(
        f"{name!r} is there twice, under two spellings or as two adapters",
        where=where,
        found=f"{one.name!r} and {other.name!r}",
        fix="keep one of them",
    )


def _refused(refused: dict[str, str], where: str) -> CheckpointError:
    key, why = next(iter(refused.items()))
    return CheckpointError(
        f"{len(refused)} tensors of this adapter cannot be used: hvdc's detail expert adapts the eight attention "
        "projections of a block and nothing else",
        where=where,
        expected=", ".join(ATTENTION_LINEARS),
        found=f"{key!r}: {why}" + (f"; also {shorten(list(refused)[1:])}" if len(refused) > 1 else ""),
        fix="train or export the adapter as LoRA for to_q, to_k, to_v and to_out only",
    )


def assemble(
    parts: Parts,
    geometry: Geometry,
    where: str,
    *,
    config: AlphaConfig | None = None,
    lora_alpha: float | None = None,
    default_ratio: float | None = None,
    rank: int | None = None,
) -> Detail:
    """The canonical detail expert from ``parts``.

    ``alpha / rank`` comes from ``lora_alpha``, else the file's alpha tensors, else ``config``, else
    ``default_ratio`` (DCM's layout only).

    Raises:
        CheckpointError: half a pair, a wrong shape, no embedding block or head, no alpha, another rank than asked.
    """
    linears = sorted({stem for stem, _ in parts.factors})
    _check_pairs(parts, linears, geometry, where)
    ranks = {stem: parts.factors[stem, "lora_A"].shape[0] for stem in linears}
    top = max(ranks.values())
    if rank is not None and rank != top:
        raise CheckpointError(
            "the adapter has another rank than asked for",
            where=where,
            expected=f"rank {rank}",
            found=f"rank {top}",
            fix="leave the rank out: it follows from the factors (it chooses only where a merged checkpoint is split)",
        )
    ratios, source = _ratios(parts, ranks, where, config, lora_alpha, default_ratio)
    ratio = max(ratios.values(), key=abs)
    if ratio == 0:
        raise CheckpointError("the adapter's alpha is 0, so it does nothing", where=where, found=source)
    full = replace(geometry, rank=top, alpha_over_rank=ratio)
    expected = detail_tensors(full)
    _check_own(parts, expected, where)
    tensors: dict[str, Tensor] = {}
    for name, shape in expected.items():
        stem, _, part = name.removesuffix(".weight").rpartition(".")
        if part not in ("lora_A", "lora_B"):
            tensors[name] = parts.own[name].renamed(name)
        elif stem not in ranks:
            tensors[name] = zeros(name, shape)
        elif part == "lora_A":
            tensors[name] = _padded_rows(parts.factors[stem, part].renamed(name), shape)
        else:
            tensors[name] = _padded_columns(parts.factors[stem, part].renamed(name), shape, ratios[stem] / ratio)
    notes = _notes(full, ranks, ratios)
    return Detail(tensors, top, ratio, source, tuple(notes))


def _notes(geometry: Geometry, ranks: dict[str, int], ratios: dict[str, float]) -> list[str]:
    every = [f"blocks.{b}.{linear}" for b in range(geometry.layers) for linear in ATTENTION_LINEARS]
    absent = [stem for stem in every if stem not in ranks]
    notes = []
    if absent:
        notes.append(f"{len(absent)} of {len(every)} linears have no factors and get zeros: {shorten(absent)}")
    if len(set(ranks.values())) > 1:
        counts = ", ".join(f"{n} of rank {r}" for r, n in sorted(Counter(ranks.values()).items()))
        notes.append(f"ranks differ ({counts}): padded with zeros to {geometry.rank}")
    if len(set(ratios.values())) > 1:
        notes.append(f"alpha / rank differs between linears: {geometry.alpha_over_rank:g} is kept, the rest is in B")
    return notes


def _check_pairs(parts: Parts, linears: list[str], geometry: Geometry, where: str) -> None:
    halves = [f"{s}.{p}" for s in linears for p in ("lora_A", "lora_B") if (s, p) not in parts.factors]
    if halves:
        raise CheckpointError(
            f"{len(halves)} factors lack their other half",
            where=where,
            expected="lora_A and lora_B (or down and up) of every adapted linear",
            found=f"missing {shorten(halves)}",
            fix="the adapter file is incomplete: save or download it again",
        )
    if not linears:
        raise CheckpointError(
            "this file holds no factors of a low-rank adapter",
            where=where,
            expected="keys such as 'blocks.0.attn1.to_q.lora_A.weight' "
            "or 'lora_unet_blocks_0_self_attn_q.lora_down.weight'",
            found=shorten(list(parts.own) or list(parts.rest)) or "nothing",
            fix=_DETAIL_FIX,
        )
    beyond = [s for s in linears if int(s.split(".")[1]) >= geometry.layers]
    for stem in linears:
        a, b = parts.factors[stem, "lora_A"], parts.factors[stem, "lora_B"]
        out, inner = geometry.linear_shape(".".join(stem.split(".")[2:]))
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or a.shape[0] == 0:
            raise CheckpointError(
                f"the factors of {stem!r} do not fit each other",
                where=a.origin,
                expected="lora_A [rank, in] and lora_B [out, rank]",
                found=f"{list(a.shape)} and {list(b.shape)}",
                fix="export the adapter as plain LoRA of linear layers",
            )
        if (b.shape[0], a.shape[1]) != (out, inner) or beyond:
            raise _other_model(stem, a, b, geometry, beyond)


def _other_model(stem: str, a: Tensor, b: Tensor, geometry: Geometry, beyond: list[str]) -> CheckpointError:
    theirs, ours = MODEL_OF_WIDTH.get(a.shape[1], "another model"), MODEL_OF_WIDTH.get(geometry.width, "this model")
    if a.shape[1] == geometry.width and b.shape[0] == geometry.width:
        detail = f"it adapts {beyond[-1]!r}, and the base has {geometry.layers} blocks" if beyond else "a smaller model"
        return CheckpointError(
            f"this adapter was trained for a deeper model than this base: {detail}",
            where=a.origin,
            expected=f"blocks 0 to {geometry.layers - 1}",
            found=f"blocks up to {max(int(s.split('.')[1]) for s in beyond)}" if beyond else "",
            fix="give the adapter and the base that belong together",
        )
    return CheckpointError(
        f"this adapter was trained for {theirs} ({a.shape[1]} channels), "
        f"but the base is {ours} ({geometry.width} channels)",
        where=a.origin,
        expected=f"{stem}: lora_A [rank, {geometry.width}], lora_B [{geometry.width}, rank]",
        found=f"{list(a.shape)} and {list(b.shape)}",
        fix="give the adapter and the base that belong together",
    )


def _check_own(parts: Parts, expected: Mapping[str, tuple[int, ...]], where: str) -> None:
    own = {n: s for n, s in expected.items() if ".lora_" not in n}
    missing = [n for n in own if n not in parts.own]
    if missing:
        lacks = [
            what
            for what, root in (("embedding block", EMBEDDER["detail"]), ("head", HEAD["detail"]))
            if any(n.startswith(f"{root}.") for n in missing)
        ]
        raise CheckpointError(
            f"the detail expert's own {' and '.join(lacks)} {'is' if len(lacks) == 1 else 'are'} missing",
            where=where,
            expected=f"{len(own)} tensors besides the factors: {EMBEDDER['detail']}.* and {HEAD['detail']}.*",
            found=f"{len(own) - len(missing)} of them; missing {shorten(missing)}",
            fix=_DETAIL_FIX,
        )
    check_shapes({n: parts.own[n] for n in own}, own, where)


def _divided(alpha: float, ranks: dict[str, int], config: AlphaConfig | None) -> dict[str, float]:
    """alpha / rank of each linear; alpha / √rank if it is rank-stabilised (Kalajdzievski 2023; PEFT's use_rslora)."""
    root = config is not None and config.rank_stabilised
    return {s: alpha / (math.sqrt(r) if root else r) for s, r in ranks.items()}


def _stabilised(config: AlphaConfig | None) -> str:
    return ", rank-stabilised" if config is not None and config.rank_stabilised else ""


def _ratios(
    parts: Parts,
    ranks: dict[str, int],
    where: str,
    config: AlphaConfig | None,
    lora_alpha: float | None,
    default_ratio: float | None,
) -> tuple[dict[str, float], str]:
    """``(linear -> alpha / rank, where alpha came from)``."""
    if lora_alpha is not None:
        if not math.isfinite(lora_alpha) or lora_alpha == 0:
            raise CheckpointError("alpha must be a finite number other than 0", found=str(lora_alpha))
        source = f"the argument: alpha {lora_alpha:g}" + _stabilised(config)
        source += ", instead of the file's own alpha tensors" if parts.alphas else ""
        return _divided(lora_alpha, ranks, config), source
    if parts.alphas:
        bare = [s for s in ranks if s not in parts.alphas]
        if bare:
            raise CheckpointError(
                f"{len(bare)} adapted linears have no alpha although others have one",
                where=where,
                found=f"missing for {shorten(bare)}",
                fix="give alpha explicitly (--lora-alpha), or save the adapter again",
            )
        orphans = [s for s in parts.alphas if s not in ranks]
        if orphans:
            raise CheckpointError(
                f"{len(orphans)} alphas belong to linears without factors", where=where, found=shorten(orphans)
            )
        return {s: _alpha(parts.alphas[s]) / r for s, r in ranks.items()}, "alpha tensors in the file"
    if config is not None:
        odd = [s for s, r in ranks.items() if config.rank not in (None, r)]
        if odd:
            raise CheckpointError(
                "the adapter's configuration gives another rank than its factors have",
                where=config.source,
                expected=f"rank {config.rank}",
                found=f"rank {ranks[odd[0]]} in {odd[0]!r}",
                fix="keep each adapter and its configuration in a folder of their own, or give --lora-alpha",
            )
        return _divided(config.alpha, ranks, config), f"{config.source}: alpha {config.alpha:g}" + _stabilised(config)
    if default_ratio is not None:
        return dict.fromkeys(ranks, default_ratio), (
            f"DCM's default {default_ratio:g}: its file holds no alpha and its own code uses alpha 256 at rank 128"
        )
    raise CheckpointError(
        "nothing says how strongly the adapter applies: there is no alpha in the file or beside it",
        where=where,
        expected="'.alpha' tensors, adapter_config.json, lora_config.json, or an argument",
        fix="give the alpha that it was trained with: --lora-alpha ALPHA (DCM's is 256 at rank 128)",
    )


def _alpha(tensor: Tensor) -> float:
    if math.prod(tensor.shape) != 1:
        raise CheckpointError("an alpha is not one number", where=tensor.origin, found=f"shape {list(tensor.shape)}")
    value = float(tensor.read().reshape(()))
    if not math.isfinite(value):
        raise CheckpointError("an alpha is not a finite number", where=tensor.origin, found=str(value))
    return value


def zeros(name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of zeros that takes no memory until it is read."""
    return Tensor(name, shape, "F32", "zeros", lambda start, stop: np.zeros((stop - start, *shape[1:]), np.float32))


def _padded_rows(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    have = tensor.shape[0]
    if have == shape[0]:
        return tensor

    def read(start: int, stop: int) -> Float32Array:
        out = np.zeros((stop - start, *shape[1:]), np.float32)
        if start < have:
            out[: min(stop, have) - start] = tensor.rows(start, min(stop, have))
        return out

    return replace(tensor, shape=shape, reader=read)


def _padded_columns(tensor: Tensor, shape: tuple[int, ...], factor: float) -> Tensor:
    have = tensor.shape[1]
    if have == shape[1] and factor == 1:
        return tensor

    def read(start: int, stop: int) -> Float32Array:
        out = np.zeros((stop - start, *shape[1:]), np.float32)
        np.multiply(tensor.rows(start, stop), np.float32(factor), out=out[:, :have])
        return out

    return replace(tensor, shape=shape, reader=read)
