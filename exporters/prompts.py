"""Prompts and their embeddings as files: a list of texts, and what the text encoder made of it.

The embeddings' file is safetensors with one tensor, ``prompt_embeds`` [prompts, text_tokens, text_width] in F32, F16
or BF16. Its metadata hold ``format`` = ``hvdc-prompts`` and ``prompts``, a JSON list of the texts in row order. A file
without these metadata, as a pipeline's user saves one, is read too: its texts are ``prompt 0``, ``prompt 1``, ….
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from exporters.dtypes import decode_into
from exporters.durable import whole_file
from exporters.errors import CheckpointError
from exporters.safetensors_file import SafetensorsFile
from exporters.sniff import kind_of
from exporters.tensor import Float32Array, Tensor

TENSOR = "prompt_embeds"
FORMAT = "hvdc-prompts"

PromptDtype = Literal["fp32", "fp16", "bf16"]
STORED: dict[PromptDtype, tuple[str, int]] = {"fp32": ("F32", 4), "fp16": ("F16", 2), "bf16": ("BF16", 2)}
"""dtype -> (safetensors' spelling, bytes of a value)."""

_MAKE = "make one with: hvdc embed --text-encoder DIR --prompts FILE.txt -o EMBEDS.safetensors"
_LIST_LIMIT_BYTES = 16 << 20
_ENCODERS = {
    512: "umT5-small or T5-small",
    768: "umT5-base, T5-base or CLIP-L",
    1024: "umT5-large, T5-large or CLIP-H",
    1280: "CLIP-bigG",
    2048: "umT5-xl, T5-xl or SDXL's pair of CLIPs",
    3584: "Qwen2.5-VL-7B",
    4096: "umT5-xxl, which Wan uses, or T5-xxl or Llama-3-8B",
}
"""Width of the embeddings -> the text encoders that have it."""


class Embeds:
    """The embeddings of each prompt, float32 [text_tokens, text_width], in order; read when asked for."""

    def __init__(self, tensor: Tensor, count: int) -> None:
        self._tensor = tensor
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Float32Array:
        """Of one prompt: a fresh array, C-contiguous. Raises IndexError, and CheckpointError when reading fails."""
        at = range(self._count)[index]
        rows: Float32Array = self._tensor.rows(at, at + 1)[0]
        return rows

    def __iter__(self) -> Iterator[Float32Array]:
        return (self[i] for i in range(self._count))


@dataclass(frozen=True)
class Prompts:
    """An open file of prompt embeddings; a context manager that closes it.

    ``texts`` and ``embeds`` are of one length and order. ``sha256`` is `content_sha256` of both; it does not depend on
    the dtype in which the same values are stored. ``named``: the file itself says what the prompts are.
    """

    path: Path
    texts: tuple[str, ...]
    embeds: Embeds
    text_tokens: int
    text_width: int
    stored_dtype: str
    sha256: str
    named: bool
    _close: Callable[[], None] = field(repr=False)

    def __len__(self) -> int:
        return len(self.texts)

    def close(self) -> None:
        """Close the file; later reads fail."""
        self._close()

    def __enter__(self) -> Prompts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_prompts(
    path: Path, *, text_tokens: int | None = None, text_width: int | None = None, limit: int | None = None
) -> Prompts:
    """Open a file of prompt embeddings and check every value of its first ``limit`` prompts (default: all).

    ``text_tokens`` and ``text_width`` are what the model takes, where known. Reads one prompt at a time.

    Raises:
        CheckpointError: not such a file, or damaged; other tensors; a wrong rank, dtype, width or number of tokens;
            no prompts; texts that do not match the rows; a value that is not finite.
        ValueError: a limit below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit {limit}")
    file = _open(path)
    try:
        tensor = _the_tensor(file)
        rows, tokens, width = _checked_shape(tensor, path, text_tokens, text_width)
        texts, named = _texts(file, rows)
        used = texts[:limit]
        embeds = Embeds(tensor, len(used))
        digest = content_sha256(used, _finite(used, embeds, path))
    except BaseException:
        file.close()
        raise
    return Prompts(path, used, embeds, tokens, width, tensor.stored_dtype, digest, named, file.close)


def content_sha256(texts: Iterable[str], embeds: Iterable[Float32Array]) -> str:
    """SHA-256 over each prompt's text (UTF-8), shape and values (float32, little-endian), each with its length."""
    digest = hashlib.sha256(f"{FORMAT}\n".encode())
    for text, rows in zip(texts, embeds, strict=True):
        utf8 = text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(utf8)} {rows.shape[0]} {rows.shape[1]}\n".encode())
        digest.update(utf8)
        digest.update(np.ascontiguousarray(rows, "<f4").data)
    return digest.hexdigest()


