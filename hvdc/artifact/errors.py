"""A damaged artifact: its fault code, and where the damage is."""

from __future__ import annotations

from hvdc.artifact.codes import MEANING, Code
from hvdc.errors import Exit, HvdcError


class ArtifactError(HvdcError):
    """An artifact that a reader refuses. ``code`` is the same in Python and C."""

    exit_status = Exit.BAD_ARTIFACT

    def __init__(
        self, code: Code, *, what: str = "", where: str = "", expected: str = "", found: str = "", fix: str = ""
    ) -> None:
        super().__init__(f"{what or MEANING[code]} [{code.name}]", where=where, expected=expected, found=found, fix=fix)
        self.code = code
