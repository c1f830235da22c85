"""A path becomes a flat dictionary of lazy tensors: one file, shards with an index, or a folder.

What a file is comes from its content (`exporters.sniff`). What a *folder* is comes from what lies in it:
an index, a pipeline's ``transformer`` folder, or weight files of which exactly one holds a Wan transformer.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from exporters.errors import CheckpointError
from exporters.pickles import open_pickle
from exporters.recognise import what_is
from exporters.safetensors_file import SafetensorsFile
from exporters.sniff import UNKNOWN_FILE, kind_of
from exporters.tensor import Tensor

_INDEX_LIMIT_BYTES = 64 << 20
_NAMES_SHOWN = 8


@dataclass(frozen=True)
class Store:
    """Raw tensors of one checkpoint or adapter, under the keys of its files.

    ``path`` is what was asked for, ``folder`` where its configuration files lie. ``container`` is a phrase such
    as ``"one safetensors file"``. ``metadata`` is safetensors' own, of all files. ``not_tensors`` names what
    a pickle held besides tensors. ``notes`` are sentences for the report.
    """

    path: Path
    folder: Path
    container: str
    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)
    not_tensors: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    resources: ExitStack = field(default_factory=ExitStack, repr=False)

    def close(self) -> None:
        """Closes the files; the tensors' later reads fail."""
        self.resources.close()


def shorten(names: list[str]) -> str:
    """Up to eight names and how many more there are."""
    shown = ", ".join(repr(n) for n in names[:_NAMES_SHOWN])
    return shown + (f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else "")


def open_store(path: Path, *, join: bool = False) -> Store:
    """Opens a file or folder.

    Of a folder with several weight files, the one that holds a Wan transformer is taken. With ``join`` they are
    one set of tensors instead, as an adapter's factors and its embedding block may lie side by side.

    Raises:
        CheckpointError: no such path, a wrong kind of file, a damaged file, an incomplete set of shards.
    """
    if not path.exists():
        raise CheckpointError(
            "there is no such file or folder",
            where=str(path),
            fix="check the path" + (" (a broken symbolic link?)" if path.is_symlink() else ""),
        )
    with ExitStack() as stack:
        try:
            store = _open_folder(path, stack, join) if path.is_dir() else _open_file_or_index(path, stack)
        except OSError as error:
            raise CheckpointError(f"this cannot be read: {error.strerror or error}", where=str(path)) from error
        store.resources.push(stack.pop_all())
    return store


def _open_file_or_index(path: Path, stack: ExitStack) -> Store:
    if kind_of(path) == "json":
        return _open_index(path, stack)
    return _open_file(path, stack)


def _open_file(path: Path, stack: ExitStack) -> Store:
    kind = kind_of(path)
    if kind == "json":
        raise CheckpointError(
            "this is a JSON text, not weights",
            where=str(path),
            fix="give the checkpoint file that lies beside it",
        )
    if kind == "safetensors":
        file = SafetensorsFile(path)
        stack.callback(file.close)
        return Store(path, path.parent, "one safetensors file", file.tensors, file.metadata)
    tensors, others = open_pickle(path, kind)
    return Store(path, path.parent, "one PyTorch file", tensors, not_tensors=others)


def _open_index(index: Path, stack: ExitStack) -> Store:
    """The shards that a ``*.index.json`` names: every name once, in the shard that the index says."""
    weight_map = _weight_map(index)
    by_shard: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        by_shard.setdefault(shard, []).append(name)
    missing = sorted(s for s in by_shard if not (index.parent / s).is_file())
    if missing:
        raise CheckpointError(
            f"{len(missing)} of the {len(by_shard)} shards that the index names are not there",
            where=str(index),
            expected="every shard beside the index",
            found=f"missing {shorten(missing)}",
            fix="download the missing shards into the same folder",
        )
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    others: dict[str, str] = {}
    came_from: dict[str, str] = {}
    for shard, names in sorted(by_shard.items()):
        part = _open_file(index.parent / shard, stack)
        lacking = sorted(set(names) - set(part.tensors))
        if lacking:
            raise CheckpointError(
                f"the index promises {len(lacking)} tensors that their shard does not hold",
                where=str(index.parent / shard),
                found=f"missing {shorten(lacking)}",
                fix="index and shards are of different versions: download all of them again",
            )
        _join(tensors, came_from, part, shard)
        metadata |= part.metadata
        others |= part.not_tensors
    unlisted = sorted(set(tensors) - set(weight_map))
    notes = (f"{len(unlisted)} tensors in the shards are not in the index: {shorten(unlisted)}",) if unlisted else ()
    what = f"{len(by_shard)} shards with an index"
    return Store(index, index.parent, what, tensors, metadata, others, notes)


def _weight_map(index: Path) -> dict[str, str]:
    where = str(index)
    fix = "give the checkpoint, or the folder that holds it"
    try:
        if index.stat().st_size > _INDEX_LIMIT_BYTES:
            raise CheckpointError("this JSON file is too large to be an index of shards", where=where, fix=fix)
        content = json.loads(index.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"this JSON file cannot be read: {error}", where=where, fix=fix) from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            "this is a JSON text, not weights and not an index of shards",
            where=where,
            expected="a 'weight_map' of tensor names and shard files",
            fix=fix,
        )
    for name, shard in weight_map.items():
        pure = PurePosixPath(shard) if isinstance(shard, str) else None
        if pure is None or pure.is_absolute() or ".." in pure.parts or not pure.parts or "\\" in pure.name:
            raise CheckpointError(
                f"the index sends tensor {name!r} to a place outside its folder",
                where=where,
                found=repr(shard),
                fix="index entries must be plain file names beside the index",
            )
    return weight_map


