"""Asking the C reader: one process for thousands of questions."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType

from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.index_read import parse_index
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.validate import validate_deep


class Checker:
    """``hvdc_check`` as a process; see device_runtime/tools/hvdc_check.c."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _, report = self._process.communicate(timeout=60)
        if kind is None:
            assert self._process.returncode == 0, report.decode(errors="replace")

    def index(self, data: bytes) -> Code:
        """The code that the C reader gives these bytes as ``index.bin``."""
        return Code(int(self._ask(f"index {len(data)}\n".encode() + data)[0]))

    def sha256(self, data: bytes) -> str:
        """The digest by the C implementation."""
        return self._ask(f"sha256 {len(data)}\n".encode() + data)[2]

    def open(self, root: Path) -> Code:
        """The code of opening an artifact."""
        return Code(int(self._ask(f"open {root}\n".encode())[0]))

    def deep(self, root: Path) -> Code:
        """The code of opening and deep validation."""
        return Code(int(self._ask(f"deep {root}\n".encode())[0]))

    def stream(self, folder: Path) -> str:
        """What the C reader says of a stream's directory; ``""`` if it accepts it."""
        answer = self._ask(f"stream {folder}\n".encode())
        return answer[2] if answer[0] == "1" else ""

    def answer(self, root: Path) -> str:
        """What the C reader says of an artifact's stored answer; ``""`` if it accepts it."""
        answer = self._ask(f"answer {root}\n".encode())
        return answer[2] if answer[0] == "1" else ""

    def _ask(self, question: bytes) -> list[str]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(question)
        stdin.flush()
        answer = stdout.readline().decode("ascii").split(" ", 2)
        if len(answer) < 2:  # it died: a sanitizer has something to say
            _, report = self._process.communicate(timeout=60)
            raise AssertionError(report.decode(errors="replace"))
        return [part.strip() for part in answer]


def python_index(data: bytes) -> Code:
    """The code that the Python reader gives these bytes as ``index.bin``."""
    try:
        parse_index(data)
    except ArtifactError as error:
        return error.code
    return Code.OK


def python_deep(root: Path) -> Code:
    """The code of the first fault that Python finds in an artifact."""
    try:
        with open_artifact(root) as artifact:
            findings = validate_deep(artifact)
    except ArtifactError as error:
        return error.code
    return findings[0].code if findings else Code.OK
