"""`hvdc probe`: what a platform allows becomes a target that `hvdc compile` takes; a crash leaves what was learnt."""

from __future__ import annotations

import re
import shutil
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.layout import TARGET, Layout
from hvdc.deploy.store import Store
from hvdc.files import write_durably
from hvdc.measure.probe import PROGRAM
from hvdc.targets import load_target, read_target, target_names
from tests.adb_peer.peer import Peer
from tests.adb_peer.phone import GALAXY_S25
from tests.adb_peer.server import AdbServer
from tests.commands import SMALL_VIDEO, Result, hvdc
from tests.deploy.artifacts import script
from tests.device_runtime.runs import why_no_gpu
from tests.measure.phones import FACTS, MIB, text
from tests.measure.programs import stand_in


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a probe leaves for the next one is each test's own."""
    monkeypatch.setenv("HVDC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "phone.toml"


@pytest.fixture
def probe(tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``probe(answer, *options)``: `hvdc probe --host` whose program answers so."""

    def run(answer: str, *options: object, status: int = 0, said: tuple[str, ...] = (), write: bool = True) -> Result:
        runtime = stand_in(tmp_path / "runtime", answer, status, said, PROGRAM)
        monkeypatch.setattr("hvdc.measure.probe_run.find_runtime", lambda target, progress, say: runtime)
        done = hvdc("probe", "--host", *(("-o", output) if write else ()), *options)
        assert "Traceback" not in done.err
        return done

    return run


def words(tmp_path: Path) -> list[str]:
    return (tmp_path / "runtime" / "words").read_text().splitlines()


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


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """``phone(program)``: the runtime for Android has this `hvdc_probe`."""

    def make(program: bytes) -> None:
        runtime = stand_in(tmp_path / "android", "", 0, (), PROGRAM)
        (runtime.folder / PROGRAM).write_bytes(program)
        monkeypatch.setattr("hvdc.measure.probe_run.find_runtime", lambda target, progress, say: runtime)
        monkeypatch.setattr("hvdc.measure.probe_run.kept_runtime", lambda target: None)

    return make


def answering(answer: str, status: int = 0, more: str = "") -> bytes:
    return script(f"cat <<'END'\n{answer}END\n{more}\nexit {status}")


def test_a_phone_is_probed(peer: Peer, phone: Callable[[bytes], None], output: Path) -> None:
    phone(answering(text(FACTS)))
    done = hvdc("probe", "--device", peer.serial, "-o", output)
    assert done.status == 0, done.err
    found = read_target(output)
    assert (found.name, found.soc) == ("sm8750", "Snapdragon 8 Elite (SM8750)")
    assert "on samsung SM-S931B, SM8750 (Snapdragon 8 Elite), arm64-v8a, Android 15" in found.region_cap_bytes.source
    assert peer.serial not in output.read_text()
    left = [path.name for path in (peer.phone.target / "hvdc").iterdir()]
    assert "probe" not in left, "what was sent is removed"


def test_a_phone_that_is_full_and_says_nothing_is_not_probed(
    peer: Peer, phone: Callable[[bytes], None], output: Path
) -> None:
    phone(answering(text(FACTS)))
    peer.faults.full_at_bytes, peer.faults.full_in_silence = 100, True
    done = hvdc("probe", "--device", peer.serial, "-o", output)
    assert (done.status, "is not what was sent" in done.err) == (5, True), done.err
    assert not output.exists()
    assert not (peer.phone.target / "hvdc" / "probe").exists()


def test_a_phone_is_not_probed_while_something_is_deployed(
    peer: Peer, phone: Callable[[bytes], None], output: Path, device: AdbDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would cost the other its time and its memory."""
    monkeypatch.setattr("hvdc.deploy.lock.LOCK_S", 0.2)
    phone(answering(text(FACTS)))
    store = Store(device, Layout(TARGET))
    store.prepare()
    with store.lock() as lock:
        lock.keep()
        done = hvdc("probe", "--device", peer.serial, "-o", output)
    assert (done.status, "another hvdc is changing this device now" in done.err) == (5, True), done.err
    assert hvdc("probe", "--device", peer.serial, "-o", output).status == 0


def test_a_phone_of_another_soc_has_its_own_name(
    plugged: Callable[..., Peer], phone: Callable[[bytes], None], output: Path
) -> None:
    phone(answering(text(FACTS)))
    peer = plugged(properties=GALAXY_S25 | {"ro.soc.model": "SM8650"})
    done = hvdc("probe", "--device", peer.serial, "-o", output)
    assert done.status == 0, done.err
    assert (read_target(output).name, read_target(output).soc) == ("sm8650", "Snapdragon 8 Gen 3 (SM8650)")
    assert "QNN's number of the SoC and its graph limits are those of sm8750: check them" in done.out


def test_a_phone_that_goes_down_leaves_what_was_learnt(
    peer: Peer, phone: Callable[[bytes], None], output: Path
) -> None:
    upto = next(i for i, fact in enumerate(FACTS) if fact == {"fact": "trying", "what": "region", "bytes": 511 * MIB})
    phone(answering(text(FACTS[: upto + 1]), more='echo >"$TMPDIR/reached"; sleep 30'))

    def go_down() -> None:
        end_s = time.monotonic() + 20
        while not (peer.phone.target / "reached").exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        time.sleep(0.5)
        peer.__exit__(None, None, None)

    downfall = threading.Thread(target=go_down)
    downfall.start()
    done = hvdc("probe", "--device", peer.serial, "-o", output)
    downfall.join()
    assert done.status == 5, done.err
    assert "while it tried region of 511 MiB" in done.err
    found = read_target(output)
    assert found.region_cap_bytes.value == 510 * MIB
    assert "the probe ended while it tried 511 MiB" in found.region_cap_bytes.source


def test_the_real_program_on_a_device_that_is_this_machine(
    plugged: Callable[..., Peer], output: Path, runtimes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    peer = plugged(properties={}, machine=None)
    sizes = ("--largest-mib", 20, "--total-mib", 64, "--mappings", 20)
    done = hvdc("probe", "--device", peer.serial, "-o", output, *sizes)
    assert done.status == 0, done.err
    assert read_target(output).region_cap_bytes.value == 20 * MIB


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


AT_511 = next(i for i, fact in enumerate(FACTS) if fact == {"fact": "trying", "what": "region", "bytes": 511 * MIB}) + 1


def test_the_file_is_written_as_facts_come(
    probe: Callable[..., Result], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every fact it is whole, and says that it is not the end."""
    texts: list[str] = []

    def seen(path: Path, data: bytes, **more: Any) -> None:
        texts.append(data.decode())
        write_durably(path, data, **more)

    monkeypatch.setattr("hvdc.measure.probe_run.write_durably", seen)
    assert probe(text(FACTS)).status == 0
    assert len(texts) > 10
    for one in texts[:-1]:
        assert one.startswith("# UNFINISHED probe ")
        assert "killed" in one
        assert tomllib.loads(one)["name"] == "sm8750"
    assert "UNFINISHED" not in texts[-1]


def test_the_next_one_goes_on_with_an_unfinished_file(
    probe: Callable[..., Result], output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdc.measure.probe_run._identity", lambda *runtimes: "the same programs")
    assert probe(text(FACTS[:AT_511]), status=139).status == 1
    assert output.read_text().startswith("# UNFINISHED probe ")
    rest = [{"hvdc_probe": 1}, *(fact for fact in FACTS[AT_511:] if fact.get("fact") != "region")]
    done = probe(text(rest))
    assert done.status == 0, done.err
    assert "a probe of this device has ended while it tried region of 511 MiB: that is not tried again" in done.err
    said = words(tmp_path)
    assert said[said.index("--avoid") + 1] == f"region:{511 * MIB}"
    assert said[said.index("--known-mib") + 1] == "510"
    found = read_target(output)
    assert found.region_cap_bytes.value == 510 * MIB
    assert "a probe before has ended while it tried 511 MiB" in found.region_cap_bytes.source
    assert found.dot_forms is not None, "learnt by the first one alone"
    assert "UNFINISHED" not in output.read_text()
    assert "not tried, since a probe before has ended at it: region of 511 MiB" in done.out


def test_what_was_deadly_is_known_whatever_the_output_is_called(
    probe: Callable[..., Result], output: Path, tmp_path: Path
) -> None:
    assert probe(text(FACTS[:AT_511]), status=139).status == 1
    done = probe(text(FACTS), "--json", write=False)
    assert done.json()["not_tried_again"] == [{"what": "region", "bytes": 511 * MIB}]
    assert probe(text(FACTS), "--forget", "--force").status == 0
    assert "--avoid" not in words(tmp_path)


def test_an_unfinished_file_of_another_device_is_kept(probe: Callable[..., Result], output: Path) -> None:
    output.write_text(f"# UNFINISHED probe {'0' * 16}\n# of another phone\n")
    done = probe(text(FACTS))
    assert done.status == 2
    assert "the output is of another device" in done.err
    assert "another phone" in output.read_text()
    assert probe(text(FACTS), "--force").status == 0


ONCE = """if [ -e "$TMPDIR/once" ]; then
  printf '%s\\n' "$@" >"$TMPDIR/words"
  cat <<'END'
{all}END
  exit
fi
cat <<'END'
{some}END
echo >"$TMPDIR/once"
sleep 30"""
"""A probe that hangs at 511 MiB, but for the second time."""


@pytest.mark.parametrize("restarts", [False, True])
def test_a_phone_that_was_only_unplugged_is_asked_again(
    peer: Peer, phone: Callable[[bytes], None], output: Path, adb_server: AdbServer, restarts: bool
) -> None:
    """One that has started anew since then is not: the step may have been why."""
    phone(script(ONCE.format(all=text(FACTS), some=text(FACTS[:AT_511]))))
    once, said = peer.phone.target / "once", peer.phone.target / "words"

    def unplug() -> None:
        end_s = time.monotonic() + 20
        while not once.exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        time.sleep(0.3)
        peer.cut()

    puller = threading.Thread(target=unplug)
    puller.start()
    done = hvdc("probe", "--device", peer.serial, "-o", output)
    puller.join()
    assert done.status == 5, done.err
    assert "the device was lost" in done.err
    if restarts:
        peer.phone.properties["ro.runtime.firstboot"] = "1700000000000"
        peer.phone.faults.clock_off_s += 1  # its programs are made anew
        peer.phone.refresh()
    end_s = time.monotonic() + 20
    while (done := hvdc("probe", "--device", peer.serial, "-o", output)).status == 5 and time.monotonic() < end_s:
        adb_server.connect(peer.serial)
        time.sleep(0.2)
    assert done.status == 0, done.err
    assert (f"region:{511 * MIB}" in said.read_text()) == restarts
    assert "--known-mib\n510\n" in said.read_text()
