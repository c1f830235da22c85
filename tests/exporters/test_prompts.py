"""Prompts and their embeddings as files."""

from __future__ import annotations

import contextlib
import errno
import json
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import load_file

from exporters import prompts as module
from exporters.errors import CheckpointError
from exporters.prompts import content_sha256, read_prompt_file, read_prompts, write_prompts

TEXTS = ("a cat", 'quotes " and \\', "猫 é 🐈", "a cat")
TOKENS, WIDTH = 5, 8


def embeds(count: int = len(TEXTS)) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((TOKENS, WIDTH)).astype(np.float32) for _ in range(count)]


def refused(path: Path, message: str, **arguments) -> CheckpointError:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_prompts(path, **arguments)
    assert str(path) in caught.value.where
    assert caught.value.fix
    return caught.value


def bare(path: Path, array: np.ndarray, metadata: dict[str, str] | None = None) -> Path:
    save_file({"prompt_embeds": np.ascontiguousarray(array)}, path, metadata)
    return path


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_what_is_written_is_read(tmp_path, dtype) -> None:
    path = tmp_path / "e.safetensors"
    digest = write_prompts(path, TEXTS, iter(embeds()), dtype=dtype)
    stored = load_file(path)["prompt_embeds"]
    want = torch.from_numpy(np.stack(embeds())).to(stored.dtype)
    assert torch.equal(stored, want)
    with safe_open(path, "np") as file:
        assert file.metadata()["format"] == "hvdc-prompts"
        assert tuple(json.loads(file.metadata()["prompts"])) == TEXTS
    with read_prompts(path, text_tokens=TOKENS, text_width=WIDTH) as prompts:
        assert prompts.texts == TEXTS
        assert (len(prompts), len(prompts.embeds), prompts.named) == (4, 4, True)
        assert (prompts.text_tokens, prompts.text_width) == (TOKENS, WIDTH)
        assert prompts.sha256 == digest == content_sha256(TEXTS, want.float().numpy())
        for row, read in zip(want.float().numpy(), prompts.embeds, strict=True):
            assert read.dtype == np.float32
            assert np.array_equal(read, row)
        assert np.array_equal(prompts.embeds[-1], prompts.embeds[3])
        with pytest.raises(IndexError):
            prompts.embeds[4]
    assert list(tmp_path.iterdir()) == [path]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**126), max_value=2.0**126)))
@settings(max_examples=100)
def test_bf16_rounds_as_torch_does(values) -> None:
    rows = np.array(values, np.float32)
    ours = module._narrow(rows, "bf16")
    assert np.array_equal(ours.view(np.int16), torch.from_numpy(rows).bfloat16().view(torch.int16).numpy())


def test_the_hash_is_of_values_and_texts_and_not_of_the_dtype(tmp_path) -> None:
    rows = [np.round(e * 4) for e in embeds()]  # exact in every dtype
    path = tmp_path / "e.safetensors"
    hashes = [write_prompts(path, TEXTS, rows, dtype=d, overwrite=True) for d in ("fp32", "fp16", "bf16")]
    assert len(set(hashes)) == 1
    others = [("b cat", *TEXTS[1:]), TEXTS[::-1]]
    assert all(write_prompts(path, t, rows, overwrite=True) != hashes[0] for t in others)
    rows[2] = rows[2].copy()
    rows[2][1, 1] += 1
    assert write_prompts(path, TEXTS, rows, overwrite=True) != hashes[0]


def test_a_limit_takes_the_first_and_hashes_only_those(tmp_path) -> None:
    path = tmp_path / "e.safetensors"
    write_prompts(path, TEXTS, embeds())
    with read_prompts(path, limit=2) as prompts:
        assert prompts.texts == TEXTS[:2]
        assert prompts.sha256 == content_sha256(TEXTS[:2], embeds()[:2])
        assert len(list(prompts.embeds)) == 2
    with read_prompts(path, limit=9) as prompts:
        assert len(prompts) == 4
    with pytest.raises(ValueError):
        read_prompts(path, limit=0)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_bare_file_names_its_prompts_by_number(tmp_path, metadata) -> None:
    path = bare(tmp_path / "e.safetensors", np.stack(embeds(2)).astype(np.float16), metadata)
    with read_prompts(path) as prompts:
        assert prompts.texts == ("prompt 0", "prompt 1")
        assert not prompts.named


