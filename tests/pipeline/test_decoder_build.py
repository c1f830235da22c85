"""How a decoder is built: what is kept of it and when, what its settings do, and what is checked on request."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from exporters.qnn import compile as compiling
from exporters.qnn.available import why_not
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline import decoder_build, decoder_checks
from hvdc.pipeline.cache import locked
from hvdc.pipeline.decoder_checks import metadata_findings, port_findings
from hvdc.pipeline.decoder_hosted import OnPhone
from hvdc.pipeline.decoder_measured import DAMAGED, Measured
from hvdc.pipeline.decoder_trials import Emulated
from quant.decoder.graph import LATENT, Graphs, Key
from quant.decoder.ports import named, ports
from quant.decoder.ranges import Range, Ranges
from quant.decoder.sensitivity import Sensitivity
from tests.calibrations import assert_refused
from tests.commands import hvdc, tree
from tests.decoders import TILED, compile_decoder, compiled_decoder, entry_of

needs_qnn = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is here")

GOOD = Emulated("graph first", "frames", 1.0, 0.1, 2.0, True, psnr_db=50.0)
BAD = Emulated("graph first", "frames", 90.0, 9.0, 2.0, False, psnr_db=20.0)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "a.hvdc"


@pytest.fixture
def given(vae: Path, latents: Path, decoder_cache: Path) -> tuple[object, ...]:
    return ("--vae", vae, "--latents", latents)


# --- what was measured ------------------------------------------------------------------------------------------


def measured() -> Measured:
    some = Range(-1.5, 2.5, 40, np.float32([-1.5, -1]), np.float32([0, 2, 2.5]))
    ranges = {Key("first", "a"): some, Key("later", "b/c"): Range(0.0, 0.0, 1, np.zeros(1, "f4"), np.zeros(0, "f4"))}
    return Measured(Ranges(ranges, 7), Sensitivity({"g": 1e-9}, {"g": 12}, ("h",), 3))


def test_what_was_measured_is_read_as_it_was_written() -> None:
    data = measured().to_bytes()
    found = Measured.from_bytes(data)
    assert found.sensitivity == measured().sensitivity
    assert found.ranges.latent_frames == 7
    for key, due in measured().ranges.ranges.items():
        one = found.ranges.ranges[key]
        assert (one.low, one.high, one.sampled) == (due.low, due.high, due.sampled)
        assert np.array_equal(one.lows, due.lows)
        assert np.array_equal(one.highs, due.highs)
    assert found.to_bytes() == data


@pytest.mark.parametrize("damage", ["cut off", "empty", "text", "one value less"])
def test_a_damaged_measurement_is_none(damage: str) -> None:
    data = measured().to_bytes()
    if damage == "one value less":
        held = measured()
        shorter = replace(held.ranges.ranges[Key("first", "a")], lows=np.zeros(0, np.float32))
        data = data.replace(b"[2, 3]", b"[3, 3]")
        assert shorter.lows.size == 0
    else:
        data = {"cut off": data[:-30], "empty": b"", "text": b"ranges"}[damage]
    with pytest.raises(DAMAGED):
        Measured.from_bytes(data)


def test_another_budget_decides_anew_from_what_was_measured(
    watched_checkpoint: Path, given: tuple[object, ...], output: Path, measured: Path, decoder_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for path in (measured / "decoders").glob("*.npz"):
        shutil.copy(path, decoder_cache)

    def never(*arguments: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(decoder_build, "measure_decoder", never)
    done = compile_decoder(watched_checkpoint, output, *given, "--set", "decoder_budget=0.1")
    assert done.status == 0, done.err
    assert "what was measured of the decoder is taken from the cache" in done.err
    quantisation = entry_of(output).quantisation
    assert quantisation.wide_budget == 0.1
    done = compile_decoder(watched_checkpoint, output, *given, "--set", "decoder_budget=0.1", "--force")
    assert "the decoder's encodings are taken from the cache" in done.err


# --- one at a time ----------------------------------------------------------------------------------------------


def test_a_second_compile_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    order: list[str] = []
    inside, waiting = threading.Event(), threading.Event()

    def tell(text: str) -> None:
        said.append(text)
        waiting.set()

    def first() -> None:
        with locked(tmp_path / "key"):
            inside.set()
            assert waiting.wait(20)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(20)
    with locked(tmp_path / "key", tell):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert said == [f"another hvdc is making the same, it is waited for: {tmp_path / 'key'}"]
    with locked(tmp_path / "key", tell):
        assert len(said) == 1, "nobody holds it any more"


def test_a_file_that_changes_between_cache_and_artifact_is_noticed(
    watched_checkpoint: Path, given: tuple[object, ...], output: Path, graphs_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of the same length, so that only its hash tells."""
    real = decoder_build._checked

    def late(*arguments: Any) -> Any:
        path = graphs_cache / "later.onnx"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return real(*arguments)

    monkeypatch.setattr(decoder_build, "_checked", late)
    done = compile_decoder(watched_checkpoint, output, *given, "--decoder-tile", TILED)
    assert done.status == 1
    assert "a cached file of the decoder changed while it was compiled in" in done.err
    assert "later.onnx" in done.err
    assert not output.exists()


