"""Where an artifact may be written, what --force replaces, and what --resume goes on with."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hvdc.pipeline.prepare import Request
from hvdc.pipeline.workspace import Done, Workspace
from tests.commands import SMALL_VIDEO, hvdc, partial, tree


def compile_(checkpoint: Path, output: Path | str, *more: object) -> tuple[int, str]:
    done = hvdc("compile", checkpoint, "-o", output, *SMALL_VIDEO, "-q", *more)
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err
    return done.status, done.err


def stopped_after(files: int, checkpoint: Path, output: Path) -> None:
    """Compile, and be interrupted when ``files`` data files are written."""
    write, lock, left = Workspace.write, threading.Lock(), [files]

    def counted(self: Workspace, *arguments: Any) -> Done:
        with lock:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return write(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workspace, "write", counted)
        assert compile_(checkpoint, output, "--jobs", 1)[0] == 130
    assert len((partial(output) / "journal.jsonl").read_text().splitlines()) == 1 + files


@pytest.fixture
def unfinished(ragged_checkpoint: Path, tmp_path: Path) -> Path:
    """An output whose build was stopped after two files; its checkpoint lies beside it."""
    checkpoint = tmp_path / "model.safetensors"
    shutil.copy(ragged_checkpoint, checkpoint)
    stopped_after(2, checkpoint, tmp_path / "a.hvdc")
    return tmp_path / "a.hvdc"


def resumed(output: Path, *more: object) -> tuple[int, str]:
    return compile_(output.with_name("model.safetensors"), output, "--resume", *more)


@pytest.mark.parametrize("name", ["a", "a.bin", ".hvdc", "a.hvdc.partial", "a.HVDC", ".", "..", "/", ""])
def test_a_name_that_is_not_an_artifacts(
    name: str, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, text = compile_(tiny_checkpoint, name)
    assert status == 2
    assert "ends in .hvdc" in text
    assert "fix:" in text
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist(tiny_checkpoint: Path, tmp_path: Path) -> None:
    status, text = compile_(tiny_checkpoint, tmp_path / "nowhere" / "a.hvdc")
    assert status == 2
    assert f"mkdir -p {tmp_path / 'nowhere'}" in text
    (tmp_path / "file").write_text("")
    status, text = compile_(tiny_checkpoint, tmp_path / "file" / "a.hvdc")
    assert status == 2
    assert "mkdir" not in text


def test_an_artifact_is_replaced_only_by_force(
    ragged_checkpoint: Path, ragged_artifact: Path, tiny_artifact: Path, tmp_path: Path
) -> None:
    output = tmp_path / "a.hvdc"
    shutil.copytree(tiny_artifact, output)
    status, text = compile_(ragged_checkpoint, output)
    assert (status, "--force" in text) == (2, True)
    assert tree(output) == tree(tiny_artifact)
    status, _ = compile_(ragged_checkpoint, output, "--resume")
    assert status == 2, "resuming nothing is no leave to replace"
    assert tree(output) == tree(tiny_artifact)
    status, _ = compile_(ragged_checkpoint, output, "--force")
    assert status == 0
    assert tree(output) == tree(ragged_artifact)
    assert list(tmp_path.iterdir()) == [output]


def a_file(place: Path, artifact: Path) -> None:
    place.write_text("months of work")


def a_folder(place: Path, artifact: Path) -> None:
    place.mkdir()
    (place / "thesis.txt").write_text("months of work")


def a_web_page(place: Path, artifact: Path) -> None:
    place.mkdir()
    (place / "manifest.json").write_text('{"name": "an app"}')


def an_empty_folder(place: Path, artifact: Path) -> None:
    place.mkdir()


def a_link_to_an_artifact(place: Path, artifact: Path) -> None:
    place.symlink_to(artifact)


def a_dangling_link(place: Path, artifact: Path) -> None:
    place.symlink_to("nowhere")


def link(place: Path) -> Path | None:
    """Where a symbolic link points."""
    return place.readlink() if place.is_symlink() else None


OTHER_THINGS = [a_file, a_folder, a_web_page, an_empty_folder, a_link_to_an_artifact, a_dangling_link]


@pytest.mark.parametrize("thing", OTHER_THINGS)
@pytest.mark.parametrize("place", ["a.hvdc", "a.hvdc.partial"])
def test_force_never_replaces_anything_else(
    place: str, thing: Callable[[Path, Path], None], tiny_checkpoint: Path, tiny_artifact: Path, tmp_path: Path
) -> None:
    """Neither in the place of the output nor in that of the unfinished build, which is emptied."""
    thing(tmp_path / place, tiny_artifact)
    if place.endswith(".partial") and thing is an_empty_folder:
        assert compile_(tiny_checkpoint, tmp_path / "a.hvdc", "--force")[0] == 0
        return
    before = (link(tmp_path / place), tree(tmp_path))
    kept = tree(tiny_artifact)
    for more in ("--force", "--resume"):
        status, text = compile_(tiny_checkpoint, tmp_path / "a.hvdc", more)
        assert status == 2
        assert place in text
    after = (link(tmp_path / place), tree(tmp_path))
    assert after == before
    assert tree(tiny_artifact) == kept


def test_an_unfinished_build_wants_a_decision(unfinished: Path, ragged_artifact: Path) -> None:
    checkpoint = unfinished.with_name("model.safetensors")
    status, text = compile_(checkpoint, unfinished)
    assert status == 2
    assert "--resume" in text
    assert "--force" in text
    assert hvdc("compile", checkpoint, "-o", unfinished, "--resume", "--force").status == 2
    status, _ = compile_(checkpoint, unfinished, "--force")
    assert status == 0
    assert tree(unfinished) == tree(ragged_artifact)


def test_an_unfinished_build_is_no_artifact(unfinished: Path) -> None:
    for place in (partial(unfinished), partial(unfinished) / "artifact"):
        done = hvdc("inspect", place)
        assert done.status == 4
    assert "--resume" in hvdc("validate", partial(unfinished)).out


def test_resume_takes_over_what_is_whole(unfinished: Path, ragged_artifact: Path) -> None:
    checkpoint = unfinished.with_name("model.safetensors")
    done = hvdc("compile", checkpoint, "-o", unfinished, *SMALL_VIDEO, "--resume", "--json")
    assert done.status == 0, done.err
    assert done.json()["resumed_files"] == 2
    assert tree(unfinished) == tree(ragged_artifact)


def test_resume_without_an_unfinished_build_simply_builds(ragged_checkpoint: Path, tmp_path: Path) -> None:
    assert compile_(ragged_checkpoint, tmp_path / "a.hvdc", "--resume")[0] == 0


@pytest.mark.parametrize(
    "change",
    [["--frames", 21], ["--height", 80], ["--set", "timesteps=[1000, 900]"], ["--set", "expert_boundary=990"],
     ["--lora-alpha", 7]],
)  # fmt: skip
def test_resume_with_another_configuration_is_refused(change: list[object], unfinished: Path) -> None:
    before = tree(partial(unfinished))
    status, text = resumed(unfinished, *change)
    assert status == 2
    assert "another checkpoint or configuration" in text
    assert "--force" in text
    assert tree(partial(unfinished)) == before, "it can still be resumed as it was meant"
    assert resumed(unfinished)[0] == 0


def test_resume_with_other_jobs_is_the_same_build(unfinished: Path, ragged_artifact: Path) -> None:
    assert resumed(unfinished, "--jobs", 3)[0] == 0
    assert tree(unfinished) == tree(ragged_artifact)


def test_resume_with_a_changed_checkpoint_is_refused(unfinished: Path) -> None:
    checkpoint = unfinished.with_name("model.safetensors")
    data = bytearray(checkpoint.read_bytes())
    data[-1] ^= 1
    checkpoint.write_bytes(data)
    status, text = resumed(unfinished)
    assert status == 2
    assert "another checkpoint" in text


def test_resume_by_a_relative_path_is_the_same_build(
    unfinished: Path, ragged_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(unfinished.parent)
    assert compile_(Path("model.safetensors"), "a.hvdc", "--resume")[0] == 0
    assert tree(unfinished) == tree(ragged_artifact)


def test_resume_works_where_the_output_lies_in_the_checkpoints_folder(
    ragged_checkpoint: Path, ragged_artifact: Path, tmp_path: Path
) -> None:
    """`cd model && hvdc compile . -o out.hvdc`: what hvdc wrote there itself is not a changed checkpoint."""
    shutil.copy(ragged_checkpoint, tmp_path / "model.safetensors")
    output = tmp_path / "out.hvdc"
    stopped_after(1, tmp_path, output)
    assert compile_(tmp_path, output, "--resume")[0] == 0
    assert tree(output) == tree(ragged_artifact)


def journal_of(output: Path) -> Path:
    return partial(output) / "journal.jsonl"


def data_file(output: Path) -> Path:
    return next((partial(output) / "artifact" / "regions").iterdir())


def torn(output: Path) -> None:
    with journal_of(output).open("ab") as journal:
        journal.write(b'{"path": "regions/block-001.bin", "byt')


def zeros(output: Path) -> None:
    with journal_of(output).open("ab") as journal:
        journal.write(bytes(4096))


def another_object(output: Path) -> None:
    with journal_of(output).open("ab") as journal:
        journal.write(b'{"path": "regions/block-001.bin"}\n[1]\n')


def line_before_file(output: Path) -> None:
    """The line reached the disk before a loss of power, and the file didn't."""
    entry = json.loads(journal_of(output).read_text().splitlines()[-1]) | {"path": "host/shared.bin"}
    with journal_of(output).open("a") as journal:
        journal.write(json.dumps(entry) + "\n")


