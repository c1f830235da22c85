"""What the device's decoder refuses, each with one sentence: the real libraries would take nearly all of it."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import numpy as np
import pytest

from exporters.qnn.available import BACKEND, SYSTEM
from tests.artifacts import make_artifact, read_manifest, replace_opaque, write_manifest
from tests.decoder_entries import GRAPHS
from tests.device_runtime.decoder_program import Decoded
from tests.device_runtime.qnn_stand_in import Says, binary_text, write_binaries
from tests.malformed.registry import BASE, BASES

LATENT = np.zeros((4, 2, 6, 7), np.float32)


# --- the libraries ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "core=1.40",
            "expected HTP (backend 6) with core API 2.16 or a later one of 2 but 2.33, found backend 6 with c",
        ),
        ("core=3.0", "found backend 6 with core API 3.0.0; install the QAIRT runtime"),
        ("core=2.15", "found backend 6 with core API 2.15.0"),
        ("core=2.33", "found backend 6 with core API 2.33.0"),
        ("id=4", "found backend 4 with core API 2.40.0"),
        ("system=2.0", "another version of the System interface: expected 1.1 or a later one of 1, found 2.0.0"),
        ("system=1.0", "found 1.0.0"),
        ("backend=14002", "the NPU's backend does not start: error 14002 (a message of the stand-in)"),
        ("device=14001", "the NPU's backend has no device of SoC 69, architecture 79: error 14001"),
        ("build=v2.49.9.x", "compiled by QAIRT v2.50.0.test, the loaded QNN library is of v2.49.9.x, which is older"),
        ("build=v3.50.0.x", "the loaded QNN library is of v3.50.0.x, which is another major version"),
        ("build=v1.99.0.x", "which is older"),
        ("build=vx", "the loaded QNN library calls its build 'v0x'"),
        (
            "context=5005",
            "does not load decoder/all.bin: error 5005 (a message of the stand-in), Failed to find availab",
        ),
        ("contexts=0", "does not load decoder/all.bin: error 1002"),
        ("contexts=1", "does not load decoder/last.bin: error 1002"),
        ("retrieve=6003", "does not find graph decoder_first-mid$0/x in its binary: error 6003"),
    ],
)
def test_a_library_that_cannot_be_used(setting: str, words: str, artifact: Path, run: Decoded) -> None:
    write_binaries(artifact)
    assert words in run.refused(artifact, STAND_IN=setting)


@pytest.mark.parametrize("after", range(4))
def test_a_graph_that_is_not_executed(after: int, artifact: Path, run: Decoded) -> None:
    write_binaries(artifact)
    said = run.refused(artifact, *run.latent(LATENT), STAND_IN=f"execute=1100 after={after}")
    where = f"the NPU does not execute graph {GRAPHS[after]} on latent frame {after // 2}: error 1100"
    assert said == f"{where} (a message of the stand-in), the DSP is gone"


def test_no_library(artifact: Path, programs: dict[str, Path], stand_in: Path, tmp_path: Path) -> None:
    write_binaries(artifact)
    nowhere = Decoded(programs["hvdc_decoder_check"], tmp_path / "nowhere", tmp_path)
    said = nowhere.refused(artifact)
    assert f"{tmp_path}/nowhere/{BACKEND}: cannot open shared object file" in said
    assert "the decoder needs libQnnHtp.so and libQnnSystem.so of QAIRT in one directory" in said
    half = tmp_path / "half"
    half.mkdir()
    (half / BACKEND).symlink_to(stand_in / BACKEND)
    assert f"{half}/{SYSTEM}: cannot open" in Decoded(programs["hvdc_decoder_check"], half, tmp_path).refused(artifact)


def test_a_library_of_something_else(artifact: Path, run: Decoded, tmp_path: Path) -> None:
    write_binaries(artifact)
    source, other = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text("int other;\n")
    subprocess.run(["cc", "-shared", str(source), "-o", str(other)], check=True)
    for option, symbol in (("--backend", "QnnInterface_getProviders"), ("--system", "QnnSystemInterface_getProviders")):
        said = run.refused(artifact, "--libraries", "/", option, str(other).removeprefix("/"), *(
            [] if option == "--backend" else ["--backend", str(run.libraries / BACKEND).removeprefix("/")]
        ))  # fmt: skip
        assert said.endswith(f"{other} is no library of QNN: it has no function {symbol}")


def test_no_directory(artifact: Path, programs: dict[str, Path]) -> None:
    command = [str(programs["hvdc_decoder_check"]), str(artifact)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1, "the decoder needs the directory of QNN's libraries: none was given\n"
    )  # fmt: skip


# --- binaries ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["decoder/all.bin", "decoder/last.bin"])
def test_a_flipped_bit(path: str, artifact: Path, run: Decoded) -> None:
    """The library would load it, and compute something else."""
    write_binaries(artifact)
    data = bytearray((artifact / path).read_bytes())
    data[-3] ^= 1
    (artifact / path).write_bytes(data)
    said = run.refused(artifact)
    assert said.startswith(f"{path} is not the binary that was compiled: ")
    assert "SHA-256" in said
    assert said.endswith("; copy the artifact again")


def test_another_device(artifact: Path, run: Decoded) -> None:
    write_binaries(artifact)
    assert run.refused(artifact, "--soc", "57", "--arch", "75") == (
        "decoder/all.bin is compiled for SoC 69, architecture V79; this device is SoC 57, architecture V75: "
        "compile the artifact for it"
    )
    assert "this device is SoC 69, architecture V81" in run.refused(artifact, "--arch", "81")


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (
            Says(soc=57),
            "says that it is for SoC 57, architecture V79 by build v2.50.0.test, the artifact says for SoC 69",
        ),
        (
            Says(arch=75),
            "is for SoC 69, architecture V75 by build v2.50.0.test, the artifact says for SoC 69, architectu",
        ),
        (
            Says(build="v2.50.0.x"),
            "by build v2.50.0.x, the artifact says for SoC 69, architecture V79 by build v2.50.0.t",
        ),
        (Says(version=2), "is no context binary that can be read: a description of version 2; install the QAIRT runti"),
    ],
    ids=str,
)
def test_a_binary_that_says_something_else_than_the_artifact(
    says: Says, words: str, artifact: Path, run: Decoded
) -> None:
    write_binaries(artifact, says)
    assert words in run.refused(artifact)


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        (Says(soc=57, arch=75), "the NPU's backend has no device of SoC 57, architecture 75: error 14001"),
        (Says(build="v2.52.0.y"), "was compiled by QAIRT v2.52.0.y, the loaded QNN library is of v2.51.0"),
        (Says(build="latest"), "was compiled by a build that is called 'latest': expected a version such as v2.51.0"),
    ],
    ids=str,
)
def test_binaries_for_another_device_or_runtime(recorded: Says, words: str, artifact: Path, run: Decoded) -> None:
    write_binaries(artifact, recorded=recorded)
    assert words in run.refused(artifact, STAND_IN="any=14001")


def test_binaries_for_two_devices(artifact: Path, run: Decoded) -> None:
    write_binaries(artifact)
    manifest = read_manifest(artifact)
    assert manifest.decoder is not None
    shared, last = manifest.decoder.binaries
    entry = manifest.decoder.model_copy(update={"binaries": (shared, last.model_copy(update={"soc": 87, "arch": 81}))})
    write_manifest(artifact, manifest.model_copy(update={"decoder": entry}))
    replace_opaque(artifact, "decoder/last.bin", binary_text(entry, last.binary, Says(soc=87, arch=81)).encode())
    assert run.refused(artifact) == (
        "decoder/last.bin is compiled for SoC 87, architecture V81, decoder/all.bin for SoC 69, architecture V79; "
        "compile the artifact again"
    )


def test_an_artifact_that_does_not_say_what_its_binaries_are_for(artifact: Path, run: Decoded) -> None:
    """Of format 1.2; else as good as any."""
    write_binaries(artifact)
    manifest = read_manifest(artifact)
    older = manifest.format.model_copy(update={"minor": 2})
    write_manifest(artifact, manifest.model_copy(update={"format": older}))
    assert run.refused(artifact) == (
        "the artifact does not say for which device decoder/all.bin was compiled, for its format is too old: "
        "compile it again"
    )


def test_bytes_that_are_no_binary(artifact: Path, run: Decoded) -> None:
    """As a test artifact has them, with the right hash."""
    said = run.refused(artifact)
    assert said.startswith("decoder/all.bin is no context binary that can be read: libQnnSystem answers error 30010")


LAST = "decoder/last.bin, graph decoder_later-up"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (f"graph {GRAPHS[3]}$0/x", "graph other", f"last.bin has no graph {GRAPHS[3]}$0/x, which is to be {GRAPHS[3]}"),
        ("/x 8388608 3 8589934593", "/x 4194304 3 8589934593", "all.bin, graph decoder_first-up plans with 4194304 by"),
        ("/x 8388608 3 8589934593", "/x 8388608 2 8589934593", "bytes of VTCM at optimisation 2 and spills"),
        ("/x 8388608 3 8589934593", "/x 8388608 3 1", "and spills 1, the artifact says 8388608, 3 and 8589934593"),
        ("in cache.up ", "in cache.down ", f"{LAST} has no input cache.up"),
        ("out next_cache.up 52 416 1.1754943508222875e-38 -65535 97 8\n", "",
         f"{LAST} has no output next_cache.up"),
        ("in cache.up ", "in x 3 408 1 0 0 2\nin cache.up ", f"{LAST} has 3 inputs where the artifact sa"),
        ("71 1 8 1 4 4", "71 1 8 1 4 5", f"{LAST}, input mid.out: the artifact says uint8 [1, 8, 1, 4, 4] "
         "scale 0.0625 zero point 128, the binary has uint8 [1, 8, 1, 4, 5] scale 0.0625 zero point 128; c"),
        ("71 1 8 1 4 4", "71 1 8 1 16", "the binary has uint8 [1, 8, 1, 16] scale"),
        ("71 1 8 1 4 4", "71", "the binary has uint8 [] scale"),
        ("in mid.out 24 408", "in mid.out 24 416", "the binary has uint16 [1, 8, 1, 4, 4] scale"),
        ("in mid.out 24 408", "in mid.out 24 232", "the binary has dtype 0x0232 [1, 8, 1, 4, 4] scale"),
        ("0.0625 -128 71", "0.0626 -128 71", "128, the binary has uint8 [1, 8, 1, 4, 4] scale 0.0626"),
        ("0.0625 -128 71", "0.0625 128 71", "the binary has uint8 [1, 8, 1, 4, 4] scale 0.0625 zero point -128"),
    ],
)  # fmt: skip
def test_a_binary_that_is_not_what_the_artifact_says(
    before: str, after: str, words: str, artifact: Path, run: Decoded
) -> None:
    """The library looks at none of this: it would read and write past the end of a buffer."""
    write_binaries(artifact, replace={before: after})
    assert words in run.refused(artifact)


def test_the_emulator_does_not_get_what_crashes_it(
    artifact: Path, programs: dict[str, Path], stand_in: Path, tmp_path: Path
) -> None:
    write_binaries(artifact)
    emulator = Decoded(programs["hvdc_decoder_check"], stand_in, tmp_path, emulator=True)
    said = emulator.refused(artifact)
    assert said.startswith("decoder/all.bin holds 3 graphs that share weights, and the x86 emulator crashes")
    assert "--set decoder_share_weights=false" in said


# --- what is asked of it ----------------------------------------------------------------------------------------


def test_an_artifact_without_a_decoder_or_without_binaries(run: Decoded, tmp_path: Path) -> None:
    without = make_artifact(tmp_path / "without.hvdc", BASE)
    assert run.refused(without).startswith("the artifact holds no decoder: compile it with --vae PATH")
    hosted = make_artifact(tmp_path / "hosted.hvdc", BASES["base-decoder"].__class__(layers=1, decoder="onnx"))
    said = run.refused(hosted)
    assert said.startswith("the artifact's decoder was not compiled for the NPU, it decodes on a host only")


@pytest.mark.parametrize("shape", [(4, 2, 3, 7), (4, 2, 6, 3)], ids=str)
def test_a_latent_that_is_smaller_than_a_tile(shape: tuple[int, ...], artifact: Path, run: Decoded) -> None:
    write_binaries(artifact)
    said = run.refused(artifact, *run.latent(np.zeros(shape, np.float32)))
    assert "expected 4 channels, a frame or more, and at least 4 x 4 latent pixels, found 4 channels, 2 frames" in said
    assert said.endswith("give latents of the clip that the artifact is compiled for")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_latent_that_is_not_finite(value: float, artifact: Path, run: Decoded) -> None:
    write_binaries(artifact)
    latent = LATENT.copy()
    latent[3, 1, 5, 2] = value
    said = run.refused(artifact, *run.latent(latent))
    assert said.startswith("the latent is not finite at channel 3, frame 1, row 5, column 2: ")


def test_files_that_do_not_fit(artifact: Path, run: Decoded, tmp_path: Path) -> None:
    write_binaries(artifact)
    options = run.latent(LATENT)
    assert "has 1344 bytes: expected 336 float32" not in run.refused(artifact, *options, "--size", "2x6x6")
    assert "has 1344 bytes: expected 288 float32 by --size" in run.refused(artifact, *options, "--size", "2x6x6")
    assert "no-latent cannot be read" in run.refused(artifact, *options, "--latent", str(tmp_path / "no-latent"))
    said = run.refused(artifact, *options, "--output", str(tmp_path / "no" / "folder"))
    assert "no/folder cannot be written" in said


@pytest.mark.parametrize(
    "options",
    ["--latent x", "--emulator perhaps", "--size 3", "--soc x", "--soc", "--odd 1", "another.hvdc"],
)
def test_arguments_that_cannot_be_used(options: str, programs: dict[str, Path]) -> None:
    command = [str(programs["hvdc_decoder_check"]), "a.hvdc", *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("hvdc_decoder_check: ")
