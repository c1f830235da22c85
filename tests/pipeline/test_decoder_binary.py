"""A decoder's binary for the phone's NPU: how it is made, and how `hvdc validate` proves what it is."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import onnx
import pytest

from exporters.qnn import compile as compiling
from exporters.qnn import messages, process
from exporters.qnn.available import why_not
from exporters.qnn.errors import QnnError
from exporters.qnn.process import Ended
from hvdc.artifact.decoder import Decoder
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline import decoder_checks
from hvdc.pipeline.decoder_checks import metadata_findings, port_findings
from tests.artifacts import read_manifest
from tests.calibrations import assert_refused
from tests.commands import hvdc, model_tree, tree
from tests.decoders import cached, compile_decoder, compiled_decoder, entry_of
from tests.pipeline.decoder_edits import (
    Edit,
    another_scale,
    edited,
    exchanged_caches,
    flipped,
)

needs_qnn = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is here")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "a.hvdc"


# --- making it --------------------------------------------------------------------------------------------------


def test_a_binary_for_the_snapdragon_8_elite(binary_artifact: Path) -> None:
    entry = entry_of(binary_artifact)
    assert (entry.backend, entry.tiles.rows, entry.tiles.columns) == ("qnn", 6, 8)
    [binary] = entry.binaries
    assert (binary.soc, binary.arch, binary.checks, binary.weights_shared) == (69, 79, ("metadata",), True)
    assert [g.graph for g in binary.graphs] == [g.name for g in entry.graphs]
    assert {(g.optimization, g.vtcm_bytes) for g in binary.graphs} == {(1, 8 << 20)}
    done = hvdc("validate", binary_artifact, "--deep", "-q")
    assert done.status == 0, done.out
    assert {"layout   ok", "deep     ok", "graphs   ok", "binaries ok"} <= set(done.out.splitlines())
    line = "QNN binary for soc 69, v79 (metadata read back; no phone has loaded it)"
    assert line in done.out
    assert line in hvdc("inspect", binary_artifact).out
    facts = hvdc("inspect", binary_artifact, "--json").json()["decoder"]
    assert (facts["has_binary"], facts["binaries"][0]["checks"]) == (True, ["metadata"])


def test_the_graphs_are_those_without_a_compiler(binary_artifact: Path, whole_artifact: Path) -> None:
    binary, whole = model_tree(binary_artifact), model_tree(whole_artifact)
    assert set(binary) - set(whole) == {"decoder/binary.bin"}
    assert {name for name in whole if whole[name] != binary[name]} == {"manifest.json", "index.bin"}
    onnx.load(binary_artifact / "decoder" / "first.onnx")


@needs_qnn
def test_with_an_empty_cache_all_bytes_are_the_same(
    binary_artifact: Path, watched_checkpoint: Path, vae: Path, latents: Path, output: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Measured, quantised and compiled again; and then not again."""
    monkeypatch.setenv("HVDC_CACHE_DIR", str(tmp_path / "cache"))
    given = ("--vae", vae, "--latents", latents)
    compiled_decoder(watched_checkpoint, output, *given, backend="qnn")
    assert read_manifest(output).model_sha256 == read_manifest(binary_artifact).model_sha256
    assert tree(output) == tree(binary_artifact)

    def never(*arguments: object, **more: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiling, "compile_graphs", never)
    compiled_decoder(watched_checkpoint, output, *given, "--force", backend="qnn")
    assert tree(output) == tree(binary_artifact)


