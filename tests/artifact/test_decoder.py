"""A decoder in an artifact: its entry, its sections of the index, its files, and what older readers make of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import ValidationError

from hvdc.artifact import records
from hvdc.artifact.codes import Code
from hvdc.artifact.decoder import Backend, Decoder, Port, PortDType, Variant, faults
from hvdc.artifact.decoder_records import MAX_DECODER_GRAPHS, MAX_DECODER_PORTS, DecoderBackend, DecoderVariant
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.index_read import parse_index
from hvdc.artifact.index_tables import Index
from hvdc.artifact.index_write import build_index
from hvdc.artifact.manifest import INDEX_NAME, parse_manifest
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.records import NONE
from hvdc.artifact.validate import validate_deep
from hvdc.errors import UsageError
from tests.artifacts import Spec, make, make_artifact
from tests.decoder_entries import GRAPHS, decoder_entry, decoder_files
from tests.fixtures.make import FOLDER
from tests.malformed.make import CORPUS

BACKENDS: tuple[Backend, ...] = get_args(Backend)
QNN = Spec(layers=1, width=32, ffn_width=40, linears=1, decoder="qnn")
BINARY = "decoder.last.bin"
Tree = dict[str, Any]

# The entry by itself.


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_entry_that_is_right_has_no_faults(backend: Backend) -> None:
    entry = decoder_entry(backend)
    assert list(faults(entry)) == []
    assert list(entry.tensors()) == [path.replace("/", ".") for path in decoder_files(backend)]
    assert [graph.name for graph in entry.variant("later")] == list(GRAPHS[2:])


def port(tree: Tree, graph: int, side: str, i: int) -> Tree:
    found: Tree = tree["graphs"][graph][side][i]
    return found


def rename_cut(tree: Tree) -> None:
    port(tree, 3, "inputs", 0)["name"] = "mid.other"


def more_ports(tree: Tree) -> None:
    item = port(tree, 0, "outputs", 0)
    tree["graphs"][0]["outputs"] += [item | {"name": f"more.{i}"} for i in range(MAX_DECODER_PORTS)]


FAULTS: dict[str, tuple[str, Callable[[Tree], object], bool]] = {
    "a graph's name twice": ("decoder.graphs", lambda d: d["graphs"][1].update(name=GRAPHS[0]), True),
    "a later graph before a first one": ("decoder.graphs", lambda d: d["graphs"].insert(1, d["graphs"].pop(2)), True),
    "no later graph": ("decoder.graphs", lambda d: d.update(graphs=d["graphs"][:2], binaries=d["binaries"][:1]), False),
    "a file twice": ("decoder", lambda d: d["graphs"][0].update(model=d["encodings"]), True),
    "more means than deviations": ("decoder.latents_std", lambda d: d["latents_mean"].append(0.0), True),
    "a deviation of zero": ("decoder.latents_std", lambda d: d["latents_std"].__setitem__(0, 0.0), False),
    "no channels": ("decoder.latents_std", lambda d: d.update(latents_mean=[], latents_std=[]), True),
    "too much overlap": ("decoder.tiles.overlap_rows", lambda d: d["tiles"].update(overlap_rows=3), True),
    "too much overlap of columns": (
        "decoder.tiles.overlap_columns", lambda d: d["tiles"].update(overlap_columns=3), True
    ),
    "a graph of no binary": ("decoder.binaries", lambda d: d["binaries"].pop(), True),
    "a graph of two binaries": (
        "decoder.binaries", lambda d: d["binaries"][1]["graphs"].append(d["binaries"][0]["graphs"][0]), False
    ),
    "binaries, but not compiled": ("decoder.binaries", lambda d: d.update(backend="onnx"), True),
    "weights not shared by several graphs": (
        "decoder.binaries: decoder.all.bin", lambda d: d["binaries"][0].update(weights_shared=False), False
    ),
    "a name in a binary twice": (
        "decoder.binaries: decoder.all.bin",
        lambda d: d["binaries"][0]["graphs"][1].update(name_in_binary=d["binaries"][0]["graphs"][0]["name_in_binary"]),
        True,
    ),
    "a check twice": (
        "decoder.binaries: decoder.all.bin", lambda d: d["binaries"][0].update(checks=["metadata"] * 2), False
    ),
    "a binary that nobody looked at": (
        "decoder.binaries: decoder.all.bin", lambda d: d["binaries"][0].update(checks=[]), False
    ),
    "too many ports": ("decoder.graphs", more_ports, True),
    "a port twice in a graph": (
        f"decoder.graphs: {GRAPHS[0]}", lambda d: port(d, 0, "outputs", 1).update(name="latent"), True
    ),
    "a cache that the first graph reads": (
        f"decoder.graphs: {GRAPHS[0]}", lambda d: d["graphs"][0]["inputs"].append(port(d, 2, "inputs", 1)), True
    ),
    "a zero point that is no code": (
        f"decoder.graphs: {GRAPHS[1]}.frames", lambda d: port(d, 1, "outputs", 0).update(zero_point=256), True
    ),
    "a scale that FP32 rounds": (
        f"decoder.graphs: {GRAPHS[1]}.frames", lambda d: port(d, 1, "outputs", 0).update(scale=0.1), False
    ),
    "a scale beyond FP32": (
        f"decoder.graphs: {GRAPHS[1]}.frames", lambda d: port(d, 1, "outputs", 0).update(scale=1e39), True
    ),
    "a subnormal scale": (
        f"decoder.graphs: {GRAPHS[1]}.frames", lambda d: port(d, 1, "outputs", 0).update(scale=2.0**-127), True
    ),
    "an output twice": (
        "decoder.graphs: later", lambda d: port(d, 3, "outputs", 0).update(name="next_cache.mid"), True
    ),
    "a latent of another tile": (
        f"decoder.graphs: {GRAPHS[0]}.latent", lambda d: port(d, 0, "inputs", 0).update(shape=[1, 4, 1, 4, 3]), True
    ),
    "a later latent of other channels": (
        f"decoder.graphs: {GRAPHS[2]}.latent", lambda d: port(d, 2, "inputs", 0).update(shape=[1, 16, 1, 4, 4]), True
    ),
    "a latent without frames": (
        f"decoder.graphs: {GRAPHS[0]}.latent", lambda d: port(d, 0, "inputs", 0).update(shape=[1, 4, 4, 4]), True
    ),
    "tiles that the graphs do not read": (
        f"decoder.graphs: {GRAPHS[0]}.latent", lambda d: d["tiles"].update(rows=3), True
    ),
    "frames of another scale in space": (
        f"decoder.graphs: {GRAPHS[1]}.frames", lambda d: d.update(spatial_scale=4), True
    ),
    "frames of another scale in time": (
        f"decoder.graphs: {GRAPHS[3]}.frames", lambda d: d.update(temporal_scale=2), True
    ),
    "several frames of the first latent": (
        f"decoder.graphs: {GRAPHS[1]}.frames", lambda d: port(d, 1, "outputs", 0).update(shape=[1, 3, 4, 32, 32]), True
    ),
    "frames with opacity": (
        f"decoder.graphs: {GRAPHS[3]}.frames", lambda d: port(d, 3, "outputs", 0).update(shape=[1, 4, 4, 32, 32]), True
    ),
    "a cut of another name": (f"decoder.graphs: {GRAPHS[3]}", rename_cut, True),
    "a cut of another scale": (
        f"decoder.graphs: {GRAPHS[3]}", lambda d: port(d, 3, "inputs", 0).update(scale=0.125), True
    ),
    "a cache that nobody writes": (
        f"decoder.graphs: {GRAPHS[2]}.cache.none", lambda d: port(d, 2, "inputs", 1).update(name="cache.none"), True
    ),
    "a cache that the first graph writes otherwise": (
        f"decoder.graphs: {GRAPHS[2]}.cache.mid", lambda d: port(d, 0, "outputs", 1).update(zero_point=4), True
    ),
    "a cache that the later graph writes otherwise": (
        f"decoder.graphs: {GRAPHS[2]}.cache.mid", lambda d: port(d, 2, "outputs", 1).update(shape=[1, 8, 2, 4, 5]), True
    ),
}  # fmt: skip
"""What is wrong -> its place, the change, and whether ``index.bin`` shows it."""


def changed(change: Callable[[Tree], object]) -> Decoder:
    tree = json.loads(decoder_entry("qnn").model_dump_json())
    change(tree)
    return Decoder.model_validate_json(json.dumps(tree))


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_an_entry_is_found(name: str) -> None:
    place, change, _ = FAULTS[name]
    found = [(where, str(expected)) for where, expected, _ in faults(changed(change))]
    assert place in [where for where, _ in found]
    assert all(expected for _, expected in found)


@pytest.mark.parametrize("name", [name for name, (_, _, shown) in FAULTS.items() if shown])
def test_the_index_of_such_an_entry_is_refused_too(name: str) -> None:
    """The C reader does not read manifests: what the runtime relies on is checked in the index again."""
    entry, manifest = changed(FAULTS[name][1]), make(QNN)[0]
    broken = manifest.model_copy(update={"decoder": entry})
    with pytest.raises(ArtifactError) as caught:
        parse_index(build_index(broken, broken.to_json()))
    assert caught.value.code is Code.INDEX_DECODER


def test_the_index_has_a_number_for_each_name_of_the_manifest() -> None:
    for names, numbers in ((Backend, DecoderBackend), (Variant, DecoderVariant), (PortDType, records.PortDType)):
        assert sorted(get_args(names)) == sorted(member.name.lower() for member in numbers)


def test_a_tile_is_no_larger_than_the_latent_of_the_video() -> None:
    """Smaller than a tile is only a latent of another video, for which no graph is there."""
    manifest = make(QNN)[0]
    small = manifest.model_copy(update={"video": manifest.video.model_copy(update={"latent": (2, 4, 2), "tokens": 4})})
    with pytest.raises(ArtifactError) as caught:
        parse_manifest(small.to_json(), "here")
    assert caught.value.code is Code.MANIFEST_SCHEMA
    assert caught.value.details() == {
        "where": "here: decoder.tiles.columns", "expected": "at most the 2 of the video's latent", "found": "4"
    }  # fmt: skip
    with pytest.raises(ArtifactError) as caught:
        parse_index(build_index(small, small.to_json()))
    assert caught.value.code is Code.INDEX_DECODER


def test_too_many_graphs_do_not_follow_the_schema() -> None:
    tree = json.loads(decoder_entry("onnx").model_dump_json())
    tree["graphs"] = [tree["graphs"][0]] * (MAX_DECODER_GRAPHS + 1)
    with pytest.raises(ValidationError, match="at most 64 items"):
        Decoder.model_validate_json(json.dumps(tree))


# In an artifact.


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_index_says_what_the_entry_says(backend: Backend) -> None:
    manifest, _ = make(Spec(layers=1, linears=1, decoder=backend))
    entry, index = manifest.decoder, parse_index(build_index(manifest, manifest.to_json()))
    assert entry is not None
    assert index.decoder is not None
    names = [t.name for _, t in manifest.tensors()]
    record = {name: int(index.decoder[name]) for name in records.DECODER.dtype.names or ()}
    assert record == {
        "backend": DecoderBackend[backend.upper()], "graphs": 4, "ports": 14, "binaries": len(entry.binaries),
        "encodings": names.index(entry.encodings), "channels": 4, "tile_rows": 4, "tile_columns": 4, "overlap_rows": 1,
        "overlap_columns": 2, "spatial_scale": 8, "temporal_scale": 4, "bytes": manifest.totals.decoder_bytes,
    }  # fmt: skip
    holders = {held.graph: (binary.binary, held) for binary in entry.binaries for held in binary.graphs}
    for graph, row in zip(entry.graphs, index.graphs, strict=True):
        assert index.text(int(row["name"])) == graph.name
        assert DecoderVariant(int(row["variant"])).name.lower() == graph.variant
        assert names[int(row["model"])] == graph.model
        first, middle = int(row["first_port"]), int(row["first_port"]) + int(row["inputs"])
        assert [_port(index, p) for p in range(first, middle)] == list(graph.inputs)
        assert [_port(index, p) for p in range(middle, middle + int(row["outputs"]))] == list(graph.outputs)
        sizes = [int(row[name]) for name in ("vtcm_bytes", "spill_fill_bytes", "optimization", "reserved")]
        if graph.name in holders:
            binary, held = holders[graph.name]
            assert names[int(row["binary"])] == binary
            assert index.text(int(row["name_in_binary"])) == held.name_in_binary
            assert sizes == [held.vtcm_bytes, held.spill_fill_bytes, held.optimization, 0]
        else:
            assert (int(row["binary"]), int(row["name_in_binary"]), sizes) == (NONE, NONE, [0] * 4)


def _port(index: Index, i: int) -> Port:
    row = index.ports[i]
    return Port(
        name=index.text(int(row["name"])),
        dtype="uint8" if int(row["dtype"]) == 1 else "uint16",
        shape=tuple(int(v) for v in row["shape"][: int(row["dims"])]),
        scale=float(row["scale"]),
        zero_point=int(row["zero_point"]),
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_artifact(tmp_path / "a.hvdc", QNN)


def test_a_file_of_it_is_what_others_read(root: Path) -> None:
    """No padding, no header: the bytes on disk, whatever their number, and their hash is the file's."""
    with open_artifact(root) as artifact:
        assert validate_deep(artifact) == []
        for path, data in decoder_files("qnn").items():
            name = path.replace("/", ".")
            assert (root / path).read_bytes() == data == artifact.opaque(name)
            assert artifact.tensor(name).tobytes() == data
            file = next(f for f in artifact.manifest.files if f.path == path)
            assert (file.bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
            assert file.bytes % 4096 or path == "decoder/all.bin", "sizes of all sorts"


def test_a_damaged_binary_is_not_handed_out(root: Path) -> None:
    """It holds no checksum of its own, so a driver would load it. Other files of the decoder still are."""
    path = root / "decoder" / "last.bin"
    with open_artifact(root) as artifact:
        assert artifact.opaque(BINARY) == decoder_files("qnn")["decoder/last.bin"]
        data = bytearray(path.read_bytes())
        data[7] ^= 0x10
        path.write_bytes(data)
        with pytest.raises(ArtifactError) as caught:
            artifact.opaque(BINARY)
        assert caught.value.code is Code.DATA_HASH
        assert caught.value.where == str(path)
        assert caught.value.fix
        assert artifact.opaque("decoder.all.bin") == decoder_files("qnn")["decoder/all.bin"]
        assert [fault.code for fault in validate_deep(artifact)] == [Code.DATA_HASH]


def test_a_binary_cut_short_below_a_reader_is_no_crash(root: Path) -> None:
    with open_artifact(root) as artifact:
        (root / "decoder" / "last.bin").write_bytes(b"x")
        with pytest.raises(ArtifactError, match="FILE_SIZE"):
            artifact.opaque(BINARY)


def test_other_tensors_are_not_opaque(root: Path) -> None:
    with open_artifact(root) as artifact:
        with pytest.raises(UsageError, match="of kind schedule, not a decoder's file"):
            artifact.opaque("schedule.head")
        with pytest.raises(UsageError, match="no tensor"):
            artifact.opaque("decoder.x")


def test_a_decoder_changes_no_other_byte(tmp_path: Path) -> None:
    plain, with_it = make(Spec()), make(Spec(decoder="onnx"))
    assert with_it[1].items() >= plain[1].items()
    left = with_it[0].totals.model_copy(update={"decoder_bytes": 0, "data_bytes": plain[0].totals.data_bytes})
    assert left == plain[0].totals


# Versions.


def test_a_reader_of_1_1_refuses_it_by_its_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KNOWN_FEATURES", records.FEATURE_CALIBRATION)
    with pytest.raises(ArtifactError) as caught:
        parse_index((CORPUS / "base-decoder" / INDEX_NAME).read_bytes())
    assert caught.value.code is Code.INDEX_FEATURE


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_older_artifact_has_no_decoder(version: str) -> None:
    with open_artifact(FOLDER / version / "tiny.hvdc") as artifact:
        assert artifact.manifest.decoder is None
        assert artifact.manifest.totals.decoder_bytes == 0
        assert artifact.index.decoder is None
        assert len(artifact.index.graphs) == len(artifact.index.ports) == 0


def test_an_artifact_without_a_decoder_differs_from_1_1_in_the_minor_version_only() -> None:
    manifest, _ = make(Spec(calibrated=True))
    text = manifest.to_json()
    index = parse_index(build_index(manifest, text))
    assert int(index.header["section_count"]) == 7
    assert int(index.header["required_features"]) == records.FEATURE_CALIBRATION
    older = manifest.model_copy(update={"format": manifest.format.model_copy(update={"minor": 1})})
    data, before = (np.frombuffer(build_index(m, text), np.uint8) for m in (manifest, older))
    checksum = records.HEADER.offset("index_sha256")
    differ = [int(i) for i in np.flatnonzero(data != before) if not checksum <= i < checksum + 32]
    assert differ == [records.HEADER.offset("minor")]
