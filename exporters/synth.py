"""A checkpoint with a model's true names and shapes and made-up, plausible values, written in a stream.

For tests, benchmarks and CI where the trained model isn't at hand. The values aren't trained, but they have
what makes a trained model hard to quantise: the scale differs between output columns by a heavy-tailed
factor, and a few input channels are much larger than the others.

Each tensor's values depend on the seed and the canonical name only, not on layout, dtype, order or number
of threads: the fp16 and bf16 files are the fp32 file rounded to nearest even. Bytes repeat for one release of
numpy, whose normal generator may change between releases (NumPy's NEP 19).

The file format is safetensors': 8 bytes with the header's length, little-endian; the header in JSON, padded
with spaces to 8 bytes; the tensors, one after another without holes
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from exporters.durable import whole_file
from exporters.errors import CheckpointError
from exporters.model import Geometry, base_tensors, detail_tensors
from exporters.names import LAYOUTS, Layout, spell
from exporters.portable_math import exp
from exporters.tensor import Float32Array, Tensor

Dtype = Literal["f32", "f16", "bf16"]
Progress = Callable[[int, int], None]
"""``progress(done_bytes, total_bytes)``, called on the caller's thread."""

_DTYPES: dict[str, tuple[str, int]] = {"f32": ("F32", 4), "f16": ("F16", 2), "bf16": ("BF16", 2)}
"""Our spelling -> safetensors' spelling, bytes of a value."""

_CHUNK_VALUES = 1 << 20
"""Values made at a time by a thread (4 MiB as float32). Part of the recipe: another number gives other values."""

_COLUMN_SPREAD = 0.5
"""Standard deviation of ln(scale) over output columns: one column in a hundred is over 3 times the median."""

_OUTLIER_FACTOR = 8.0
"""How much larger an outlier input channel is."""

_CHANNELS_PER_OUTLIER = 512


@dataclass(frozen=True)
class Written:
    """What `write_checkpoint` wrote: file, tensors, values in them, and bytes of the file with its header."""

    path: Path
    tensors: int
    parameters: int
    total_bytes: int


def synthetic_tensors(geometry: Geometry, *, seed: int = 0, experts: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Canonical name -> a `Tensor` whose values are made when rows of it are read.

    ``experts`` are the geometry's, or ``("semantic",)`` to leave the detail expert out.

    - weights: N(0, 1/K) for K inputs, times a log-normal factor of mean square 1 for each output column,
      times 8 for one input channel in 512 (at least one);
    - adapter factors: A ~ N(0, 1/K), B ~ N(0, 0.01/rank), so that the adapter adds some tenths of the base;
    - norm gains 1 + N(0, 0.01); biases N(0, 0.0004); ``scale_shift_table`` N(0, 1/width), as diffusers'
      own initialisation.

    Raises:
        CheckpointError: ``experts`` that the geometry lacks.
    """
    names = tuple(geometry.experts if experts is None else experts)
    if names not in {geometry.experts, ("semantic",)}:
        raise CheckpointError(
            "these experts cannot be made for this geometry",
            where="the synthetic checkpoint",
            expected=" or ".join({str(("semantic",)): None, str(geometry.experts): None}),
            found=str(names),
            fix="use a geometry with a rank above 0 for a detail expert",
        )
    shapes = base_tensors(geometry)
    if "detail" in names:
        shapes |= detail_tensors(geometry)
    return {
        name: Tensor(name, shape, "F32", f"synth(seed={seed})", partial(_rows, name, shape, seed))
        for name, shape in shapes.items()
    }


def write_checkpoint(
    path: str | os.PathLike[str],
    geometry: Geometry,
    *,
    layout: Layout = "dcm",
    dtype: Dtype = "f32",
    seed: int = 0,
    experts: Sequence[str] | None = None,
    overwrite: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write one safetensors file with the tensors of `synthetic_tensors` in ``layout``'s spelling.

    By default ``dcm`` holds every expert of the geometry, as DCM's file does, and ``wan`` and ``diffusers`` hold
    the semantic expert only, as the published files do; ``experts`` overrides this. Memory: some 10 MiB for each
    of ``jobs`` threads (default: the usable CPUs, at most 8). The file appears under ``path`` when it is complete
    and on disk, or not at all: on any error or interrupt the temporary file beside it is removed.

    Raises:
        CheckpointError: unknown layout, dtype or experts; ``path`` exists and ``overwrite`` is False; no such
            folder; too little free space; the system refuses a write.
    """
    path = Path(path)
    if layout not in LAYOUTS:
        raise _unknown("layout", layout, LAYOUTS)
    if dtype not in _DTYPES:
        raise _unknown("dtype", dtype, _DTYPES)
    if experts is None and layout != "dcm":
        experts = ("semantic",)
    tensors = synthetic_tensors(geometry, seed=seed, experts=experts)
    stored, width = _DTYPES[dtype]
    header, offsets = _header({spell(name, layout): t.shape for name, t in tensors.items()}, stored, width, seed)
    parameters = sum(math.prod(t.shape) for t in tensors.values())
    total = len(header) + parameters * width
    _check_destination(path, total, overwrite=overwrite)

    try:  # the destination is looked at again: it may have appeared in the meantime
        with whole_file(path, lambda: None if overwrite else _check_absent(path)) as file:
            _write_at(file.fileno(), header, 0)
            jobs_ = jobs or min(8, len(os.sched_getaffinity(0)))
            chunks = _chunks(tensors, layout, offsets, width)
            _write_all(file.fileno(), chunks, dtype, jobs_, len(header), total, progress)
    except OSError as error:
        raise CheckpointError(
            "the synthetic checkpoint could not be written",
            where=str(path),
            expected=f"{total} bytes on disk",
            found=error.strerror or str(error),
            fix="free some space or choose another place, then run the command again",
        ) from error
    return Written(path, len(tensors), parameters, total)


# ---- values ----


def _generator(seed: int, *names: object) -> np.random.Generator:
    key = "\0".join(str(part) for part in (seed, *names)).encode()
    digest = hashlib.blake2b(key, digest_size=16).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(digest, "little")))


