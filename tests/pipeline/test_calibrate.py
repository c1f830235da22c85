"""Calibration that is stopped: nothing half-made, and a way to go on."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from hvdc.pipeline import calibrate as stage
from hvdc.pipeline.calibration_file import read_calibration
from hvdc.pipeline.latents_file import read_latents
from tests.calibrations import (
    ONE_STEP,
    SETTINGS,
    Run,
    calibrated,
    run_calibrate,
    stopped_after,
    trajectories_run,
    write_embeds,
    write_model,
)
from tests.commands import ROOT, Result, environment, hvdc, partial, started

pytestmark = pytest.mark.usefixtures("known_speed")


@pytest.fixture(scope="module")
def four_seeds(watched_checkpoint: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    output = tmp_path_factory.mktemp("four") / "c.safetensors"
    return calibrated(watched_checkpoint, embeds, output, "--seeds", "0:4").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_resume_goes_on(
    number: signal.Signals, watched_checkpoint: Path, embeds: Path, output: Path, four_seeds: bytes
) -> None:
    arguments = ("calibrate", watched_checkpoint, "--prompts", embeds, "-o", output, *SETTINGS, "--seeds", "0:4")
    with started(*arguments) as running:
        running.wait_for("calibrating 2/")
        running.child.send_signal(number)
        done = running.end()
    assert done.status == 130, done.err
    assert "--resume" in done.err
    assert "Traceback" not in done.err
    assert not output.exists()
    assert sorted(p.name for p in partial(output).iterdir()) == ["identity", "part-0000.safetensors"]
    assert 2 <= hvdc(*arguments, "--resume", "--json").json()["resumed_trajectories"] < 12
    assert output.read_bytes() == four_seeds
    assert not partial(output).exists()


def test_finished_trajectories_are_not_run_again(run: Run, calibration: Path, output: Path) -> None:
    stopped_after(2, run)
    assert not output.exists()
    done, ran = trajectories_run(lambda: run("--resume"))
    assert (done.status, ran) == (0, 1)
    assert "2 trajectories were taken over from the interrupted run" in done.out
    assert output.read_bytes() == calibration.read_bytes()
    assert not partial(output).exists()


def test_stopped_again_and_again(run: Run, calibration: Path, output: Path) -> None:
    for count in range(2):
        stopped_after(1, lambda: run("--resume"))
        assert len(list(partial(output).glob("part-*"))) == count + 1
    done, ran = trajectories_run(lambda: run("--resume"))
    assert (done.status, ran) == (0, 1)
    assert output.read_bytes() == calibration.read_bytes()


def test_a_leftover_is_reported(run: Run, output: Path) -> None:
    stopped_after(1, run)
    held = {p.name: p.read_bytes() for p in partial(output).iterdir()}
    done = run()
    assert done.status == 2
    assert "an unfinished calibration of this output is there" in done.err
    assert str(partial(output)) in done.err
    assert "--resume to go on with it, or --force to start over" in done.err
    assert {p.name: p.read_bytes() for p in partial(output).iterdir()} == held


def test_force_starts_over(run: Run, calibration: Path, output: Path) -> None:
    for seed in (0, 4):  # the leftover may be of this run, or of another
        stopped_after(2, lambda seed=seed: run("--seeds", seed))
        done, ran = trajectories_run(lambda: run("--force"))
        assert (done.status, ran) == (0, 3), done.err
        assert "taken over" not in done.out
        assert output.read_bytes() == calibration.read_bytes()
        assert not partial(output).exists()
        output.unlink()


def test_a_run_that_may_replace_is_gone_on_with(run: Run, calibration: Path, output: Path) -> None:
    output.write_text("old")
    stopped = stopped_after(0, lambda: run("--force"))
    assert "--resume instead of --force" in stopped.err
    assert [p.name for p in output.parent.iterdir()] == [output.name]
    stopped_after(2, lambda: run("--force"))
    assert output.read_text() == "old"
    done, ran = trajectories_run(lambda: run("--resume"))
    assert (done.status, ran) == (0, 1), done.err
    assert output.read_bytes() == calibration.read_bytes()


def test_resuming_does_not_replace_what_came_meanwhile(run: Run, output: Path) -> None:
    stopped_after(2, run)
    output.write_text("mine")
    done = run("--resume")
    assert (done.status, "the output exists" in done.err, output.read_text()) == (2, True, "mine")
    output.unlink()
    assert trajectories_run(lambda: run("--resume"))[1] == 1


def test_starting_over_and_going_on_exclude_each_other(run: Run, output: Path) -> None:
    stopped_after(1, run)
    done, ran = trajectories_run(lambda: run("--resume", "--force"))
    assert (done.status, ran) == (2, 0)
    assert "--resume and --force exclude each other" in done.err
    assert (partial(output) / "part-0000.safetensors").is_file()


def test_stopped_between_calibration_and_latents(
    run: Run, calibration: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    more = ("--save-latents", output.with_name("latents"))
    with monkeypatch.context() as patch:
        patch.setattr(stage, "_write_latents", stop)
        assert run(*more).status == 130
    assert (output.exists(), more[1].exists()) == (True, False)
    assert run(*more).status == 2
    done, ran = trajectories_run(lambda: run(*more, "--resume"))
    assert (done.status, ran) == (0, 0), done.err
    assert output.read_bytes() == calibration.read_bytes()
    assert load_file(more[1])["latents"].shape == (3, 16, 2, 4, 4)
    assert not partial(output).exists()


def test_stopped_before_anything_was_finished_nothing_is_left(run: Run, output: Path) -> None:
    stopped_after(0, run)
    assert list(output.parent.iterdir()) == []
    assert run("--resume").status == 0


OTHER_RUNS: dict[str, list[object]] = {
    "seeds": ["--seeds", "1"],
    "more seeds": ["--seeds", "0,1"],
    "fewer prompts": ["--prompts-limit", 2],
    "a smaller clip": ["--frames", 1],
    "a schedule": ["--set", "timesteps=[1000,900]"],
    "a boundary": ["--set", "expert_boundary=950"],
    "a dtype": ["--dtype", "bf16"],
    "latents": ["--save-latents", "latents.safetensors"],
    "an alpha": ["--lora-alpha", 4],
}


@pytest.fixture(scope="module")
def leftover(watched_checkpoint: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("leftover") / "c.safetensors"
    stopped_after(1, lambda: run_calibrate(watched_checkpoint, embeds, output))
    return output


def assert_another(done: Result, leftover: Path) -> None:
    assert done.status == 2, done.err
    assert "the unfinished calibration is of another checkpoint, other prompts or other settings" in done.err
    assert (partial(leftover) / "part-0000.safetensors").is_file()


@pytest.mark.parametrize("case", OTHER_RUNS)
def test_a_leftover_of_another_run_is_refused(
    case: str, watched_checkpoint: Path, embeds: Path, leftover: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(leftover.parent)
    assert_another(run_calibrate(watched_checkpoint, embeds, leftover, "--resume", *OTHER_RUNS[case]), leftover)


def test_a_leftover_of_other_inputs_is_refused(
    watched_checkpoint: Path, embeds: Path, leftover: Path, tmp_path: Path
) -> None:
    prompts = write_embeds(tmp_path / "prompts", seed=1)
    assert_another(run_calibrate(watched_checkpoint, prompts, leftover, "--resume"), leftover)
    model = write_model(tmp_path / "model", seed=1)
    assert_another(run_calibrate(model, embeds, leftover, "--resume"), leftover)


@pytest.mark.parametrize("setting", ["scale_mode=mse", "percentile=99", "smooth=0.5", "target=sm8750"])
def test_what_does_not_change_the_run_does_not_hinder_going_on(setting: str, run: Run, output: Path) -> None:
    stopped_after(2, run)
    assert run("--resume", "--set", setting).status == 0


def test_a_damaged_leftover_is_named(run: Run, calibration: Path, output: Path) -> None:
    stopped_after(1, run)
    part = partial(output) / "part-0000.safetensors"
    for data in (b"", part.read_bytes()[:-100], calibration.read_bytes()):
        part.write_bytes(data)
        done = run("--resume")
        assert done.status == 1
        assert f"where:     {part}" in done.err
        assert "remove that file" in done.err
    part.unlink()
    assert run("--resume").status == 0
    assert output.read_bytes() == calibration.read_bytes()


def test_something_else_in_the_place_of_the_leftover(run: Run, output: Path) -> None:
    partial(output).mkdir()
    (partial(output) / "thesis.txt").write_text("months of work")
    for more in ([], ["--resume"], ["--force"]):
        done = run(*more)
        assert (done.status, "in the way" in done.err) == (2, True)
    assert (partial(output) / "thesis.txt").read_text() == "months of work"
    shutil.rmtree(partial(output))
    partial(output).write_text("mine")
    done = run()
    assert (done.status, partial(output).read_text()) == (1, "mine")


def test_two_at_a_time(run: Run, output: Path) -> None:
    partial(output).mkdir()
    descriptor = os.open(partial(output), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    for more in ([], ["--resume"], ["--force"]):
        done = run(*more)
        assert (done.status, "another hvdc is writing this output now" in done.err) == (2, True)
    os.close(descriptor)
    assert run().status == 0


def test_latents_are_taken_over_too(run: Run, output: Path) -> None:
    latents = output.with_name("latents.safetensors")
    more = ("--seeds", "3,1", "--save-latents", latents)
    assert run(*more).status == 0
    whole = latents.read_bytes()
    held = load_file(latents)["latents"]
    assert (held.dtype, held.shape) == (np.float32, (6, 16, 2, 4, 4))
    assert len({row.tobytes() for row in held}) == 6
    facts = json.loads(json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]["calibration"])
    assert facts["seeds"] == [3, 1] * 3
    assert read_latents(latents).provenance == read_calibration(output).provenance
    assert [text.split()[1] for text in facts["prompts"]] == list("001122")
    first = output.read_bytes()
    output.unlink()
    latents.unlink()
    stopped_after(4, lambda: run(*more))
    assert not latents.exists()
    kept = sorted(partial(output).glob("latent-*"))
    assert [p.stem for p in kept] == [f"latent-{i // 2:06d}-{i % 2:04d}" for i in range(4)], "one for each trajectory"
    assert not any("latent" in name for name in load_file(partial(output) / "part-0000.safetensors"))
    damaged = kept[0].read_bytes()
    kept[0].write_bytes(damaged[:-1])
    done = run(*more, "--resume")
    assert (done.status, "part-0000.safetensors" in done.err, kept[0].name in done.err) == (1, True, True), done.err
    kept[0].write_bytes(damaged)
    assert run(*more, "--resume").status == 0
    assert (output.read_bytes(), latents.read_bytes()) == (first, whole)


def test_killed_anywhere_it_goes_on_to_the_same_bytes(watched_checkpoint: Path, embeds: Path, tmp_path: Path) -> None:
    """SIGKILL before each call that changes the file system."""
    more = ("--prompts-limit", 2, "--save-latents", tmp_path / "whole.latents")
    whole = calibrated(watched_checkpoint, embeds, tmp_path / "whole", *more, settings=ONE_STEP)
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.killed_calibration", watched_checkpoint, embeds, tmp_path],
        env=environment(OMP_NUM_THREADS="1"), cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    assert len(rounds) >= 12
    assert [r["status"] for r in rounds] == [0] * len(rounds), rounds
    assert not any(r["left"] for r in rounds), rounds
    assert [r["how"] for r in rounds if not r["there"]] == ["--resume"] * sum(not r["there"] for r in rounds)
    assert sum(r["there"] and r["how"] == "--resume" for r in rounds) >= 3, "between the outputs"
    assert len(list(tmp_path.glob("*.killed"))) == len(list(tmp_path.glob("*.latents"))) - 1 == len(rounds)
    for path in tmp_path.glob("*.killed"):
        assert path.read_bytes() == whole.read_bytes(), path
    for path in tmp_path.glob("*.latents"):
        assert path.read_bytes() == (tmp_path / "whole.latents").read_bytes(), path


def test_a_full_disk(mounted: Callable[..., Path], watched_checkpoint: Path, embeds: Path, calibration: Path) -> None:
    disk = mounted(2 << 20)
    output = disk / "c.safetensors"
    done = run_calibrate(watched_checkpoint, embeds, output)
    assert done.status == 1, done.err
    assert "the disk is full" in done.err
    assert "--resume" in done.err
    assert [p.name for p in disk.iterdir()] == ["c.safetensors.partial"]
    assert sorted(p.name for p in partial(output).iterdir()) == ["identity", "part-0000.safetensors"]
    subprocess.run(["mount", "-o", "remount,size=8388608", disk], check=True)
    assert run_calibrate(watched_checkpoint, embeds, output, "--resume").status == 0
    assert output.read_bytes() == calibration.read_bytes()
    output.unlink()
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(1 << 12)):
            pass
    done = run_calibrate(watched_checkpoint, embeds, output)
    assert (done.status, "the disk is full" in done.err) == (1, True)
    assert [p.name for p in disk.iterdir()] == ["filler"]


def test_a_folder_that_is_its_checkpoints(watched_checkpoint: Path, embeds: Path, tmp_path: Path) -> None:
    """What a run writes beside the weights is no change of the checkpoint."""
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(watched_checkpoint, folder / "diffusion_pytorch_model.safetensors")
    output = folder / "calibration"
    stopped_after(1, lambda: run_calibrate(folder, embeds, output))
    assert run_calibrate(folder, embeds, output, "--resume").status == 0


def test_a_checkpoint_that_changes_meanwhile_is_refused(
    watched_checkpoint: Path, embeds: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Path(shutil.copy(watched_checkpoint, output.with_name("model")))
    hashing = stage.tensors_sha256

    def changed(*arguments: Any) -> str:
        os.utime(model, ns=(0, 0))
        return hashing(*arguments)

    monkeypatch.setattr(stage, "tensors_sha256", changed)
    done = run_calibrate(model, embeds, output)
    assert (done.status, "changed while it was calibrated" in done.err) == (3, True)
    assert [p.name for p in output.parent.iterdir()] == ["model"]
