"""The same tensors and configuration give the same bytes: whatever the jobs, process, machine, folder or file name."""

from __future__ import annotations

import getpass
import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.commands import ROOT, SMALL_VIDEO, compiled, environment, hvdc, process, tree


def vector_instructions() -> list[str]:
    """Instruction sets beyond numpy's baseline that numpy uses on this machine."""
    core = getattr(np, "_core", None) or np.core
    umath = core._multiarray_umath
    return [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name)]


@pytest.fixture(autouse=True)
def _nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the runtime that other tests built would travel with an artifact, whose model they are no part of."""
    monkeypatch.setenv("HVDC_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_number_of_threads(jobs: int, ragged_checkpoint: Path, ragged_artifact: Path, tmp_path: Path) -> None:
    assert tree(compiled(ragged_checkpoint, tmp_path / "a.hvdc", "--jobs", jobs)) == tree(ragged_artifact)


PROCESSES = {
    "a fresh process": ({"PYTHONHASHSEED": "0"}, 1),
    "another hash seed and locale": ({"PYTHONHASHSEED": "12345", "LC_ALL": "C", "TZ": "Asia/Tokyo"}, 2),
    "no vector instructions": (
        {
            "NPY_DISABLE_CPU_FEATURES": " ".join(vector_instructions()),
            "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F,-AVX2_Usable,-FMA_Usable",
            "OPENBLAS_NUM_THREADS": "1",
        },
        4,
    ),
}


@pytest.mark.parametrize("variables", PROCESSES)
def test_fresh_processes_elsewhere(variables: str, tiny_checkpoint: Path, tiny_artifact: Path, tmp_path: Path) -> None:
    """Each in a folder of its own, from a file of another name, with relative paths."""
    more, jobs = PROCESSES[variables]
    folder = tmp_path / "a folder"
    folder.mkdir()
    shutil.copy(tiny_checkpoint, folder / "sonst.bin")
    done = process(
        "compile", "sonst.bin", "-o", "out.hvdc", *SMALL_VIDEO, "--jobs", jobs, cwd=folder, env=environment(**more)
    )
    assert done.status == 0, done.err
    assert tree(folder / "out.hvdc") == tree(tiny_artifact)


def test_the_vector_instructions_were_really_off() -> None:
    if not vector_instructions():
        pytest.skip("this CPU offers nothing beyond numpy's baseline")
    code = "from tests.pipeline.test_reproducible import vector_instructions; print(vector_instructions())"
    env = environment(**PROCESSES["no vector instructions"][0])
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_trace_of_machine_folder_person_or_day(tiny_artifact: Path, tiny_checkpoint: Path) -> None:
    words = {str(tiny_checkpoint.parent), tiny_checkpoint.name, str(ROOT), str(Path.home())}
    for name, data in tree(tiny_artifact).items():
        for word in words:
            assert word.encode() not in data, f"{word} in {name}"
    # Short words occur in weights by chance, but not in what is text.
    text = (tiny_artifact / "manifest.json").read_bytes() + (tiny_artifact / "index.bin").read_bytes()
    for word in (socket.gethostname(), getpass.getuser(), "/tmp", "/usr", "pytest"):
        assert not re.search(rb"\b%s\b" % re.escape(word).encode(), text), word
    assert not re.search(rb"20[0-9][0-9]-[01][0-9]", text), "a date"


def test_files_are_plain(tiny_artifact: Path) -> None:
    """Nothing but the named files, and each readable by whoever may read a new file here."""
    names = set(tree(tiny_artifact))
    manifest = json.loads((tiny_artifact / "manifest.json").read_text("ascii"))
    runtime = {"runtime/runtime.json", "runtime/sources.tar", "runtime/answer.bin"}
    assert names == {"manifest.json", "index.bin", *runtime, *(f["path"] for f in manifest["files"])}
    assert not any(p.is_symlink() for p in tiny_artifact.rglob("*"))
    assert not list(tiny_artifact.parent.glob("*.partial"))


def test_a_setting_by_option_set_or_file_is_the_same_setting(
    ragged_checkpoint: Path, ragged_artifact: Path, tmp_path: Path
) -> None:
    """And spelling a default out changes nothing: the manifest records effective values."""
    (tmp_path / "c.toml").write_text("frames = 17\nheight = 64\ntimesteps = [1000, 992, 982, 949, 905, 810]\n")
    done = hvdc(
        "compile", ragged_checkpoint, "-o", tmp_path / "a.hvdc", "--config", tmp_path / "c.toml", "--set", "width=64",
        "--set", "expert_boundary=978", "--set", "lora_alpha=10", "--target", "sm8750", "-q",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert tree(tmp_path / "a.hvdc") == tree(ragged_artifact)