# --- embeddings that are refused ---------------------------------------------------------------------------------


def test_a_wrong_width_names_both_and_whose_they_are(tmp_path) -> None:
    path = bare(tmp_path / "e.safetensors", np.zeros((1, 4, 768), np.float32))
    error = refused(path, "another width", text_width=4096)
    assert "4,096" in error.expected
    assert "umT5-xxl" in error.expected
    assert "768" in error.found
    assert "CLIP-L" in error.found
    error = refused(path, "another number of tokens", text_tokens=512, text_width=768)
    assert ("512" in error.expected, error.found) == (True, "4")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 8), np.float32), "number of axes"),
        (np.zeros((1, 1, 4, 8), np.float32), "number of axes"),
        (np.zeros((), np.float32), "number of axes"),
        (np.zeros((0, 4, 8), np.float32), "no prompts"),
        (np.zeros((2, 0, 8), np.float32), "no prompts"),
        (np.zeros((1, 4, 8), np.int8), "dtype"),
        (np.zeros((1, 4, 8), np.float64), "dtype"),
    ],
)
def test_shapes_and_dtypes_that_are_refused(tmp_path, array, message) -> None:
    refused(bare(tmp_path / "e.safetensors", array), message)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_named(tmp_path, value) -> None:
    rows = np.stack(embeds())
    rows[2, 3, 4] = value
    path = bare(tmp_path / "e.safetensors", rows, {"format": "hvdc-prompts", "prompts": json.dumps(TEXTS)})
    error = refused(path, "prompt 2 has an embedding that is not finite, at token 3")
    assert TEXTS[2] in error.where
    assert error.found == str(value)
    with read_prompts(path, limit=2) as prompts:
        assert len(prompts) == 2, "what is not used is not read"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": "hvdc-prompts"}, "do not say what the prompts are"),
        ({"format": "hvdc-prompts", "prompts": "a cat"}, "do not say what the prompts are"),
        ({"prompts": "[1, 2]"}, "do not say what the prompts are"),
        ({"prompts": "[" * 100_000}, "do not say what the prompts are"),
        ({"prompts": '["a cat"]'}, "do not match"),
    ],
)
def test_texts_that_do_not_fit(tmp_path, metadata, message) -> None:
    refused(bare(tmp_path / "e.safetensors", np.stack(embeds(2)), metadata), message)


def test_other_tensors_are_listed(tmp_path) -> None:
    path = tmp_path / "e.safetensors"
    rows = np.stack(embeds())
    save_file({"embeds": rows, "mask": rows}, path)
    assert refused(path, "no tensor 'prompt_embeds'").found == "'embeds', 'mask'"
    save_file({"prompt_embeds": rows, "mask": rows}, path)
    assert "'mask'" in refused(path, "more than 'prompt_embeds'").found
    save_file({}, path)
    refused(path, "no tensor")


def test_files_that_are_no_embeddings(tmp_path) -> None:
    path = tmp_path / "e.safetensors"
    assert "hvdc embed" in refused(path, "no such file").fix
    path.write_text("a cat\na dog\n", "utf-8")
    assert "hvdc embed" in refused(path, "no file of prompt embeddings").fix
    path.write_text("{}", "utf-8")
    refused(path, "safetensors file only")
    torch.save({"prompt_embeds": torch.zeros(1)}, path)
    assert "torch" in refused(path, "safetensors file only").found
    write_prompts(path, TEXTS, embeds(), overwrite=True)
    path.write_bytes(path.read_bytes()[:-3])
    refused(path, "cut off")
    refused(tmp_path, "not a regular file")


# --- writing -----------------------------------------------------------------------------------------------------


def not_written(folder: Path, kind: type[BaseException], *arguments, **options) -> BaseException:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(kind) as caught:
        write_prompts(*arguments, **options)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    return caught.value


