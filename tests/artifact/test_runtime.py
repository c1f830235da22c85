"""The folder ``runtime/`` of an artifact: what compile puts there, and what is wrong with one that is not as listed."""

from __future__ import annotations

import errno
import io
import json
import os
import platform
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from device_runtime.sources import SOURCE, source_files, sources_sha256, sources_tar
from hvdc.artifact.answer_records import ANSWER_NAME
from hvdc.artifact.codes import Code
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.runtime import FOLDER, LIST_NAME, SOURCES_NAME, read_answer, read_runtime, runtime_findings
from hvdc.pipeline.runtime_parts import put_runtime
from hvdc.pipeline.workspace import lock_directory
from hvdc.progress import Silent
from tests import calibrations
from tests.answers import edited, stored, table_of
from tests.answers import put as put_answer
from tests.artifacts import forget_answer
from tests.commands import Result, hvdc, tree
from tests.exporters.models import Values


@pytest.fixture
def artifact(tiny_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_artifact, tmp_path / "copy.hvdc"))


def edit(artifact: Path, change: Callable[[dict[str, object]], object]) -> None:
    path = artifact / FOLDER / LIST_NAME
    listed = json.loads(path.read_text())
    change(listed)
    path.write_text(json.dumps(listed))


def test_the_archive_is_the_tree_that_is_built() -> None:
    with tarfile.open(fileobj=io.BytesIO(sources_tar())) as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in archive.getmembers()} == {(0, 0, 0, "", 0o644)}
    assert members["device_runtime/CMakeLists.txt"] == (SOURCE / "CMakeLists.txt").read_bytes()
    assert members == {f"device_runtime/{path}": data for path, data in source_files().items()}
    assert list(members) == sorted(members)
    assert not any(name.endswith(".py") for name in members)


def test_an_identity_of_names_and_contents() -> None:
    files = source_files()
    changed = files | {"CMakeLists.txt": b"other"}
    renamed = {("x.c" if name == "CMakeLists.txt" else name): data for name, data in files.items()}
    assert len({sources_sha256(), sources_sha256(files)}) == 1
    assert len({sources_sha256(files), sources_sha256(changed), sources_sha256(renamed)}) == 3


def test_compile_puts_the_sources_there(artifact: Path) -> None:
    runtime = read_runtime(artifact)
    assert runtime is not None
    assert runtime.sources_sha256 == sources_sha256()
    assert (artifact / FOLDER / SOURCES_NAME).read_bytes() == sources_tar()
    assert runtime_findings(artifact) == []
    done = hvdc("validate", artifact)
    assert done.status == 0
    assert "runtime  ok" in done.out.splitlines()


