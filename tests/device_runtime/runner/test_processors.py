"""`hvdc_runner --npu-cpus` and `--gpu-cpus`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.device_runtime.runner.small import needs_gpu
from tests.device_runtime.runs import (
    Runner,
    children_of,
    wait_for,
)


def allowed(pid: int) -> str:
    found = re.search(r"^Cpus_allowed_list:\t(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@needs_gpu
def test_each_process_keeps_to_its_processors(long: Runner, tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    npu, gpu = mine[0], mine[-1]
    given = ("--npu-cpus", npu, "--gpu-cpus", gpu, "--cut", 6)
    with long.started(tmp_path / "out", "hetero", *given) as child:
        wait_for(child, "handoff")
        assert allowed(child.pid) == str(npu)
        [worker] = children_of(child.pid)
        assert allowed(worker) == str(gpu)


@needs_gpu
def test_pinning_one_engine_leaves_the_other_alone(long: Runner, tmp_path: Path) -> None:
    before, first = allowed(os.getpid()), min(os.sched_getaffinity(0))
    with long.started(tmp_path / "out", "hetero", "--npu-cpus", first, "--cut", 6) as child:
        wait_for(child, "handoff")
        [worker] = children_of(child.pid)
        assert allowed(worker) == before
