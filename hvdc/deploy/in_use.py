"""One program at a time works on a device's engines: two would share them, and measure or wait for each other. What it
may be reading is not removed meanwhile.

The lock is held by the program itself, by a descriptor that it inherits, and not by this side of the link: so it lasts
for as long as the program does, also after a cut link, and goes with it, however it ends. A device without ``flock``
keeps nobody out.
"""

from __future__ import annotations

import hashlib
import platform
import re

from hvdc.deploy.adb import quoted
from hvdc.deploy.errors import DeviceError

BUSY = 99
"""Status of a script whose lock somebody else holds; no program of the runtime ends with it."""
MARK = "hvdc-in-use"
WAIT_S = 3
"""After a cut link a program may take as long to notice that nobody listens."""
LINK = "is-a-link"

_BUSY = re.compile(
    rf"{MARK} (?P<now>\d{{1,12}}) (?P<since>\d{{1,12}}) (?P<pid>\d{{1,9}}) "
    rf"(?P<computer>[0-9a-f]{{8}}) (?P<what>.{{1,120}})"
)
_WORDS = re.compile(r"[^\w .,:=+-]", re.ASCII)


class InUseError(DeviceError):
    """Somebody else's program works on the device."""


def guarded(lock: str, what: str, command: str, wait_s: int = WAIT_S) -> str:
    """Lines of a device's shell that become ``command`` once they hold the lock, and else end with `BUSY`.

    ``lock``: a file on the device whose folder exists. ``what``: who holds it, for people: ``hvdc bench, dcm``.
    ``command`` is for the shell, and should replace it (``exec``). What a busy one says, on standard error, is for
    `in_use`. Descriptor 8 is the lock's.
    """
    place, who = quoted([lock]), quoted([f"{_computer()} {_WORDS.sub('', what)[:120] or 'a program'}"])
    return f"""[ ! -L {place} ] || {{ echo {MARK} {LINK} >&2; exit {BUSY}; }}
{{
n=0
while command -v flock >/dev/null 2>&1 && ! flock -n 8; do
  n=$((n + 1))
  [ $n -le {wait_s} ] || {{ echo "{MARK} $(date +%s) $(head -c 200 {place})" >&2; exit {BUSY}; }}
  sleep 1
done
echo "$(date +%s) $$ "{who} >{place}
{command}
}} 8>>{place}"""


def in_use(said: str, where: str, lock: str, why: str = "two would slow each other down") -> InUseError:
    """The error of a script that ended with `BUSY` and said so. ``why``: it is not done all the same."""
    if LINK in said:
        return InUseError(
            "a link is in the way, which could lead anywhere, and is left alone", where=f"{where}: {lock}",
            fix="remove it from the device, or give another folder: --to",
        )  # fmt: skip
    holder, pid = _holder(said)
    end = f"end it (adb shell kill {pid})" if pid else "end it"
    return InUseError(
        "another program is working on this device now", where=where, found=holder,
        fix=f"wait for it, or {end}, and run the same command again: {why}",
    )  # fmt: skip


def _holder(said: str) -> tuple[str, str]:
    """Who, for people, and the number of its process there."""
    found = _BUSY.search(said)
    if found is None:
        return "it does not say which", ""
    computer = "this computer" if found["computer"] == _computer() else "another computer"
    return f"{found['what'].strip()}, from {computer}, for {_lasting(int(found['now']) - int(found['since']))}", found[
        "pid"
    ]


def _lasting(seconds: int) -> str:
    if seconds < 0:
        return "a time that the device's clock does not tell"
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h {seconds % 3600 // 60} min"


def _computer() -> str:
    """Which computer it is, so that its own name stays at home."""
    return hashlib.sha256(platform.node().encode("utf-8", "replace")).hexdigest()[:8]
