"""The same sources for 64-bit ARM, under an emulator: another compiler's idea of floating point, other alignments.

The emulator starts no program of another process here, so that only streams without a worker are executed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.artifacts import Spec, make_artifact
from tests.device_runtime.builds import built
from tests.device_runtime.streams import Shape, check, words
from tests.device_runtime.test_policy import in_python, normal, observations, said, situations, tables

TOOLS = ("hvdc_cut", "hvdc_platform_check", "hvdc_stream_check")
LIBRARIES = "/usr/aarch64-linux-gnu"


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Name -> the command that runs it."""
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("the runtime is not tested on ARM: there is no qemu-aarch64: apt-get install qemu-user")
    programs = built(tmp_path_factory, "aarch64-linux", "the runtime is not tested on ARM", TOOLS)
    return {name: [str(emulator), "-L", LIBRARIES, str(path)] for name, path in programs.items()}


def say(command: list[str], *arguments: object, given: str = "") -> list[str]:
    done = subprocess.run(
        [*command, *map(str, arguments)], input=given, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.splitlines()


def test_the_policies_on_arm_are_those_in_python(emulated: dict[str, list[str]]) -> None:
    """ARM compilers like to fuse a product and a sum; the policies do not let them."""
    asked = tables() + observations() + situations()
    answers = say(emulated["hvdc_cut"], given=said(asked))
    assert [normal(line) for line in answers] == [in_python(question) for question in asked]


def test_weights_are_verified_on_arm(emulated: dict[str, list[str]], tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "a.hvdc", Spec(calibrated=True))
    (line,) = say(emulated["hvdc_platform_check"], "load", artifact)
    assert line.split(" ")[2:4] == ["same", "read-only"]


def test_a_stream_on_arm_computes_the_same(emulated: dict[str, list[str]], tmp_path: Path) -> None:
    given = " ".join(words(Shape(), mode="npu", videos=3, dir=tmp_path)) + "\n"
    (line,) = say(emulated["hvdc_stream_check"], "serve", given=given)
    report = json.loads(line)
    assert report["ok"], report
    assert report["finished"] == 3
    check(report, Shape(), tmp_path)