def _rows_per_chunk(shape: tuple[int, ...]) -> int:
    return max(1, _CHUNK_VALUES // math.prod(shape[1:]))


def _rows(name: str, shape: tuple[int, ...], seed: int, start: int, stop: int) -> Float32Array:
    """Rows ``[start, stop)``: chunks have fixed borders, so that any range gives the same values."""
    step = _rows_per_chunk(shape)
    first, last = start // step, max(start, stop - 1) // step
    parts = [_chunk(name, shape, seed, index) for index in range(first, last + 1)]
    values = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return values[start - first * step : stop - first * step]


def _chunk(name: str, shape: tuple[int, ...], seed: int, index: int) -> Float32Array:
    """All rows of chunk ``index``: float32 ``[rows, *shape[1:]]``."""
    step = _rows_per_chunk(shape)
    rows, inner = min(step, shape[0] - index * step), math.prod(shape[1:])
    rng = _generator(seed, name, index)
    values: Float32Array = rng.standard_normal((rows, inner), dtype=np.float32)
    stem, _, kind = name.rpartition(".")
    if kind == "scale_shift_table":
        values *= np.float32(shape[-1] ** -0.5)
    elif kind == "bias":
        values *= np.float32(0.02)
    elif len(shape) == 1:  # a norm's gain
        values *= np.float32(0.1)
        values += np.float32(1.0)
    elif stem.endswith("lora_A"):
        values *= np.float32(inner**-0.5)
    elif stem.endswith("lora_B"):
        values *= np.float32(0.1 * inner**-0.5)
    else:
        z = rng.standard_normal((rows, 1))
        # E[e^(2σz)] = e^(2σ²): the factor's mean square is 1.
        spread = exp(_COLUMN_SPREAD * z - _COLUMN_SPREAD**2)
        values *= (spread * inner**-0.5).astype(np.float32)
        for channel in _outliers(name, inner, seed):
            values[:, channel] *= np.float32(_OUTLIER_FACTOR)
    return values.reshape(rows, *shape[1:])


def _outliers(name: str, inner: int, seed: int) -> list[int]:
    count = max(1, inner // _CHANNELS_PER_OUTLIER)
    drawn = _generator(seed, name, "outliers").integers(inner, size=count)
    return sorted({int(channel) for channel in drawn})


def _narrow(values: Float32Array, dtype: Dtype) -> npt.NDArray[Any]:
    """The values as stored, rounded to nearest even, little-endian. bf16 comes as its upper 16 bits."""
    if dtype == "f16":
        return values.astype("<f2")
    if dtype == "f32":
        return values.astype("<f4", copy=False)
    # The carry out of the lower half is the rounding; values are finite, so it can't turn into a NaN.
    bits = values.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    return rounded.astype("<u2")


# ---- the file ----


@dataclass(frozen=True)
class _Chunk:
    tensor: Tensor
    start: int
    stop: int
    offset: int
    size_bytes: int


def _header(shapes: Mapping[str, tuple[int, ...]], stored: str, width: int, seed: int) -> tuple[bytes, dict[str, int]]:
    """``(length and JSON, key -> offset of its data in the file)``."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", "generator": f"hvdc synth, seed {seed}"}}
    end = 0
    begins: dict[str, int] = {}
    for key, shape in shapes.items():
        begins[key] = end
        end += math.prod(shape) * width
        entries[key] = {"dtype": stored, "shape": list(shape), "data_offsets": [begins[key], end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {key: begin + len(header) for key, begin in begins.items()}


def _chunks(tensors: Mapping[str, Tensor], layout: Layout, offsets: Mapping[str, int], width: int) -> Iterator[_Chunk]:
    for name, tensor in tensors.items():
        offset = offsets[spell(name, layout)]
        row_bytes = math.prod(tensor.shape[1:]) * width
        step = _rows_per_chunk(tensor.shape)
        for start in range(0, tensor.shape[0], step):
            stop = min(start + step, tensor.shape[0])
            yield _Chunk(tensor, start, stop, offset + start * row_bytes, (stop - start) * row_bytes)


def _write_all(
    fd: int,
    chunks: Iterator[_Chunk],
    dtype: Dtype,
    jobs: int,
    done_bytes: int,
    total_bytes: int,
    progress: Progress | None,
) -> None:
    stop = threading.Event()

    def work(chunk: _Chunk) -> int:
        if not stop.is_set():
            values = _narrow(chunk.tensor.rows(chunk.start, chunk.stop), dtype)
            _write_at(fd, np.ascontiguousarray(values).reshape(-1).view(np.uint8).data, chunk.offset)
        return chunk.size_bytes

    with ThreadPoolExecutor(jobs, thread_name_prefix="synth") as pool:
        pending: set[Future[int]] = set()
        try:
            for chunk in chunks:
                pending.add(pool.submit(work, chunk))
                # Two in flight for each thread keep it busy while this one reports.
                done_bytes = _drain(pending, 2 * jobs - 1, done_bytes, total_bytes, progress)
            _drain(pending, 0, done_bytes, total_bytes, progress)
        finally:
            stop.set()  # after an error or Ctrl-C, what is queued ends without work


def _drain(pending: set[Future[int]], keep: int, done_bytes: int, total_bytes: int, progress: Progress | None) -> int:
    """Wait until at most ``keep`` of ``pending`` remain; report; return the bytes done."""
    while len(pending) > keep:
        finished, _ = wait(pending, return_when=FIRST_COMPLETED)
        for future in finished:
            pending.remove(future)
            done_bytes += future.result()
        if progress is not None:
            progress(done_bytes, total_bytes)
    return done_bytes


def _write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view.nbytes:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _check_destination(path: Path, total_bytes: int, *, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise CheckpointError(
            "the folder for the synthetic checkpoint doesn't exist",
            where=str(path.parent),
            expected="an existing folder",
            found="nothing, or a file",
            fix="create the folder, or choose another place",
        )
    if path.is_dir():
        raise CheckpointError(
            "a folder is in the place of the synthetic checkpoint",
            where=str(path),
            expected="a file name",
            found="a folder",
            fix=f"give a file name, for example {path / 'model.safetensors'}",
        )
    if not overwrite:
        _check_absent(path)
    free = shutil.disk_usage(path.parent).free
    if free < total_bytes:
        raise CheckpointError(
            "too little free space for the synthetic checkpoint",
            where=str(path.parent),
            expected=f"{total_bytes} bytes",
            found=f"{free} bytes free",
            fix="free some space, choose another place, or a narrower dtype",
        )


def _check_absent(path: Path) -> None:
    if path.exists():
        raise CheckpointError(
            "the synthetic checkpoint's file exists already",
            where=str(path),
            expected="no file of this name",
            found=f"a file of {path.stat().st_size} bytes",
            fix="choose another name, or ask to overwrite it",
        )


def _unknown(what: str, found: str, known: Sequence[str] | Mapping[str, object]) -> CheckpointError:
    return CheckpointError(
        f"unknown {what} for a synthetic checkpoint",
        where="the arguments",
        expected=" | ".join(known),
        found=repr(found),
        fix=f"choose one of the known {what}s",
    )
