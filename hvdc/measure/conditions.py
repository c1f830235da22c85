"""What decides how fast a machine is, as it shows it: temperatures, clocks and, of a phone, battery, charging, screen.

The same files of the kernel on Linux and on Android. One script for a POSIX shell prints each that can be read; what
cannot be is left out. Android lets the shell's user read few of them, and tells it temperatures, how far it throttles,
and the rest by services. Nothing is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SAMPLE = r"""
say() { [ -r "$1" ] && IFS= read -r line <"$1" 2>/dev/null && [ -n "$line" ] && echo "hvdc $2 $line"; }
for zone in /sys/class/thermal/thermal_zone*; do
  name=; [ -r "$zone/type" ] && IFS= read -r name <"$zone/type" 2>/dev/null
  say "$zone/temp" "temperature ${name:-zone}"
done
say /sys/class/kgsl/kgsl-3d0/temp 'temperature kgsl'
for policy in /sys/devices/system/cpu/cpufreq/policy*; do
  say "$policy/scaling_cur_freq" "khz ${policy##*/} now"
  say "$policy/cpuinfo_max_freq" "khz ${policy##*/} most"
done
say /sys/class/kgsl/kgsl-3d0/gpuclk 'hz gpu now'
say /sys/class/kgsl/kgsl-3d0/max_gpuclk 'hz gpu most'
say /sys/class/power_supply/battery/temp 'tenths battery'
say /sys/class/power_supply/battery/capacity 'percent battery'
say /sys/class/power_supply/battery/status 'state charging'
say /sys/class/power_supply/battery/current_now 'microamperes battery'
say /sys/class/power_supply/battery/voltage_now 'microvolts battery'
if command -v dumpsys >/dev/null 2>&1; then
  dumpsys thermalservice 2>/dev/null | sed -n \
    -e "s/^.*Temperature{mValue=\([-0-9.]*\), mType=[-0-9]*, mName='*\([^,'}]*\)'*,.*$/hvdc degrees \2 \1/p" \
    -e 's/^ *Thermal Status: \([0-9]*\) *$/hvdc status thermal \1/p'
fi
:
"""
"""Lines ``hvdc KIND NAME [now|most] NUMBER`` and ``hvdc state NAME WORD``: what changes while something is measured.
The services' words are those of AOSP's sources (Temperature.java, ThermalManagerService.java, BatteryService.java,
PowerManagerService.java); no phone was asked."""

SCRIPT = (
    SAMPLE
    + r"""
if command -v dumpsys >/dev/null 2>&1; then
  dumpsys battery 2>/dev/null | sed -n \
    -e 's/^ *level: \([0-9]*\) *$/hvdc percent battery \1/p' \
    -e 's/^ *status: \([0-9]*\) *$/hvdc state charging \1/p' \
    -e 's/^ *\([A-Za-z]*\) powered: true *$/hvdc state source \1/p'
  dumpsys power 2>/dev/null | sed -n -e 's/^ *mWakefulness=\([A-Za-z]*\).*$/hvdc state screen \1/p'
  echo "hvdc state saver $(settings get global low_power 2>/dev/null)"
fi
:
"""
)
"""`SAMPLE`, and what is asked once before and once after."""

THROTTLING = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
"""Android's thermal status, PowerManager.THERMAL_STATUS_*."""

CHARGING = {"1": "unknown", "2": "charging", "3": "discharging", "4": "not charging", "5": "full"}
"""Android's BatteryManager.BATTERY_STATUS_*; the kernel has the words themselves."""
SCREENS = {"awake": "on", "asleep": "off", "dozing": "off", "dreaming": "on"}
"""What Android calls being awake -> the screen."""

COLDEST_C, HOTTEST_C = -40.0, 150.0
"""Sensors that are switched off say 0 K, or a number of their own."""
MOST_W = 60.0
"""A battery that says that it gives more counts in other units."""

_LINE = re.compile(
    r"hvdc (temperature|tenths|degrees|status|khz|hz|percent|microamperes|microvolts) (\S[^\n]{0,60}?)(?: (now|most))?"
    r" (-?\d{1,12}(?:\.\d{1,6})?)\s*",
    re.ASCII,
)
_STATE = re.compile(r"hvdc state (charging|source|screen|saver) (\w[\w ]{0,20})\s*", re.ASCII)
_UNIT_HZ = {"khz": 1000, "hz": 1}


@dataclass(frozen=True)
class Battery:
    """Of a phone. ``charging``: of `CHARGING`'s words. ``sources``: what it is plugged into. ``power_w``: what the
    battery gives, and so what the whole phone takes: only while it is plugged into nothing. None and empty where
    nobody says."""

    level_percent: int | None = None
    charging: str | None = None
    sources: tuple[str, ...] = ()
    power_w: float | None = None

    def parts(self) -> list[str]:
        """For people."""
        level = "" if self.level_percent is None else f" {self.level_percent} %"
        words = filter(None, (self.charging, f"by {' and '.join(self.sources)}" if self.sources else ""))
        state = " ".join(words)
        texts = [f"battery{level}" + (f" ({state})" if state else "")] if level or state else []
        return texts + ([] if self.power_w is None else [f"whole phone {self.power_w:.2f} W"])


