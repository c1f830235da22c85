"""`hvdc embed`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from exporters.prompts import read_prompts
from tests.commands import environment, hvdc, started
from tests.exporters.test_text_encoder import LAYERS, TEXTS, WIDTH, make_pipeline, reference

TOKENS = 80


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory) -> Path:
    return make_pipeline(tmp_path_factory.mktemp("umt5") / "pipeline")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(TEXTS) + "\n", "utf-8")
    return path


def arguments(pipeline: Path, prompts: Path, *more: object) -> tuple[object, ...]:
    output = prompts.with_name("e.safetensors")
    return ("embed", "--text-encoder", pipeline, "--prompts", prompts, "-o", output, "--text-tokens", TOKENS, *more)


def names(prompts: Path) -> list[str]:
    return sorted(p.name for p in prompts.parent.iterdir())


def test_it_writes_what_the_pipeline_computes(pipeline, prompts) -> None:
    done = hvdc(*arguments(pipeline, prompts, "--json"))
    assert (done.status, done.err) == (0, "")
    facts = done.json()
    assert facts["shape"] == [len(TEXTS), TOKENS, WIDTH]
    assert [row["text"] for row in facts["prompts"]] == list(TEXTS)
    assert not any(row["truncated"] for row in facts["prompts"])
    with read_prompts(Path(facts["embeddings"]), text_tokens=TOKENS, text_width=WIDTH) as read:
        assert read.texts == TEXTS
        assert read.sha256 == facts["sha256"]
        rows = np.stack(list(read.embeds))
    expected = reference(pipeline, TEXTS, TOKENS).numpy()
    np.testing.assert_allclose(rows, expected, atol=1e-5, rtol=0)
    counts = [row["tokens"] for row in facts["prompts"]]
    assert counts == [int(np.any(row != 0, axis=1).sum()) for row in rows]
    assert all(not row[count:].any() for row, count in zip(rows, counts, strict=True))


def test_bf16_and_progress_and_the_table(pipeline, prompts) -> None:
    done = hvdc(*arguments(pipeline / "text_encoder", prompts, "--dtype", "bf16"))
    assert done.status == 0, done.err
    assert [line.split()[1] for line in done.err.splitlines()] == [f"{i + 1}/{LAYERS}" for i in range(LAYERS)]
    assert "s left" in done.err
    assert "sha256 " in done.out
    assert TEXTS[1] in done.out
    with read_prompts(prompts.with_name("e.safetensors")) as read:
        assert read.stored_dtype == "BF16"
    assert hvdc(*arguments(pipeline, prompts, "--force", "-q")).err == ""


def test_an_output_in_the_way(pipeline, prompts) -> None:
    output = prompts.with_name("e.safetensors")
    output.write_text("mine", "utf-8")
    done = hvdc(*arguments(pipeline / "absent", prompts))
    assert (done.status, output.read_text("utf-8")) == (2, "mine")
    assert "--force" in done.err
    assert hvdc(*arguments(pipeline, prompts, "--force", "-q")).status == 0
    elsewhere = hvdc(*arguments(pipeline, prompts), "-o", prompts.parent / "none" / "e.safetensors")
    assert (elsewhere.status, "mkdir -p" in elsewhere.err) == (2, True)


def test_long_prompts(pipeline, prompts) -> None:
    short = ("--text-tokens", 6, "--json", "--force")
    done = hvdc(*arguments(pipeline, prompts, *short))
    assert (done.status, names(prompts)) == (3, ["prompts.txt"])
    assert "prompts.txt, line 1" in done.json()["error"]["where"]
    done = hvdc(*arguments(pipeline, prompts, *short, "--truncate"))
    assert done.status == 0
    facts = done.json()
    assert [row["truncated"] for row in facts["prompts"]][:2] == [True, True]
    assert facts["notes"][0].startswith("cut to 6 tokens: lines 1, 2")


def test_what_is_wrong_is_said(pipeline, prompts, tmp_path) -> None:
    done = hvdc(*arguments(prompts, prompts))
    assert (done.status, "text_encoder folder" in done.err) == (3, True)
    done = hvdc(*arguments(pipeline, prompts, "--tokenizer", tmp_path))
    assert (done.status, "tokenizer.json" in done.err) == (3, True)
    prompts.write_text("a\n\n", "utf-8")
    done = hvdc(*arguments(pipeline, prompts))
    assert (done.status, "line 2" in done.err) == (3, True)
    assert hvdc("embed", "--text-tokens", 1).status == 2


def test_without_ftfy_it_is_said_which_prompts_might_differ(pipeline, prompts, monkeypatch) -> None:
    prompts.write_text("“a cat”\nrain\n", "utf-8")
    monkeypatch.setattr("exporters.text_encoder.ftfy_is_there", lambda: False)
    monkeypatch.setattr("hvdc.pipeline.embed.ftfy_is_there", lambda: False)
    done = hvdc(*arguments(pipeline, prompts, "-q"))
    assert (done.status, "note: 1 prompts hold more than printable ASCII" in done.err) == (0, True)


def test_a_full_disk_is_no_bad_checkpoint(pipeline, prompts, monkeypatch) -> None:
    monkeypatch.setattr("exporters.prompts.shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    done = hvdc(*arguments(pipeline, prompts))
    assert (done.status, "too little free space" in done.err) == (1, True)
    assert names(prompts) == ["prompts.txt"]


def test_an_interrupt_leaves_nothing(pipeline, prompts, tmp_path) -> None:
    many = tmp_path / "many"
    many.mkdir()
    long = many / "prompts.txt"
    long.write_text("\n".join(TEXTS[1] for _ in range(400)), "utf-8")
    with started(*arguments(pipeline, long)) as running:
        running.wait_for("encoding 1/")
        running.child.terminate()
        done = running.end()
    assert (done.status, names(long)) == (130, ["prompts.txt"])
    assert "interrupted" in done.err


@pytest.mark.parametrize("verb", [[], ["embed"]])
def test_help_imports_neither_torch_nor_transformers(verb) -> None:
    code = (
        "import sys\nfrom hvdc.cli.main import run\n"
        f"run({[*verb, '--help']!r})\nprint([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"
