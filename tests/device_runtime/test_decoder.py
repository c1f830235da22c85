"""The device's decoder around a stand-in for QNN's libraries: tiles, frames, caches, blending, memory, hooks."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hvdc.artifact.decoder import Decoder, Port
from tests.artifacts import read_manifest, write_manifest
from tests.decoder_entries import GRAPHS
from tests.device_runtime.decoder_program import Decoded
from tests.device_runtime.qnn_stand_in import decoded, write_binaries
from tests.device_runtime.test_headers import HERE, program

Float32Array = npt.NDArray[np.float32]


def latent_of(frames: int, rows: int, columns: int) -> Float32Array:
    """Wider than what the graphs' integers hold, so that some are clipped."""
    rng = np.random.default_rng(rows)
    return (5 * rng.standard_normal((4, frames, rows, columns))).astype(np.float32)


def entry_of(artifact: Path) -> Decoder:
    entry = read_manifest(artifact).decoder
    assert entry is not None
    return entry


def edit(artifact: Path, **changes: object) -> None:
    """Change the decoder's entry."""
    manifest = read_manifest(artifact)
    write_manifest(artifact, manifest.model_copy(update={"decoder": entry_of(artifact).model_copy(update=changes)}))


# --- frames -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [(0, 0), (1, 2), (2, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("size", [(1, 4, 4), (3, 4, 5), (2, 5, 4), (2, 9, 11), (2, 17, 6), (1, 7, 23)], ids=str)
def test_frames_are_those_of_the_host_decoder_to_the_last_bit(
    size: tuple[int, int, int], overlap: tuple[int, int], artifact: Path, run: Decoded
) -> None:
    """Latents below, at, above and off the tiles' grid, with fades of different widths in both directions and none."""
    tiles = entry_of(artifact).tiles.model_copy(update={"overlap_rows": overlap[0], "overlap_columns": overlap[1]})
    edit(artifact, tiles=tiles)
    write_binaries(artifact)
    latent = latent_of(*size)
    due = decoded(entry_of(artifact), latent)
    assert due.std() > 50, "noise: any exchanged pixel is seen"
    np.testing.assert_array_equal(run.frames(artifact, latent), due)


def test_what_one_call_writes_the_next_reads_in_place(artifact: Path, run: Decoded, tmp_path: Path) -> None:
    write_binaries(artifact)
    trace = tmp_path / "trace"
    run.frames(artifact, latent_of(4, 4, 4), STAND_IN_TRACE=str(trace))
    calls: list[dict[str, str]] = []
    before = ""
    for line in trace.read_text().splitlines():
        graph, tensor, place = line.split()
        if graph.endswith("-mid$0/x") and graph != before:
            calls.append({})
        before = graph
        calls[-1][tensor] = place
    assert len(calls) == 4
    for earlier, after in pairwise(calls):
        for cache in ("cache.mid", "cache.up"):
            assert after[cache] == earlier[f"next_{cache}"]
            assert after[cache] != after[f"next_{cache}"]
    assert len({call["cache.mid"] for call in calls[1:]}) == 2, "two buffers take turns"


def test_a_latent_frame_goes_through_the_graphs_of_its_variant(artifact: Path, run: Decoded, tmp_path: Path) -> None:
    write_binaries(artifact)
    trace = tmp_path / "trace"
    run.frames(artifact, latent_of(2, 4, 6), STAND_IN_TRACE=str(trace))
    executed = [line.split()[0].removesuffix("$0/x") for line in trace.read_text().splitlines()]
    order = [name for i, name in enumerate(executed) if i == 0 or executed[i - 1] != name]
    assert order == list(GRAPHS) * 2, "both tiles, one after the other, from their first frame on"


def test_an_output_may_have_the_name_of_the_latent(artifact: Path, run: Decoded) -> None:
    """Of another graph, and of another size: what it writes is nobody's input."""
    write_binaries(artifact)
    before = run.open(artifact).facts["buffer_bytes"]
    more = Port(name="latent", dtype="uint16", shape=(3, 5000), scale=1.0, zero_point=0)
    graphs = [graph.model_copy(update={"outputs": (*graph.outputs, more)}) for graph in entry_of(artifact).graphs[1::2]]
    first, _, later, _ = entry_of(artifact).graphs
    edit(artifact, graphs=(first, graphs[0], later, graphs[1]))
    write_binaries(artifact)
    latent = latent_of(3, 5, 6)
    np.testing.assert_array_equal(run.frames(artifact, latent), decoded(entry_of(artifact), latent))
    assert run.facts["buffer_bytes"] == before + 2 * 2 * 3 * 5000