@needs_qnn
def test_where_one_graph_is_too_large_there_are_two(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    real = compiling.compile_graphs
    asked: list[list[str]] = []

    def refusing(graphs: Any, *arguments: Any) -> Any:
        asked.append([name for name, _ in graphs])
        if len(graphs) == 2:
            raise QnnError("the graph needs more memory than one may have", found="9 KB", too_large=True)
        return real(graphs, *arguments)

    monkeypatch.setattr(compiling, "compile_graphs", refusing)
    given = ("--vae", vae, "--latents", latents)
    done = compile_decoder(watched_checkpoint, output, *given, backend="qnn")
    assert done.status == 0, done.err
    assert "tiles of 6 × 8 latent pixels do not compile: the graph needs more memory" in done.err
    entry = entry_of(output)
    names = [graph.name for graph in entry.graphs]
    assert [len(names), asked[0], asked[1]] == [4, asked[0], names]
    assert [graph.stages for graph in entry.variant("first")] == [("mid", "up0", "up1", "up2"), ("up3",)]
    [binary] = entry.binaries
    assert [g.graph for g in binary.graphs] == names
    with open_artifact(output) as artifact:
        assert metadata_findings(artifact) == port_findings(artifact) == []
    done = compile_decoder(watched_checkpoint, output, *given, "--force", backend="qnn")
    assert "do not compile" not in done.err
    assert len(asked) == 2, "the refusal and the binary were remembered"


@needs_qnn
def test_an_error_that_is_not_about_size_ends_the_compile(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def refusing(*arguments: object) -> None:
        raise QnnError("an operator is not supported", where="node x", fix="report it")

    before = cached(decoder_cache)
    monkeypatch.setattr(compiling, "compile_graphs", refusing)
    done = compile_decoder(watched_checkpoint, output, "--vae", vae, "--latents", latents, backend="qnn")
    assert_refused(done, 1, "an operator is not supported", output)
    assert cached(decoder_cache) == before


@needs_qnn
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_compiling_process_that_ends_leaves_nothing(
    how: str, watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    real = process.run

    def end(pid: int) -> None:
        if how == "interrupted":
            raise KeyboardInterrupt
        os.kill(pid, signal.SIGKILL)

    def run(name: str, *arguments: Any, **more: Any) -> Any:
        return real(name, *arguments, **more, **({"started": end} if name == "compile" else {}))

    before = cached(decoder_cache)
    monkeypatch.setattr(process, "run", run)
    done = compile_decoder(watched_checkpoint, output, "--vae", vae, "--latents", latents, backend="qnn")
    words = {"killed": "killed from outside", "interrupted": "interrupted while the decoder was compiled"}[how]
    assert_refused(done, 1 if how == "killed" else 130, words, output)
    assert cached(decoder_cache) == before


# --- what it says of itself -------------------------------------------------------------------------------------


def binaries(**changes: object) -> Edit:
    def edit(entry: Decoder) -> Decoder:
        [binary] = entry.binaries
        return entry.model_copy(update={"binaries": (binary.model_copy(update=changes),)})

    return edit


def inside(**changes: object) -> Edit:
    """Of the first graph in the binary."""

    def edit(entry: Decoder) -> Decoder:
        first, *others = entry.binaries[0].graphs
        return binaries(graphs=(first.model_copy(update=changes), *others))(entry)

    return edit


def exchanged_names(entry: Decoder) -> Decoder:
    """Each name in the binary is that of the other graph."""
    a, b = entry.binaries[0].graphs
    swapped = (
        a.model_copy(update={"name_in_binary": b.name_in_binary}),
        b.model_copy(update={"name_in_binary": a.name_in_binary}),
    )
    return binaries(graphs=swapped)(entry)


LIES: dict[str, tuple[Edit, str]] = {
    "another QAIRT": (binaries(build_id="v2.99.0"), "build_id"),
    "another architecture": (binaries(arch=75), "arch"),
    "another SoC": (binaries(soc=57), "soc"),
    "another API": (binaries(core_api="9.9.9"), "core_api"),
    "another format": (binaries(blob_version="9.9.9"), "blob_version"),
    "another level": (inside(optimization=3), "decoder_first.optimization"),
    "less VTCM": (inside(vtcm_bytes=4 << 20), "decoder_first.vtcm_bytes"),
    "another spill": (inside(spill_fill_bytes=12345), "decoder_first.spill_fill_bytes"),
    "another graph": (inside(name_in_binary="nothing"), "graphs"),
    "graphs exchanged": (exchanged_names, "decoder_first.inputs"),
    "another scale": (another_scale, "decoder_first.inputs"),
    "caches exchanged": (exchanged_caches, "decoder_later.inputs"),
}


@needs_qnn
@pytest.mark.parametrize("case", LIES)
def test_a_manifest_that_says_something_else_of_a_binary(case: str, binary_artifact: Path, output: Path) -> None:
    edit, place = LIES[case]
    names = [graph.name for graph in entry_of(binary_artifact).graphs]
    place = place.replace("decoder_first", names[0]).replace("decoder_later", names[1])
    with open_artifact(edited(binary_artifact, output, edit)) as artifact:
        found = metadata_findings(artifact)
    assert place in [finding.where.removeprefix("decoder.binary: ") for finding in found]
    assert {finding.code.name for finding in found} == {"DATA_DECODER"}
    assert all(finding.expected != finding.found for finding in found)


@needs_qnn
def test_validate_calls_it_unsound(binary_artifact: Path, output: Path) -> None:
    done = hvdc("validate", edited(binary_artifact, output, binaries(arch=75)), "-q")
    assert done.status == 4
    assert "binaries 1 fault" in done.out
    assert "decoder.binary: arch" in done.out
    assert done.out.splitlines()[-1].endswith("NOT sound")


@needs_qnn
def test_what_the_libraries_refuse_to_read(binary_artifact: Path, output: Path) -> None:
    from tests.artifacts import replace_data

    shutil.copytree(binary_artifact, output)
    size = (output / "decoder" / "binary.bin").stat().st_size
    replace_data(output, "decoder/binary.bin", b"\1" * size)
    with open_artifact(output) as artifact:
        [finding] = metadata_findings(artifact)
    assert (finding.where, finding.expected) == ("decoder.binary", "a context binary")


@pytest.mark.parametrize(
    ("ended", "what"),
    [
        (Ended("signal", code=signal.SIGSEGV), "Qualcomm's library crashed while reading the metadata"),
        (Ended("signal", code=signal.SIGKILL), "reading the metadata was killed from outside"),
        (Ended("time"), "reading the metadata took too long"),
        (Ended("memory"), "reading the metadata took too much memory"),
        (Ended("silent", code=1), "reading the metadata ended without a result"),
        (Ended("failed", error="OSError: libQnnSystem.so"), "reading the metadata failed"),
        (Ended("refused", value={"what": "QnnSystemContext_create failed"}), "QnnSystemContext_create failed"),
    ],
    ids=["crash", "killed", "time", "memory", "silent", "failed", "libraries"],
)
def test_libraries_that_do_not_come_to_an_answer_do_not_blame_the_artifact(
    ended: Ended, what: str, binary_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> None:
        messages.value_of(ended, "reading the metadata", str(path))

    monkeypatch.setattr(decoder_checks, "why_not_read", lambda: "")
    monkeypatch.setattr(decoder_checks, "read_metadata", read)
    with open_artifact(binary_artifact) as artifact, pytest.raises(QnnError, match=what) as caught:
        metadata_findings(artifact)
    assert caught.value.where in ("", "decoder.binary")
    done = hvdc("validate", binary_artifact, "-q")
    assert done.status == 1
    assert what in done.err
    assert "NOT sound" not in done.out


# --- damage -----------------------------------------------------------------------------------------------------


@needs_qnn
@pytest.mark.parametrize("emulated", [False, True], ids=["validate", "emulate"])
def test_a_flipped_bit_in_a_binary_is_refused_before_the_libraries_see_it(
    emulated: bool, binary_artifact: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object, **more: object) -> None:
        raise AssertionError("given to the libraries")

    monkeypatch.setattr("hvdc.pipeline.decoder_checks.read_metadata", never)
    monkeypatch.setattr("hvdc.pipeline.decoder_checks.run_graph", never)
    flipped(binary_artifact, output, "decoder/binary.bin")
    done = hvdc("validate", output, "-q", *(["--emulate"] if emulated else []))
    assert done.status == 4
    assert ("emulator  not run: the decoder's binaries have faults" in done.out) is emulated
    assert "DATA_HASH" in done.out
    assert "decoder/binary.bin" in done.out
    assert done.out.splitlines()[-1].endswith("NOT sound")
    with open_artifact(output) as artifact, pytest.raises(ArtifactError, match="SHA-256"):
        metadata_findings(artifact)


# --- machines without the libraries -----------------------------------------------------------------------------


def test_without_the_libraries_a_binary_is_not_read_back_and_validate_says_so(
    binary_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdc.pipeline.decoder_checks.why_not", lambda: "this is a Mac")
    done = hvdc("validate", binary_artifact, "-q")
    assert done.status == 0
    assert "binaries  not read back: this is a Mac" in done.out
    facts = hvdc("validate", binary_artifact, "--json").json()
    assert facts["ok"] is True
    assert facts["binaries_not_read"] == "this is a Mac"
    assert "binaries" not in facts["checks"]
    done = hvdc("validate", binary_artifact, "--emulate", "-q")
    assert done.status == 2
    assert "the emulator is not available on this machine" in done.err


def test_libraries_that_do_not_load_are_no_fault_of_the_artifact(
    binary_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise QnnError("QNN's libraries are there but do not load", found="libc++.so.1: no such file")

    monkeypatch.setattr("hvdc.pipeline.decoder_checks.toolchain", broken)
    done = hvdc("validate", binary_artifact, "-q")
    assert done.status == 0, done.out
    assert "not read back: QNN's libraries are there but do not load (found: libc++.so.1" in " ".join(done.out.split())
