"""`hvdc decode`: latents become a clip that a person can look at."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.external_data_helper import set_external_data

from hvdc.artifact.reader import open_artifact
from hvdc.artifact.validate import validate_deep
from hvdc.pipeline.calibration_file import pack
from tests.artifacts import replace_opaque
from tests.commands import hvdc
from tests.decoders import random_latents, write_latents, write_vae

av = pytest.importorskip("av")
image = pytest.importorskip("PIL.Image")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "clip"


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """No frame is decoded."""

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("frames were decoded")

    monkeypatch.setattr("hvdc.pipeline.host_decoder.HostDecoder.decode", refuse)


def pictures(folder: Path) -> np.ndarray:
    return np.stack([np.asarray(image.open(path)) for path in sorted(folder.iterdir())])


def test_a_clip_in_each_format(tiled_artifact: Path, latents: Path, tmp_path: Path) -> None:
    done = hvdc("decode", tiled_artifact, latents, "-o", tmp_path / "clip.mp4", "--clip", 1)
    assert done.status == 0, done.err
    assert done.out == f"wrote {tmp_path / 'clip.mp4'}: 5 frames of 64 × 48, INT8\n"
    assert "Traceback" not in done.err
    with av.open(str(tmp_path / "clip.mp4")) as container:
        found = np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])
    assert hvdc("decode", tiled_artifact, latents, "-o", tmp_path / "clip", "--clip", 1, "-q").status == 0
    exact = pictures(tmp_path / "clip")
    assert found.shape == exact.shape == (5, 48, 64, 3)
    assert hvdc("decode", tiled_artifact, latents, "-o", tmp_path / "clip.gif", "--clip", 1, "-q").status == 0
    with image.open(tmp_path / "clip.gif") as gif:
        assert (gif.n_frames, gif.size) == (5, (64, 48))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["clip", "clip.gif", "clip.mp4"]


def test_clips_are_counted_from_zero(tiled_artifact: Path, tmp_path: Path) -> None:
    values = random_latents(2)
    file = tmp_path / "l.safetensors"
    file.write_bytes(pack({"latents": values}, {"prompts": ["a cat", "a dog"]}))
    alone = write_latents(tmp_path / "one", values[1])
    done = hvdc("decode", tiled_artifact, file, "-o", tmp_path / "first")
    assert "note: the first of 2 clips: a cat; --clip N chooses another" in done.err
    assert done.out.endswith("INT8, 'a cat'\n")
    done = hvdc("decode", tiled_artifact, file, "-o", tmp_path / "second", "--clip", 1, "--json")
    facts = done.json()
    assert facts.pop("duration_s") > 0
    assert facts == {
        "output": str(tmp_path / "second"), "clip": 1, "prompt": "a dog", "frames": 5, "height": 48, "width": 64,
        "fps": 16, "arithmetic": "int8",
    }  # fmt: skip
    assert done.err == ""
    done = hvdc("decode", tiled_artifact, alone, "-o", tmp_path / "alone")
    assert "clips" not in done.err
    np.testing.assert_array_equal(pictures(tmp_path / "second"), pictures(tmp_path / "alone"))
    assert (pictures(tmp_path / "first") != pictures(tmp_path / "second")).any()


def test_in_float32(tiled_artifact: Path, latents: Path, vae: Path, tmp_path: Path) -> None:
    given = ("--fp32", "--vae", vae, "--json")
    facts = hvdc("decode", tiled_artifact, latents, "-o", tmp_path / "float", *given).json()
    assert facts["arithmetic"] == "fp32"
    hvdc("decode", tiled_artifact, latents, "-o", tmp_path / "int8", "-q")
    apart = pictures(tmp_path / "float").astype(int) - pictures(tmp_path / "int8")
    assert 0 < np.abs(apart).mean() < 8


def test_force_replaces_the_output(tiled_artifact: Path, latents: Path, output: Path) -> None:
    path = output.with_suffix(".gif")
    path.write_bytes(b"old")
    done = hvdc("decode", tiled_artifact, latents, "-o", path, "-q")
    assert done.status == 2
    assert path.read_bytes() == b"old"
    assert hvdc("decode", tiled_artifact, latents, "-o", path, "-q", "--force").status == 0
    assert path.read_bytes()[:3] == b"GIF"


def test_an_interrupt_writes_nothing(
    tiled_artifact: Path, latents: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hvdc.pipeline.host_decoder.HostDecoder.decode", stop)
    done = hvdc("decode", tiled_artifact, latents, "-o", output)
    assert done.status == 130
    assert "interrupted while decoding: nothing was written" in done.err
    assert list(output.parent.iterdir()) == []


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize(
    ("name", "more", "status", "words"),
    [
        ("clip.avi", (), 2, "this is no format for frames"),
        ("no/clip.mp4", (), 2, "the output's directory does not exist"),
        ("clip.mp4", ("--clip", 3), 2, "there is no such clip"),
        ("clip.mp4", ("--clip", -1), 2, "--clip"),
        ("clip.mp4", ("--fp32",), 2, "--fp32 and --vae belong together"),
        ("clip.mp4", ("--vae", "v"), 2, "--fp32 and --vae belong together"),
        ("clip.mp4", ("--fp32", "--vae", "nowhere"), 3, "there is no such file or folder"),
        ("clip.mp4", ("--fps", 0), 2, "--fps"),
    ],
)
def test_what_is_refused(
    name: str, more: tuple[object, ...], status: int, words: str, tiled_artifact: Path, latents: Path, tmp_path: Path
) -> None:
    done = hvdc("decode", tiled_artifact, latents, "-o", tmp_path / name, *more)
    assert done.status == status, done.err
    assert words in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_there_are_clips_up_to(tiled_artifact: Path, latents: Path, output: Path) -> None:
    done = hvdc("decode", tiled_artifact, latents, "-o", output, "--clip", 3)
    assert "expected:  0 to 2" in done.err


def test_files_that_do_not_fit(tiled_artifact: Path, tiny_artifact: Path, latents: Path, tmp_path: Path) -> None:
    def refused(artifact: Path, file: Path, status: int, words: str, *more: object) -> None:
        done = hvdc("decode", artifact, file, "-o", tmp_path / "clip.mp4", *more)
        assert done.status == status, done.err
        assert words in done.err
        assert not (tmp_path / "clip.mp4").exists()

    refused(tmp_path / "nowhere", latents, 4, "nowhere")
    refused(tiny_artifact, latents, 2, "the artifact holds no decoder")
    refused(tiled_artifact, tmp_path / "nowhere", 3, "the latents cannot be read")
    refused(tiled_artifact, write_latents(tmp_path / "a", random_latents(channels=4)), 3, "another autoencoder")
    refused(tiled_artifact, write_latents(tmp_path / "b", random_latents(rows=3)), 2, "does not fit these latents")
    other = write_vae(tmp_path / "vae", seed=1)
    refused(tiled_artifact, latents, 1, "not the autoencoder", "--fp32", "--vae", other)


# --- graphs that are not what the manifest says, in an artifact whose hashes are right ---------------------------


def another_scale(model: onnx.ModelProto) -> None:
    scale = next(node.input[1] for node in model.graph.node if node.input[0] == "latent")
    [held] = [tensor for tensor in model.graph.initializer if tensor.name == scale]
    held.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(held), scale))


def a_scale_for_each_channel(model: onnx.ModelProto) -> None:
    scale = next(node.input[1] for node in model.graph.node if node.input[0] == "latent")
    [held] = [tensor for tensor in model.graph.initializer if tensor.name == scale]
    held.CopyFrom(numpy_helper.from_array(np.full(16, 0.5, np.float32), scale))


def another_tile(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 5


def one_output_fewer(model: onnx.ModelProto) -> None:
    model.graph.output.pop()


def ports_of_floats(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT


def no_graph(model: onnx.ModelProto) -> None:
    model.ClearField("graph")


def weights_elsewhere(model: onnx.ModelProto) -> None:
    external(model.graph.initializer[-1])


def scale_elsewhere(model: onnx.ModelProto) -> None:
    scale = next(node.input[1] for node in model.graph.node if node.input[0] == "latent")
    external(next(tensor for tensor in model.graph.initializer if tensor.name == scale))


def elsewhere_in_a_function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Constant", [], ["y"], value=numpy_helper.from_array(np.zeros(2, np.float32), "inside"))
    external(node.attribute[0].t)
    model.functions.append(helper.make_function("own", "f", [], ["y"], [node], [helper.make_opsetid("", 21)]))


def external(tensor: onnx.TensorProto) -> None:
    set_external_data(tensor, "../manifest.json")
    tensor.ClearField("raw_data")


def unknown_operator(model: onnx.ModelProto) -> None:
    next(node for node in model.graph.node if node.op_type == "Conv").op_type = "Frobnicate"


def lost_node(model: onnx.ModelProto) -> None:
    del model.graph.node[len(model.graph.node) // 2]


def value_beyond_the_last(model: onnx.ModelProto) -> None:
    """Such an index is only seen when the graph runs."""
    model.graph.initializer.append(numpy_helper.from_array(np.array([9], np.int64), "nine"))
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    model.graph.node.append(helper.make_node("Gather", [conv.output[0], "nine"], ["beyond"], name="gather"))


def cut_short(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString()[:-99]


def another_file(model: onnx.ModelProto) -> bytes:
    return b"\xff" * 1000


Damage = Callable[[onnx.ModelProto], bytes | None]
NO_MODEL, EXTERNAL, NOT_RUN = "is no ONNX model", "refers to external data", "cannot be run"
OTHER_INPUTS = "has other inputs than the manifest says"
DAMAGES: list[tuple[Damage, str, str, str]] = [
    (cut_short, NO_MODEL, "ONNX of", "Error parsing message"),
    (another_file, NO_MODEL, "ONNX of 1000 bytes", "Error parsing message"),
    (no_graph, OTHER_INPUTS, "", "0"),
    (another_scale, OTHER_INPUTS, "latent uint16 [1, 16, 1, 4, 6] scale", "latent uint16 [1, 16, 1, 4, 6] scale"),
    (a_scale_for_each_channel, "has other ports", "quantised integers", "can only convert an array of size 1"),
    (another_tile, OTHER_INPUTS, "[1, 16, 1, 4, 6]", "[1, 16, 1, 5, 6]"),
    (one_output_fewer, "has other outputs than the manifest says", "", ""),
    (ports_of_floats, "has other ports", "quantised integers", "a port is not a quantised integer"),
    (weights_elsewhere, EXTERNAL, "all weights in its own file", "in ../manifest.json"),
    (scale_elsewhere, EXTERNAL, "all weights in its own file", "in ../manifest.json"),
    (elsewhere_in_a_function, EXTERNAL, "all weights in its own file", "inside in ../manifest.json"),
    (unknown_operator, NOT_RUN, "a graph that onnxruntime runs", "Frobnicate"),
    (lost_node, NOT_RUN, "a graph that onnxruntime runs", "ONNXRuntimeError"),
    (value_beyond_the_last, NOT_RUN, "a graph that onnxruntime runs", "indices element out of data bounds"),
]
"""What happened to a graph -> what is said of it, with what was expected and found."""


@pytest.mark.parametrize("graph", ["first", "later"])
@pytest.mark.parametrize(("damage", "what", "expected", "found"), DAMAGES, ids=[d.__name__ for d, *_ in DAMAGES])
def test_a_graph_that_cannot_be_used(
    graph: str, damage: Damage, what: str, expected: str, found: str, tiled_artifact: Path, latents: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    artifact = shutil.copytree(tiled_artifact, tmp_path / "a.hvdc")
    model = onnx.load(artifact / "decoder" / f"{graph}.onnx")
    replace_opaque(artifact, f"decoder/{graph}.onnx", damage(model) or model.SerializeToString())
    with open_artifact(artifact) as opened:
        assert validate_deep(opened) == [], "hashes are right"
    done = hvdc("decode", artifact, latents, "-o", tmp_path / "clip.gif", "--json")
    assert done.status == 4, done.err
    assert done.err.startswith("error: a graph of the decoder")
    said = done.json()["error"]
    assert said["what"] == f"a graph of the decoder {what} [DATA_DECODER]"
    assert said["where"] == graph
    assert expected in said["expected"]
    assert found in said["found"]
    assert said["expected"] != said["found"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.hvdc"]


def test_the_float_weights_need_none_of_these_graphs(
    tiled_artifact: Path, latents: Path, vae: Path, tmp_path: Path
) -> None:
    artifact = shutil.copytree(tiled_artifact, tmp_path / "a.hvdc")
    replace_opaque(artifact, "decoder/first.onnx", b"\xff" * 1000)
    done = hvdc("decode", artifact, latents, "-o", tmp_path / "clip.gif", "--fp32", "--vae", vae)
    assert done.status == 0, done.err


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize(
    ("name", "module", "words"),
    [("clip.mp4", "av", "writing videos needs PyAV"), ("clip", "PIL.Image", "writing GIF and PNG files needs Pillow")],
)
def test_a_missing_library_is_named_before_any_work(
    name: str, module: str, words: str, tiled_artifact: Path, latents: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, module, None)
    done = hvdc("decode", tiled_artifact, latents, "-o", tmp_path / name)
    assert done.status == 1
    assert words in done.err
    assert "pip install 'hvdc[quality]'" in done.err
    assert list(tmp_path.iterdir()) == []
