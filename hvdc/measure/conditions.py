"""Temperatures and clocks of a machine, as its kernel shows them in /sys: the same files on Linux and on Android.

One script for a POSIX shell prints each file that can be read; what cannot be is left out. Android lets the shell's
user read few of them, and tells it temperatures and how far it throttles by a service. Nothing is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SCRIPT = r"""
say() { [ -r "$1" ] && IFS= read -r line <"$1" 2>/dev/null && [ -n "$line" ] && echo "hvdc $2 $line"; }
for zone in /sys/class/thermal/thermal_zone*; do
  name=; [ -r "$zone/type" ] && IFS= read -r name <"$zone/type" 2>/dev/null
  say "$zone/temp" "temperature ${name:-zone}"
done
say /sys/class/kgsl/kgsl-3d0/temp 'temperature kgsl'
say /sys/class/power_supply/battery/temp 'tenths battery'
for policy in /sys/devices/system/cpu/cpufreq/policy*; do
  say "$policy/scaling_cur_freq" "khz ${policy##*/} now"
  say "$policy/cpuinfo_max_freq" "khz ${policy##*/} most"
done
say /sys/class/kgsl/kgsl-3d0/gpuclk 'hz gpu now'
say /sys/class/kgsl/kgsl-3d0/max_gpuclk 'hz gpu most'
if command -v dumpsys >/dev/null 2>&1; then
  dumpsys thermalservice 2>/dev/null | sed -n \
    -e "s/^.*Temperature{mValue=\([-0-9.]*\), mType=[-0-9]*, mName='*\([^,'}]*\)'*,.*$/hvdc degrees \2 \1/p" \
    -e 's/^ *Thermal Status: \([0-9]*\) *$/hvdc status thermal \1/p'
fi
:
"""
"""Lines ``hvdc KIND NAME [now|most] NUMBER``. The service's words are those of AOSP's Temperature.java and
ThermalManagerService.java; no phone was asked."""

THROTTLING = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
"""Android's thermal status, PowerManager.THERMAL_STATUS_*."""

COLDEST_C, HOTTEST_C = -40.0, 150.0
"""Sensors that are switched off say 0 K, or a number of their own."""

_LINE = re.compile(
    r"hvdc (temperature|tenths|degrees|status|khz|hz) (\S[^\n]{0,60}?)(?: (now|most))? (-?\d{1,12}(?:\.\d{1,6})?)\s*",
    re.ASCII,
)
_UNIT_HZ = {"khz": 1000, "hz": 1}


@dataclass(frozen=True)
class Conditions:
    """``temperatures_c``: sensor -> degrees Celsius. ``clocks_hz``: now and at most (0: not known), of ``gpu`` and of
    groups of processors (``policy0``). ``throttling``: of `THROTTLING`, None where nobody says."""

    temperatures_c: dict[str, float] = field(default_factory=dict)
    clocks_hz: dict[str, tuple[int, int]] = field(default_factory=dict)
    throttling: str | None = None

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
        return ", ".join(parts) or "neither temperatures nor clocks can be read"

    def facts(self) -> dict[str, object]:
        """For JSON."""
        clocks = {name: {"now_hz": now, "most_hz": most or None} for name, (now, most) in self.clocks_hz.items()}
        return {"temperatures_c": self.temperatures_c, "clocks_hz": clocks, "throttling": self.throttling}


def parse_conditions(text: str) -> Conditions:
    """What `SCRIPT` printed. Lines that are none of its own, and values that no sensor has, are passed over."""
    temperatures: dict[str, float] = {}
    clocks: dict[str, dict[str, int]] = {}
    throttling = None
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        kind, name, when, number = found[1], found[2], found[3], float(found[4])
        if kind in _UNIT_HZ:
            if when and number > 0:
                clocks.setdefault(name, {})[when] = round(number) * _UNIT_HZ[kind]
            continue
        if kind == "status":
            throttling = THROTTLING[int(number)] if 0 <= number < len(THROTTLING) else None
            continue
        in_thousandths = kind == "temperature" and abs(number) >= 1000
        degrees = number / 10 if kind == "tenths" else number / 1000 if in_thousandths else number
        if COLDEST_C < degrees < HOTTEST_C and degrees != 0:
            temperatures[name] = max(degrees, temperatures.get(name, COLDEST_C))
    now = {name: (clock["now"], clock.get("most", 0)) for name, clock in clocks.items() if "now" in clock}
    return Conditions(temperatures, now, throttling)
