"""``--plot DIR`` of the commands of ``hvdc plan``: pictures beside what is printed, whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import Result, hvdc
from tests.hollow import full_size_manifest, write_hollow
from tests.plan.test_plots import words

RATES = Path(__file__).resolve().parents[2] / "examples" / "rates"
A, B = (RATES / f"galaxy-s25-49-frames-{label}.toml" for label in "ab")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hollow(tmp_path_factory.mktemp("full") / "dcm.hvdc", full_size_manifest())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def plot(folder: Path, *arguments: object) -> Result:
    done = hvdc("plan", *arguments, "--plot", folder)
    assert (done.status, done.err) == (0, "")
    plain = hvdc("plan", *arguments)
    assert done.out == plain.out, "what is printed does not depend on it"
    return done


def test_the_cut_of_known_rates(tmp_path: Path) -> None:
    plot(tmp_path / "new" / "folder", "cut", "--rates", B)
    assert names(tmp_path / "new" / "folder") == ["cut.png", "cut.svg"]
    assert {"cut 51", "677 s a video", "(lines: ends of steps; dashed: the detail expert begins)"} <= set(
        words(tmp_path / "new" / "folder" / "cut.svg")
    )


def test_the_cut_of_idle_times(tmp_path: Path) -> None:
    plot(tmp_path, "cut", "--rates", A)
    assert {"cut 52", "GPU waits", "NPU waits"} <= set(words(tmp_path / "cut.svg"))


def test_a_simulated_stream(tmp_path: Path) -> None:
    plot(tmp_path, "simulate", "--rates", B, "--mode", "hetero", "--mode", "npu", "--arrivals", "even:6")
    assert names(tmp_path) == ["gantt.png", "gantt.svg"]
    assert {"hetero", "npu", "GPU", "NPU", "idle", "4"} <= set(words(tmp_path / "gantt.svg"))


def test_a_stream_that_begins_late_is_shown_from_its_first_block(tmp_path: Path) -> None:
    trace = tmp_path / "late.csv"
    trace.write_text("1000000\n1000001\n")
    plot(tmp_path / "late", "simulate", "--rates", B, "--mode", "npu", "--arrivals", trace)
    assert {"1", "2"} <= set(words(tmp_path / "late" / "gantt.svg"))


def test_deadlines_in_any_order_and_only_what_was_simulated(tmp_path: Path) -> None:
    plot(tmp_path, "slo", "--rates", B, "--factors", "3,1.5,1.25", "--reference-s", "1000")
    assert names(tmp_path) == ["deadlines.png", "deadlines.svg"]
    text = words(tmp_path / "deadlines.svg")
    assert "(the reference given)" in text
    assert {"1.25", "1.50", "3.00"} <= set(text)
    plot(tmp_path / "again", "slo", "--rates", B)
    assert "(a video on the NPU alone)" in words(tmp_path / "again" / "deadlines.svg")


def test_memory(artifact: Path, tmp_path: Path) -> None:
    plot(tmp_path, "memory", artifact)
    assert names(tmp_path) == ["memory-modes.png", "memory-modes.svg", "memory.png", "memory.svg"]
    text = " ".join(words(tmp_path / "memory.svg"))
    for total in ("1.39 +", "1.47 +", "2.83 +", "3.71 +", "5.25 +"):
        assert total in text
    assert {"npu", "gpu", "hetero", "dp", "hetero-tensor"} <= set(words(tmp_path / "memory-modes.svg"))


COMMANDS = [("cut", "--rates", B), ("simulate", "--rates", B, "--mode", "hetero"), ("slo", "--rates", B)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_json_stays_json(command: tuple[object, ...], tmp_path: Path) -> None:
    done = hvdc("plan", *command, "--json", "--plot", tmp_path)
    assert done.status == 0
    assert json.loads(done.out)
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_file_in_the_folders_place_is_refused(command: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = hvdc("plan", *command, "--plot", tmp_path / "file")
    assert done.status == 2
    assert "folder for figures" in done.err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_without_matplotlib_the_extra_is_named(
    command: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = hvdc("plan", *command, "--plot", tmp_path / "new")
    assert done.status == 1
    assert "pip install 'hvdc[plot]'" in done.err
    assert not (tmp_path / "new").exists()
    assert hvdc("plan", *command).status == 0, "nothing else needs it"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_full_disk_leaves_the_old_pictures(
    command: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hvdc("plan", *command, "--plot", tmp_path).status == 0
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hvdc.files.os.fsync", full)
    done = hvdc("plan", *command, "--plot", tmp_path)
    assert done.status == 1
    assert "No space left" in done.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_plans_without_pictures_import_nothing_that_draws_or_simulates() -> None:
    script = (
        "import sys; from hvdc.cli.main import run; status = run(sys.argv[1:]); "
        "assert status == 0; loaded = {'matplotlib', 'simpy', 'torch'} & set(sys.modules); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", script, "plan", "cut", "--rates", str(B)], check=True, capture_output=True)
