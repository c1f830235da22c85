"""Prompts become embeddings: the released text encoder as a stream of layers, and one file of what it made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from exporters.errors import CheckpointError
from exporters.prompts import STORED, PromptDtype, check_destination, read_prompt_file, write_prompts
from exporters.text_encoder import TextEncoder, encode, ftfy_is_there, open_text_encoder, tokenise
from hvdc.errors import HvdcError, UsageError
from hvdc.progress import Progress

__all__ = ["STORED", "Embedded", "Request", "embed"]

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Request:
    """What is to be embedded, and how: see the options of ``hvdc embed``."""

    text_encoder: Path
    prompts: Path
    output: Path
    tokenizer: Path | None
    text_tokens: int
    dtype: PromptDtype
    truncate: bool
    force: bool


@dataclass(frozen=True)
class Embedded:
    """What was written. ``tokens`` counts each prompt's, its end token included; ``truncated`` are the indices of those
    that were cut; ``repaired``: ftfy took part in cleaning; ``other_characters`` counts prompts that it might change.
    """

    path: Path
    prompts: tuple[str, ...]
    tokens: tuple[int, ...]
    truncated: tuple[int, ...]
    shape: tuple[int, int, int]
    dtype: PromptDtype
    sha256: str
    repaired: bool
    other_characters: int


def embed(request: Request, progress: Progress) -> Embedded:
    """Embed every line of a file of prompts.

    Needs memory for one layer in float32, 740 MiB of umT5-xxl, and the prompts' hidden states; some 3 GB in all.
    Whatever can be refused is refused before the first weight is read.

    Raises:
        CheckpointError: the prompts, the text encoder or the tokenizer cannot be used.
        UsageError: the output's place will not do.
        HvdcError: the output could not be written.
    """
    prompts = read_prompt_file(request.prompts)
    with _as(UsageError):
        check_destination(request.output, 0, overwrite=request.force)
    with open_text_encoder(request.text_encoder, request.tokenizer) as encoder:
        shape = (len(prompts), request.text_tokens, encoder.width)
        with _as(HvdcError):
            needed = math.prod(shape) * STORED[request.dtype][1]
            check_destination(request.output, needed, overwrite=True)
        tokens, truncated = tokenise(
            encoder, prompts, text_tokens=request.text_tokens, truncate=request.truncate, source=str(request.prompts)
        )
        states = _encode(encoder, tokens, progress)
    with _as(HvdcError):
        padded = (_padded(rows, request.text_tokens) for rows in states)
        digest = write_prompts(request.output, prompts, padded, dtype=request.dtype, overwrite=request.force)
    other = sum(not (text.isascii() and text.isprintable()) for text in prompts)
    counts, cut = tuple(map(len, tokens)), tuple(truncated)
    return Embedded(request.output, prompts, counts, cut, shape, request.dtype, digest, ftfy_is_there(), other)


def _encode(encoder: TextEncoder, tokens: Sequence[Sequence[int]], progress: Progress) -> list[Rows]:
    """The hidden states of each prompt's tokens, float32 [its tokens, width]."""
    layer_bytes = encoder.layer_bytes

    def layer_done(i: int) -> None:
        progress.advance(layer_bytes)
        progress.item_done(f"layer {i}")

    progress.start("encoding", encoder.layers * layer_bytes, encoder.layers)
    try:
        return encode(encoder, tokens, layer_done=layer_done)
    finally:
        progress.finish()


def _padded(rows: Rows, text_tokens: int) -> Rows:
    """Followed by zeros: float32 [text_tokens, width]."""
    out = np.zeros((text_tokens, rows.shape[1]), np.float32)
    out[: len(rows)] = rows
    return out


@contextmanager
def _as(kind: type[HvdcError]) -> Iterator[None]:
    """No checkpoint is bad when the output's place will not do."""
    try:
        yield
    except CheckpointError as error:
        raise kind(error.what, where=error.where, expected=error.expected, found=error.found, fix=error.fix) from error
