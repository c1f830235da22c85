"""`hvdc compile`: settings, dry run, JSON, progress."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.commands import SMALL_VIDEO, command_line, environment, hvdc, process


def plan(checkpoint: Path, *more: object) -> dict:  # type: ignore[type-arg]
    done = hvdc("compile", checkpoint, "--dry-run", "--json", *more)
    assert done.status == 0, done.err
    return done.json()  # type: ignore[no-any-return]


def test_a_dry_run_writes_nothing_and_prints_the_plan(
    ragged_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = hvdc("compile", ragged_checkpoint, "--dry-run", "-o", "a.hvdc")
    assert done.status == 0
    assert list(tmp_path.iterdir()) == []
    for word in ("Files", "Bytes by kind", "Weight memory", "regions up to", "mapping", "disk", "memory", "steps"):
        assert word in done.out
    assert "alpha / rank: 2" in done.err, "DCM's documented default is printed"


def test_the_plan_is_what_is_built(ragged_checkpoint: Path, ragged_artifact: Path) -> None:
    facts = plan(ragged_checkpoint, *SMALL_VIDEO)
    manifest = json.loads((ragged_artifact / "manifest.json").read_text())
    for key in ("totals", "video", "experts", "configuration"):
        assert facts[key] == manifest[key], key
    assert [(f["path"], f["bytes"]) for f in facts["files"]] == [(f["path"], f["bytes"]) for f in manifest["files"]]


def test_json_of_a_compile(ragged_checkpoint: Path, tmp_path: Path) -> None:
    done = hvdc("compile", ragged_checkpoint, "-o", tmp_path / "a.hvdc", *SMALL_VIDEO, "--json")
    facts = done.json()
    assert done.status == 0
    assert done.err == "", "a program reads this"
    assert facts["artifact"] == str(tmp_path / "a.hvdc")
    assert facts["model_sha256"] == json.loads((tmp_path / "a.hvdc" / "manifest.json").read_text())["model_sha256"]
    assert facts["resumed_files"] == 0


def test_the_result_says_what_to_do_next(ragged_checkpoint: Path, tmp_path: Path) -> None:
    done = hvdc("compile", ragged_checkpoint, "-o", tmp_path / "a.hvdc", *SMALL_VIDEO)
    assert f"wrote {tmp_path / 'a.hvdc'}" in done.out
    command = next(line for line in done.out.splitlines() if line.startswith("next: hvdc "))
    assert hvdc(*command.removeprefix("next: hvdc ").split()).status == 0


def test_later_settings_win(ragged_checkpoint: Path, tmp_path: Path) -> None:
    """A file, then --set, then an option of its own."""
    (tmp_path / "c.toml").write_text("frames = 17\nheight = 64\nwidth = 64\n")
    facts = plan(ragged_checkpoint, "--config", tmp_path / "c.toml")
    assert (facts["video"]["frames"], facts["video"]["height"]) == (17, 64)
    facts = plan(ragged_checkpoint, "--config", tmp_path / "c.toml", "--set", "frames=21", "--set", "height=80")
    assert (facts["video"]["frames"], facts["video"]["height"]) == (21, 80)
    facts = plan(ragged_checkpoint, "--config", tmp_path / "c.toml", "--set", "frames=21", "--frames", 25)
    assert (facts["video"]["frames"], facts["video"]["width"]) == (25, 64)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("frames = ", "cannot be read"),
        ("frames = '17'", "'frames' is not valid"),
        ("frames = 17.5", "'frames' is not valid"),
        ("frames = true", "'frames' is not valid"),
        ("frames = 0", "'frames' is not valid"),
        ("frmaes = 17", "no setting 'frmaes'"),
        ("[compile]\nframes = 17", "no setting 'compile'"),
        ("timesteps = 1000", "timesteps are not a list"),
        ("timesteps = [[1000]]", "timesteps"),
        ("expert_boundary = 978.5", "'expert_boundary' is not valid"),
        ("lora_alpha = 0", "'lora_alpha' is not valid"),
        ("lora_alpha = nan", "'lora_alpha' is not valid"),
        ("max_left_out_energy = 2", "'max_left_out_energy' is not valid"),
        ("target = 'sm9999'", "no target 'sm9999'"),
        ("target = '../x'", "'target' is not valid"),
        ("frames = 48", "45 or 49"),
        ("width = 100", "96 or 112"),
        ("frames = 1025\nheight = 4096", ""),
    ],
)
def test_a_wrong_configuration_is_refused_before_the_checkpoint_is_opened(
    text: str, says: str, ragged_checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text(text)
    checkpoint = tmp_path / "nowhere" if says else ragged_checkpoint
    done = hvdc("compile", checkpoint, "--dry-run", "--config", tmp_path / "c.toml")
    if not says:
        assert done.status == 0, "large, and possible"
        return
    assert done.status == 2, done.err
    assert says in done.err
    assert "unexpected" not in done.err


def test_a_configuration_file_that_is_not_there(ragged_checkpoint: Path, tmp_path: Path) -> None:
    done = hvdc("compile", ragged_checkpoint, "--dry-run", "--config", tmp_path / "no.toml")
    assert done.status == 2
    assert "no.toml" in done.err
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    assert hvdc("compile", ragged_checkpoint, "--dry-run", "--config", tmp_path / "b.toml").status == 2


def test_heads_that_do_not_divide_the_width(ragged_checkpoint: Path) -> None:
    done = hvdc("compile", ragged_checkpoint, "--dry-run", "--set", "heads=3")
    assert done.status == 3
    assert "3 heads" in done.err


def test_an_adapter_that_is_not_there(ragged_checkpoint: Path, tmp_path: Path) -> None:
    done = hvdc("compile", ragged_checkpoint, "--dry-run", "--adapter", tmp_path / "no.safetensors")
    assert done.status == 3
    assert "no.safetensors" in done.err


def test_progress_is_plain_lines_in_a_pipe(tiny_checkpoint: Path, tmp_path: Path) -> None:
    done = process("compile", tiny_checkpoint, "-o", tmp_path / "a.hvdc", *SMALL_VIDEO)
    lines = [line for line in done.err.splitlines() if line.startswith("compiling")]
    assert [line.split()[1] for line in lines] == [f"{i}/7" for i in range(1, 8)]
    assert {line.split()[2] for line in lines} >= {"regions/block-000.bin", "adapters/detail-000.bin"}
    for line in lines:
        assert re.search(r"[\d,]+/[\d,]+ MiB  [\d,]+ MiB/s(  \d+ s left)?$", line), line
    assert re.search(r"([\d,]+)/\1 MiB .* 0 s left$", lines[-1]), "the last line is at the end"
    assert "\x1b" not in done.err + done.out
    assert "\r" not in done.err


def test_quiet_draws_no_progress_but_still_says_what_was_decided(tiny_checkpoint: Path, tmp_path: Path) -> None:
    shown = hvdc("compile", tiny_checkpoint, "-o", tmp_path / "a.hvdc", *SMALL_VIDEO, "-q").err
    assert "compiling" not in shown
    assert "alpha / rank: 2, from DCM's default" in shown


def under_a_terminal(arguments: list[str]) -> str:
    """What a command draws on a terminal."""
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm-256color", COLUMNS="120", LINES="40")
    child = subprocess.Popen(arguments, env=env, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    drawn, deadline = b"", time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            drawn += os.read(ours, 1 << 16)
    except OSError:  # the terminal is closed with its last process
        pass
    os.close(ours)
    assert child.wait(60) == 0, drawn.decode()
    return drawn.decode()


def test_progress_is_a_bar_on_a_terminal(slow_checkpoint: Path, tmp_path: Path) -> None:
    drawn = under_a_terminal(command_line("compile", slow_checkpoint, "-o", tmp_path / "a.hvdc", *SMALL_VIDEO))
    assert "\x1b[" in drawn
    assert re.search(r"\(\d+/29\)", drawn), "files done of all"
    assert "MiB/s" in drawn or "kiB/s" in drawn or "MB/s" in drawn or "bytes/s" in drawn
    assert not re.search(r"compiling \d+/29 ", drawn), "no plain lines beside the bar"
    assert not re.search(r"\d{6,}/\d{6,}", drawn), "bytes are shown with a unit, never as a count"
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l"), "the cursor is given back"
    assert "wrote " in drawn
