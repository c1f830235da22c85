"""Calibration on several processes: the same bytes as one gives, and what happens when a process is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.calibrations import SETTINGS, SHORT, calibrated, run_calibrate, stopped_after, trajectories_run, write_embeds
from tests.commands import ROOT, environment, hvdc, partial
from tests.pipeline.forked_ranks import Scenario

Ended = list[tuple[int, str]]

SEEDS = ("--seeds", "0,5")


class Runs:
    """Scenarios of one model, run together, so that PyTorch is imported once."""

    def __init__(self, checkpoint: Path, prompts: Path, folder: Path) -> None:
        self.checkpoint, self.prompts, self.folder = checkpoint, prompts, folder
        self._scenarios: dict[str, Scenario] = {}
        self.ended: dict[str, Ended] = {}

    def output(self, name: str) -> Path:
        return self.folder / name / "c.safetensors"

    def add(self, name: str, *more: object, output: str = "", prompts: Path | None = None, **options: object) -> None:
        """``output``: the scenario whose output this goes on with."""
        (self.folder / name).mkdir()
        given = ("calibrate", self.checkpoint, "--prompts", prompts or self.prompts, "-o", self.output(output or name))
        arguments = [str(argument) for argument in (*given, *more)]
        self._scenarios[name] = Scenario(arguments, str(self.folder / name), **options)  # type: ignore[arg-type]

    def run(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.forked_ranks"], env=environment(OMP_NUM_THREADS="1"), cwd=ROOT,
            capture_output=True, text=True, check=False, timeout=200,
            input=json.dumps([asdict(s) for s in self._scenarios.values()]),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.ended = dict(zip(self._scenarios, json.loads(done.stdout), strict=True))
        for name, ranks in self.ended.items():
            assert all("Traceback" not in said and "unexpected" not in said for _, said in ranks), (name, ranks)

    def statuses(self, name: str) -> list[int]:
        return [status for status, _ in self.ended[name]]


@pytest.fixture(scope="module")
def runs(watched_checkpoint: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    runs = Runs(watched_checkpoint, embeds, tmp_path_factory.mktemp("ranks"))
    all_ = (*SHORT, *SEEDS)
    latents = ("--save-latents", runs.folder / "two" / "latents.safetensors")
    runs.add("two", *all_, *latents)
    runs.add("three", *SETTINGS, "--prompts-limit", 2, world=3)
    runs.add("lost", *all_, "--save-latents", runs.folder / "lost" / "latents.safetensors", lost=1)
    runs.add("without leave", *all_, output="lost")
    runs.add("lost first", *all_, lost=0)
    runs.add("gone on", *all_, "--resume", output="lost first")
    runs.add("silent", *all_, lost=1, by=signal.SIGSTOP, environment={"HVDC_RANK_TIMEOUT_S": "2"})
    huge = write_embeds(runs.folder / "huge.safetensors", count=2, scale=3e37)
    runs.add("overflow", *all_, prompts=huge)
    runs.add("there", *all_, "--prompts-limit", 1, output="two")
    runs.add("apart", *all_, "-o", "c.safetensors", apart=True)
    runs.add("wrong", *all_, environment={"HVDC_RANK_TIMEOUT_S": "soon"})
    runs.run()
    return runs


@pytest.fixture(scope="module")
def alone(watched_checkpoint: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    latents = folder / "latents.safetensors"
    return calibrated(
        watched_checkpoint, embeds, folder / "c.safetensors", *SEEDS, "--save-latents", latents, settings=SHORT
    )


def test_two_ranks_give_the_bytes_of_one(runs: Runs, alone: Path) -> None:
    assert runs.statuses("two") == [0, 0], runs.ended["two"]
    output = runs.output("two")
    assert output.read_bytes() == alone.read_bytes()
    latents = alone.with_name("latents.safetensors").read_bytes()
    assert output.with_name("latents.safetensors").read_bytes() == latents
    assert not partial(output).exists()
    assert "calibrating 3/3" in runs.ended["two"][0][1], "half of the six trajectories"
    assert runs.ended["two"][1][1] == "", "only the first one talks"


def test_a_rank_without_work(runs: Runs, watched_checkpoint: Path, embeds: Path, tmp_path: Path) -> None:
    assert runs.statuses("three") == [0, 0, 0], runs.ended["three"]
    one = calibrated(watched_checkpoint, embeds, tmp_path / "c.safetensors", "--prompts-limit", 2)
    assert runs.output("three").read_bytes() == one.read_bytes()


@pytest.mark.parametrize("name", ["lost", "lost first", "silent"])
def test_a_lost_rank_ends_the_run_with_a_way_to_go_on(name: str, runs: Runs) -> None:
    lost = 0 if name == "lost first" else 1
    ranks = runs.ended[name]
    assert ranks[lost][0] == -signal.SIGKILL
    status, said = ranks[1 - lost]
    assert status == 1, said
    assert "another process of this run was lost" in said
    assert "--resume" in said
    if name != "lost first":
        assert not runs.output(name).exists()
        assert [p.name for p in sorted(partial(runs.output(name)).glob("part-*"))] == [
            "part-0000.safetensors", "part-0001.safetensors",
        ]  # fmt: skip


def test_one_process_goes_on_where_two_stopped(runs: Runs, alone: Path) -> None:
    output = runs.output("lost")
    latents = ("--save-latents", output.with_name("latents.safetensors"))
    more = (*SEEDS, *latents, "--resume", "--json")
    stopped = stopped_after(1, lambda: run_calibrate(runs.checkpoint, runs.prompts, output, *more, settings=SHORT))
    assert "--resume" in stopped.out
    assert len(list(partial(output).glob("part-*.safetensors"))) == 3, "nothing of the earlier runs was replaced"
    done, ran = trajectories_run(lambda: run_calibrate(runs.checkpoint, runs.prompts, output, *more, settings=SHORT))
    assert done.status == 0, done.err
    assert ran == 1, "rank 0 had finished three, rank 1 one, the run before one"
    assert done.json()["resumed_trajectories"] == 5
    assert output.read_bytes() == alone.read_bytes()
    assert latents[1].read_bytes() == alone.with_name("latents.safetensors").read_bytes()
    assert not partial(output).exists()


def test_two_processes_go_on(runs: Runs, alone: Path) -> None:
    assert runs.statuses("gone on") == [0, 0], runs.ended["gone on"]
    assert "taken over" not in runs.ended["gone on"][1][1]
    assert runs.output("lost first").read_bytes() == alone.read_bytes()
    assert not partial(runs.output("lost first")).exists()


def test_all_ranks_end_where_one_is_refused(runs: Runs) -> None:
    assert runs.statuses("without leave") == [2, 2]
    assert all("--resume to go on with it" in said for _, said in runs.ended["without leave"])
    assert runs.statuses("there") == [2, 2]
    assert runs.statuses("wrong") == [2, 2]
    assert "HVDC_RANK_TIMEOUT_S" in runs.ended["wrong"][0][1]


def test_all_ranks_end_where_one_does_not_see_the_folder(runs: Runs) -> None:
    assert runs.statuses("apart") == [2, 2], runs.ended["apart"]
    for _, said in runs.ended["apart"]:
        assert "process 1, on" in said
        assert "does not see the folder that the first process writes to" in said
        assert "give an -o in a folder that all machines share" in said
    assert not list(runs.folder.glob("apart/*/*"))


def test_an_overflow_on_each_rank_is_named(runs: Runs) -> None:
    ranks = runs.ended["overflow"]
    assert [status for status, _ in ranks] == [1, 1], ranks
    assert all("NaN or Inf: step 0, block 0, ffn.net.0.proj.input" in said for _, said in ranks), ranks
    assert not runs.output("overflow").exists()
    assert not partial(runs.output("overflow")).exists()


@contextlib.contextmanager
def torchrun(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """``hvdc arguments…`` on two processes; killed at the end if it still runs."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hvdc")
    run = subprocess.Popen(
        [sys.executable, *launcher, *map(str, arguments)], env=environment(OMP_NUM_THREADS="1"), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


def children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def test_torchrun_loses_a_worker_and_goes_on(watched_checkpoint: Path, embeds: Path, tmp_path: Path) -> None:
    output = tmp_path / "c.safetensors"
    arguments = ("calibrate", watched_checkpoint, "--prompts", embeds, "-o", output, "-q", *SETTINGS, "--seeds", "0:7")
    with torchrun(*arguments) as run:
        end = time.monotonic() + 60
        while len(list(partial(output).glob("part-*.safetensors"))) < 2:
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)
        for worker in children(run.pid):
            if b"\0RANK=1\0" in Path(f"/proc/{worker}/environ").read_bytes():
                os.kill(worker, signal.SIGKILL)
        _, said = run.communicate(timeout=60)
    assert run.returncode != 0
    assert "--resume" in said
    assert not output.exists()
    resumed = hvdc(*arguments, "--resume", "--json").json()
    assert 2 <= resumed["resumed_trajectories"] < 21
    alone = calibrated(watched_checkpoint, embeds, tmp_path / "alone.safetensors", "--seeds", "0:7")
    assert output.read_bytes() == alone.read_bytes()
