"""libhvdc_skel.so, which a phone's DSP loads: built, put into artifacts, and said to be missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from device_runtime.build import HEXAGON_DEVICES, SKEL, SKELS
from hvdc.artifact.runtime import read_runtime, runtime_findings
from hvdc.pipeline import runtime_build, runtime_skel
from hvdc.pipeline.runtime_skel import SWITCH, provide_skel
from hvdc.progress import Silent
from hvdc.targets import load_target
from tests.commands import SMALL_VIDEO, compiled, hvdc
from tests.device_runtime.hexagon import built_for_hexagon

NAMES = [f"hexagon-{name}" for name in SKELS]
"""In an artifact."""


@pytest.fixture
def libraries(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and in place of a build what tests share: the folder that it is in."""
    folder = built_for_hexagon(tmp_path_factory)

    def build(target: str, place: Path, programs: tuple[str, ...], seen: object) -> dict[str, Path]:
        assert (target, programs) == ("hexagon", SKELS)
        return {f"{arch}-{SKEL}": folder / f"hexagon-{arch}" / SKEL for arch in HEXAGON_DEVICES}

    monkeypatch.setattr(runtime_build, "build_host", build)
    monkeypatch.setenv("HVDC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(SWITCH, "1")
    return folder


def carried(artifact: Path) -> list[str]:
    runtime = read_runtime(artifact)
    assert runtime is not None
    assert runtime_findings(artifact) == []
    return [program.name for build in runtime.builds if build.target == "hexagon" for program in build.programs]


def test_compiling_carries_it(libraries: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    artifact = compiled(tiny_checkpoint, tmp_path / "a.hvdc")
    assert carried(artifact) == NAMES
    for arch, name in zip(HEXAGON_DEVICES, NAMES, strict=True):
        built = (libraries / f"hexagon-{arch}" / SKEL).read_bytes()
        assert built[:4] == b"\x7fELF"
        assert (artifact / "runtime" / name).read_bytes() == built
    assert hvdc("validate", artifact).status == 0
    said = hvdc("inspect", artifact).out
    assert all(name in " ".join(said.split()) for name in NAMES)
    builds = hvdc("inspect", artifact, "--json").json()["runtime"]["builds"]
    assert [program["name"] for build in builds for program in build["programs"]] == NAMES


@pytest.mark.parametrize(("listed", "said"), [(None, "runtime   none"), ("{", "runtime   unusable: ")])
def test_what_an_artifact_does_not_carry_can_be_seen(
    tiny_artifact: Path, tmp_path: Path, listed: str | None, said: str
) -> None:
    """An artifact with a broken list is shown nevertheless: `hvdc validate` is what refuses it."""
    artifact = Path(shutil.copytree(tiny_artifact, tmp_path / "a.hvdc"))
    shutil.rmtree(artifact / "runtime", ignore_errors=True)
    if listed is not None:
        (artifact / "runtime").mkdir()
        (artifact / "runtime" / "runtime.json").write_text(listed)
    shown = hvdc("inspect", artifact)
    assert (shown.status, said in shown.out) == (0, True), shown
    facts = hvdc("inspect", artifact, "--json").json()["runtime"]
    assert facts is None if listed is None else "fault" in facts
    assert hvdc("validate", artifact).status == (0 if listed is None else 4)


@pytest.mark.usefixtures("libraries")
def test_it_can_be_put_into_an_artifact_later(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    done = hvdc("compile", tiny_checkpoint, "-o", tmp_path / "a.hvdc", *SMALL_VIDEO, "--json")
    assert f"the artifact holds no {SKEL}" in done.json()["lacks"]
    assert carried(tmp_path / "a.hvdc") == []
    done = hvdc("runtime", "build", "--target", "hexagon", "--into", tmp_path / "a.hvdc", "--json")
    assert set(done.json()["programs"]) == set(SKELS)
    assert carried(tmp_path / "a.hvdc") == NAMES
    again = hvdc("compile", tiny_checkpoint, "-o", tmp_path / "b.hvdc", *SMALL_VIDEO, "--json")
    assert again.json()["lacks"] == ""


def test_the_name_is_the_one_that_the_cpus_program_asks_the_dsp_for() -> None:
    source = (runtime_build.SOURCE / "npu" / "rpc" / "src" / "link.c").read_text()
    assert f'"file:///hexagon-v%u-{SKEL}?' in source
    assert {name.replace("v79", "v%u") for name in NAMES if "v79" in name} == {f"hexagon-v%u-{SKEL}"}


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(SWITCH, "1")


@pytest.mark.usefixtures("nothing_kept")
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_skel, "why_not", lambda target: "clang-22 is not installed: apt-get install clang-22")
    lacks = provide_skel(load_target("sm8750"), Silent(), lambda text: None)
    assert "(clang-22 is not installed: apt-get install clang-22)" in lacks
    assert "`hvdc runtime build --target hexagon --into ARTIFACT` adds it" in lacks


@pytest.mark.usefixtures("nothing_kept")
def test_a_build_that_fails_fails_no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_skel, "why_not", lambda target: "")
    monkeypatch.setattr(runtime_build, "why_not", lambda target: "")

    def build(*arguments: object) -> dict[str, Path]:
        raise runtime_build.BuildError("it is not in the mood\nits last words")

    monkeypatch.setattr(runtime_build, "build_host", build)
    lacks = provide_skel(load_target("sm8750"), Silent(), lambda text: None)
    assert "it does not build: it is not in the mood" in lacks


def test_a_phone_of_another_architecture_is_said() -> None:
    other = load_target("sm8750").model_copy(update={"name": "other", "hexagon_arch": "v68"})
    lacks = provide_skel(other, Silent(), lambda text: None)
    assert lacks == f"{SKEL} is built for v73, v75, v79, v81, not for other's v68"
