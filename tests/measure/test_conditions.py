"""Temperatures and clocks: one script for every kernel, and a reader that takes nothing for a number that is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc.measure.conditions import SCRIPT, Battery, Conditions, parse_conditions

FILES = {
    "class/thermal/thermal_zone0/type": "cpu-0-0-0\n",
    "class/thermal/thermal_zone0/temp": "41200\n",
    "class/thermal/thermal_zone1/type": "gpuss-0\n",
    "class/thermal/thermal_zone1/temp": "38\n",
    "class/thermal/thermal_zone2/type": "off\n",
    "class/thermal/thermal_zone2/temp": "-273000\n",
    "class/thermal/thermal_zone3/temp": "30100\n",
    "class/thermal/thermal_zone4/type": "empty\n",
    "class/thermal/thermal_zone4/temp": "",
    "class/kgsl/kgsl-3d0/temp": "39500\n",
    "class/kgsl/kgsl-3d0/gpuclk": "900000000\n",
    "class/kgsl/kgsl-3d0/max_gpuclk": "1100000000\n",
    "class/power_supply/battery/temp": "312\n",
    "devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "1785600\n",
    "devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": "3532800\n",
    "devices/system/cpu/cpufreq/policy6/scaling_cur_freq": "4320000\n",
}
"""As a phone with an Adreno has them; written down from its kernel's documentation, not from a phone."""

FOUND = Conditions(
    {"cpu-0-0-0": 41.2, "gpuss-0": 38.0, "zone": 30.1, "kgsl": 39.5, "battery": 31.2},
    {"policy0": (1_785_600_000, 3_532_800_000), "policy6": (4_320_000_000, 0), "gpu": (900_000_000, 1_100_000_000)},
)


DUMPED = """IsStatusOverride: false
Thermal Status: 2
Cached temperatures:
	Temperature{mValue=44.5, mType=0, mName=CPU0, mStatus=0}
HAL Ready: true
Current temperatures from HAL:
	Temperature{mValue=45.1, mType=0, mName=CPU0, mStatus=0}
	Temperature{mValue=39.25, mType=3, mName='skin therm', mStatus=2}
	Temperature{mValue=NaN, mType=9, mName=npu, mStatus=0}
Temperature static thresholds from HAL:
	TemperatureThreshold{mType=3, mName=skin, mHotThrottlingThresholds=[NaN, 41.0], mColdThrottlingThresholds=[NaN]}
"""
"""Of ``dumpsys thermalservice``, after AOSP's sources; not from a phone."""


def read(root: Path, shell: str = "/bin/sh") -> Conditions:
    script = SCRIPT.replace("/sys/", f"{root}/")
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True, timeout=20)
    assert done.stderr == ""
    return parse_conditions(done.stdout)


def test_a_phones_files_are_read(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read(tmp_path)
    assert found == FOUND
    assert found.hottest == ("cpu-0-0-0", 41.2)
    assert "hottest 41.2 °C (cpu-0-0-0)" in found.text()
    assert "GPU 900 of 1100 MHz" in found.text()
    assert "policy6 4320 MHz" in found.text()


def test_androids_service_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dumped").write_text(DUMPED)
    program = tmp_path / "bin" / "dumpsys"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n[ \"$*\" = thermalservice ] && cat '{tmp_path}/dumped'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    found = read(tmp_path / "nothing")
    assert found == Conditions({"CPU0": 45.1, "skin therm": 39.25}, {}, "moderate")
    assert found.text() == "hottest 45.1 °C (CPU0), throttling moderate"
    assert found.facts()["throttling"] == "moderate"


BATTERY = """Current Battery Service state:
  AC powered: false
  USB powered: true
  Wireless powered: false
  Max charging current: 500000
  status: 2
  health: 2
  present: true
  level: 83
  scale: 100
  voltage: 4277
  temperature: 312
  technology: Li-ion
"""
POWER = "Power Manager State:\n  mDirty=0x0\n  mWakefulness=Asleep\n  mWakefulnessChanging=false\n"
"""Of ``dumpsys battery`` and ``dumpsys power``, after AOSP's sources; not from a phone."""


def test_a_phone_tells_its_battery_and_its_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("battery", BATTERY), ("power", POWER), ("thermalservice", DUMPED)):
        (tmp_path / name).write_text(text)
    for name, line in (
        ("dumpsys", f'cat "{tmp_path}/$1"'),
        ("settings", '[ "$*" = "get global low_power" ] && echo 1'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    found = read(tmp_path / "nothing")
    assert found.battery == Battery(83, "charging", ("USB",), None)
    assert (found.screen, found.saves_power) == ("off", True)
    assert found.text().endswith("battery 83 % (charging by USB), screen off, battery saver on")


def test_power_is_the_phones_only_where_nothing_else_feeds_it() -> None:
    """Some kernels count what leaves the battery as positive, others as negative."""
    lines = "hvdc microamperes battery {}\nhvdc microvolts battery 4000000\nhvdc state charging {}\n{}"
    for current in (1_500_000, -1_500_000):
        assert parse_conditions(lines.format(current, "Discharging", "")).battery.power_w == 6.0
        assert parse_conditions(lines.format(current, "Charging", "")).battery.power_w is None
        assert parse_conditions(lines.format(current, "Discharging", "hvdc state source USB")).battery.power_w is None
    assert parse_conditions(lines.format(1_500_000_000, "Discharging", "")).battery.power_w is None, "other units"
    assert "whole phone 6.00 W" in parse_conditions(lines.format(1_500_000, "Discharging", "")).text()


@pytest.mark.parametrize(("status", "throttling"), [(0, "none"), (6, "shutdown"), (7, None), (-1, None)])
def test_a_status_is_one_of_androids(status: int, throttling: str | None) -> None:
    assert parse_conditions(f"hvdc status thermal {status}").throttling == throttling


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    assert read(tmp_path) == Conditions()
    assert Conditions().text() == "neither temperatures nor clocks can be read"
    assert Conditions().hottest is None


def test_this_machine_answers() -> None:
    done = subprocess.run(["/bin/sh", "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=20)
    parse_conditions(done.stdout)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hvdc",
        "temperature x 41000",
        "hvdc temperature x",
        "hvdc temperature x 4e3",
        "hvdc temperature x 151000",
        "hvdc temperature x -273150",
        "hvdc temperature x 0",
        "hvdc temperature x 41000 and more",
        "hvdc khz policy0 1000",
        "hvdc khz policy0 now -5",
        "hvdc khz policy0 most 1000",
        "hvdc volts x 5",
        "hvdc temperature x 99999999999999",
        "hvdc degrees x 151.5",
        "hvdc degrees x 4.5.6",
        "hvdc degrees x .5",
        "hvdc percent battery 101",
        "hvdc state charging 9",
        "hvdc state screen Flying",
        "hvdc state saver null",
    ],
)
def test_what_is_no_measurement_is_passed_over(line: str) -> None:
    assert parse_conditions(line) == Conditions()


@given(st.text(max_size=400))
def test_any_answer_is_read(text: str) -> None:
    found = parse_conditions(text)
    assert all(-40 < degrees < 150 for degrees in found.temperatures_c.values())
    assert found.text()
