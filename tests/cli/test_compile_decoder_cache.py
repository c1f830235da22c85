"""`hvdc compile --vae` again: the cache of decoders, the same bytes, and builds that were interrupted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvdc.pipeline import decoder_build
from tests.commands import tree
from tests.decoders import (
    TILED,
    cached,
    compile_decoder,
    compiled_decoder,
)

pytestmark = pytest.mark.usefixtures("known_speed", "decoder_cache")


def counted(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Which of the functions of `decoder_build` ran."""
    ran: list[str] = []

    def count(name: str) -> None:
        real = getattr(decoder_build, name)

        def run(*arguments, **more):
            ran.append(name)
            return real(*arguments, **more)

        monkeypatch.setattr(decoder_build, name, run)

    for name in names:
        count(name)
    return ran


def test_nothing_is_made_twice(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path,
    tiled_artifact: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = ("--vae", vae, "--latents", latents, "--decoder-tile", TILED)
    ran = counted(monkeypatch, "measure_decoder", "choose", "quantise")
    done = compile_decoder(watched_checkpoint, output, *given)
    assert ran == ["quantise"], "encodings were in the cache"
    assert "the decoder's encodings are taken from the cache" in done.err
    done = compile_decoder(watched_checkpoint, output, *given, "--force")
    assert ran == ["quantise"], "now graphs are as well"
    assert "the decoder's graphs are taken from the cache" in done.err
    assert tree(output) == tree(tiled_artifact)
    assert [p.name for p in decoder_cache.glob(".*")] == []


@pytest.mark.parametrize("damage", ["cut off", "one bit", "gone", "entry"])
def test_a_damaged_cache_is_made_again(
    damage: str, watched_checkpoint: Path, vae: Path, latents: Path, output: Path, graphs_cache: Path,
    tiled_artifact: Path,
) -> None:  # fmt: skip
    graph = graphs_cache / "later.onnx"
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "cut off":
        graph.write_bytes(data[:-1])
    elif damage == "one bit":
        graph.write_bytes(data)
    elif damage == "gone":
        graph.unlink()
    else:
        (graphs_cache / "entry.json").write_text("{}")
    given = ("--vae", vae, "--latents", latents, "--decoder-tile", TILED)
    compiled_decoder(watched_checkpoint, output, *given)
    assert tree(output) == tree(tiled_artifact)


def test_damaged_encodings_are_measured_again(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path, known_encodings: list[object]
) -> None:
    for path in decoder_cache.glob("*.json"):
        path.write_text(path.read_text()[:1000])
    given = ("--vae", vae, "--latents", latents, "--decoder-tile", TILED)
    compiled_decoder(watched_checkpoint, output, *given)
    assert len(known_encodings) == 1


def test_what_a_killed_compile_left_is_swept_away_a_day_later(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path
) -> None:
    old, new = decoder_cache / ".making-old", decoder_cache / ".making-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "first.onnx").write_bytes(b"half")
    os.utime(old, (0, 0))
    compiled_decoder(watched_checkpoint, output, "--vae", vae, "--latents", latents, "--decoder-tile", TILED)
    assert [p.name for p in decoder_cache.glob(".*")] == [".making-new"]


def test_an_interrupt_leaves_nothing_half_made(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    before = cached(decoder_cache)

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder_build, "serialised", stop)
    done = compile_decoder(watched_checkpoint, output, "--vae", vae, "--latents", latents)
    assert done.status == 130
    assert "interrupted while the decoder was compiled" in done.err
    assert not output.exists()
    assert cached(decoder_cache) == before


def test_a_build_that_was_interrupted_is_resumed_with_its_decoder(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, tiled_artifact: Path, graphs_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = ("--vae", vae, "--latents", latents, "--decoder-tile", TILED, "--jobs", 1)
    with monkeypatch.context() as patch:
        from hvdc.pipeline.workspace import Workspace

        def stop(self: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(Workspace, "publish", stop)
        done = compile_decoder(watched_checkpoint, output, *given)
    assert done.status == 130
    assert not output.exists()
    done = compile_decoder(watched_checkpoint, output, *given, "--resume", "--json")
    assert done.status == 0, done.err
    assert done.json()["resumed_files"] == 10
    assert tree(output) == tree(tiled_artifact)


def test_a_resumed_build_has_the_same_decoder_or_starts_over(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, graphs_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = ("--vae", vae, "--latents", latents)
    with monkeypatch.context() as patch:
        from hvdc.pipeline.workspace import Workspace

        def stop(self: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(Workspace, "publish", stop)
        compile_decoder(watched_checkpoint, output, *given, "--decoder-tile", TILED)
    done = compile_decoder(watched_checkpoint, output, *given, "--resume")
    assert done.status == 2, done.err
    assert "--force" in done.err
