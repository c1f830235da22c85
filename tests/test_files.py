"""Files and folders are whole or absent, whatever stops the one who writes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdc import files
from hvdc.errors import HvdcError
from hvdc.files import replace_file, whole_folder, write_durably

WRITERS = {"replace_file": replace_file, "write_durably": write_durably}


def filled(path: Path, content: bytes) -> None:
    with whole_folder(path, ".making-") as folder:
        (folder / "file").write_bytes(content)


def content_of(path: Path) -> bytes:
    return (path / "file" if path.is_dir() else path).read_bytes()


@pytest.mark.parametrize("write", [*WRITERS.values(), filled], ids=[*WRITERS, "whole_folder"])
def test_the_newer_takes_the_place_of_the_older(write: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    for content in (b"older and longer", b"newer"):
        write(tmp_path / "a", content)
        assert content_of(tmp_path / "a") == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
@pytest.mark.parametrize("write", [*WRITERS.values(), filled], ids=[*WRITERS, "whole_folder"])
def test_what_stops_in_the_middle_leaves_what_was_there(
    write: Callable[[Path, bytes], None], stop: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: object) -> None:
        raise stop

    write(tmp_path / "a", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", stopped)
        patch.setattr(Path, "rename", stopped)
        with pytest.raises((HvdcError, type(stop))):
            write(tmp_path / "a", b"new")
    assert content_of(tmp_path / "a") == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_cannot_get_its_name_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between the two renames."""
    real = Path.rename

    def rename(source: Path, target: Path) -> Path:
        if source.name == "new":
            raise OSError(5, "Input/output error")
        return real(source, target)

    filled(tmp_path / "a", b"old")
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="Input/output"):
        filled(tmp_path / "a", b"new")
    assert content_of(tmp_path / "a") == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_is_named_to_the_user(tmp_path: Path) -> None:
    with pytest.raises(HvdcError, match="cannot be written") as caught:
        write_durably(tmp_path / "nowhere" / "a", b"")
    assert caught.value.where == str(tmp_path / "nowhere" / "a")


def test_content_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, bool]] = []
    real = os.fsync

    def sync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_size, (tmp_path / "a").exists()))
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", sync)
    write_durably(tmp_path / "a", b"12345", executable=True)
    assert synced == [(5, False)]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755


def test_a_name_may_be_as_long_as_file_systems_allow(tmp_path: Path) -> None:
    replace_file(tmp_path / ("n" * 255), b"content")
    assert (tmp_path / ("n" * 255)).read_bytes() == b"content"
