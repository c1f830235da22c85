"""One file of `torch.save`: opened with ``weights_only=True``, so that nothing in it can run code.

torch is imported here and only here, because a safetensors checkpoint needs none of it and the import takes seconds.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exporters.errors import CheckpointError
from exporters.sniff import Kind
from exporters.tensor import Float32Array, RowReader, Tensor

if TYPE_CHECKING:
    import torch

STATE_KEYS = ("state_dict", "model", "module", "generator", "model_state_dict", "weights")
"""Under which key training programs put the weights, in the order in which they're looked for."""

_DOWNLOAD_AGAIN = "download the file again and compare its size with the one that its host shows"


def open_pickle(path: Path, kind: Kind) -> tuple[dict[str, Tensor], dict[str, str]]:
    """``(tensors, others)``: lazy tensors by key, and what else the file holds: name -> what it is.

    Zip files are mapped, not read (pages of a map can be dropped by the system at any time); the older
    format has to be loaded whole.

    Raises:
        CheckpointError: the pickle needs code to run, is cut off, or holds no tensors.
    """
    if kind == "zip":
        _check_zip(path)
    loaded = _load(path, mmap=kind == "zip")
    state, others = _state_of(loaded, path)
    tensors = {}
    for name, value in state.items():
        if _is_tensor(value):
            tensors[str(name)] = _lazy(str(name), value, path)
        else:
            others[str(name)] = f"a {type(value).__name__}, not a tensor"
    return tensors, others


def _check_zip(path: Path) -> None:
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except Exception as error:  # a damaged directory makes zipfile raise many kinds of error
        raise CheckpointError(
            "the file starts like a PyTorch checkpoint but its end is missing: it is cut off or damaged",
            where=where,
            found=f"{path.stat().st_size:,} bytes; {error}",
            fix=_DOWNLOAD_AGAIN,
        ) from error
    if any(n.endswith("/constants.pkl") for n in names) and any("/code/" in n for n in names):
        raise CheckpointError(
            "this is a TorchScript program, not a state dict",
            where=where,
            fix="save the model's state_dict() with torch.save or safetensors and give that file",
        )
    if not any(re.fullmatch(r"[^/]+/data\.pkl", n) for n in names):
        raise CheckpointError(
            "this is a zip archive, but not a PyTorch checkpoint",
            where=where,
            expected="a data.pkl inside, as torch.save writes",
            found=f"{len(names)} entries, such as {', '.join(map(repr, names[:3])) or 'none'}",
            fix="unpack it and give the checkpoint inside",
        )


def _load(path: Path, *, mmap: bool) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols: what cannot be read raises
            return _torch_load(path, mmap)
    except pickle.UnpicklingError as error:
        reason = re.search(r"(?:Unsupported (?:global|class|operand)[^\n.]*|GLOBAL [\w.]+)", str(error))
        raise CheckpointError(
            "this pickle needs more than tensors to load, so loading it could run any code",
            where=str(path),
            expected="a state dict of tensors, loadable with torch.load(weights_only=True)",
            found=reason.group(0).strip() if reason else "a damaged pickle or an object of another class",
            fix="where you trust the file: load it with the program that wrote it, then save its state_dict() "
            "with safetensors.torch.save_file",
        ) from error
    except Exception as error:  # a damaged archive makes torch raise RuntimeError, EOFError, KeyError, and others
        raise CheckpointError(
            "PyTorch cannot read this file: it is cut off or damaged",
            where=str(path),
            found=f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else 'no message'}",
            fix=_DOWNLOAD_AGAIN,
        ) from error


def _torch_load(path: Path, mmap: bool) -> object:
    import torch

    # Newer torch goes by the suffix where it is given a path, and a map needs the path.
    if mmap and path.suffix != ".safetensors":
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    with path.open("rb") as file:
        return torch.load(file, map_location="cpu", weights_only=True)


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _state_of(loaded: object, path: Path) -> tuple[dict[Any, Any], dict[str, str]]:
    """The mapping that holds the tensors, looking through the usual wrappers; and what lies beside it."""
    others: dict[str, str] = {}
    for _ in range(4):  # wrappers of wrappers exist; more than a few levels don't
        if not isinstance(loaded, Mapping):
            break
        if any(_is_tensor(v) for v in loaded.values()):
            return dict(loaded), others
        inner = [k for k in STATE_KEYS if isinstance(loaded.get(k), Mapping)]
        if not inner:
            break
        chosen = inner[0]
        for key, value in loaded.items():
            if key != chosen:
                what = "another dictionary" if isinstance(value, Mapping) else f"a {type(value).__name__}"
                others[str(key)] = f"{what} beside the weights ({chosen!r})"
        loaded = loaded[chosen]
    found = f"a {type(loaded).__name__}"
    if isinstance(loaded, Mapping):
        found = f"a dictionary with {', '.join(repr(k) for k in list(loaded)[:8]) or 'nothing in it'}"
    raise CheckpointError(
        "this file holds no state dict",
        where=str(path),
        expected=f"a dictionary of tensors, plain or under one of {', '.join(STATE_KEYS)}",
        found=found,
        fix="save the model's state_dict() and give that file",
    )


def _lazy(name: str, value: torch.Tensor, path: Path) -> Tensor:
    dtype = _stored_dtype(value)
    return Tensor(name, tuple(value.shape), dtype, f"{path}: {name}", _row_reader(name, value, path))


def _stored_dtype(value: torch.Tensor) -> str:
    names = {
        "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
        "bool": "BOOL", "complex64": "C64",
    }  # fmt: skip
    plain = str(value.dtype).removeprefix("torch.")
    return names.get(plain, plain)


def _row_reader(name: str, value: torch.Tensor, path: Path) -> RowReader:
    def read(start: int, stop: int) -> Float32Array:
        import torch

        if value.is_sparse or value.is_quantized or not value.dtype.is_floating_point:
            raise CheckpointError(
                f"tensor {name!r} is stored as {value.dtype}, which is no plain floating-point number",
                where=str(path),
                fix="give the checkpoint before it was quantised",
            )
        rows = value.detach().reshape(1) if value.ndim == 0 else value.detach()[start:stop]
        out: Float32Array = rows.to(torch.float32).contiguous().numpy()
        return out.astype(np.float32, copy=False)

    return read
