"""The target folder on a device: what is in it, who may change it now, and how a version appears and goes.

Every script is made of checked names (`hvdc.deploy.layout`), and may be repeated after a cut link.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from hvdc.deploy.adb import AdbDevice, quoted
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.found import SIZE_LINE, Found, Held, parse_found
from hvdc.deploy.in_use import BUSY, guarded, in_use
from hvdc.deploy.layout import (
    ARTIFACTS,
    BAD,
    CURRENT,
    DEPLOYED,
    FILES,
    KERNELS,
    LOCK,
    MARKER,
    MARKER_TEXT,
    NEW,
    PART,
    PARTS,
    PIECES,
    RUNS,
    Layout,
    checked_name,
    is_inside,
)
from hvdc.deploy.lock import Lock

LISTING_BYTES = 16 << 20
LINK = "is a link"
_HASH = re.compile(r"[0-9a-f]{64}")


class Store:
    """The folder of one device."""

    def __init__(self, device: AdbDevice, layout: Layout) -> None:
        self.device = device
        self.layout = layout

    def run(self, script: str, what: str, timeout_s: float = 120.0) -> str:
        """A script that must succeed; returns what it prints. Raises LinkError, DeviceError; InUseError: a part that
        is `guarded` was not done."""
        answer = self.device.script(f"set -e\n{script}", timeout_s=timeout_s, limit_bytes=LISTING_BYTES)
        if answer.status == BUSY:
            what_if = "it may be reading what would be removed"
            raise in_use(answer.said, self.device.serial, self.layout.in_use, what_if)
        if answer.status != 0:
            full, is_link = "No space left" in answer.said, answer.said.endswith(LINK)
            raise DeviceError(
                "the device is full" if full
                else "a link is in the way, which could lead anywhere, and is left alone" if is_link
                else f"{what} failed",
                where=f"{self.device.serial}: {self.layout.target}", found=answer.said or f"status {answer.status}",
                fix="make room on the device and run the same command again: what arrived is kept" if full
                else "remove it from the device, or give another folder: --to" if is_link else "",
            )  # fmt: skip
        return answer.text

    def unlinked(self, *folders: str) -> str:
        """Lines of a script that end it unless every folder on the way from the target to these is none or a folder."""
        target = self.layout.target
        ways: dict[str, None] = {target: None}
        for folder in folders:
            way = target
            for part in folder.removeprefix(f"{target}/").split("/"):
                way = f"{way}/{part}"
                ways[way] = None
        return f"""
for d in {quoted(list(ways))}; do
  if [ -L "$d" ]; then echo "$d {LINK}" >&2; exit 1; fi