def _open(path: Path) -> SafetensorsFile:
    try:
        kind = kind_of(path)
    except CheckpointError as error:
        what = "there is no such file" if not path.exists() else error.what
        raise CheckpointError(
            f"this is no file of prompt embeddings: {what}", where=str(path), found=error.found, fix=_MAKE
        ) from error
    if kind != "safetensors":
        found = "a JSON text" if kind == "json" else "a file written by torch.save"
        raise CheckpointError(
            "prompt embeddings are read from a safetensors file only", where=str(path), found=found, fix=_MAKE
        )
    return SafetensorsFile(path)


def _the_tensor(file: SafetensorsFile) -> Tensor:
    names = sorted(file.tensors)
    shown = ", ".join(repr(n) for n in names[:8]) + (f" and {len(names) - 8:,} more" if len(names) > 8 else "")
    if TENSOR not in file.tensors:
        raise CheckpointError(
            f"this file holds no tensor {TENSOR!r}",
            where=str(file.path), expected=f"one tensor, {TENSOR!r} [prompts, tokens, width]",
            found=shown or "no tensor at all", fix=_MAKE,
        )  # fmt: skip
    if len(names) > 1:
        raise CheckpointError(
            f"this file holds more than {TENSOR!r}, and what the rest means for the model is not known",
            where=str(file.path), found=shown, fix=f"save {TENSOR!r} alone; the model takes no text mask",
        )  # fmt: skip
    return file.tensors[TENSOR]


def _checked_shape(tensor: Tensor, path: Path, tokens: int | None, width: int | None) -> tuple[int, int, int]:
    where = f"{path}: {TENSOR}"
    shape = " × ".join(map(str, tensor.shape)) or "a single number"
    if tensor.stored_dtype not in {stored for stored, _ in STORED.values()}:
        raise CheckpointError(
            "the prompt embeddings are stored in a dtype that is not read",
            where=where, expected=", ".join(s for s, _ in STORED.values()), found=tensor.stored_dtype,
            fix="save them as float32 or bfloat16",
        )  # fmt: skip
    if len(tensor.shape) != 3:
        fix = f"add the axis of prompts: {TENSOR}[None]" if len(tensor.shape) == 2 else _MAKE
        raise CheckpointError(
            "the prompt embeddings have a wrong number of axes",
            where=where, expected="3 axes: prompts × tokens × width", found=f"{len(tensor.shape)}: {shape}", fix=fix,
        )  # fmt: skip
    if 0 in tensor.shape:
        raise CheckpointError("the file holds no prompts", where=where, found=shape, fix=_MAKE)
    if width is not None and tensor.shape[2] != width:
        raise CheckpointError(
            "the prompt embeddings have another width than the model's text input: another text encoder made them",
            where=where, expected=f"width {_encoder(width)}", found=f"width {_encoder(tensor.shape[2])}",
            fix="use the text encoder that the model was trained with: the folder text_encoder of its pipeline",
        )  # fmt: skip
    if tokens is not None and tensor.shape[1] != tokens:
        raise CheckpointError(
            "the prompt embeddings have another number of tokens than the model's text input",
            where=where, expected=f"{tokens:,} tokens a prompt, those past its end zero", found=f"{tensor.shape[1]:,}",
            fix=f"hvdc embed --text-tokens {tokens}; zero rows count, so nothing is trimmed or padded here",
        )  # fmt: skip
    return tensor.shape[0], tensor.shape[1], tensor.shape[2]


