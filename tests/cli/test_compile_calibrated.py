"""`hvdc compile` with a calibration: what it says of it, and options that would have no effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_runtime.build import SKEL
from tests.calibrations import (
    assert_refused,
    run_calibrate,
    run_compile,
    trajectories_run,
    write_model,
)
from tests.commands import ROOT, hvdc
from tests.exporters.models import Values

pytestmark = pytest.mark.usefixtures("known_speed", "calibration_cache")

Options = tuple[object, ...]
TITLE = "GEMM inputs in which one channel stands out most"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "a.hvdc"


def noisy(model: Values) -> None:
    """Something of each kind to say: large outputs, a large hidden state, inputs that are zero."""
    model["patch_embedding.bias"].fill(1e5)
    model["blocks.1.ffn.net.2.bias"].fill(4e4)
    for name in ("to_v.weight", "to_v.bias", "to_v.lora_A.weight"):
        model[f"blocks.1.attn1.{name}"].fill(0)


def said_of_calibration(out: str) -> list[str]:
    """From the table of outliers to the last warning or note, but for that of the library for a phone's DSP."""
    lines = [line for line in out.splitlines() if SKEL not in line]
    begin = next(n for n, line in enumerate(lines) if line.startswith(TITLE))
    return [lines[begin], *lines[begin + 1 : begin + 5], *(x for x in lines if x.startswith(("warning: ", "note: ")))]


@pytest.mark.parametrize("how", ["prompts", "calibration"])
def test_what_calibration_found_is_shown(how: str, embeds: Path, output: Path, tmp_path: Path) -> None:
    model, file = write_model(tmp_path / "model", noisy), tmp_path / "c.safetensors"
    due = said_of_calibration(run_calibrate(model, embeds, file).out)
    assert [line.split(":")[0] for line in due[5:]] == ["warning"] * 4 + ["note"]
    given: Options = ("--prompts", embeds) if how == "prompts" else ("--calibration", file)
    done = run_compile(model, output, *given)
    assert said_of_calibration(done.out) == due
    line = "activations  per-step scales of 21 GEMM inputs, from 3 prompts × 1 seed at 5 × 32×32, in fp32"
    assert line in done.out.splitlines()
    facts = run_compile(model, output, *given, "--force", "--json").json()
    found = run_calibrate(model, embeds, file, "--force", "--json").json()
    assert facts["calibration"] == {name: found[name] for name in facts["calibration"]}
    assert {"outliers", "large_outputs", "all_zero", "absmax"} <= set(facts["calibration"])
    assert facts["activations"] == {"calibrated": True, "text": line.removeprefix("activations  "), "to_run": None}


def test_a_plan_shows_it_too(watched_checkpoint: Path, calibration: Path, output: Path) -> None:
    done = run_compile(watched_checkpoint, output, "--calibration", calibration, "--dry-run", "--scale-mode", "mse")
    assert "activations  mse scales of 21 GEMM inputs, from 3 prompts × 1 seed" in done.out
    assert said_of_calibration(done.out)[0] == TITLE
    done = run_compile(watched_checkpoint, output, "--calibration", calibration, "--dry-run", "--smooth", 0.5)
    assert said_of_calibration(done.out)[0] == f"{TITLE}, before smoothing"


def test_an_uncalibrated_compile_says_so(watched_checkpoint: Path, output: Path) -> None:
    for more in (("--dry-run",), ()):
        done = run_compile(watched_checkpoint, output, *more)
        assert "activations  uncalibrated: runs on the NPU" in done.out
        assert TITLE not in done.out
    facts = run_compile(watched_checkpoint, output, "--dry-run", "--json", "--force").json()
    assert (facts["activations"]["calibrated"], facts["activations"]["to_run"]) == (False, None)
    assert facts["calibration"] is None


def test_a_dry_run_says_what_would_be_run(
    watched_checkpoint: Path, embeds: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdc.pipeline.cost._cpu_flops", lambda: 1e5)
    given = ("--prompts", embeds, "--seeds", "0:2", "--prompts-limit", 2, "--dry-run")
    done, ran = trajectories_run(lambda: run_compile(watched_checkpoint, output, *given))
    assert ran == 0
    line = next(line for line in done.out.splitlines() if line.startswith("activations"))
    assert "to be calibrated: 4 trajectories (2 prompts × 2 seeds) of 6 steps, about " in line
    assert "on this CPU; less where an earlier compile kept them" in line
    assert "note: on this CPU it takes about" in done.err
    facts = run_compile(watched_checkpoint, output, *given, "--json").json()
    to_run = facts["activations"]["to_run"]
    assert (to_run["trajectories"], to_run["prompts"], to_run["seeds"], to_run["steps"]) == (4, 2, 2, 6)
    assert to_run["cpu_duration_s"] > 600
    assert facts["calibration"] is None


IN_VAIN: dict[str, tuple[Options, str]] = {
    "a mode": (("--scale-mode", "mse"), "--scale-mode would have"),
    "the default mode": (("--scale-mode", "per-step"), "--scale-mode would have"),
    "a mode as a setting": (("--set", "scale_mode=mse"), "--set scale_mode would have"),
    "a percentile": (("--set", "percentile=99"), "--set percentile would have"),
    "seeds": (("--seeds", "0"), "--seeds would have"),
    "a limit": (("--prompts-limit", 1), "--prompts-limit would have"),
    "a device": (("--device", "cpu"), "--device would have"),
    "a dtype": (("--dtype", "bf16"), "--dtype would have"),
    "another size": (("--allow-geometry",), "--allow-geometry would have"),
    "two": (("--dtype", "bf16", "--seeds", "1"), "--seeds and --dtype would have"),
    "seeds of a file": (("--calibration", "C", "--seeds", "1"), "--seeds would have"),
    "a limit of a file": (("--calibration", "C", "--prompts-limit", 2), "--prompts-limit would have"),
    "a dtype of a file": (("--calibration", "C", "--dtype", "bf16"), "--dtype would have"),
    "a device for a file": (("--calibration", "C", "--device", "cuda"), "--device would have"),
    "another size of prompts": (("--prompts", "P", "--allow-geometry"), "--allow-geometry would have"),
    "a percentile in another mode": (("--calibration", "C", "--set", "percentile=99"), "--set percentile would have"),
    "a percentile in mse": (
        ("--calibration", "C", "--scale-mode", "mse", "--set", "percentile=99"), "--set percentile would have",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_VAIN)
def test_an_option_without_effect_is_refused(
    case: str, watched_checkpoint: Path, embeds: Path, calibration: Path, output: Path
) -> None:
    options, words = IN_VAIN[case]
    given = [{"C": calibration, "P": embeds}.get(str(o), o) for o in options]
    for more in ((), ("--dry-run",)):
        done, ran = trajectories_run(lambda more=more: run_compile(watched_checkpoint, output, *given, *more))
        assert ran == 0
        assert_refused(done, 2, words, output)


def test_a_file_of_settings_may_hold_more_than_a_compile_needs(watched_checkpoint: Path, output: Path) -> None:
    example = ("--config", ROOT / "examples" / "compile.toml")
    assert run_compile(watched_checkpoint, output, *example, "--dry-run").status == 0
    file = output.with_name("own.toml")
    file.write_text("scale_mode = 'mse'\npercentile = 99\n")
    assert run_compile(watched_checkpoint, output, "--config", file).status == 0
    artifact = hvdc("inspect", output, "--json").json()
    assert (artifact["configuration"]["scale_mode"], artifact["calibration"]) == ("mse", None)