def _join(tensors: dict[str, Tensor], came_from: dict[str, str], part: Store, label: str) -> None:
    for name, tensor in part.tensors.items():
        if name in tensors:
            raise CheckpointError(
                f"tensor {name!r} is in two files",
                where=str(part.path),
                found=f"in {came_from[name]!r} and in {label!r}",
                fix="keep one copy: files of two versions are mixed in this folder",
            )
        tensors[name] = tensor
        came_from[name] = label


def _open_folder(folder: Path, stack: ExitStack, join: bool) -> Store:
    inner = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name.startswith("transformer"))
    if "transformer" in inner:
        if len(inner) > 1:
            raise CheckpointError(
                "this pipeline holds several transformers, and hvdc cannot know which is which",
                where=str(folder),
                found=shorten(inner),
                fix=f"give one as the checkpoint and the other as the adapter: {folder / 'transformer'} --adapter "
                f"{folder / inner[-1]}",
            )
        return _open_folder(folder / "transformer", stack, join)
    indexes = sorted(p for p in folder.glob("*.index.json") if p.is_file())
    if len(indexes) > 1:
        raise CheckpointError(
            "this folder holds several indexes of shards",
            where=str(folder),
            found=shorten([p.name for p in indexes]),
            fix="give the index file that you want",
        )
    if indexes:
        store = _open_index(indexes[0], stack)
        shards = [folder / s for s in set(_weight_map(indexes[0]).values())]
        files, refused = _weight_files(folder)
        return replace(store, notes=store.notes + _beside(files, shards) + _unusable(refused))
    files, refused = _weight_files(folder)
    if not files:
        known = next((e for e in refused if not e.what.startswith(UNKNOWN_FILE)), None)
        if known:
            raise known
        names = sorted(p.name for p in folder.iterdir())
        raise CheckpointError(
            "this folder holds no weights",
            where=str(folder),
            expected="a .safetensors or .pth file, shards with an index, or a diffusers pipeline with 'transformer'",
            found=shorten(names) if names else "an empty folder",
            fix="give the folder that holds the model's weights",
        )
    if len(files) == 1:
        store = _open_file(files[0], stack)
    else:
        store = _joined(folder, files, stack) if join else _the_one(folder, files, stack)
    return replace(store, notes=store.notes + _unusable(refused))


def _unusable(refused: list[CheckpointError]) -> tuple[str, ...]:
    """Of files that should hold weights and don't, such as a Git-LFS pointer: what each is. Other texts are no news."""
    bad = [error for error in refused if not error.what.startswith(UNKNOWN_FILE)]
    return tuple(f"beside it and not usable: {Path(error.where).name!r}: {error.what}" for error in bad)


def _weight_files(folder: Path) -> tuple[list[Path], list[CheckpointError]]:
    """The files of a folder that hold weights, by content; and what was wrong with those that should."""
    files: list[Path] = []
    refused: list[CheckpointError] = []
    for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")):
        try:
            if kind_of(path) != "json":
                files.append(path)
        except CheckpointError as error:
            refused.append(error)
    return files, refused


def _joined(folder: Path, files: list[Path], stack: ExitStack) -> Store:
    # Trainers leave optimizer states and the like beside an adapter, as pickles: not part of it.
    chosen = [p for p in files if kind_of(p) == "safetensors"] or files
    tensors: dict[str, Tensor] = {}
    came_from: dict[str, str] = {}
    metadata: dict[str, str] = {}
    others: dict[str, str] = {}
    for path in chosen:
        part = _open_file(path, stack)
        _join(tensors, came_from, part, path.name)
        metadata |= part.metadata
        others |= part.not_tensors
    container = "one file of a folder" if len(chosen) == 1 else f"{len(chosen)} files of one folder"
    notes = (f"read {shorten([p.name for p in chosen])}", *_beside(files, chosen))
    return Store(folder, folder, container, tensors, metadata, others, notes)


def _beside(files: list[Path], read: list[Path]) -> tuple[str, ...]:
    beside = [p.name for p in files if p not in read]
    return (f"beside it and not read: {shorten(beside)}",) if beside else ()


def _the_one(folder: Path, files: list[Path], stack: ExitStack) -> Store:
    """The file of a folder that holds the transformer: official repositories keep VAE and text encoder beside it."""
    found: dict[Path, str] = {}
    opened: dict[Path, Store] = {}
    damaged: list[CheckpointError] = []
    # Pickles cost an import of torch; look into them only when no safetensors file is the one.
    for kind in (("safetensors",), ("zip", "pickle")):
        for path in (p for p in files if kind_of(p) in kind):
            with ExitStack() as attempt:
                try:
                    store = _open_file(path, attempt)
                except CheckpointError as error:
                    found[path] = error.what
                    damaged.append(error)
                    continue
                found[path] = what_is(store.tensors)
                if found[path] == "transformer":
                    opened[path] = store
                    stack.push(attempt.pop_all())
        if opened:
            break
    if len(opened) != 1:
        listing = "; ".join(f"{p.name!r}: {what}" for p, what in list(found.items())[:_NAMES_SHOWN])
        raise CheckpointError(
            f"this folder holds {'several transformers' if opened else 'no Wan transformer'}",
            where=str(folder),
            expected="exactly one file with a Wan transformer",
            found=listing,
            fix="give the file that you want",
        )
    path, store = next(iter(opened.items()))
    whole = [p for p in files if str(p) not in {error.where for error in damaged}]
    notes = (f"read {path.name!r}", *_beside(whole, [path]), *_unusable(damaged))
    return Store(path, folder, store.container, store.tensors, store.metadata, store.not_tensors, notes)