@needs_qnn
def test_a_binary_that_changes_after_it_was_checked_is_not_kept(
    watched_checkpoint: Path, given: tuple[object, ...], output: Path, decoder_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    real = compiling.compile_graphs

    def torn(*arguments: Any) -> Any:
        made = real(*arguments)
        data = bytearray(made.path.read_bytes())
        data[-1] ^= 1
        made.path.write_bytes(data)
        return made

    monkeypatch.setattr(compiling, "compile_graphs", torn)
    done = compile_decoder(watched_checkpoint, output, *given, backend="qnn")
    assert_refused(done, 1, "a binary changed on the disk after it was checked", output)
    assert not list(decoder_cache.glob("*/entry.json"))


# --- settings ---------------------------------------------------------------------------------------------------


@needs_qnn
def test_without_shared_weights_each_graph_is_a_binary(
    watched_checkpoint: Path, given: tuple[object, ...], output: Path, whole_artifact: Path
) -> None:
    more = ("--set", "decoder_share_weights=false", "--set", "decoder_vtcm_mb=4")
    compiled_decoder(watched_checkpoint, output, *given, *more, backend="qnn")
    entry = entry_of(output)
    assert [[g.graph for g in binary.graphs] for binary in entry.binaries] == [["first"], ["later"]]
    assert [binary.weights_shared for binary in entry.binaries] == [False, False]
    assert {g.vtcm_bytes for binary in entry.binaries for g in binary.graphs} == {4 << 20}
    first, later = (binary.predicted_graph_bytes for binary in entry.binaries)
    assert later == 4 * first
    assert set(tree(output)) - set(tree(whole_artifact)) == {"decoder/first.bin", "decoder/later.bin"}
    with open_artifact(output) as artifact:
        assert metadata_findings(artifact) == port_findings(artifact) == []
    done = hvdc("validate", output, "--deep", "-q")
    assert done.status == 0, done.out


@needs_qnn
def test_more_vtcm_than_the_target_has(watched_checkpoint: Path, given: tuple[object, ...], output: Path) -> None:
    done = compile_decoder(watched_checkpoint, output, *given, "--set", "decoder_vtcm_mb=9", backend="qnn")
    assert_refused(done, 2, "the target has less VTCM", output)
    assert "at most 8 MiB" in done.err


@needs_qnn
@pytest.mark.parametrize(
    ("option", "words"),
    [(("--decoder-minutes", 0.0001), "took too long"), (("--decoder-memory-gib", 0.01), "took too much memory")],
)
def test_limits_of_the_compiler(
    option: tuple[object, ...], words: str, watched_checkpoint: Path, given: tuple[object, ...], output: Path,
    decoder_cache: Path,
) -> None:  # fmt: skip
    tile = ("--decoder-tile", "6x8")
    done = compile_decoder(watched_checkpoint, output, *given, *tile, *option, backend="qnn")
    assert_refused(done, 1, words, output)
    assert f"raise {option[0]}, or choose a smaller --decoder-tile" in done.err, "the level is 1 already"
    assert "graph first_up3; graph later_mid_up0_up1_up2" in done.err
    assert ".making" not in done.err, "nobody finds that folder"
    assert not (decoder_cache / "refused.json").exists()


def test_limits_without_a_compiler_are_refused(
    watched_checkpoint: Path, given: tuple[object, ...], output: Path
) -> None:
    done = compile_decoder(watched_checkpoint, output, *given, "--decoder-minutes", 5)
    assert_refused(done, 2, "--decoder-minutes would have no effect", output)


@needs_qnn
def test_the_manifest_says_whether_bytes_can_be_made_again(
    watched_checkpoint: Path, given: tuple[object, ...], output: Path, binary_artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    [binary] = entry_of(binary_artifact).binaries
    assert binary.reproducible
    real = compiling.compile_graphs
    monkeypatch.setattr(compiling, "compile_graphs", lambda *a: replace(real(*a), reproducible=False))
    done = compile_decoder(watched_checkpoint, output, *given, backend="qnn")
    assert "compiling again may give a few other bytes" in done.err
    [binary] = entry_of(output).binaries
    assert not binary.reproducible


# --- checks on request ------------------------------------------------------------------------------------------


@needs_qnn
def test_emulate_is_recorded_only_where_it_was_asked_for_and_passed(
    watched_checkpoint: Path, given: tuple[object, ...], output: Path, binary_artifact: Path, measured: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HVDC_CACHE_DIR", str(measured))  # with the binary of binary_artifact
    asked: list[object] = []

    def emulated(*arguments: object) -> list[Emulated]:
        asked.append(arguments)
        return [GOOD]

    monkeypatch.setattr(decoder_build, "emulate_graphs", emulated)
    done = compile_decoder(watched_checkpoint, output, *given, "--emulate", "--json", backend="qnn")
    assert done.status == 0, done.err
    assert len(asked) == 1
    [row] = done.json()["decoder_emulated"]
    assert (row["what"], row["passed"]) == ("graph first", True)
    [binary] = entry_of(output).binaries
    assert binary.checks == ("metadata", "emulator")
    assert "metadata read back and emulated; no phone has loaded it" in hvdc("inspect", output).out
    compiled_decoder(watched_checkpoint, output, *given, "--force", backend="qnn")
    assert tree(output) == tree(binary_artifact), "a check is not kept with the cached graphs"
    monkeypatch.setattr(decoder_build, "emulate_graphs", lambda *a: [GOOD, BAD])
    done = compile_decoder(watched_checkpoint, output.with_name("b.hvdc"), *given, "--emulate", backend="qnn")
    assert_refused(done, 1, "the x86 emulator of the NPU computes something else", output.with_name("b.hvdc"))


@needs_qnn
def test_an_emulator_of_another_build_proves_nothing_about_a_binary(
    watched_checkpoint: Path, given: tuple[object, ...], output: Path, measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one that another machine compiled."""
    monkeypatch.setenv("HVDC_CACHE_DIR", str(measured))
    monkeypatch.setattr(decoder_build, "emulate_graphs", lambda *a: [GOOD])
    monkeypatch.setattr(decoder_checks, "toolchain", lambda: SimpleNamespace(build_id="v9.9"))
    done = compile_decoder(watched_checkpoint, output, *given, "--emulate", backend="qnn")
    assert done.status == 0, done.err
    [binary] = entry_of(output).binaries
    assert binary.checks == ("metadata",)
    due = f"the emulator is of build v9.9, the binaries of {binary.build_id}: it says nothing about them"
    assert due in " ".join(done.err.split())
    monkeypatch.setattr(decoder_checks, "emulate_graphs", lambda *a: [GOOD])
    done = hvdc("validate", output, "--emulate", "-q")
    assert "emulator  is of build v9.9" in done.out
    assert hvdc("validate", output, "--emulate", "--json").json()["emulator_of_other_build"] in due


@pytest.mark.parametrize("side", [8, 7], ids=["own", "small"])
def test_the_emulator_gets_the_graphs_that_are_compiled_in_unless_they_are_large(
    side: int, watched_checkpoint: Path, given: tuple[object, ...], output: Path, measured: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def emulated(graphs: Graphs, *arguments: object) -> list[Emulated]:
        shapes.extend(named(ports(model)[0], LATENT).shape for _, model in graphs)
        return [GOOD]

    shapes: list[tuple[int, ...]] = []
    monkeypatch.setenv("HVDC_CACHE_DIR", str(measured))
    monkeypatch.setattr(decoder_build, "emulate_graphs", emulated)
    monkeypatch.setattr("hvdc.pipeline.decoder_checks.require_libraries", lambda: None)
    monkeypatch.setattr(decoder_checks, "LARGEST_EMULATED_SIDE", side)
    done = compile_decoder(watched_checkpoint, output, *given, "--emulate")
    assert done.status == 0, done.err
    assert shapes == [(1, 16, 1, *((6, 8) if side == 8 else (4, 4)))] * 2


@needs_qnn
@pytest.mark.parametrize("compared", [(GOOD,), (GOOD, BAD)], ids=["passed", "failed"])
def test_a_hosted_phone_is_asked_each_time_and_never_by_the_cache(
    compared: tuple[Emulated, ...], watched_checkpoint: Path, given: tuple[object, ...], output: Path,
    binary_artifact: Path, measured: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The binary is one that was made here: what is tested is who asks, and what is said of the answer."""
    monkeypatch.setenv("HVDC_CACHE_DIR", str(measured))
    asked: list[object] = []

    def on_phone(*arguments: object) -> OnPhone:
        asked.append(arguments)
        return OnPhone((), compared)

    def as_if(*arguments: Any) -> Any:
        config = arguments[2].config.model_copy(update={"aihub_profile": True, "decoder_backend": "aihub"})
        return real(*arguments[:2], replace(arguments[2], config=config))

    real = decoder_build._checked
    monkeypatch.setattr(decoder_build, "run_on_phone", on_phone)
    monkeypatch.setattr(decoder_build, "_checked", as_if)
    done = compile_decoder(watched_checkpoint, output, *given, "--json", backend="qnn")
    assert len(asked) == 1
    if BAD in compared:
        assert done.status == 1
        assert "a hosted phone computes something else" in done.out + done.err
        assert not output.exists()
        return
    assert done.json()["decoder_on_phone"]["passed"] is True
    assert entry_of(output).binaries[0].checks == ("metadata", "device")
    monkeypatch.setattr(decoder_build, "_checked", real)
    compiled_decoder(watched_checkpoint, output, *given, "--force", backend="qnn")
    assert entry_of(output).binaries[0].checks == ("metadata",)


@needs_qnn
def test_what_the_service_calls_too_large_leads_to_a_smaller_graph(
    watched_checkpoint: Path, given: tuple[object, ...], output: Path, decoder_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from exporters.aihub.errors import AiHubError

    asked: list[list[str]] = []

    def hosted(graphs: Any, *arguments: Any) -> Any:
        asked.append([name for name, _ in graphs])
        if len(graphs) == 2:
            raise AiHubError("the graph needs more memory than one graph may have", found="9 KB", too_large=True)
        raise AiHubError("nothing is known of the rest", fix="ask")

    monkeypatch.setattr("hvdc.pipeline.decoder_backends.compile_hosted", hosted)
    monkeypatch.setattr("hvdc.pipeline.decoder_backends.aihub.why_not", lambda: "")
    done = compile_decoder(watched_checkpoint, output, *given, backend="aihub")
    assert_refused(done, 1, "nothing is known of the rest", output)
    assert [len(names) for names in asked] == [2, 4]