done
"""

    def made(self, *folders: str) -> str:
        """Lines of a script that make folders below the target, through no link."""
        return f"{self.unlinked(*folders)}mkdir -p {quoted(folders)}\n"

    def prepare(self) -> bool:
        """Make the folder ours; returns whether its file system makes hard links.

        Raises DeviceError: it is somebody else's, has links in it that lead elsewhere, or cannot be written.
        """
        answer = self.device.script(
            f"""
{self._whose()}
mkdir -p "$t" || exit 1
echo {MARKER_TEXT} > "$t/{MARKER}" || exit 1
mkdir -p "$t/{PARTS}" "$t/{ARTIFACTS}" || exit 1
rm -f "$t/{PARTS}/link.probe"
if ln "$t/{MARKER}" "$t/{PARTS}/link.probe" 2>/dev/null; then rm -f "$t/{PARTS}/link.probe"; echo "links yes"; fi
echo "state ours"
"""
        )
        lines = answer.text.splitlines()
        state = next((line.removeprefix("state ") for line in lines if line.startswith("state ")), "")
        if answer.status != 0 or not state:
            raise self._unusable("unwritable", answer.said)
        if state != "ours":
            raise self._unusable(state)
        return "links yes" in lines

    def require_usable(self) -> None:
        """As `prepare`, as far as it can be told without writing. Raises LinkError, DeviceError."""
        script = f"""
{self._whose()}
while [ ! -d "$t" ]; do t=${{t%/*}}; t=${{t:-/}}; done
[ -w "$t" ] || echo "state unwritable"
"""
        lines = self.device.script(script).text.splitlines()
        for line in lines:
            if line.startswith("state "):
                raise self._unusable(line.removeprefix("state "))

    def _whose(self) -> str:
        """Lines of a script that say in which state the folder, ``$t``, is, and end it, if it cannot be ours."""
        return f"""t={quoted([self.layout.target])}
for d in "$t" "$t/{PARTS}" "$t/{ARTIFACTS}" "$t/{KERNELS}" "$t/{LOCK}" "$t/{MARKER}"; do
  if [ -L "$d" ]; then echo "state link $d"; exit 0; fi
done
if [ -e "$t" ] && [ ! -d "$t" ]; then echo "state file"; exit 0; fi
if [ -d "$t" ] && [ ! -f "$t/{MARKER}" ] && [ -n "$(ls -A "$t")" ]; then echo "state foreign"; exit 0; fi"""

    def _unusable(self, state: str, said: str = "") -> DeviceError:
        where = f"{self.device.serial}: {self.layout.target}"
        if state == "unwritable":
            return DeviceError(
                "the folder on the device cannot be written", where=where, found=said,
                fix="give another one: --to; on a phone only /data/local/tmp can be written and executed from",
            )  # fmt: skip
        return DeviceError(
            "the folder on the device is not hvdc's, and is left alone", where=where,
            found={"file": "a file", "foreign": "other files"}.get(state, "a link, which could lead anywhere"),
            fix="give another one: --to, as /data/local/tmp/hvdc",
        )  # fmt: skip

    def require_no_links(self, *places: str) -> None:
        """That folders of ours, if they exist, are folders. Raises DeviceError."""
        self.run(self.unlinked(*places), "looking for links")

    def look(self) -> Found:
        """What is there; changes nothing. Raises LinkError, DeviceError."""
        script = f"""
[ ! -L {quoted([self.layout.target])} ] && cd {quoted([self.layout.target])} 2>/dev/null || exit 0
[ -f {MARKER} ] || exit 0
echo "marker $(cat {MARKER})"
for f in {ARTIFACTS}/*/*/{FILES}; do
  [ -f "$f" ] || continue
  d=${{f%/{FILES}}}
  echo "version $d"
  cat "$f" "$d/{PIECES}" 2>/dev/null
  echo "deployed $(cat "$d/{DEPLOYED}" 2>/dev/null | tr -d '\\n')"
done
for c in {ARTIFACTS}/*/{CURRENT}; do
  if [ -L "$c" ]; then echo "current $c $(readlink "$c")"; fi
done
echo sizes
find {PARTS} -type f -exec stat -c '%s %n' {{}} + 2>/dev/null
find {ARTIFACTS}/*/*{NEW} -type f -exec stat -c '%s %n' {{}} + 2>/dev/null
true
"""
        answer = self.device.script(script, limit_bytes=LISTING_BYTES)
        return parse_found(answer.text)

    def hashes(self, folder: str, paths: list[str], timeout_s: float) -> dict[str, str]:
        """Path in a folder -> SHA-256 of a file, computed on the device; without those that it cannot read."""
        one, other = quoted(paths[::2]), quoted(paths[1::2])  # two at once: a hash is one processor's work
        both = f'sha256sum {one} & other=$(sha256sum {other}); wait; echo "$other"' if other else f"sha256sum {one}"
        script = f"cd {quoted([folder])} || exit 1\n{both}"
        answer = self.device.script(script, timeout_s=timeout_s, limit_bytes=LISTING_BYTES)
        found = {}
        for line in answer.text.splitlines():
            digest, _, path = line.partition(" ")
            if _HASH.fullmatch(digest):
                found[path.strip().removeprefix("*")] = digest
        return found

    def part_sizes(self, digests: list[str]) -> dict[str, int]:
        """SHA-256 -> bytes of pieces that arrived and are not verified yet."""
        names = quoted([f"{digest}{PART}" for digest in digests])
        answer = self.device.script(f"cd {quoted([self.layout.parts])} && stat -c '%s %n' {names} 2>/dev/null; true")
        lines = (SIZE_LINE.fullmatch(line.strip()) for line in answer.text.splitlines())
        return {match[2].removesuffix(PART): int(match[1]) for match in lines if match}

    @contextlib.contextmanager
    def lock(self) -> Iterator[Lock]:
        """Of the folder, not taken yet (`Lock.keep`); given back with the block."""
        lock = Lock(self.device, self.layout.lock)
        try:
            yield lock
        finally:
            lock.release()

    def publish(self, name: str, version: str) -> None:
        """A version that is whole gets its name, and the link `current` leads to it: one rename.

        toybox's ``ln -sfn``, as coreutils', makes a link of another name and renames it; its ``mv -T`` follows links.
        Raises InUseError: one of the same name is there, which is damaged, and a program may be reading it.
        """
        place = self.layout
        aside = guarded(place.in_use, f"hvdc deploy, {name}", f"rm -rf {version}{BAD}\nmv {version} {version}{BAD}")
        self.run(
            f"""
{self.unlinked(place.deployment(name))}
cd {quoted([place.deployment(name)])}
sync
if [ -d {version}{NEW} ]; then
  if [ -d {version} ]; then
{aside}
  fi
  mv {version}{NEW} {version}
fi
ln -sfn {version} {CURRENT}
sync
""",
            "putting the new version in place",
        )

    def tidy(self, name: str) -> None:
        """Remove what unfinished deployments of this name have left, and pieces that none of another is made of."""
        d = self.layout.deployment(name)
        script = f"{self.unlinked(d)}cd {quoted([d])}\nrm -rf ./*{NEW} ./*{BAD}"
        self.run(f"{script}\n{self._without_pieces()}", "tidying up")

    def _without_pieces(self) -> str:
        """Lines of a script that remove all pieces, unless a deployment is unfinished: it goes on with them."""
        return f"""
cd {quoted([self.layout.target])}
set -- {ARTIFACTS}/*/*{NEW}
if [ ! -d "$1" ]; then rm -f {PARTS}/*; fi
"""

    def prune(self, name: str, keep: str) -> int:
        """Remove all versions of a name but one; returns how many went. Raises DeviceError, InUseError."""
        gone = [held for held in self.look().versions if held.name == name and held.version != keep]
        self.remove_versions(gone)
        return len(gone)

    def remove_versions(self, versions: Iterable[Held]) -> None:
        """Raises DeviceError, InUseError."""
        for held in versions:
            self._remove(f"{held.name}/{held.version}")

    def remove(self, name: str) -> None:
        """Remove a deployment, all its versions and runs. Raises DeviceError: there is none of this name;
        InUseError."""
        checked_name(name)
        there = self.device.script(f"cd {quoted([self.layout.artifacts])} && [ ! -L {name} ] && [ -d {name} ]")
        if there.status != 0:
            names = ", ".join(sorted({held.name for held in self.look().versions}))
            raise DeviceError(
                "there is no such artifact on the device", where=f"{self.device.serial}: {self.layout.target}",
                expected=f"one of {names}" if names else "", found=name,
            )  # fmt: skip
        self._remove(name)
        self.run(self._without_pieces(), "removing")

    def remove_locked(self, name: str) -> None:
        """`remove`, while nobody else changes the folder. Raises UsageError, DeviceError."""
        checked_name(name, "--remove")
        if not self.look().is_ours:
            raise DeviceError("nothing is deployed on the device", where=f"{self.device.serial}: {self.layout.target}")
        with self.lock() as lock:
            lock.keep()
            self.remove(name)

    def pull_logs(self, folder: Path) -> list[Path]:
        """Copy logs and reports of all runs into a folder here: NAME-RUN-FILE. Raises DeviceError, OSError."""
        find = f"find ./*/{RUNS}/* -type f -exec stat -c '%s %n' {{}} + 2>/dev/null"
        script = f"cd {quoted([self.layout.artifacts])} && {find}"
        pulled = []
        folder.mkdir(parents=True, exist_ok=True)
        for line in self.device.script(script, limit_bytes=LISTING_BYTES).text.splitlines():
            match = SIZE_LINE.fullmatch(line)
            path = match[2].removeprefix("./") if match else ""
            if not is_inside(path) or not path.endswith((".log", ".json")) or path.count("/") != 3:
                continue
            name, _, run, file = path.split("/")
            local = folder / f"{name}-{run}-{file}"
            self.device.pull(f"{self.layout.artifacts}/{path}", local)
            pulled.append(local)
        return pulled

    def _remove(self, below: str) -> None:
        """Below the folder of artifacts, while no program works there; no link is followed to get there."""
        first = below.split("/")[0]
        script = f"""
cd {quoted([self.layout.target])}
if [ ! -f {MARKER} ] || [ -L {ARTIFACTS} ] || [ -L {ARTIFACTS}/{first} ]; then
  echo "there is a link in the way to it, and it is left alone" >&2
  exit 1
fi
rm -rf {ARTIFACTS}/{below}
"""
        self.run(guarded(self.layout.in_use, f"hvdc deploy, removing {first}", script), "removing", timeout_s=300)
