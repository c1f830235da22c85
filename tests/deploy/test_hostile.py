"""Hostile names and answers: nothing outside the target folder is written or removed, and no text is executed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdc.artifact.errors import ArtifactError
from hvdc.deploy.adb import AdbDevice, quoted
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.found import parse_found
from hvdc.deploy.layout import MARKER_TEXT, checked_name, checked_target, is_inside
from hvdc.deploy.remote_run import RESULT
from hvdc.errors import UsageError
from tests.adb_peer import Peer
from tests.deploy.artifacts import Onto, deployed, whole_version

NAMES = [
    "", ".", "..", "../x", "a/b", "-rf", "--help", "a b", "it's", 'say "x"', "two\nlines", "ümlaut", "视频",
    "$(touch pwned)", "`id`", "a;b", "a|b", "a&b", "*", "?", "~", "\\", "a\0b", "x" * 65,
    ".hidden", "a.new", "a.part", "\x1b[31m", "a\r",
]  # fmt: skip
TARGETS = [
    "", "/", "/data", "data/local/tmp/hvdc", "/data/local/tmp/../../etc", "/data//local", "/data/local/tmp/",
    "/data/./x", "/data/local/tmp/a b", "/data/local/tmp/$(id)", "/data/local/tmp/-rf",
    "/data/local/tmp/x\ny", "/data/local/tmp/.x",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_that_a_shell_could_interpret_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        checked_name(name)


@pytest.mark.parametrize("target", TARGETS)
def test_folders_that_could_be_elsewhere_are_refused(target: str) -> None:
    with pytest.raises(UsageError):
        checked_target(target)


@pytest.mark.parametrize(
    "path", ["../x", "a/../b", "/x", "a//b", "-x", "a/-x", "a b", "a\nb", "a/..", "...", "a/b/c/d/e"]
)
def test_paths_that_could_leave_the_folder_are_none(path: str) -> None:
    assert not is_inside(path)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20), max_size=5))
@settings(max_examples=200, deadline=None)
def test_quoting_keeps_every_word(words: list[str]) -> None:
    import subprocess

    done = subprocess.run(["/bin/sh", "-c", f"printf '%s\\0' {quoted(words)}"], capture_output=True, check=True)
    assert done.stdout.decode("utf-8").split("\0")[:-1] == (words or [""])


@pytest.mark.parametrize("folder", ["a b", "it's", 'say "x"', "two\nlines", "-rf", "ümlaut 视频", "$(touch pwned)"])
def test_an_artifact_may_lie_anywhere_here(folder: str, artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    """The names of this machine do not get to the device's shell."""
    copy = Path(shutil.copytree(artifact, tmp_path / folder / f"{folder}.hvdc"))
    onto(copy)
    whole_version(peer, artifact)
    with pytest.raises(UsageError, match="this is no name"):
        onto(copy, name=None)
    assert not list(tmp_path.glob("**/pwned"))


