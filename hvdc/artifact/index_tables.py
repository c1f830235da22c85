"""The parsed tables of ``index.bin``, and what every check of them uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from hvdc.artifact import decoder_records, records
from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.manifest import INDEX_NAME

Table = npt.NDArray[np.void]

PATH = re.compile(records.PATH_PATTERN.encode("ascii"))
NAME = re.compile(records.NAME_PATTERN.encode("ascii"))
GRAPH = re.compile(decoder_records.GRAPH_PATTERN.encode("ascii"))
PRINTABLE = re.compile(decoder_records.PRINTABLE_PATTERN.encode("ascii"))


@dataclass(frozen=True)
class Index:
    """The parsed tables: numpy structured arrays of `hvdc.artifact.records`."""

    header: np.void
    geometry: np.void
    files: Table
    tensors: Table
    steps: Table
    strings: bytes
    calibration: np.void | None
    """None: the artifact is uncalibrated."""
    inputs: Table
    """GEMM inputs; empty if uncalibrated."""
    decoder: np.void | None
    """None: there is no decoder."""
    graphs: Table
    """Of the decoder; empty without one."""
    ports: Table
    """Of its graphs, those of a graph one behind the other."""
    binaries: Table
    """Of the decoder; empty if it was not compiled, and before 1.3."""

    def text(self, reference: int) -> str:
        """The string at a reference that was checked."""
        return self.strings[reference : self.strings.index(0, reference)].decode("ascii")


def refuse(code: Code, place: str, expected: object = "", found: object = "") -> NoReturn:
    """Raise the ArtifactError of a fault in ``index.bin``."""
    raise ArtifactError(code, where=f"{INDEX_NAME}: {place}", expected=str(expected), found=str(found))


def string_at(index: Index, reference: int, place: str) -> bytes:
    """The string at a reference, cut off behind the longest text. Raises INDEX_STRING if none starts there."""
    at = int(reference)
    if at >= len(index.strings) or (at > 0 and index.strings[at - 1] != 0):
        refuse(Code.INDEX_STRING, place, "the start of a string", at)
    end = index.strings.find(0, at, at + records.TEXT_LIMIT + 1)
    return index.strings[at : end if end >= 0 else at + records.TEXT_LIMIT + 1]


def is_text(text: bytes, pattern: re.Pattern[bytes], limit: int = records.TEXT_LIMIT) -> bool:
    """Whether a string is not too long, and follows a pattern."""
    return len(text) <= limit and pattern.fullmatch(text) is not None
