"""What was submitted, in a JSON file, so that a second run goes on with it. It has not run against the real service.

The file holds runs by a key of everything that decides the result. A job is noted before it is submitted and its id
after: of a job whose answer was lost, the name is known. Runs may share a file: each change reads, changes and writes
it while nobody else does. Two runs of the same thing at once may submit a job twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.aihub.errors import AiHubError
from exporters.durable import whole_file

VERSION = 1


@dataclass(frozen=True)
class Known:
    """A job as remembered. ``job_id`` is empty when its submission was begun and no answer was noted."""

    name: str
    job_id: str = ""
    url: str = ""


def run_key(values: Mapping[str, Any]) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class Run:
    """One run's jobs and uploads in the state file; every change is on the disk when the call returns.

    Raises:
        AiHubError: the file is not a state file, or cannot be written.
    """

    def __init__(self, path: Path, key: str, about: Mapping[str, Any]) -> None:
        self.path = path
        self.key = key
        self._about = dict(about)
        self._read()  # a file that is none is noticed before anything is submitted

    def job(self, slot: str) -> Known | None:
        """What is known of a job."""
        found = self._mine(self._read())["jobs"].get(slot)
        return Known(found["name"], found["job_id"], found["url"]) if found else None

    def note_job(self, slot: str, known: Known) -> None:
        """Before the submission with the name alone, after it with the id."""
        self._change("jobs", slot, {"name": known.name, "job_id": known.job_id, "url": known.url})

    def forget_job(self, slot: str) -> None:
        """A job that failed, or that the service no longer has: the next run submits it again."""
        self._change("jobs", slot, None)

    def upload(self, slot: str) -> str:
        """The id of a model that was uploaded, or ""."""
        return str(self._mine(self._read())["uploads"].get(slot, ""))

    def note_upload(self, slot: str, model_id: str) -> None:
        """After an upload; an empty id forgets it."""
        self._change("uploads", slot, model_id or None)

    def _change(self, kind: str, slot: str, value: Any) -> None:
        with self._alone():
            content = self._read()
            mine = self._mine(content)
            kept = {k: v for k, v in mine[kind].items() if k != slot}
            mine[kind] = kept | ({slot: value} if value is not None else {})
            content["runs"][self.key] = mine
            self._write(content)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Other processes wait. The lock file stays: removing it would let two hold different ones."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(f"{self.path.name}.lock").open("w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX)
                except OSError as error:  # a file system without locks: each write is whole all the same
                    if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
                        raise
                yield
        except OSError as error:
            raise self._unusable("cannot be written", error) from error

    def _mine(self, content: dict[str, Any]) -> dict[str, Any]:
        run: dict[str, Any] = content["runs"].get(self.key, {"about": self._about, "jobs": {}, "uploads": {}})
        return run

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self.path.read_text("utf-8"))
            runs = content["runs"]
            sound = content["version"] == VERSION and all(
                isinstance(run["uploads"], dict)
                and all({"name", "job_id", "url"} <= set(job) for job in run["jobs"].values())
                for run in runs.values()
            )
        except FileNotFoundError:
            return {"version": VERSION, "runs": {}}
        except OSError as error:
            raise self._unusable("cannot be read", error) from error
        except (ValueError, LookupError, TypeError, AttributeError):
            sound = False
        if not sound:
            raise AiHubError(
                "this is not a file of submitted jobs",
                where=str(self.path),
                expected=f"JSON of version {VERSION} as hvdc writes it",
                fix="give another path, or move the file away: its jobs are then submitted again",
            )
        return dict(content)

    def _write(self, content: dict[str, Any]) -> None:
        try:
            with whole_file(self.path) as file:
                file.write((json.dumps(content, indent=2, sort_keys=True) + "\n").encode())
        except OSError as error:
            raise self._unusable("cannot be written", error) from error

    def _unusable(self, what: str, error: OSError) -> AiHubError:
        return AiHubError(
            f"the file of submitted jobs {what}: {error.strerror or error}",
            where=str(self.path),
            fix="check the path and its permissions, or give another one",
        )
