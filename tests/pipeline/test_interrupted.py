"""Ctrl-C, SIGTERM, a second compile, a full disk: no half-made output, and a build that can be resumed."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands import Running, command_line, compiled, environment, hvdc, partial, started, tree


@pytest.fixture(scope="module")
def whole(slow_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return tree(compiled(slow_checkpoint, tmp_path_factory.mktemp("whole") / "a.hvdc", "--frames", 49))


def arguments(checkpoint: Path, output: Path, *more: object) -> tuple[object, ...]:
    return ("compile", checkpoint, "-o", output, "--height", 64, "--width", 64, "--jobs", 1, *more)


@contextlib.contextmanager
def held(checkpoint: Path, output: Path, *more: object) -> Iterator[Running]:
    """A compile that is stopped (SIGSTOP) in the middle of its work."""
    with started(*arguments(checkpoint, output, *more)) as running:
        running.wait_for("compiling 3/")
        running.child.send_signal(signal.SIGSTOP)
        yield running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_compile_is_resumed_to_the_same_bytes(
    number: signal.Signals, slow_checkpoint: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "a.hvdc"
    with started(*arguments(slow_checkpoint, output)) as running:
        running.wait_for("compiling 3/")
        running.child.send_signal(number)
        done = running.end()
    assert done.status == 130, done.err
    assert "interrupted" in done.err
    assert "--resume" in done.err
    assert "Traceback" not in done.err
    assert not output.exists()
    resumed = hvdc(*arguments(slow_checkpoint, output, "--resume", "--json"))
    assert resumed.status == 0, resumed.err
    assert 3 <= resumed.json()["resumed_files"] < 28
    assert tree(output) == whole
    assert not partial(output).exists()


@pytest.mark.parametrize("gap_s", [0.0, 0.005, 0.03])
def test_an_impatient_second_ctrl_c_changes_nothing(gap_s: float, slow_checkpoint: Path, tmp_path: Path) -> None:
    with started(*arguments(slow_checkpoint, tmp_path / "a.hvdc")) as running:
        running.wait_for("compiling 3/")
        running.child.send_signal(signal.SIGINT)
        time.sleep(gap_s)
        running.child.send_signal(signal.SIGINT)
        done = running.end()
    assert done.status == 130, done.err
    assert "Traceback" not in done.err


def test_an_interrupted_replacement_keeps_the_old_artifact_and_is_resumed(
    slow_checkpoint: Path, tiny_artifact: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "a.hvdc"
    output.mkdir()
    for name, data in tree(tiny_artifact).items():
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_bytes(data)
    with started(*arguments(slow_checkpoint, output, "--force")) as running:
        running.wait_for("compiling 3/")
        running.child.send_signal(signal.SIGINT)
        assert running.end().status == 130
    assert tree(output) == tree(tiny_artifact)
    resumed = hvdc(*arguments(slow_checkpoint, output, "--resume", "-q"))
    assert resumed.status == 0, resumed.err
    assert tree(output) == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.hvdc"]


def test_a_build_that_may_not_replace_does_not_replace_what_appears_meanwhile(
    slow_checkpoint: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "a.hvdc"
    with held(slow_checkpoint, output) as running:
        output.mkdir()
        (output / "thesis.txt").write_text("months of work")
        running.child.send_signal(signal.SIGCONT)
        done = running.end()
    assert done.status == 2
    assert "appeared" in done.err
    assert tree(output) == {"thesis.txt": b"months of work"}
    (output / "thesis.txt").unlink()
    output.rmdir()
    assert hvdc(*arguments(slow_checkpoint, output, "--resume", "-q")).status == 0
    assert tree(output) == whole


def test_a_second_compile_into_one_output_is_refused(
    slow_checkpoint: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "a.hvdc"
    with held(slow_checkpoint, output) as running:
        for more in ([], ["--resume"], ["--force"]):
            second = hvdc(*arguments(slow_checkpoint, output, *more))
            assert second.status == 2
            assert "another hvdc is writing this output now" in second.err
        running.child.send_signal(signal.SIGCONT)
        assert running.end().status == 0
    assert tree(output) == whole


def test_a_checkpoint_that_changes_under_the_compiler_is_refused(slow_checkpoint: Path, tmp_path: Path) -> None:
    """Half of one model and half of another would be a sound artifact of neither."""
    checkpoint = Path(shutil.copy(slow_checkpoint, tmp_path / "model"))
    with held(checkpoint, tmp_path / "a.hvdc") as running:
        with checkpoint.open("r+b") as file:
            file.seek(-2, os.SEEK_END)
            file.write(b"\x00\x3f")
        running.child.send_signal(signal.SIGCONT)
        done = running.end()
    assert done.status == 3
    assert "changed while it was compiled" in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_checkpoint_that_shrinks_under_the_compiler_is_refused(slow_checkpoint: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copy(slow_checkpoint, tmp_path / "model"))
    with held(checkpoint, tmp_path / "a.hvdc") as running:
        os.truncate(checkpoint, checkpoint.stat().st_size // 4)
        running.child.send_signal(signal.SIGCONT)
        done = running.end()
    assert done.status == 3, done.err
    assert "Traceback" not in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_disk_that_fills_up_is_said_and_the_build_resumes_when_there_is_room(
    mounted: Callable[..., Path], slow_checkpoint: Path, whole: dict[str, bytes]
) -> None:
    disk = mounted(24 << 20)
    output = disk / "a.hvdc"
    with held(slow_checkpoint, output) as running:
        with (disk / "filler").open("wb") as filler, contextlib.suppress(OSError):
            while filler.write(bytes(1 << 16)):
                filler.flush()
        running.child.send_signal(signal.SIGCONT)
        done = running.end()
    assert done.status == 1
    assert "the disk is full" in done.err
    assert "--resume" in done.err
    assert "Traceback" not in done.err
    assert not output.exists()
    assert not list(disk.rglob("*.tmp")), "a torn file takes room that the next try needs"
    (disk / "filler").unlink()
    resumed = hvdc(*arguments(slow_checkpoint, output, "--resume", "--json"))
    assert resumed.status == 0, resumed.err
    assert resumed.json()["resumed_files"] >= 3
    assert tree(output) == whole


def test_too_small_a_disk_is_refused_before_any_work(mounted: Callable[..., Path], tiny_checkpoint: Path) -> None:
    disk = mounted(2 << 20)
    done = hvdc("compile", tiny_checkpoint, "-o", disk / "a.hvdc", "-q")
    assert done.status == 1
    assert "too little room" in done.err
    assert "bytes free" in done.err
    assert list(disk.iterdir()) == []
    dry = hvdc("compile", tiny_checkpoint, "-o", disk / "a.hvdc", "--dry-run")
    assert dry.status == 1, "a dry run finds out too"


def test_a_write_that_the_system_refuses_leaves_nothing_half_made(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A limit on the size of a file, as a quota would be; this needs no mount."""
    output = tmp_path / "a.hvdc"
    done = subprocess.run(
        command_line(*arguments(tiny_checkpoint, output, "-q")), env=environment(), capture_output=True, text=True,
        check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000)),
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not output.exists()
    assert not list(tmp_path.rglob("*.tmp"))
    assert hvdc(*arguments(tiny_checkpoint, output, "--resume", "-q")).status == 0


def test_a_folder_that_cannot_be_written_is_refused_at_once(
    request: pytest.FixtureRequest, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    if os.geteuid() == 0:  # permissions do not bind root; a read-only file system does
        folder = request.getfixturevalue("mounted")(1 << 20, "ro")
    else:
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o555)
    done = hvdc("compile", tiny_checkpoint, "-o", folder / "a.hvdc")
    assert done.status == 2
    assert "not writable" in done.err
