"""Names on a device: where what lies below the target folder, and which names may be there.

    TARGET/hvdc-target                      says that the folder is hvdc's
    TARGET/lock                             held while something is deployed
    TARGET/in-use                           held by the program that works on the engines: says which, since when
    TARGET/parts/SHA256                     pieces that arrived; SHA256.part: that are on their way
    TARGET/artifacts/NAME/VERSION/          a version, whole: artifact.hvdc/, qnn/, and lists of it
    TARGET/artifacts/NAME/VERSION.new/      a version that is not whole yet
    TARGET/artifacts/NAME/current           a link to the version in use
    TARGET/artifacts/NAME/runs/RUN/         what was run there
    TARGET/kernels/                         compiled programs of the GPU

Every name is made of letters that no shell interprets, and none begins with ``-`` or ``.``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hvdc.errors import UsageError

TARGET = "/data/local/tmp/hvdc"
"""Below the only folder in which an Android phone's shell user may write and execute."""

MARKER, LOCK, IN_USE, PARTS, ARTIFACTS, KERNELS = "hvdc-target", "lock", "in-use", "parts", "artifacts", "kernels"
MARKER_TEXT = "hvdc-deploy-1"
CURRENT, RUNS, NEW, BAD, PART = "current", "runs", ".new", ".bad", ".part"
ARTIFACT, QNN = "artifact.hvdc", "qnn"
FILES, PIECES, DEPLOYED = "files.txt", "pieces.txt", "deployed.json"

TARGET_LETTERS = 200
"""A script names many paths, and adb takes 65,535 letters of one."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_PATH = re.compile(r"(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}){2,20}", re.ASCII)
_INSIDE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,199}){0,3}", re.ASCII)
VERSION = re.compile(r"[0-9a-f]{16}", re.ASCII)


def checked_target(text: str) -> str:
    """An absolute folder of a device. Raises UsageError."""
    if _PATH.fullmatch(text) is None or len(text) > TARGET_LETTERS:
        raise UsageError(
            "this is no folder that hvdc uses on a device", where="--to", found=ascii(text[: TARGET_LETTERS + 1]),
            expected=f"an absolute path of letters, digits, '.', '_' and '-', at most {TARGET_LETTERS}, as {TARGET}",
        )  # fmt: skip
    return text


def checked_name(text: str, option: str = "--name") -> str:
    """The name of a deployment, from an option. Raises UsageError."""
    if _NAME.fullmatch(text) is None or text.endswith((NEW, PART)):
        raise UsageError(
            "this is no name for an artifact on a device", where=option, found=ascii(text),
            expected="up to 64 letters, digits, '.', '_' and '-', the first a letter or digit",
            fix="give one: --name dcm" if option == "--name" else "hvdc deploy --list names what is there",
        )  # fmt: skip
    return text


def is_inside(path: str) -> bool:
    """Whether a relative path stays where it is put, and no shell can take it for anything else."""
    return _INSIDE.fullmatch(path) is not None and all(part.strip(".") for part in path.split("/"))


@dataclass(frozen=True)
class Layout:
    """Paths on the device. ``target`` was checked."""

    target: str

    @property
    def lock(self) -> str:
        return f"{self.target}/{LOCK}"

    @property
    def in_use(self) -> str:
        return f"{self.target}/{IN_USE}"

    @property
    def parts(self) -> str:
        return f"{self.target}/{PARTS}"

    @property
    def artifacts(self) -> str:
        return f"{self.target}/{ARTIFACTS}"

    @property
    def kernels(self) -> str:
        return f"{self.target}/{KERNELS}"

    def part(self, sha256: str) -> str:
        return f"{self.parts}/{sha256}"

    def deployment(self, name: str) -> str:
        return f"{self.artifacts}/{checked_name(name)}"

    def version(self, name: str, version: str) -> str:
        return f"{self.deployment(name)}/{version}"

    def current(self, name: str) -> str:
        return f"{self.deployment(name)}/{CURRENT}"

    def runs(self, name: str) -> str:
        return f"{self.deployment(name)}/{RUNS}"