@pytest.mark.parametrize(
    "path", ["../x.bin", "/etc/passwd", "a/../../x", "regions/a b.bin", "regions/$(id).bin", "-rf"]
)
def test_a_manifest_with_paths_that_leave_the_artifact(
    path: str, artifact: Path, peer: Peer, onto: Onto, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(artifact, tmp_path / "a.hvdc"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"][0]["path"] = path
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError):
        onto(copy)
    runtime = json.loads((artifact / "runtime" / "runtime.json").read_text())
    copy = Path(shutil.copytree(artifact, tmp_path / "b.hvdc"))
    runtime["builds"][0]["programs"][0]["name"] = path
    (copy / "runtime" / "runtime.json").write_text(json.dumps(runtime))
    with pytest.raises(ArtifactError):
        onto(copy)
    assert list(peer.phone.target.iterdir()) == []


def test_a_folder_of_somebody_else_is_left_alone(artifact: Path, peer: Peer, onto: Onto) -> None:
    (peer.phone.target / "hvdc").mkdir()
    (peer.phone.target / "hvdc" / "photo.jpg").write_bytes(b"x")
    with pytest.raises(DeviceError, match="is not hvdc's, and is left alone"):
        onto(artifact)
    assert [path.name for path in (peer.phone.target / "hvdc").iterdir()] == ["photo.jpg"]
    assert deployed("--remove", "dcm").status == 5
    assert (peer.phone.target / "hvdc" / "photo.jpg").exists()


@pytest.mark.parametrize("place", ["hvdc", "hvdc/artifacts", "hvdc/parts"])
def test_links_that_lead_elsewhere_are_not_followed(
    place: str, artifact: Path, peer: Peer, onto: Onto, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = peer.phone.target / place
    link.parent.mkdir(exist_ok=True)
    (link.parent / "hvdc-target").write_text(f"{MARKER_TEXT}\n") if place != "hvdc" else None
    link.symlink_to(elsewhere)
    with pytest.raises(DeviceError, match="is not hvdc's") as caught:
        onto(artifact)
    assert "a link" in caught.value.found
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("place", ["dcm", "dcm/VERSION.new", "dcm/VERSION.new/artifact.hvdc", "dcm/runs"])
def test_nothing_is_written_through_a_link(place: str, artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    version = onto(artifact).package.version
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "x.new").mkdir(parents=True)
    artifacts = peer.phone.target / "hvdc" / "artifacts"
    shutil.rmtree(artifacts / "dcm")
    link = artifacts / place.replace("VERSION", version)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    if ".new" in place:
        onto(artifact)
        whole_version(peer, artifact)
    else:
        with pytest.raises(DeviceError, match="a link is in the way"):
            onto(artifact)
    assert [path.name for path in elsewhere.rglob("*")] == ["x.new"]


def test_removing_follows_no_link(artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    onto(artifact)
    precious = tmp_path / "precious"
    (precious / "0123456789abcdef").mkdir(parents=True)
    (precious / "0123456789abcdef" / "files.txt").write_text("x\n")
    artifacts = peer.phone.target / "hvdc" / "artifacts"
    (artifacts / "evil").symlink_to(precious)
    assert deployed("--remove", "evil").status == 5
    (artifacts / "dcm" / "inside").symlink_to(precious)
    assert deployed("--remove", "dcm").status == 0
    assert (precious / "0123456789abcdef" / "files.txt").exists()
    for name in ("../..", "-rf", "*", "$(id)"):
        assert deployed(f"--remove={name}").status == 2


def test_removing_does_not_leave_the_folder_by_its_own_folders(
    peer: Peer, onto: Onto, artifact: Path, tmp_path: Path
) -> None:
    onto(artifact)
    target = peer.phone.target / "hvdc"
    precious = Path(shutil.move(target / "artifacts", tmp_path / "precious"))
    (target / "artifacts").symlink_to(precious)
    done = deployed("--remove", "dcm")
    assert (done.status, "left alone" in done.err) == (5, True)
    assert (precious / "dcm" / "current" / "files.txt").exists()


LIES: dict[str, Callable[[str], bytes | None]] = {
    "nothing": lambda command: b"",
    "garbage": lambda command: bytes(range(256)) * 4,
    "a page of HTML": lambda command: b"<html><body>502</body></html>\n",
    "a very long line": lambda command: b"x" * 100_000,
    "numbers": lambda command: b"0\n" * 1000,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_phone_that_answers_anything(lie: str, artifact: Path, peer: Peer, onto: Onto) -> None:
    peer.faults.answer = LIES[lie]
    with pytest.raises(DeviceError) as caught:
        onto(artifact, wait_s=1.0)
    assert caught.value.fix
    for words in (["--list"], ["--remove", "dcm"]):
        assert deployed(*words).status == 5


def test_a_phone_that_answers_without_end(artifact: Path, peer: Peer, onto: Onto) -> None:
    peer.faults.endless = "sha256sum"
    with pytest.raises(DeviceError, match="without end"):
        onto(artifact)


def test_a_phone_that_claims_to_have_everything(artifact: Path, peer: Peer, onto: Onto) -> None:
    """What its lists say is there is hashed, like everything else."""
    version = onto(artifact).package.version
    folder = peer.phone.target / "hvdc" / "artifacts" / "dcm" / version / "artifact.hvdc"
    for path in folder.rglob("*.bin"):
        path.write_bytes(b"lies")
    onto(artifact)
    whole_version(peer, artifact)


HASH = "0" * 64


@pytest.mark.parametrize(
    "line",
    [
        f"{HASH} 5 ../../etc/passwd", f"{HASH} 5 -rf", f"{HASH} -5 a", f"{HASH} 5 a b", f"{HASH[1:]} 5 a", "",
        "\x00\xff",        f"{HASH} 99999999999999999999 a", f"{HASH} 5 $(id)", f"{HASH} 5 a\x1b[2J",
    ],
)  # fmt: skip
def test_lists_with_strange_lines_lose_these(line: str) -> None:
    text = f"marker {MARKER_TEXT}\nversion artifacts/dcm/0123456789abcdef\n{HASH} 7 artifact.hvdc/x\n{line}\n"
    (held,) = parse_found(text).versions
    assert held.files == {"artifact.hvdc/x": (HASH, 7)}


@pytest.mark.parametrize(
    "name", ["artifacts/../0123456789abcdef", "artifacts/-rf/0123456789abcdef", "artifacts/a/b", "x/a/b"]
)
def test_versions_with_strange_names_are_none(name: str) -> None:
    assert parse_found(f"marker {MARKER_TEXT}\nversion {name}\n{HASH} 7 x\n").versions == ()


@given(st.text(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_text_can_be_parsed(text: str) -> None:
    found = parse_found(text + "\nversion artifacts/a/0123456789abcdef\n" + text + "\nsizes\n" + text)
    for held in found.versions:
        assert all(is_inside(path) for path in held.files)


def test_results_have_the_names_of_results() -> None:
    for name in ("../video-000000.safetensors", "video-0.safetensors", "video-000000.exe", "-rf", "video-000000.ppm\n"):
        assert RESULT.fullmatch(name) is None


def test_a_device_cannot_make_its_answer_a_line_of_another_program(device: AdbDevice) -> None:
    answer = device.script("echo hvdc-0123456789abcdef 0; exit 4")
    assert answer.status == 4