def _encoder(width: int) -> str:
    return f"{width:,}" + (f", as of {_ENCODERS[width]}" if width in _ENCODERS else "")


def _texts(file: SafetensorsFile, rows: int) -> tuple[tuple[str, ...], bool]:
    """``(texts, does the file itself give them)``."""
    written = file.metadata.get("prompts")
    if written is None and file.metadata.get("format") != FORMAT:
        return tuple(f"prompt {i}" for i in range(rows)), False
    try:
        texts = json.loads(written or "")
    except (ValueError, RecursionError):
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise CheckpointError(
            "the file's metadata do not say what the prompts are",
            where=str(file.path), expected="'prompts': a JSON list of texts",
            found="no 'prompts'" if written is None else repr(written)[:80], fix=_MAKE,
        )  # fmt: skip
    if len(texts) != rows:
        raise CheckpointError(
            "texts and embeddings do not match",
            where=str(file.path), expected=f"{rows:,} texts, one for each row of {TENSOR!r}",
            found=f"{len(texts):,}", fix=_MAKE,
        )  # fmt: skip
    return tuple(texts), True


def _finite(texts: Sequence[str], embeds: Iterable[Float32Array], path: Path) -> Iterator[Float32Array]:
    """Passes embeddings on that are finite. Raises CheckpointError, naming prompt and token."""
    for i, rows in enumerate(embeds):
        if not (np.isfinite(rows.max()) and np.isfinite(rows.min())):
            token, channel = (int(x) for x in np.argwhere(~np.isfinite(rows))[0])
            raise CheckpointError(
                f"prompt {i} has an embedding that is not finite, at token {token}",
                where=f"{path}: prompt {i}, token {token}, channel {channel}: {texts[i][:60]!r}",
                expected="finite values", found=str(float(rows[token, channel])),
                fix="make the embeddings again, computing in float32; float16 is too narrow for umT5",
            )  # fmt: skip
        yield rows


def write_prompts(
    path: Path, texts: Sequence[str], embeds: Iterable[Float32Array], *, dtype: PromptDtype = "fp32",
    overwrite: bool = False,
) -> str:  # fmt: skip
    """Write a file of prompt embeddings; returns the ``sha256`` that `read_prompts` will give.

    ``embeds`` gives for each text float32 [text_tokens, text_width], all of one shape; it is read one at a time.
    Values are rounded to nearest even. The file appears when it is complete and on disk, or not at all: on any error
    or interrupt the temporary file beside it is removed.

    Raises:
        CheckpointError: no prompts; a value that is not finite in ``dtype``; ``path`` exists and ``overwrite`` is
            False; the folder is missing, not writable or full.
        ValueError: an embedding of another shape than the first, or another number of them than texts.
    """
    stream = iter(embeds)
    first = next(stream, None)
    if not texts or first is None:
        raise CheckpointError("there are no prompts to write", where=str(path), fix="give at least one prompt")
    header = _header(texts, first.shape, dtype)
    total_bytes = len(header) + len(texts) * first.size * STORED[dtype][1]
    check_destination(path, total_bytes, overwrite=overwrite)
    try:  # the destination is looked at again: it may have appeared in the meantime
        with whole_file(path, lambda: check_destination(path, 0, overwrite=overwrite)) as file:
            file.write(header)
            source = _finite(texts, chain([first], stream), path)
            stored = _written(file, source, first.shape, dtype)
            digest = content_sha256(texts, _finite(texts, stored, path))
    except OSError as error:
        raise CheckpointError(
            "the prompt embeddings could not be written",
            where=str(path), expected=f"{total_bytes:,} bytes on disk", found=error.strerror or str(error),
            fix="make room or choose another place, then run the command again",
        ) from error  # fmt: skip
    return digest


