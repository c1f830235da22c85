"""What is said before anything is sent: what the device tells, and how it fits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdc.artifact.runtime import read_runtime
from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.checks import fitting_builds, mismatches
from hvdc.deploy.device_facts import DeviceFacts, parse_facts, read_facts
from hvdc.deploy.errors import DeviceError
from hvdc.errors import UsageError
from tests.adb_peer import Peer
from tests.artifacts import Spec, read_manifest, write_manifest
from tests.deploy.artifacts import PROGRAMS, Onto, deployed, phone_artifact, script, whole_version, with_runtime


def test_what_a_phone_tells(device: AdbDevice) -> None:
    facts = read_facts(device, "/data/local/tmp/hvdc")
    assert facts == DeviceFacts(
        machine="aarch64", abi="arm64-v8a", android_sdk=35, android_release="15", model="samsung SM-S931B",
        soc="SM8750",
        free_bytes=40 << 30, memory_available_bytes=6 << 30, programs=frozenset({"sha256sum", "flock", "mv", "df"}),
        libraries={name: f"/vendor/lib64/{name}" for name in ("libcdsprpc.so", "libOpenCL.so")} | facts.libraries,
    )  # fmt: skip
    assert facts.libraries["libOpenCL.so"].endswith("/vendor/lib64/libOpenCL.so")
    assert (facts.soc_name, facts.arch_by_name) == ("SM8750 (Snapdragon 8 Elite)", "v79")


def test_what_a_linux_device_tells(plugged: Callable[..., Peer], adb_server: object, device: AdbDevice) -> None:
    board = plugged(properties={}, machine=None, libraries={})
    facts = read_facts(device.adb.device(board.serial), "/data/local/tmp/hvdc")
    assert (facts.is_android, facts.abi, facts.soc) == (False, "", "")
    assert facts.machine


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (
            "space Filesystem 1K-blocks Used Available Use% Mounted on /dev/x 100 60 40 60% /data",
            "free_bytes",
            40 << 10,
        ),
        ("space Filesystem 1K-blocks Used Available Use% Mounted on /dev/very/long\n", "free_bytes", None),
        ("space df: /data: No such file", "free_bytes", None),
        ("memory MemAvailable:    2048 kB", "memory_available_bytes", 2 << 20),
        ("memory MemAvailable: lots", "memory_available_bytes", None),
        ("sdk 35", "android_sdk", 35),
        ("sdk thirty", "android_sdk", None),
        ("soc_of_kernel SM8750P", "soc", "SM8750P"),
        ("model x\x1b[2J", "model", "x[2J"),
        ("program rm", "programs", frozenset()),
    ],
)
def test_lines_of_an_answer(line: str, name: str, value: object) -> None:
    assert getattr(parse_facts(line), name) == value


def facts(**more: object) -> DeviceFacts:
    usual: dict[str, object] = {
        "machine": "aarch64", "abi": "arm64-v8a", "android_sdk": 35, "android_release": "15", "model": "m",
        "soc": "SM8750",
        "free_bytes": 1 << 40, "memory_available_bytes": 1 << 40, "programs": frozenset({"sha256sum", "mv", "df"}),
        "libraries": {"libcdsprpc.so": "/vendor/lib64/libcdsprpc.so", "libOpenCL.so": "/vendor/lib64/libOpenCL.so"},
    }  # fmt: skip
    return DeviceFacts(**(usual | more))  # type: ignore[arg-type]


def test_a_phone_that_fits(artifact: Path) -> None:
    assert said(artifact, facts()) == []


def said(artifact: Path, found: DeviceFacts, *, has_qairt: bool = False) -> list[tuple[str, bool]]:
    builds = fitting_builds(read_runtime(artifact), found)
    all_ = mismatches(read_manifest(artifact), builds, found, artifact, has_qairt=has_qairt)
    return [(f"{m.what} {m.fix}", m.may_force) for m in all_]


@pytest.mark.parametrize(
    ("more", "words", "may_force"),
    [
        ({"machine": "armv7l", "abi": "armeabi-v7a"}, "hvdc runtime build --target android --ndk PATH --into", False),
        ({"android_sdk": None}, "hvdc runtime build --target aarch64-linux --into", False),
        ({"android_sdk": None, "machine": "x86_64"}, "hvdc runtime build --target host --into", False),
        ({"android_sdk": 29, "android_release": "10"}, "the device's Android is too old", False),
        ({"programs": frozenset({"mv", "df"})}, "no sha256sum", False),
        ({"libraries": {}}, "no libcdsprpc.so", True),
        ({"memory_available_bytes": 1 << 10}, "too little free memory", True),
    ],
)
def test_what_does_not_fit(more: dict[str, object], words: str, may_force: bool, artifact: Path) -> None:
    assert [force for text, force in said(artifact, facts(**more)) if words in text] == [may_force]


def test_an_artifact_without_programs_for_a_phone(artifact: Path, peer: Peer, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(artifact, tmp_path / "bare.hvdc"))
    shutil.rmtree(bare / "runtime")
    done = deployed(bare)
    assert done.status == 5
    assert f"hvdc runtime build --target android --ndk PATH --into {bare}" in done.err
    assert f"hvdc runtime build --target hexagon --into {bare}" in done.err
    assert "in 2 points" in done.err
    assert list(peer.phone.target.iterdir()) == []
    done = deployed(bare, "--dry-run")
    assert (done.status, "does not fit: the artifact has no runtime" in done.out) == (5, True)


def test_a_calibrated_artifact_wants_a_gpu_and_force_goes_on_without(
    plugged: Callable[..., Peer], tmp_path: Path
) -> None:
    peer = plugged(libraries={"libcdsprpc.so": None})
    artifact = phone_artifact(tmp_path / "dcm.hvdc", Spec(calibrated=True))
    done = deployed(artifact, "--no-run")
    assert (done.status, "no libOpenCL.so that its programs may load" in done.err) == (5, True)
    assert "or --force, to go on without" in done.err
    done = deployed(artifact, "--no-run", "--force")
    assert done.status == 0, done.err
    assert "in spite of: the device has no libOpenCL.so" in done.out
    whole_version(peer, artifact)


def test_the_dsp_is_asked_before_the_weights_are_sent(peer: Peer, onto: Onto, tmp_path: Path) -> None:
    artifact = phone_artifact(tmp_path / "dcm.hvdc")
    with_runtime(artifact, PROGRAMS | {"hvdc_selftest": script("""echo '{"arch": 75, "checks": []}'""")})
    with pytest.raises(DeviceError, match="compiled for another DSP") as caught:
        onto(artifact)
    assert (caught.value.expected, caught.value.found) == ("v79", "v75")
    assert not list(peer.phone.target.rglob("*.bin")), "no weights were sent"
    with_runtime(artifact, PROGRAMS | {"hvdc_selftest": script("echo 'no session left' >&2; exit 1")})
    with pytest.raises(DeviceError, match="cannot be asked what it is") as caught:
        onto(artifact)
    assert caught.value.found == "no session left"
    assert onto(artifact, force=True).forced


def qairt(root: Path, version: str = "v2.99.0.250101000000_1") -> Path:
    cpu, dsp = root / "lib" / "aarch64-android", root / "lib" / "hexagon-v79" / "unsigned"
    for folder, names in (
        (cpu, ("libQnnHtp.so", "libQnnSystem.so", "libQnnHtpV79Stub.so")),
        (dsp, ("libQnnHtpV79Skel.so",)),
    ):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(name.encode() + b"\0" + version.encode() + b"\0")
    return root


def test_a_decoder_wants_qualcomms_libraries(peer: Peer, onto: Onto, tmp_path: Path) -> None:
    artifact = phone_artifact(tmp_path / "dcm.hvdc", Spec(decoder="qnn"))
    with pytest.raises(DeviceError, match="needs the libraries of a QAIRT runtime") as caught:
        onto(artifact)
    assert "--qairt DIR" in caught.value.fix
    done = onto(artifact, qairt=qairt(tmp_path / "sdk"))
    there = peer.phone.target / "hvdc/artifacts/dcm" / done.package.version / "qnn"
    assert sorted(path.name for path in there.iterdir()) == [
        "libQnnHtp.so", "libQnnHtpV79Skel.so", "libQnnHtpV79Stub.so", "libQnnSystem.so",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"lacks libQnnHtp\.so"):
        onto(artifact, qairt=tmp_path)
    manifest = read_manifest(artifact)
    assert manifest.decoder is not None
    binaries = tuple(b.model_copy(update={"build_id": "v2.99.1.250101"}) for b in manifest.decoder.binaries)
    decoder = manifest.decoder.model_copy(update={"binaries": binaries})
    write_manifest(artifact, manifest.model_copy(update={"decoder": decoder}))
    with pytest.raises(UsageError, match="is older than the compiler"):
        onto(artifact, qairt=tmp_path / "sdk")
