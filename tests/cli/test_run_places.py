"""`hvdc run` where its places change under it: a full disk, a folder that goes, an artifact that is replaced."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hvdc.pipeline import run as run_module
from hvdc.pipeline.run_process import Watched
from tests.cli.runs import needs_gpu, ran, run

pytest.importorskip("av")
pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.usefixtures("runtime_cache")
GIVEN = ("--mode", "npu", "--prompts-limit", 2)


@contextmanager
def disk(folder: Path, kib: int) -> Iterator[Path]:
    """A disk of its own; `grown` makes it larger."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no disk is filled: this process may not mount one: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def grown(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)


@pytest.fixture(scope="module")
def whole(runnable_artifact: Path, embeds: Path, runtimes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVDC_CACHE_DIR", str(runtimes))
        out = tmp_path_factory.mktemp("whole") / "out"
        ran(runnable_artifact, embeds, out, *GIVEN)
    return out


def assert_whole(out: Path, whole: Path) -> None:
    for name in ("latents.safetensors", "strips/video-000000.png", "strips/video-000001.png", "sheet.png"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert not list(out.glob("**/.*")), "a part of a file"


@pytest.mark.parametrize("kib", [28, 40, 112, 200])
def test_a_disk_that_fills(kib: int, runnable_artifact: Path, embeds: Path, whole: Path, tmp_path: Path) -> None:
    """While the runtime writes a latent, while its figures are kept, between clips, and at the end."""
    with disk(tmp_path / "disk", kib) as folder:
        done = run(runnable_artifact, embeds, folder / "out", *GIVEN)
        assert done.status == 1, done.err
        assert "No space left on device" in done.err
        assert "make room and run the same command with --resume" in done.err
        grown(folder)
        ran(runnable_artifact, embeds, folder / "out", *GIVEN, "--resume")
        assert_whole(folder / "out", whole)


def at_event(monkeypatch: pytest.MonkeyPatch, event: str, act: Callable[[], None]) -> None:
    """Do something when the runtime says so for the first time."""
    take = Watched.take
    acted: list[str] = []

    def heard(self: Watched, line: str) -> None:
        if f'"event": "{event}"' in line and not acted:
            acted.append(line)
            act()
        take(self, line)

    monkeypatch.setattr(Watched, "take", heard)


def go(folder: Path, how: str) -> None:
    if how == "renamed":
        folder.rename(folder.with_name("elsewhere"))
        return
    aside = folder.with_name("gone")
    folder.rename(aside)
    shutil.rmtree(aside)
    if how == "replaced":
        folder.write_text("somebody else's")


@pytest.mark.parametrize(
    ("event", "how"), [("note", "removed"), ("started", "renamed"), ("finished", "replaced"), ("finished", "renamed")]
)
def test_an_output_that_goes_while_the_runtime_works(
    event: str, how: str, runnable_artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--mode", "npu", "--seeds", "0:20", "--no-decode")
    with monkeypatch.context() as patch:
        at_event(patch, event, lambda: go(out, how))
        done = run(runnable_artifact, embeds, out, *given)
    assert done.status == 1, done.err
    assert "the output was removed, renamed or replaced while it was filled" in done.err
    assert "put the folder back and run the same command with --resume" in done.err
    if how == "renamed":
        elsewhere = out.with_name("elsewhere")
        kept = len(list(elsewhere.glob("results/video-*.safetensors")))
        elsewhere.rename(out)
        assert ran(runnable_artifact, embeds, out, *given, "--resume")["skipped"] == kept


def test_an_output_that_goes_before_the_clips(
    runnable_artifact: Path, embeds: Path, whole: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = run_module.write_clips

    def gone(*arguments: Any) -> Any:
        go(out, "renamed")
        return write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_clips", gone)
        done = run(runnable_artifact, embeds, out, *GIVEN)
    assert done.status == 1, done.err
    assert "the output was removed, renamed or replaced" in done.err
    out.with_name("elsewhere").rename(out)
    assert ran(runnable_artifact, embeds, out, *GIVEN, "--resume")["skipped"] == 2
    assert_whole(out, whole)


@pytest.mark.parametrize("event", ["note", "finished"])
def test_an_artifact_that_is_replaced_is_read_to_the_end(
    event: str, runnable_artifact: Path, tiled_artifact: Path, embeds: Path, whole: Path, out: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As `hvdc compile --force` replaces one, by renaming: what has begun is of the one that was there."""
    own = shutil.copytree(runnable_artifact, tmp_path / "own.hvdc")
    other = shutil.copytree(tiled_artifact, tmp_path / "other.hvdc")

    def replaced() -> None:
        own.rename(tmp_path / "before.hvdc")
        shutil.rmtree(tmp_path / "before.hvdc")
        other.rename(own)

    at_event(monkeypatch, event, replaced)
    ran(own, embeds, out, *GIVEN)
    assert_whole(out, whole)


@needs_gpu
def test_an_artifact_that_is_replaced_before_the_gpus_process_reads_it(
    runnable_artifact: Path, embeds: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shutil.copytree(runnable_artifact, tmp_path / "own.hvdc")
    at_event(monkeypatch, "note", lambda: go(own, "renamed"))
    done = run(own, embeds, out, "--mode", "hetero", "--cut", 5, "--prompts-limit", 2)
    assert done.status != 0
    assert "the GPU's process could not start: the artifact" in done.err


@pytest.mark.parametrize("event", ["started", "finished"])
def test_an_artifact_that_is_cut_short(
    event: str, runnable_artifact: Path, embeds: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which nothing of ours does: whoever reads what is not there any more is killed."""
    own = shutil.copytree(runnable_artifact, tmp_path / "own.hvdc")

    def cut() -> None:
        for path in own.rglob("*"):
            if path.is_file():
                path.write_bytes(b"")

    with monkeypatch.context() as patch:
        at_event(patch, event, cut)
        done = run(own, embeds, out, "--mode", "npu", "--seeds", "0:20", "--no-decode")
    assert done.status == 1, done.err
    assert "killed by signal 7, as when a file that it reads is cut short" in done.err
    assert "run the same command with --resume: finished videos are kept" in done.err
    shutil.rmtree(own)
    shutil.copytree(runnable_artifact, own)
    kept = len(list(out.glob("results/video-*.safetensors")))
    assert ran(own, embeds, out, "--mode", "npu", "--seeds", "0:20", "--no-decode", "--resume")["skipped"] == kept