def no_journal(output: Path) -> None:
    journal_of(output).unlink()


def damaged_file(output: Path) -> None:
    file = data_file(output)
    data = bytearray(file.read_bytes())
    data[1000] ^= 0x40
    file.write_bytes(data)


def short_file(output: Path) -> None:
    os.truncate(data_file(output), 100)


def lost_file(output: Path) -> None:
    data_file(output).unlink()


def strange_file(output: Path) -> None:
    (partial(output) / "artifact" / "regions" / "notes.txt").write_text("x")


def temporary_file(output: Path) -> None:
    (partial(output) / "artifact" / "regions" / "block-001.bin.tmp").write_bytes(bytes(99))


DAMAGE = [
    torn, zeros, another_object, line_before_file, no_journal, damaged_file, short_file, lost_file, strange_file,
    temporary_file,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_whatever_happened_to_the_unfinished_build_the_result_is_the_same(
    damage: Callable[[Path], None], unfinished: Path, ragged_artifact: Path
) -> None:
    damage(unfinished)
    assert resumed(unfinished)[0] == 0
    assert tree(unfinished) == tree(ragged_artifact)
    assert not partial(unfinished).exists()


def test_an_artifact_that_was_being_replaced_comes_back(
    ragged_checkpoint: Path, ragged_artifact: Path, tmp_path: Path
) -> None:
    """Killed between the two renames, then started over with a checkpoint that cannot be compiled."""
    output = tmp_path / "a.hvdc"
    partial(output).mkdir()
    shutil.copytree(ragged_artifact, partial(output) / "replaced")
    tensors = load_file(ragged_checkpoint)
    tensors["proj_out.bias"][0] = np.nan
    save_file(tensors, tmp_path / "bad.safetensors")
    status, _ = compile_(tmp_path / "bad.safetensors", output, "--force")
    assert status == 3
    assert tree(output) == tree(ragged_artifact)


def test_what_identifies_a_checkpoint_is_all_its_files(tmp_path: Path) -> None:
    """An index of shards stands for its folder; a pipeline's transformer may be a link; a link may lead back."""
    shards, pipeline = tmp_path / "shards", tmp_path / "pipeline"
    shards.mkdir()
    pipeline.mkdir()
    for name in ("model.safetensors.index.json", "model-1.safetensors"):
        (shards / name).write_text("{}")
    (pipeline / "transformer").symlink_to(shards)
    (shards / "back").symlink_to(shards)
    for given, folder in ((shards / "model.safetensors.index.json", shards), (pipeline, pipeline / "transformer")):
        assert Request(given, None).inputs() == [
            folder / "model-1.safetensors",
            folder / "model.safetensors.index.json",
        ]