def test_what_cannot_be_written_leaves_nothing(tmp_path) -> None:
    path = tmp_path / "e.safetensors"
    rows = embeds()
    assert "no prompts" in str(not_written(tmp_path, CheckpointError, path, (), []))
    not_written(tmp_path, ValueError, path, TEXTS, rows[:3])
    not_written(tmp_path, ValueError, path, TEXTS[:3], rows)
    not_written(tmp_path, ValueError, path, TEXTS, [*rows[:3], rows[3][:2]])
    large = [*rows[:3], rows[3] * np.float32(1e30)]
    assert "prompt 3" in str(not_written(tmp_path, CheckpointError, path, TEXTS, large, dtype="fp16"))
    assert "prompt 0" in str(not_written(tmp_path, CheckpointError, path, TEXTS, [rows[0] * np.nan, *rows[1:]]))
    assert "does not exist" in str(not_written(tmp_path, CheckpointError, tmp_path / "x" / "y", TEXTS, rows))


def test_nothing_is_replaced_unasked(tmp_path) -> None:
    path = tmp_path / "e.safetensors"
    path.write_text("mine", "utf-8")
    assert "exists" in str(not_written(tmp_path, CheckpointError, path, TEXTS, embeds()))
    write_prompts(path, TEXTS, embeds(), overwrite=True)
    with read_prompts(path) as prompts:
        assert prompts.texts == TEXTS
    with pytest.raises(CheckpointError, match="not a file"):
        write_prompts(tmp_path, TEXTS, embeds(), overwrite=True)


def test_an_output_that_appears_meanwhile_is_not_replaced(tmp_path) -> None:
    path = tmp_path / "e.safetensors"

    def slow():
        yield from embeds()[:3]
        path.write_text("mine", "utf-8")
        yield embeds()[3]

    with pytest.raises(CheckpointError, match="exists"):
        write_prompts(path, TEXTS, slow())
    assert path.read_text("utf-8") == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupt_or_a_full_disk_leaves_nothing(tmp_path, monkeypatch, error) -> None:
    def fail(descriptor):
        raise error

    monkeypatch.setattr("exporters.durable.os.fsync", fail)
    kind = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else CheckpointError
    path = tmp_path / "e.safetensors"
    said = str(not_written(tmp_path, kind, path, TEXTS, embeds()))
    assert kind is KeyboardInterrupt or "No space left" in said
    path.write_text("mine", "utf-8")
    not_written(tmp_path, kind, path, TEXTS, embeds(), overwrite=True)


def test_too_little_space_is_said_first(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    said = not_written(tmp_path, CheckpointError, tmp_path / "e.safetensors", TEXTS, embeds())
    assert "too little free space" in str(said)


def test_a_read_only_folder(tmp_path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with contextlib.suppress(PermissionError):
            (folder / "probe").touch()
            pytest.skip("this user may write everywhere")
        assert "could not be written" in str(
            not_written(folder, CheckpointError, folder / "e.safetensors", TEXTS, embeds())
        )
    finally:
        folder.chmod(stat.S_IRWXU)


# --- lists of prompts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"a cat\na dog\n", ("a cat", "a dog")),
        (b"a cat\na dog", ("a cat", "a dog")),
        (b"a cat\r\na cat\r\n", ("a cat", "a cat")),
        ("\ufeffa cat\n".encode(), ("a cat",)),
        ("猫\u2028é\n b \n".encode(), ("猫\u2028é", " b ")),
    ],
)
def test_a_list_of_prompts(tmp_path, data, texts) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(data)
    assert read_prompt_file(path) == texts


@pytest.mark.parametrize(
    ("data", "message", "where"),
    [
        (b"", "no prompts", ""),
        (b"\n", "no prompts", ""),
        (b"\xef\xbb\xbf", "no prompts", ""),
        (b"a\n\nb\n", "blank", "line 2"),
        (b"a\n \t\r\n", "blank", "line 2"),
        (b"a\nb\n\n", "blank", "line 3"),
        (b"a\nb\xe9c\n", "not UTF-8", "line 2, byte 2"),
        ("a\n".encode("utf-16"), "not UTF-8", "line 1, byte 1"),
        ("a\nb\n".encode("utf-16-le"), "zero byte", "line 1"),
    ],
)
def test_lists_that_are_refused(tmp_path, data, message, where) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_prompt_file(path)
    assert str(path) in caught.value.where
    assert where in caught.value.where


def test_lists_that_cannot_be_lists(tmp_path, monkeypatch) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_prompt_file(path)
    monkeypatch.setattr(module, "_LIST_LIMIT_BYTES", 10)
    (tmp_path / "p.txt").write_text("x" * 11, "utf-8")
    with pytest.raises(CheckpointError, match="too large"):
        read_prompt_file(tmp_path / "p.txt")