def test_programs_travel_with_it(artifact: Path, runtimes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built once for all tests, and not by compile: it takes what is there."""
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    model = read_model(artifact)
    done = hvdc("runtime", "build", "--into", artifact, "-q")
    assert done.status == 0, done.err
    runtime = read_runtime(artifact)
    assert runtime is not None
    [build] = runtime.builds
    assert (build.target, build.machine) == ("host", platform.machine())
    for program in build.programs:
        assert (artifact / FOLDER / program.name).stat().st_mode & 0o777 == 0o755
    assert not (artifact / FOLDER / SOURCES_NAME).stat().st_mode & 0o111
    assert "host-hvdc_runner" in {program.name for program in build.programs}
    assert hvdc("validate", artifact).status == 0
    assert read_model(artifact) == model
    assert sorted(path.name for path in artifact.parent.iterdir()) == [artifact.name]


def put(artifact: Path) -> Result:
    return hvdc("runtime", "build", "--into", artifact, "-q")


@pytest.fixture
def built(runtimes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's programs are in the cache."""
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    assert hvdc("runtime", "build", "-q").status == 0


@pytest.mark.usefixtures("built")
def test_an_artifact_that_is_the_working_directory_or_a_link(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(artifact)
    monkeypatch.chdir(artifact)
    for name in (".", tmp_path / "link"):
        shutil.rmtree(artifact / FOLDER)
        done = put(Path(name))
        assert done.status == 0, done.err
        assert runtime_findings(artifact) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [artifact.name, "link"]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("where", ["runtime/notes.txt", "runtime/folder/x", "../.copy.hvdc.runtime/x"])
def test_what_is_not_ours_is_in_the_way(where: str, artifact: Path) -> None:
    path = artifact / where
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    before = tree(artifact.parent)
    done = put(artifact)
    assert done.status != 0
    assert "unexpected" not in done.err
    assert tree(artifact.parent) == before


@pytest.mark.usefixtures("built")
def test_one_exchange_at_a_time(artifact: Path) -> None:
    lock = lock_directory(artifact)
    try:
        done = put(artifact)
        assert (done.status, "another hvdc is writing this output now" in done.err) == (2, True)
    finally:
        os.close(lock)
    assert put(artifact).status == 0


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("fails", [1, 2])
def test_an_exchange_that_fails_changes_nothing(fails: int, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, renames = Path.rename, [0]

    def failing(self: Path, target: Path) -> Path:
        if self.name in (FOLDER, "new", "old"):
            renames[0] += 1
            if renames[0] == fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    before = tree(artifact.parent)
    monkeypatch.setattr(Path, "rename", failing)
    assert put(artifact).status == 1
    assert renames[0] >= fails
    assert tree(artifact.parent) == before


@pytest.mark.usefixtures("built")
def test_an_exchange_that_was_killed_is_undone_by_the_next(artifact: Path) -> None:
    beside = artifact.with_name(f".{artifact.name}.{FOLDER}")
    (beside / "new").mkdir(parents=True)
    (beside / "new" / SOURCES_NAME).write_text("half")
    (artifact / FOLDER).rename(beside / "old")
    assert put(artifact).status == 0
    assert runtime_findings(artifact) == []
    assert not beside.exists()


def read_model(artifact: Path) -> str:
    with open_artifact(artifact) as opened:
        return opened.manifest.model_sha256


def test_what_is_no_artifact_gets_no_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is built for it."""
    monkeypatch.setattr("hvdc.cli.runtime.find_runtime", None)
    (tmp_path / "x.hvdc").mkdir()
    done = hvdc("runtime", "build", "--into", tmp_path / "x.hvdc", "-q")
    assert done.status != 0
    assert list((tmp_path / "x.hvdc").iterdir()) == []


def test_an_artifact_without_is_whole(artifact: Path) -> None:
    shutil.rmtree(artifact / FOLDER)
    assert read_runtime(artifact) is None
    assert runtime_findings(artifact) == []
    assert hvdc("validate", artifact, "--json").json()["checks"] == ["layout"]


def test_the_answer_is_the_same_whenever_it_is_computed(artifact: Path, tiny_artifact: Path) -> None:
    """By compile, and when the folder is exchanged; the model's bytes know nothing of it."""
    forget_answer(artifact)
    assert read_answer(artifact) is None
    model = read_model(artifact)
    assert put_runtime(artifact, [], Silent()) == ""
    assert read_answer(artifact) == read_answer(tiny_artifact) == (tiny_artifact / FOLDER / ANSWER_NAME).read_bytes()
    assert read_model(artifact) == model
    assert "an answer to try devices with" in hvdc("inspect", artifact).out


def test_weights_that_overflow_have_no_answer_and_say_why(tmp_path: Path) -> None:
    def enlarge(model: Values) -> None:
        model["blocks.0.ffn.net.2.weight"] *= 1e6

    checkpoint = calibrations.write_model(tmp_path / "model", enlarge)
    done = calibrations.run_compile(checkpoint, tmp_path / "large.hvdc", "-q")
    assert done.status == 0, done.err
    assert "note: no answer to try devices with was stored: block 0 gives something that is not finite" in done.out
    assert read_answer(tmp_path / "large.hvdc") is None
    assert hvdc("validate", "--deep", tmp_path / "large.hvdc").status == 0


def test_a_list_of_format_1_has_no_answer(artifact: Path) -> None:
    forget_answer(artifact)
    edit(artifact, lambda o: (o.update(format="hvdc-runtime-1"), o.pop("answer")))
    assert runtime_findings(artifact) == []
    assert read_answer(artifact) is None


def test_an_answer_of_other_numbers_is_found_by_computing_it(artifact: Path) -> None:
    def move(data: bytearray) -> None:
        at = int(table_of(data)["values_offset"][1])
        data[at] ^= 1

    edited(artifact, move)
    assert runtime_findings(artifact) == []
    done = hvdc("validate", "--deep", artifact, "--json", "-q")
    assert done.status == 4
    [finding] = done.json()["findings"]
    assert (finding["check"], finding["code"]) == ("answer", "DATA_ANSWER")
    assert "answer 1, NPU, step 5, block" in finding["where"]


def test_the_answer_of_another_artifact(artifact: Path, ragged_artifact: Path) -> None:
    put_answer(artifact, stored(ragged_artifact))
    [finding] = runtime_findings(artifact)
    assert finding.code == Code.DATA_ANSWER
    assert hvdc("validate", artifact).status == 4


DAMAGE: dict[str, tuple[Callable[[Path], object], Code, str]] = {
    "cut off": (lambda a: (a / FOLDER / SOURCES_NAME).write_bytes(b"x"), Code.DATA_RUNTIME, SOURCES_NAME),
    "one bit": (
        lambda a: (a / FOLDER / SOURCES_NAME).write_bytes(b"\1" + sources_tar()[1:]), Code.DATA_RUNTIME, SOURCES_NAME,
    ),
    "gone": (lambda a: (a / FOLDER / SOURCES_NAME).unlink(), Code.MISSING_FILE, SOURCES_NAME),
    "a link": (
        lambda a: (
            (a / FOLDER / SOURCES_NAME).rename(a.parent / "elsewhere"),
            (a / FOLDER / SOURCES_NAME).symlink_to(a.parent / "elsewhere"),
        ),
        Code.IO, SOURCES_NAME,
    ),
    "one more": (lambda a: (a / FOLDER / "libx.so").write_bytes(b"x"), Code.DATA_RUNTIME, "libx.so"),
    "no list": (lambda a: (a / FOLDER / LIST_NAME).unlink(), Code.MISSING_FILE, LIST_NAME),
    "an empty list": (lambda a: (a / FOLDER / LIST_NAME).write_bytes(b""), Code.DATA_RUNTIME, LIST_NAME),
    "a huge list": (lambda a: (a / FOLDER / LIST_NAME).write_bytes(bytes(1 << 21)), Code.DATA_RUNTIME, LIST_NAME),
    "another format": (lambda a: edit(a, lambda o: o.update(format="x")), Code.DATA_RUNTIME, LIST_NAME),
    "an unknown key": (lambda a: edit(a, lambda o: o.update(x=1)), Code.DATA_RUNTIME, LIST_NAME),
    "a path outside": (
        lambda a: edit(a, lambda o: o["sources"].update(name="../index.bin")),  # type: ignore[attr-defined]
        Code.DATA_RUNTIME, LIST_NAME,
    ),
    "an answer of another name": (
        lambda a: edit(a, lambda o: o["answer"].update(name="other.bin")),  # type: ignore[attr-defined]
        Code.DATA_RUNTIME, LIST_NAME,
    ),
    "no answer": (lambda a: (a / FOLDER / ANSWER_NAME).unlink(), Code.MISSING_FILE, ANSWER_NAME),
    "an answer that nobody lists": (
        lambda a: edit(a, lambda o: o.update(answer=None)), Code.DATA_RUNTIME, ANSWER_NAME,
    ),
    "a file twice": (
        lambda a: edit(
            a,
            lambda o: o.update(
                builds=[{"target": "host", "machine": "m", "compiler": "c", "programs": [o["sources"]]}]
            ),
        ),
        Code.DATA_RUNTIME, LIST_NAME,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_a_folder_that_is_not_as_listed(case: str, artifact: Path) -> None:
    """The model opens all the same: no engine reads the folder."""
    damage, code, name = DAMAGE[case]
    damage(artifact)
    open_artifact(artifact).close()
    [finding] = runtime_findings(artifact)
    assert (finding.code, finding.where) == (code, str(artifact / FOLDER / name))
    done = hvdc("validate", artifact)
    assert done.status == 4
    assert "runtime  1 fault" in done.out.splitlines()
    assert done.out.splitlines()[-1].endswith("NOT sound")