@dataclass(frozen=True)
class Conditions:
    """``temperatures_c``: sensor -> degrees Celsius. ``clocks_hz``: now and at most (0: not known), of ``gpu`` and of
    groups of processors (``policy0``). ``throttling``: of `THROTTLING`. ``screen``: ``on`` or ``off``. ``saves_power``:
    Android's battery saver is on. None where nobody says."""

    temperatures_c: dict[str, float] = field(default_factory=dict)
    clocks_hz: dict[str, tuple[int, int]] = field(default_factory=dict)
    throttling: str | None = None
    battery: Battery = Battery()
    screen: str | None = None
    saves_power: bool | None = None

    @property
    def hottest(self) -> tuple[str, float] | None:
        """Sensor and degrees Celsius."""
        return max(self.temperatures_c.items(), key=lambda item: item[1], default=None)

    def text(self) -> str:
        """One line for people."""
        parts = []
        if self.hottest is not None:
            parts.append(f"hottest {self.hottest[1]:.1f} °C ({self.hottest[0]})")
        for name, (now, most) in self.clocks_hz.items():
            whose = "GPU" if name == "gpu" else name
            parts.append(f"{whose} {now / 1e6:.0f}" + (f" of {most / 1e6:.0f} MHz" if most else " MHz"))
        if self.throttling is not None:
            parts.append(f"throttling {self.throttling}")
        parts += self.battery.parts()
        if self.screen is not None:
            parts.append(f"screen {self.screen}")
        if self.saves_power:
            parts.append("battery saver on")
        return ", ".join(parts) or "neither temperatures nor clocks can be read"

    def facts(self) -> dict[str, object]:
        """For JSON."""
        clocks = {name: {"now_hz": now, "most_hz": most or None} for name, (now, most) in self.clocks_hz.items()}
        return {
            "temperatures_c": self.temperatures_c,
            "clocks_hz": clocks,
            "throttling": self.throttling,
            "battery_percent": self.battery.level_percent,
            "charging": self.battery.charging,
            "plugged_into": list(self.battery.sources),
            "whole_phone_w": self.battery.power_w,
            "screen": self.screen,
            "saves_power": self.saves_power,
        }


def parse_conditions(text: str) -> Conditions:
    """What `SCRIPT` or `SAMPLE` printed. Lines of others, and values that no sensor has, are passed over."""
    numbers = [(m[1], m[2], m[3], float(m[4])) for m in map(_LINE.fullmatch, text.splitlines()) if m is not None]
    states: dict[str, list[str]] = {}
    for found in map(_STATE.fullmatch, text.splitlines()):
        if found is not None:
            states.setdefault(found[1], []).append(" ".join(found[2].split()))
    clocks: dict[str, dict[str, int]] = {}
    for kind, name, when, number in numbers:
        if kind in _UNIT_HZ and when and number > 0:
            clocks.setdefault(name, {})[when] = round(number) * _UNIT_HZ[kind]
    statuses = [int(number) for kind, _, _, number in numbers if kind == "status"]
    saver = states.get("saver", [""])[-1]
    return Conditions(
        _temperatures(numbers),
        {name: (clock["now"], clock.get("most", 0)) for name, clock in clocks.items() if "now" in clock},
        THROTTLING[statuses[-1]] if statuses and 0 <= statuses[-1] < len(THROTTLING) else None,
        _battery(numbers, states),
        SCREENS.get(states.get("screen", [""])[-1].lower()),
        {"0": False, "1": True}.get(saver),
    )


_Number = tuple[str, str, str | None, float]


def _temperatures(numbers: list[_Number]) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind, name, _, number in numbers:
        if kind not in ("temperature", "tenths", "degrees"):
            continue
        in_thousandths = kind == "temperature" and abs(number) >= 1000
        degrees = number / 10 if kind == "tenths" else number / 1000 if in_thousandths else number
        if COLDEST_C < degrees < HOTTEST_C and degrees != 0:
            found[name] = max(degrees, found.get(name, COLDEST_C))
    return found


def _battery(numbers: list[_Number], states: dict[str, list[str]]) -> Battery:
    last = {kind: number for kind, _, _, number in numbers}
    word = states.get("charging", [""])[-1].lower()
    charging = CHARGING.get(word, word if word in CHARGING.values() else None)
    percent, sources = last.get("percent"), tuple(dict.fromkeys(states.get("source", ())))
    power_w = abs(last.get("microamperes", 0.0)) * last.get("microvolts", 0.0) * 1e-12
    drains = charging == "discharging" and not sources
    return Battery(
        None if percent is None or not 0 <= percent <= 100 else round(percent), charging, sources,
        power_w if drains and 0 < power_w < MOST_W else None,
    )  # fmt: skip
