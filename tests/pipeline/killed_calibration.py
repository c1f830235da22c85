"""A process that calibrates again and again and is killed each time, for `test_calibrate`.

    python -m tests.pipeline.killed_calibration CHECKPOINT PROMPTS FOLDER

Prints one JSON list: for each round whether the output was there when it was killed, how the next run was started, its
status, and what else that left.
Results lie in the folder as ``N.killed`` and ``N.latents``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import hvdc.cli.calibrate as verb
import hvdc.pipeline.calibrate as work
from hvdc.pipeline import cost
from tests.calibrations import ONE_STEP
from tests.commands import hvdc, partial
from tests.pipeline.killed import forked, kill_at

assert verb, "imported so that children need not"
assert work, "and PyTorch"


def rounds(checkpoint: Path, prompts: Path, folder: Path) -> list[dict[str, object]]:
    """Killed before the first, second … call that changes the file system, until a run gets through."""
    output, latents = folder / "c.safetensors", folder / "l"
    cost._cpu_flops = lambda: 1e12  # measuring takes longer than the run

    def run(*more: str) -> int:
        given = ("calibrate", checkpoint, "--prompts", prompts, "-o", output, "--prompts-limit", 2, *ONE_STEP)
        return hvdc(*given, "--save-latents", latents, "-q", *more).status

    found: list[dict[str, object]] = []
    while True:
        killed = os.WIFSIGNALED(os.waitpid(kill_at(len(found) + 1, run), 0)[1])
        if not killed:
            return found
        there = output.exists()
        whole = there and not (partial(output) / "replace").exists()  # killed while tidying up: nothing to go on with
        how = "--force" if whole else "--resume"
        status = os.waitstatus_to_exitcode(os.waitpid(forked(lambda how=how: run(how)), 0)[1])
        left = [path.name for path in folder.iterdir() if path.name.startswith(f"{output.name}.")]
        found.append({"there": there, "how": how, "status": status, "left": left})
        latents.rename(folder / f"{len(found)}.latents")
        output.rename(folder / f"{len(found)}.killed")


if __name__ == "__main__":
    print(json.dumps(rounds(*map(Path, sys.argv[1:]))))