# --- memory -----------------------------------------------------------------------------------------------------


def test_memory_is_registered_where_the_backend_takes_it(artifact: Path, run: Decoded, tmp_path: Path) -> None:
    """The stand-in reads and writes through mappings of its own of the descriptors that it was given."""
    write_binaries(artifact)
    latent = latent_of(3, 6, 7)
    trace = tmp_path / "trace"
    found = run.frames(artifact, latent, STAND_IN="memory=99", STAND_IN_TRACE=str(trace))
    np.testing.assert_array_equal(found, decoded(entry_of(artifact), latent))
    assert run.facts["memory_is_shared"] is True
    assert run.facts["memory"] == "shared memory"


@pytest.mark.parametrize("taken", [0, 1, 5, 10, 12])
def test_else_all_of_it_is_client_buffers(taken: int, artifact: Path, run: Decoded) -> None:
    """Also where the backend changes its mind in the middle: then nothing stays registered."""
    write_binaries(artifact)
    latent = latent_of(3, 6, 7)
    found = run.frames(artifact, latent, STAND_IN=f"memory={taken}")
    np.testing.assert_array_equal(found, decoded(entry_of(artifact), latent))
    assert run.facts["memory_is_shared"] is False
    assert run.facts["memory"] == "client buffers: error 1000 (a message of the stand-in)"


@pytest.fixture
def apart(artifact: Path) -> Path:
    """Each variant has a binary of its own."""
    shared, last = entry_of(artifact).binaries
    held = (*shared.graphs, *last.graphs)
    halves = (
        shared.model_copy(update={"graphs": held[:2]}),
        last.model_copy(update={"graphs": held[2:], "weights_shared": True}),
    )
    edit(artifact, binaries=halves)
    write_binaries(artifact)
    return artifact


@pytest.mark.parametrize("memory", [0, 99])
def test_contexts_that_do_not_fit_together_take_turns(memory: int, apart: Path, run: Decoded) -> None:
    latent = latent_of(2, 6, 7)
    due = decoded(entry_of(apart), latent)
    np.testing.assert_array_equal(run.frames(apart, latent), due)
    assert (run.facts["contexts"], run.facts["contexts_loaded"]) == (2, 2)
    np.testing.assert_array_equal(run.frames(apart, latent, STAND_IN=f"contexts=1 memory={memory}"), due)
    assert (run.facts["contexts"], run.facts["contexts_loaded"]) == (2, 1)


def test_facts(artifact: Path, run: Decoded) -> None:
    write_binaries(artifact)
    facts = run.open(artifact, "--soc", "69", "--arch", "79").facts
    assert facts["backend_build"] == "v2.51.0.260929181845"
    assert facts["binary_build"] == "v2.50.0.test"
    assert (facts["core_api"], facts["soc"], facts["arch"]) == ("2.40.0", 69, 79)
    entry = entry_of(artifact)
    caches = 2 * (8 * 2 * 4 * 4 + 2 * 8)
    frames = 3 * 32 * 32 * (1 + 4)
    latents, cuts = 2 * (2 * 4 * 4 * 4), 2 * (8 * 4 * 4)
    assert facts["buffer_bytes"] == caches + frames + latents + cuts
    assert len(entry.binaries) == facts["contexts"]


def test_a_device_that_is_not_the_standard_one(artifact: Path, run: Decoded) -> None:
    """A backend that refuses to say what it runs on is told what the artifact is for."""
    write_binaries(artifact)
    run.frames(artifact, latent_of(1, 4, 4), STAND_IN="any=14001")


# --- the C interface --------------------------------------------------------------------------------------------


def test_hooks_memory_and_stopping_as_a_coordinator_uses_them(
    programs: dict[str, Path], stand_in: Path, artifact: Path, tmp_path: Path
) -> None:
    """decoder_face.c; compiled as C, which the header has to be."""
    write_binaries(artifact)
    folder = programs["hvdc_decoder_check"].parent
    libraries = [folder / "decoder" / "libhvdc_decoder.a", folder / "libhvdc_core.a"]
    include = HERE.parents[1] / "device_runtime" / "decoder" / "include"
    more = ["-I", str(include), *map(str, libraries), "-lstdc++", "-lm", "-ldl"]
    face = program(HERE / "decoder_face.c", tmp_path / "face", *more)
    command = [str(face), str(artifact), str(stand_in)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "STAND_IN": ""})
    assert done.returncode == 0, done.stderr
