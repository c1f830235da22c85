"""`hvdc probe`: what a platform allows becomes a target that `hvdc compile` takes; a crash leaves what was learnt."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.targets import load_target, read_target, target_names
from tests.commands import SMALL_VIDEO, Result, hvdc, undocumented
from tests.device_runtime.runs import why_no_gpu
from tests.measure.phones import FACTS, MIB, text
from tests.measure.probing.small import words


def test_every_value_says_where_it_is_from(probe: Callable[..., Result], output: Path) -> None:
    done = probe(text(FACTS))
    assert done.status == 0, done.err
    found, base = read_target(output), load_target("sm8750")
    assert found.region_cap_bytes.value == 511 * MIB
    assert found.mapping_budget_bytes.value == 3200 * MIB
    assert found.opencl_buffer_bytes.value == 1 << 30
    assert found.vtcm_bytes.value == 8 * MIB
    assert found.usable_memory_bytes.value == 11_650_097_152
    assert (found.hexagon_arch, found.gpu) == ("v79", "QUALCOMM Adreno(TM) 830")
    assert found.gpu_import is not None
    assert found.gpu_import.value == "qcom-dmabuf"
    assert found.dot_forms is not None
    assert found.dot_forms.value == ("khr", "qcom", "plain")
    assert found.mapping_count is not None
    assert found.mapping_count.value == 256
    measured = {name for name, limit in found.limits().items() if "by hvdc probe on this machine" in limit.source}
    assert measured == set(found.limits()) - {"graph_limit_bytes", "context_limit_bytes"}
    assert found.graph_limit_bytes == base.graph_limit_bytes, "with its own source"
    assert "that CPU, GPU and DSP share; more was not tried" in found.region_cap_bytes.source
    assert "one more was refused: FastRPC does not take" in found.mapping_budget_bytes.source
    assert "at least, since more was not tried" in found.mapping_count.source
    assert "refused: nvidia" in found.dot_forms.source


def test_a_target_file_shapes_an_artifact(
    probe: Callable[..., Result], output: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    assert probe(text(FACTS)).status == 0
    artifact = tmp_path / "a.hvdc"
    done = hvdc("compile", tiny_checkpoint, "--target", output, "-o", artifact, *SMALL_VIDEO, "-q")
    assert done.status == 0, done.err
    with open_artifact(artifact) as opened:
        manifest = opened.manifest
    assert manifest.target.region_cap_bytes == 511 * MIB
    assert manifest.target.mapping_budget_bytes == 3200 * MIB
    assert manifest.configuration.target_description == read_target(output), "an artifact says what shaped it"
    named = hvdc("compile", tiny_checkpoint, "--target", "sm8750", "-o", tmp_path / "b.hvdc", *SMALL_VIDEO, "-q")
    assert named.status == 0, named.err
    with open_artifact(tmp_path / "b.hvdc") as opened:
        assert opened.manifest.configuration.target_description is None


def test_a_phone_that_maps_little_refuses_a_large_region(
    probe: Callable[..., Result], output: Path, tiny_checkpoint: Path
) -> None:
    assert probe(text(FACTS)).status == 0
    small = output.read_text().replace(f"value = {511 * MIB}", "value = 4096", 1)
    output.write_text(small)
    done = hvdc("compile", tiny_checkpoint, "--target", output, "--dry-run", *SMALL_VIDEO)
    assert done.status == 3
    assert "too large for the target" in done.err


def test_kinds_of_memory_are_compared(probe: Callable[..., Result], output: Path) -> None:
    """The runtime takes the first kind that works for the CPU; the engines may share another one alone."""
    other = {
        "fact": "sharing",
        "kind": "dma-buf heap",
        "way": "copy",
        "gpu": False,
        "dsp": True,
        "shares": False,
        "why": "x",
    }
    ahb = {
        "fact": "sharing",
        "kind": "AHardwareBuffer",
        "way": "qcom-ahb",
        "gpu": True,
        "dsp": True,
        "shares": True,
        "why": "",
    }
    facts = [fact for fact in FACTS if fact.get("fact") not in ("sharing", "chosen")]
    at = next(i for i, fact in enumerate(facts) if fact.get("fact") == "region")
    done = probe(text([*facts[:at], other, ahb, {"fact": "chosen", "kind": "AHardwareBuffer"}, *facts[at:]]))
    assert done.status == 0, done.err
    assert "AHardwareBuffer is shared by all engines; the runtime takes dma-buf heap" in done.out
    way = read_target(output).gpu_import
    assert way is not None
    assert way.value == "qcom-ahb"
    assert "dma-buf heap: not the GPU, DSP; AHardwareBuffer: GPU by qcom-ahb, DSP" in way.source


@pytest.mark.parametrize("count", range(2, len(FACTS)))
def test_a_crash_keeps_what_was_learnt(probe: Callable[..., Result], output: Path, count: int) -> None:
    done = probe(text(FACTS[:count]), status=139)
    assert done.status == 1
    assert "ended early: status 139" in done.err
    found = read_target(output)
    assert "# the probe was cut short: hvdc_probe ended early" in output.read_text()
    last = FACTS[count - 1]
    if last.get("fact") == "trying" and last["bytes"]:
        size = f"{last['bytes'] // MIB:,} MiB" if last["bytes"] >= MIB else f"{last['bytes'] >> 10} KiB"
        assert f"while it tried {last['what']} of {size}" in done.err
    learnt = [fact["bytes"] for fact in FACTS[:count] if fact.get("fact") == "region"]
    if learnt:
        assert found.region_cap_bytes.value == max(learnt)
        if last == {"fact": "trying", "what": "region", "bytes": 511 * MIB}:
            assert "the probe ended while it tried 511 MiB" in found.region_cap_bytes.source
    else:
        assert found.region_cap_bytes == load_target("sm8750").region_cap_bytes


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        ("", 139, "ended early"),
        ("", 0, "ended early"),
        ("a driver's words\n", 0, "ended early"),
        ('{"hvdc_probe": 7}\n', 0, "another version"),
    ],
)
def test_where_nothing_was_learnt_nothing_is_written(
    probe: Callable[..., Result], output: Path, answer: str, status: int, message: str
) -> None:
    done = probe(answer, status=status)
    assert done.status == 1
    assert message in done.err
    assert not output.exists()


def test_json_has_the_target(probe: Callable[..., Result], output: Path) -> None:
    facts = probe(text(FACTS), "--json").json()
    assert undocumented("probe", facts) == []
    assert facts["file"] == str(output)
    assert facts["cut_short"] == ""
    assert facts["target"]["region_cap_bytes"]["value"] == 511 * MIB
    assert any("not measured, and as in sm8750: graph_limit_bytes" in note for note in facts["notes"])


def test_options_reach_the_program(probe: Callable[..., Result], tmp_path: Path) -> None:
    options = ("--total-mib", 64, "--mappings", 8, "--opencl-device", "Adreno", "--fastrpc", "/x/libcdsprpc.so")
    assert probe(text(FACTS), *options).status == 0
    found = words(tmp_path)
    for option, value in (("--total-mib", "64"), ("--mappings", "8"), ("--device", "Adreno"),
                          ("--fastrpc", "/x/libcdsprpc.so"), ("--largest-mib", "511")):  # fmt: skip
        assert found[found.index(option) + 1] == value
    assert "--dangerous" not in found


def test_danger_must_be_meant(probe: Callable[..., Result], tmp_path: Path, output: Path) -> None:
    done = probe(text(FACTS), "--largest-mib", 1024)
    assert done.status == 2
    assert "have taken a phone down" in done.err
    assert "--dangerous" in done.err
    assert not (tmp_path / "runtime" / "words").exists()
    assert probe(text(FACTS), "--largest-mib", 1024, "--dangerous").status == 0
    assert {"--dangerous", "1024"} <= set(words(tmp_path))
    assert probe(text(FACTS), "--dangerous", "--force").status == 2, "which allows nothing more"
    assert output.exists()


def test_a_machine_without_engines(probe: Callable[..., Result], output: Path) -> None:
    """Neither GPU nor DSP: what is measured is what one processor maps, and it says so."""
    alone = {"gpu": False, "dsp": False}
    facts: list[dict[str, Any]] = [
        FACTS[0], {"fact": "no-gpu", "why": "OpenCL has no platform"}, {"fact": "no-dsp", "why": "no libcdsprpc.so"},
        {"fact": "kind", "name": "memfd", "works": True, "why": ""},
        {"fact": "sharing", "kind": "memfd", "way": "copy", "shares": False, "why": "", **alone},
        {"fact": "chosen", "kind": "memfd"},
        {"fact": "region", "bytes": 64 * MIB, "works": True, "tried": True, "refused_by": "", "why": "", **alone},
        {"fact": "done"},
    ]  # fmt: skip
    done = probe(text(facts))
    assert done.status == 0, done.err
    assert "note: no GPU took part: OpenCL has no platform" in done.out
    assert "note: no DSP took part" in done.out
    assert "of kind memfd that CPU share" in read_target(output).region_cap_bytes.source


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[vtcm_bytes]", "[vtcm]", "'vtcm' of the target description is not valid|'vtcm_bytes' of the target"),
        ('name = "sm8750"', "name = ", "the target description is no TOML"),
        ('name = "sm8750"', 'name = "SM 8750"', "'name' of the target description is not valid"),
        (f"value = {8 * MIB}", "value = 0", r"'vtcm_bytes\.value' of the target description is not valid"),
    ],
)
def test_a_damaged_target_file_is_refused(
    probe: Callable[..., Result], output: Path, tiny_checkpoint: Path, old: str, new: str, message: str
) -> None:
    assert probe(text(FACTS)).status == 0
    assert old in output.read_text()
    output.write_text(output.read_text().replace(old, new, 1))
    done = hvdc("compile", tiny_checkpoint, "--target", output, "--dry-run", *SMALL_VIDEO)
    assert done.status == 2
    assert str(output) in done.err
    assert re.search(message, done.err), done.err


def test_targets_that_are_none(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for word in ("sm9999", str(tmp_path / "none.toml")):
        done = hvdc("compile", tiny_checkpoint, "--target", word, "--dry-run", *SMALL_VIDEO)
        assert done.status == 2
        assert word in done.err
    assert target_names()[0] in hvdc("compile", tiny_checkpoint, "--target", "x", "--dry-run").err


def test_this_machine_is_probed(output: Path, runtimes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    done = hvdc("probe", "--host", "-o", output, "--largest-mib", 20, "--total-mib", 64, "--mappings", 20, "-q")
    assert done.status == 0, done.err
    found = read_target(output)
    assert found.region_cap_bytes.value == 20 * MIB
    assert found.mapping_budget_bytes.value == 60 * MIB
    assert found.mapping_count is not None
    assert found.mapping_count.value == 20
    if not why_no_gpu():
        assert found.gpu_import is not None
        assert found.gpu_import.value == "host-pointer"
        assert found.dot_forms is not None
        assert "plain" in found.dot_forms.value


@pytest.mark.parametrize("options", [(), ("--host", "--device", "x")])
def test_a_place_must_be_named(options: tuple[str, ...]) -> None:
    done = hvdc("probe", *options)
    assert done.status == 2
    assert "which machine is to be probed?" in done.err


def test_what_is_there_is_kept(probe: Callable[..., Result], output: Path) -> None:
    output.write_text("mine")
    assert probe(text(FACTS)).status == 2
    assert output.read_text() == "mine"
    assert probe(text(FACTS), "--force").status == 0
    assert tomllib.loads(output.read_text())["name"] == "sm8750"


def test_target_files_are_complete_copies(probe: Callable[..., Result], output: Path, tmp_path: Path) -> None:
    """A file alone describes a target: nothing else is looked up."""
    assert probe(text(FACTS)).status == 0
    moved = shutil.copy(output, tmp_path / "moved.toml")
    assert read_target(Path(moved)) == read_target(output)
