"""The raw keys of one checkpoint become canonical names: nothing is dropped without a word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from exporters.adapters import Parts, collect
from exporters.errors import CheckpointError
from exporters.files import Store, shorten
from exporters.lora_keys import detail_name
from exporters.names import Layout, canonical, detect_layout, strip_prefixes
from exporters.recognise import foreign_error, variant_error, what_is
from exporters.scales import Ignored, apply_scales
from exporters.tensor import Tensor

# What may be ignored beside a Wan transformer: (pattern over the raw key, why that loses nothing).
_IGNORABLE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(^|\.)(rope\.)?freqs(_cos|_sin|_cis)?$"), "RoPE table; computed from the geometry"),
    (re.compile(r"^(vae|first_stage_model)\."), "VAE of a bundled file; not part of the transformer"),
    (
        re.compile(r"^(text_encoders?|cond_stage_model|conditioner|clip_vision)\."),
        "text or image encoder of a bundled file; not part of the transformer",
    ),
)


@dataclass(frozen=True)
class CanonicalStore:
    """One file's tensors under canonical names. ``parts.own`` and ``parts.factors`` are the detail expert's."""

    base: dict[str, Tensor]
    parts: Parts
    layout: Layout | None
    prefixes: tuple[str, ...]
    ignored: tuple[Ignored, ...]

    @property
    def has_detail(self) -> bool:
        return bool(self.parts.factors or self.parts.own or self.parts.alphas)


def canonicalise_checkpoint(store: Store) -> CanonicalStore:
    """A file that holds a base model, with or without the detail expert inside.

    Raises:
        CheckpointError: it holds something else, or a tensor that is neither used nor known to be useless.
    """
    where = str(store.path)
    tensors, ignored = _without_markers(store)
    what = what_is(tensors)
    if what == "adapter":
        raise CheckpointError(
            "this file holds an adapter (LoRA) only, without the model it adapts",
            where=where,
            found=f"{len(tensors):,} tensors: {shorten(list(tensors)[:3])}",
            fix="give the base model as the checkpoint and this file as its adapter (--adapter)",
        )
    if what != "transformer":
        raise foreign_error(tensors, where)
    parts = collect(tensors, where, alone=False)
    stripped, prefixes, useless = _strip(parts.rest, where)
    layout = detect_layout(stripped, where)
    assert layout is not None  # noqa: S101 - `what_is` found keys of blocks
    base: dict[str, Tensor] = {}
    unknown: list[str] = []
    for key, tensor in stripped.items():
        name = canonical(key, layout)
        if name is None:
            unknown.append(tensor.name)
            continue
        is_own = name.startswith(("condition_embedder_lora.", "proj_out_lora."))
        place = parts.own if is_own else base
        if name in place:
            raise _two_keys(name, place[name], tensor, where)
        place[name] = tensor
    if unknown:
        raise variant_error(unknown, where) or _unknown_error(unknown, where)
    return CanonicalStore(base, parts, layout, tuple(sorted(prefixes | parts.prefixes - {""})), (*ignored, *useless))


def canonicalise_adapter(store: Store) -> CanonicalStore:
    """A file given as the adapter: factors with the expert's own tensors, or a whole merged checkpoint.

    Raises:
        CheckpointError: as `canonicalise_checkpoint`.
    """
    where = str(store.path)
    tensors, ignored = _without_markers(store)
    what = what_is(tensors)
    if what == "transformer":
        whole = canonicalise_checkpoint(store)
        if whole.has_detail:
            raise CheckpointError(
                "the file given as the adapter holds a whole model with two experts",
                where=where,
                fix="give it alone, as the checkpoint",
            )
        return whole
    if what != "adapter" and not any(detail_name(key) for key in tensors):
        raise foreign_error(tensors, where)
    parts = collect(tensors, where, alone=True)
    if parts.rest:
        unknown = list(parts.rest)
        raise variant_error(unknown, where) or _unknown_error(unknown, where)
    return CanonicalStore({}, parts, None, tuple(sorted(parts.prefixes - {""})), tuple(ignored))


def _without_markers(store: Store) -> tuple[dict[str, Tensor], list[Ignored]]:
    tensors, ignored = apply_scales(store.tensors, str(store.path))
    return tensors, [*ignored, *(Ignored(name, why) for name, why in store.not_tensors.items())]


def _strip(tensors: Mapping[str, Tensor], where: str) -> tuple[dict[str, Tensor], set[str], list[Ignored]]:
    """Keys without prefixes, the prefixes that were there, and what may be ignored."""
    out: dict[str, Tensor] = {}
    prefixes: set[str] = set()
    useless: list[Ignored] = []
    for key, tensor in tensors.items():
        reason = next((why for pattern, why in _IGNORABLE if pattern.search(key)), None)
        if reason:
            useless.append(Ignored(key, reason))
            continue
        prefix, rest = strip_prefixes(key)
        if rest in out:
            raise _two_keys(rest, out[rest], tensor, where)
        out[rest] = tensor
        if prefix:
            prefixes.add(prefix)
    return out, prefixes, useless


def _two_keys(name: str, one: Tensor, other: Tensor, where: str) -> CheckpointError:
    return CheckpointError(
        f"two keys of this file mean the same tensor, {name!r}",
        where=where,
        found=f"{one.name!r} and {other.name!r}",
        fix="keep one copy of the model in the file",
    )


def _unknown_error(unknown: list[str], where: str) -> CheckpointError:
    return CheckpointError(
        f"{len(unknown)} tensors of this file belong to no part of the model: "
        "leaving them out would change silently what it computes",
        where=where,
        expected="the tensors of a Wan text-to-video transformer, and DCM's detail expert",
        found=shorten(unknown),
        fix="give an unmodified checkpoint, or remove these tensors if you know that the model runs without them",
    )
