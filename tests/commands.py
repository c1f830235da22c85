"""Running ``hvdc`` from tests: in this process where that is enough, as a process of its own where it matters."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdc.cli.main import run

ROOT = Path(__file__).parents[1]
SMALL_VIDEO = ("--frames", "17", "--height", "64", "--width", "64")


@dataclass(frozen=True)
class Result:
    """What a command left: exit status, standard output, standard error."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def hvdc(*arguments: object) -> Result:
    """``hvdc arguments…`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run([str(a) for a in arguments])
    return Result(int(status), out.getvalue(), err.getvalue())


def compiled(checkpoint: Path, output: Path, *more: object) -> Path:
    """Compile a small clip of ``checkpoint``, which must succeed; returns ``output``."""
    done = hvdc("compile", checkpoint, "-o", output, *SMALL_VIDEO, "-q", *more)
    assert done.status == 0, done.err
    return output


def command_line(*arguments: object) -> list[str]:
    """The arguments of a process that runs ``hvdc``."""
    return [sys.executable, "-m", "hvdc", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """This environment, from which a process finds this source tree whatever its working directory is."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def process(*arguments: object, timeout: float = 60, **options: Any) -> Result:
    """``hvdc arguments…`` as a process of its own."""
    done = subprocess.run(
        command_line(*arguments), env=options.pop("env", environment()), capture_output=True, text=True, check=False,
        timeout=timeout, **options,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[Running]:
    """A running ``hvdc`` process, killed at the end if it still runs."""
    child = subprocess.Popen(
        command_line(*arguments), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Running(child)
    finally:
        child.kill()
        child.communicate()


class Running:
    """A process and what it has said on standard error so far."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child
        self.said = ""

    def wait_for(self, text: str) -> None:
        """Read standard error until a line holds ``text``; fails when the process ends before."""
        assert self.child.stderr is not None
        watchdog = threading.Timer(60, self.child.kill)
        watchdog.start()
        try:
            for line in self.child.stderr:
                self.said += line
                if text in line:
                    return
        finally:
            watchdog.cancel()
        raise AssertionError(f"ended without {text!r}:\n{self.said}")

    def end(self) -> Result:
        """Wait for the end."""
        out, err = self.child.communicate(timeout=60)
        self.said += err
        return Result(self.child.returncode, out, self.said)


def tree(root: Path) -> dict[str, bytes]:
    """Relative path -> bytes of every file below ``root``."""
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def model_tree(root: Path) -> dict[str, bytes]:
    """`tree` of an artifact without its `runtime/`, which is no part of the model and knows the index's hash."""
    return {name: data for name, data in tree(root).items() if not name.startswith("runtime/")}


def partial(output: Path) -> Path:
    """Where an unfinished build of ``output`` lies."""
    return output.with_name(f"{output.name}.partial")


def undocumented(verb: str, facts: dict[str, Any]) -> list[str]:
    """Names in a command's JSON that its section of docs/CLI.md does not have."""
    text = (Path(__file__).resolve().parents[1] / "docs" / "CLI.md").read_text("utf-8")
    section = text.split(f"## `hvdc {verb}", 1)[1].split("\n## ", 1)[0]
    return [name for name in facts if f"`{name}`" not in section]