def check_destination(path: Path, total_bytes: int, *, overwrite: bool) -> None:
    """Refuse a place for ``total_bytes`` that will not do, with a CheckpointError; writes nothing."""
    if not path.parent.is_dir():
        raise CheckpointError(
            "the output's folder does not exist",
            where=str(path.parent),
            fix=f"mkdir -p {shlex.quote(str(path.parent))}",
        )
    if path.exists() and not path.is_file():
        raise CheckpointError("the output is there and is not a file", where=str(path), fix="choose another name")
    if (path.exists() or path.is_symlink()) and not overwrite:
        raise CheckpointError("the output exists", where=str(path), fix="choose another name, or --force to replace it")
    free = shutil.disk_usage(path.parent).free
    if free < total_bytes:
        raise CheckpointError(
            "too little free space for the prompt embeddings",
            where=str(path.parent), expected=f"{total_bytes:,} bytes", found=f"{free:,} bytes free",
            fix="make room, choose another place, or store bf16, which takes half",
        )  # fmt: skip


def _header(texts: Sequence[str], shape: tuple[int, ...], dtype: PromptDtype) -> bytes:
    stored, width = STORED[dtype]
    full = [len(texts), *shape]
    entries: dict[str, Any] = {
        "__metadata__": {"format": FORMAT, "prompts": json.dumps(list(texts))},
        TENSOR: {"dtype": stored, "shape": full, "data_offsets": [0, math.prod(full) * width]},
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _written(
    file: BinaryIO, embeds: Iterable[Float32Array], shape: tuple[int, ...], dtype: PromptDtype
) -> Iterator[Float32Array]:
    """Writes what passes by; passes on the values that a reader will get."""
    for rows in embeds:
        if rows.ndim != 2 or rows.shape != shape:
            raise ValueError(f"embeddings of shape {rows.shape}, expected two axes, as the first: {shape}")
        raw = _narrow(np.ascontiguousarray(rows, np.float32), dtype)
        file.write(raw.data)
        values = np.empty(rows.shape, np.float32)
        decode_into(values.reshape(-1), raw.reshape(-1).view(np.uint8), STORED[dtype][0])
        yield values


def _narrow(rows: Float32Array, dtype: PromptDtype) -> npt.NDArray[Any]:
    """As stored, little-endian; finite values are rounded to nearest even. bf16 comes as its upper 16 bits."""
    if dtype == "fp32":
        return rows.astype("<f4", copy=False)
    if dtype == "fp16":
        with np.errstate(over="ignore"):  # what does not fit becomes infinite
            return rows.astype("<f2")
    bits = rows.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + odd + np.uint32(0x7FFF)) >> np.uint32(16)).astype("<u2")


def read_prompt_file(path: Path) -> tuple[str, ...]:
    """A text file of prompts: UTF-8, with or without a byte order mark, one prompt a line, no line blank.

    Raises:
        CheckpointError: no such file; it is empty, too large, or not UTF-8; a blank line, with its number.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LIST_LIMIT_BYTES + 1)
    except OSError as error:
        raise CheckpointError(
            f"the prompts cannot be read: {error.strerror or error}", where=str(path), fix="check the path"
        ) from error
    if len(data) > _LIST_LIMIT_BYTES:
        raise CheckpointError(
            "this file is too large to be a list of prompts",
            where=str(path), expected=f"at most {_LIST_LIMIT_BYTES:,} bytes of text, one prompt a line",
        )  # fmt: skip
    lines = data.removeprefix(codecs.BOM_UTF8).removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise CheckpointError("the file holds no prompts", where=str(path), fix="write one prompt a line")
    return tuple(_prompt(line.removesuffix(b"\r"), number, path) for number, line in enumerate(lines, 1))


def _prompt(line: bytes, number: int, path: Path) -> str:
    where = f"{path}, line {number}"
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(
            "the prompts are not UTF-8 text",
            where=f"{where}, byte {error.start + 1} of the line", found=f"0x{line[error.start]:02x}",
            fix="save the file as UTF-8",
        ) from error  # fmt: skip
    if "\0" in text:
        raise CheckpointError(
            "a prompt holds a zero byte, as text in UTF-16 does", where=where, fix="save the file as UTF-8"
        )
    if not text.strip():
        raise CheckpointError(
            "a line is blank, and it is not clear whether that is a prompt", where=where, fix="remove the line"
        )
    return text
