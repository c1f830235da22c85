"""`hvdc deploy` onto a phone that a folder plays, by the real adb: what is there afterwards, and what it says."""

from __future__ import annotations

import _thread
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdc.artifact.errors import ArtifactError
from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.lock import Lock
from tests.adb_peer import Peer
from tests.artifacts import Spec, make_artifact
from tests.commands import undocumented
from tests.deploy.artifacts import (
    BENCH,
    PROGRAMS,
    Onto,
    deployed,
    files_of,
    phone_artifact,
    script,
    whole_version,
    with_another_adapter,
    with_runtime,
)


def names(peer: Peer, name: str = "dcm") -> set[str]:
    return {path.name for path in (peer.phone.target / "hvdc" / "artifacts" / name).iterdir()}


def test_an_artifact_arrives_whole_and_is_tried(artifact: Path, peer: Peer) -> None:
    done = deployed(artifact)
    assert done.status == 0, done.err
    whole_version(peer, artifact)
    assert "ok        DSP self-test: Hexagon v79: 1 check, none failed" in done.out
    assert "ok        npu block: the artifact's weights were mapped and a block of 256 tokens executed" in done.out
    assert "samsung SM-S931B, SM8750 (Snapdragon 8 Elite), arm64-v8a, Android 15 (API 35)" in done.err
    runner = peer.phone.target / "hvdc/artifacts/dcm/current/artifact.hvdc/runtime/android-arm64-hvdc_runner"
    assert os.access(runner, os.X_OK)
    again = deployed(artifact, "--no-run", "--json").json()
    assert (again["was_there"], again["sent_bytes"], again["smoke_test"]) == (True, 0, None)
    assert undocumented("deploy", again) == []


def test_a_dry_run_says_what_would_be_sent_and_writes_nothing(artifact: Path, peer: Peer) -> None:
    done = deployed(artifact, "--dry-run", "--json")
    assert done.status == 0, done.err
    facts = done.json()
    whole = sum(map(len, files_of(artifact).values())) - sum(
        (artifact / "runtime" / name).stat().st_size for name in ("runtime.json", "sources.tar")
    )
    assert facts["bytes"] == facts["to_send_bytes"] == whole
    assert list(peer.phone.target.iterdir()) == []
    text = deployed(artifact, "--dry-run").out
    assert "regions/block-000.bin" in text
    assert "time      about" in text


