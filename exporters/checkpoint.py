"""The one way in: a path in any form that people hold the model in becomes a `Checkpoint`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from exporters.adapters import DCM_ALPHA_OVER_RANK, Detail, Parts, assemble
from exporters.canonicalise import CanonicalStore, canonicalise_adapter, canonicalise_checkpoint
from exporters.config import AlphaConfig, alpha_config, model_config
from exporters.dtypes import DECODABLE
from exporters.errors import CheckpointError
from exporters.files import Store, open_store, shorten
from exporters.geometry import check_shapes, geometry_of
from exporters.model import Geometry, base_tensors, canonical_tensors
from exporters.report import Report
from exporters.split import DEFAULT_MAX_LEFT_OUT_ENERGY, split_merged
from exporters.tensor import Tensor


@dataclass(frozen=True)
class Checkpoint:
    """A model in canonical form. ``tensors`` has exactly the names, shapes and order of `canonical_tensors`.

    Tensors are read lazily and from any thread, until `close`; use it as a context manager.
    """

    path: Path
    geometry: Geometry
    tensors: dict[str, Tensor]
    report: Report
    _resources: ExitStack = field(default_factory=ExitStack, repr=False, compare=False)

    def close(self) -> None:
        """Closes every file that was opened."""
        self._resources.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_checkpoint(
    path: Path | str,
    *,
    adapter: Path | str | None = None,
    lora_alpha: float | None = None,
    rank: int | None = None,
    max_left_out_energy: float = DEFAULT_MAX_LEFT_OUT_ENERGY,
    heads: int | None = None,
    text_tokens: int | None = None,
    eps: float | None = None,
) -> Checkpoint:
    """Opens a checkpoint and checks everything that its headers can tell. No weight is read, except a few rows
    for comparison when ``adapter`` is a merged checkpoint.

    Args:
        path: file, shards' index, folder, or diffusers pipeline.
        adapter: the detail expert where ``path`` doesn't hold it: a LoRA file or folder, or a merged checkpoint.
        lora_alpha: alpha (not alpha / rank) of the adapter; wins over what files say.
        rank: where a merged checkpoint is split, the rank (128 if None); elsewhere it must be the factors' own.
        max_left_out_energy: limit for the share of ‖ΔW‖² that splitting leaves out of any linear.
        heads, text_tokens, eps: win over `config.json`.

    Raises:
        CheckpointError: whatever is wrong, with what it is and what to do.
    """
    with ExitStack() as stack:
        store = open_store(Path(path))
        stack.callback(store.close)
        found = canonicalise_checkpoint(store)
        config = model_config(store.folder)
        geometry, notes = geometry_of(
            found.base, config, str(store.path), heads=heads, text_tokens=text_tokens, eps=eps
        )
        base = {name: found.base[name] for name in base_tensors(geometry)}
        extra = None
        if adapter is not None:
            extra_store = open_store(Path(adapter), join=True)
            stack.callback(extra_store.close)
            extra = (extra_store, canonicalise_adapter(extra_store))
        detail, base, source = _detail(store, found, extra, geometry, base, lora_alpha, rank, max_left_out_energy)
        if detail:
            geometry = replace(geometry, rank=detail.rank, alpha_over_rank=detail.alpha_over_rank)
            experts = {"semantic": str(store.path), "detail": source}
        else:
            experts = {"semantic": str(store.path)}
            notes.append("no detail expert: this is a one-expert model")
        tensors = {**base, **(detail.tensors if detail else {})}
        tensors = {name: tensors[name].renamed(name) for name in canonical_tensors(geometry)}
        _check_dtypes(tensors.values())
        assert found.layout is not None  # noqa: S101 - a checkpoint's is always known
        stores = [(store, found), *([extra] if extra else [])]
        report = Report(
            layout=found.layout,
            container=store.container,
            stored_dtypes=dict(Counter(t.stored_dtype for t in tensors.values())),
            prefixes=tuple(dict.fromkeys(p for _, c in stores for p in c.prefixes)),
            experts=experts,
            alpha_over_rank=geometry.alpha_over_rank,
            alpha_source=detail.alpha_source if detail else "",
            ignored=tuple(i for _, c in stores for i in c.ignored),
            left_out_energy=detail.left_out_energy if detail else {},
            notes=(*(n for s, _ in stores for n in s.notes), *_config_note(config.source), *notes)
            + (detail.notes if detail else ()),
        )
        return Checkpoint(store.path, geometry, tensors, report, stack.pop_all())
    raise AssertionError  # not reached: tells the type checker that the block above returns or raises


def _detail(
    store: Store,
    found: CanonicalStore,
    extra: tuple[Store, CanonicalStore] | None,
    geometry: Geometry,
    base: dict[str, Tensor],
    lora_alpha: float | None,
    rank: int | None,
    max_left_out_energy: float,
) -> tuple[Detail | None, dict[str, Tensor], str]:
    """``(detail expert or None, base tensors, where it came from)`` for each of its three forms."""
    where = str(store.path)
    if extra is None:
        if not found.has_detail:
            _refuse_unused(where, lora_alpha=lora_alpha, rank=rank)
            return None, base, ""
        default = DCM_ALPHA_OVER_RANK if found.layout == "dcm" else None
        config = _alpha_config(store, found.parts, lora_alpha)
        detail = assemble(
            found.parts, geometry, where, config=config, lora_alpha=lora_alpha, default_ratio=default, rank=rank
        )
        return detail, base, "factors, embedding block and head in the same file"
    extra_store, other = extra
    if found.parts.factors:
        raise CheckpointError(
            "the checkpoint already holds a detail expert, and an adapter was given as well",
            where=where,
            found=f"factors of {len(found.parts.factors) // 2} linears in the checkpoint; adapter {extra_store.path}",
            fix="leave the adapter out, or give a base without factors",
        )
    if other.base:
        _refuse_unused(str(extra_store.path), lora_alpha=lora_alpha)
        check_shapes(other.base, base_tensors(geometry), str(extra_store.path))
        surplus = sorted(set(other.base) - set(base))
        if surplus or found.parts.own:
            raise CheckpointError(
                "the merged checkpoint and the base are not the same kind of model",
                where=str(extra_store.path),
                found=shorten(surplus or list(found.parts.own)),
                fix="give the base that the detail expert was trained on",
            )
        checked, detail = split_merged(base, other.base, geometry, rank=rank, max_left_out_energy=max_left_out_energy)
        return detail, checked, f"{extra_store.path} (merged, split at rank {detail.rank})"
    # The expert's own embedding block and head may already lie in the checkpoint, and only its factors apart.
    twice = sorted(set(found.parts.own) & set(other.parts.own))
    if twice:
        raise CheckpointError(
            "checkpoint and adapter both hold the detail expert's own tensors",
            where=str(extra_store.path),
            found=shorten(twice),
            fix="remove them from one of the two",
        )
    parts = replace(other.parts, own={**found.parts.own, **other.parts.own})
    config = _alpha_config(extra_store, parts, lora_alpha)
    detail = assemble(parts, geometry, str(extra_store.path), config=config, lora_alpha=lora_alpha, rank=rank)
    return detail, base, str(extra_store.path)


def _alpha_config(store: Store, parts: Parts, lora_alpha: float | None) -> AlphaConfig | None:
    """The configuration's alpha, looked up even where it will not decide, because it may refuse (DoRA).

    With an explicit alpha it still tells whether the adapter is rank-stabilised.
    """
    config = alpha_config(store.folder, store.metadata)
    return None if lora_alpha is None and parts.alphas else config


def _refuse_unused(where: str, *, lora_alpha: float | None = None, rank: int | None = None) -> None:
    for name, value in (("alpha", lora_alpha), ("rank", rank)):
        if value is not None:
            raise CheckpointError(
                f"an adapter {name} was given, and there are no factors it could apply to",
                where=where,
                found=f"{name} {value:g}",
                fix=f"leave the {name} out, or give the adapter",
            )


def _config_note(source: str) -> tuple[str, ...]:
    return (f"configuration read from {source}",) if source else ()


def _check_dtypes(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        if tensor.stored_dtype not in DECODABLE:
            raise CheckpointError(
                f"{tensor.name!r} is stored as {tensor.stored_dtype}: the checkpoint is already quantised",
                where=tensor.origin,
                expected=", ".join(DECODABLE),
                fix="give the checkpoint before it was quantised",
            )