def test_a_changed_artifact_sends_what_has_changed(artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    onto(artifact)
    other = with_another_adapter(artifact, tmp_path / "other.hvdc")
    done = onto(other)
    whole_version(peer, other)
    sent = {item.path for item, _ in done.todo.sent}
    assert sent == {"artifact.hvdc/index.bin", "artifact.hvdc/manifest.json", "artifact.hvdc/adapters/detail-000.bin"}
    assert len(names(peer)) == 3, "both versions, and the link"
    region = "artifact.hvdc/regions/block-000.bin"
    places = (peer.phone.target / "hvdc/artifacts/dcm").glob(f"*/{region}")
    assert len({path.stat().st_ino for path in places}) == 1, "one copy of it for both"
    assert onto(artifact).was_there, "the version before is switched back to at once"
    whole_version(peer, artifact)
    onto(other, prune=True)
    assert names(peer) == {done.package.version, "current"}


def test_where_no_hard_links_are_made_files_are_copied(artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    """Android's rules forbid them to the shell's user."""
    peer.phone.links_allowed = False
    onto(artifact)
    other = with_another_adapter(artifact, tmp_path / "other.hvdc")
    done = onto(other)
    assert (done.links, len(done.todo.sent)) == (False, 3)
    whole_version(peer, other)
    onto(artifact)
    whole_version(peer, artifact)


def test_pieces_of_large_files_are_joined(artifact: Path, peer: Peer, onto: Onto) -> None:
    done = onto(artifact, chunk_bytes=5000)
    whole_version(peer, artifact)
    assert done.sent.chunks > 20
    assert list((peer.phone.target / "hvdc" / "parts").iterdir()) == []


def test_equal_files_are_sent_once(peer: Peer, onto: Onto, tmp_path: Path) -> None:
    artifact = phone_artifact(tmp_path / "a.hvdc")
    large = script("# " + 30_000 * "-")
    with_runtime(artifact, {**PROGRAMS, "hvdc_runner": large, "hvdc_dump": large})
    done = onto(artifact, chunk_bytes=10_000)
    assert [item.path.rpartition("/")[2] for item, _ in done.todo.twins] == ["android-arm64-hvdc_dump"]
    whole_version(peer, artifact)


def test_a_file_that_was_damaged_on_the_phone_is_sent_again(artifact: Path, peer: Peer, onto: Onto) -> None:
    version = onto(artifact).package.version
    region = peer.phone.target / "hvdc/artifacts/dcm" / version / "artifact.hvdc/regions/block-001.bin"
    region.write_bytes(bytes(region.stat().st_size))
    done = onto(artifact)
    assert not done.was_there
    whole_version(peer, artifact)
    assert any("are sent again" in text for text in onto.said)
    assert names(peer) == {version, "current"}


def test_a_damaged_artifact_is_not_sent(artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(artifact, tmp_path / "copy.hvdc"))
    data = bytearray((copy / "regions" / "block-000.bin").read_bytes())
    data[100] ^= 1
    (copy / "regions" / "block-000.bin").write_bytes(data)
    with pytest.raises(ArtifactError):
        onto(copy)
    assert list(peer.phone.target.iterdir()) == []


@pytest.mark.parametrize("is_first", [True, False], ids=["first run", "second run"])
def test_an_interrupt_keeps_what_arrived(
    is_first: bool, artifact: Path, peer: Peer, onto: Onto, tmp_path: Path
) -> None:
    other = with_another_adapter(artifact, tmp_path / "other.hvdc")
    if not is_first:
        onto(other)
    seen: list[str] = []

    def interrupt(name: str) -> None:
        seen.append(name)
        if len(seen) == 2:
            _thread.interrupt_main()

    peer.phone.when_sent = interrupt
    done = deployed(artifact)
    assert done.status == 130
    assert "what arrived on the device is kept, and what was in use there is in use still" in done.err
    assert "run the same command again to go on" in done.err
    if is_first:
        assert "current" not in names(peer)
    else:
        whole_version(peer, other)
    peer.phone.when_sent = lambda name: None
    assert deployed(artifact, "--no-run").status == 0
    whole_version(peer, artifact)


def test_list_remove_and_runs(artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    assert "nothing is deployed" in deployed("--list").out
    assert deployed("--remove", "dcm").status == 5
    onto(artifact)
    onto(artifact, name="second")
    assert len(list(peer.phone.target.glob("hvdc/artifacts/second/*/artifact.hvdc/regions/*"))) == 4, "by the link too"
    facts = deployed("--list", "--json").json()
    listed = facts["versions"]
    assert undocumented("deploy", facts | listed[0]) == []
    assert [(v["name"], v["is_current"]) for v in listed] == [("dcm", True), ("second", True)]
    assert "in use" in deployed("--list").out
    runs = peer.phone.target / "hvdc/artifacts/dcm/runs/one"
    runs.mkdir(parents=True)
    (runs / "run.log").write_text("a line\n")
    (runs / "results").mkdir()
    assert "logs: 1 file\n" in deployed("--pull-logs", tmp_path / "logs").out
    assert (tmp_path / "logs" / "dcm-one-run.log").read_text() == "a line\n"
    assert deployed("--remove", "nothing").status == 5
    assert deployed("--remove", "dcm").status == 0
    assert [v["name"] for v in deployed("--list", "--json").json()["versions"]] == ["second"]
    whole_version(peer, artifact, "second")


def test_one_thing_at_a_time(artifact: Path) -> None:
    for words in ((), (artifact, "--list"), ("--list", "--remove", "x"), ("--list", "--force")):
        assert deployed(*words).status == 2


def test_two_at_a_time(
    artifact: Path, peer: Peer, device: AdbDevice, onto: Onto, monkeypatch: pytest.MonkeyPatch
) -> None:
    onto(artifact)
    monkeypatch.setattr("hvdc.deploy.lock.LOCK_S", 0.5)
    held = Lock(device, "/data/local/tmp/hvdc/lock")
    held.take()
    try:
        with pytest.raises(DeviceError, match="another hvdc is changing this device now"):
            onto(artifact)
    finally:
        held.release()
    onto(artifact)


def test_a_lock_ends_with_its_link(artifact: Path, peer: Peer, device: AdbDevice, onto: Onto) -> None:
    onto(artifact)
    held = Lock(device, "/data/local/tmp/hvdc/lock")
    held.take()
    peer.cut()
    assert device.wait(10)
    onto(artifact)
    held.release()


def test_what_fails_in_the_smoke_test_is_a_sentence_and_a_status(peer: Peer, tmp_path: Path) -> None:
    check = {"name": "vector: weights", "state": "FAILED", "why": "x", "meaning": "weights differ"}
    failing = {"arch": 79, "failed": 1, "checks": [check, {"name": "y", "state": "ok"}]}
    artifact = phone_artifact(tmp_path / "a.hvdc")
    with_runtime(artifact, {**PROGRAMS, "hvdc_selftest": script(f"echo '{json.dumps(failing)}'; exit 1")})
    done = deployed(artifact)
    assert done.status == 5
    assert "failed    DSP self-test: 1 of 2 checks failed, the first vector: weights: weights differ" in done.out
    with_runtime(artifact, {**PROGRAMS, "hvdc_runner": script("echo 'not found: libnativewindow.so' >&2; exit 1")})
    done = deployed(artifact)
    assert done.status == 5
    assert "failed    programs: the device does not execute them: not found: libnativewindow.so" in done.out
    assert "block" not in done.out, "nothing else is tried"


def test_an_artifact_of_uncalibrated_weights_has_its_gpu_not_tried(artifact: Path, peer: Peer) -> None:
    done = deployed(artifact)
    assert "not tried gpu block: the artifact has no activation scales" in done.out


def test_with_scales_the_gpu_is_tried(peer: Peer, tmp_path: Path) -> None:
    done = deployed(phone_artifact(tmp_path / "a.hvdc", Spec(calibrated=True)))
    assert "ok        gpu block" in done.out, done.err
    assert "ok        both at once: both engines executed blocks from one copy of the weights" in done.out
    assert "ok        GPU dot products: qcom: compiled, and every sum of INT8 products is right" in done.out
    assert make_artifact(tmp_path / "b.hvdc").is_dir()


@pytest.mark.parametrize("libraries", [{}, {"libcdsprpc.so": None, "libOpenCL.so": None}], ids=["none", "both"])
def test_the_npu_is_tried_where_there_is_a_way_to_it(
    artifact: Path, plugged: Callable[..., Peer], libraries: dict[str, None]
) -> None:
    """Without FastRPC's library as a portable program: Android's own choice would be the DSP."""
    kept = script(f'echo "$@" >>"$TMPDIR/words"; echo \'{json.dumps(BENCH)}\'')
    peer = plugged(libraries=libraries)
    with_runtime(artifact, PROGRAMS | {"hvdc_bench": kept})
    deployed(artifact, "--force")
    words = (peer.phone.target / "words").read_text().splitlines()
    (npu,) = [line for line in words if "--engine npu" in line]
    assert ("--npu portable" in npu) is not bool(libraries)


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (script("""echo '{"fact": "dot", "form": "khr", "right": false, "why": "other sums"}'"""), "other sums"),
        (script("""echo '{"fact": "no-gpu", "why": "no device"}'; exit 1"""), "no device"),
        (script("echo 'Segmentation fault' >&2; exit 139"), "Segmentation fault"),
        (script("echo '[1]'; echo '{'"), "{"),
    ],
)
def test_a_gpu_whose_dot_products_are_wrong_fails(probe: bytes, words: str, peer: Peer, tmp_path: Path) -> None:
    artifact = with_runtime(phone_artifact(tmp_path / "a.hvdc"), {**PROGRAMS, "hvdc_probe": probe})
    done = deployed(artifact)
    assert done.status == 5
    assert f"failed    GPU dot products: no form of them is right: {words}" in done.out


def test_a_runtime_that_has_no_such_test_is_older(peer: Peer, tmp_path: Path) -> None:
    older = {name: data for name, data in PROGRAMS.items() if name != "hvdc_probe"}
    done = deployed(with_runtime(phone_artifact(tmp_path / "a.hvdc"), older))
    assert (done.status, "not tried GPU dot products: the artifact's runtime is older" in done.out) == (0, True)
