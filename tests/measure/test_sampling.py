"""Looks while something is measured: what a device's shell prints, what it costs, and that nothing depends on it."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc.measure import sampling as module
from hvdc.measure.conditions import Conditions
from hvdc.measure.places import HostPlace, followed
from hvdc.measure.sampling import Samples, loop, sampling

SHELLS = [shell for shell in ("mksh", "dash", "bash") if shutil.which(shell)]


def samples(*looks: str) -> Samples:
    found = Samples()
    for look in looks:
        for line in [*look.splitlines(), "0m00.10s     0m00.05s", "0m01.00s 0m00.25s", module._END]:
            found.take(line)
    return found


def test_the_hottest_and_the_worst_are_of_all_looks() -> None:
    found = samples(
        "hvdc temperature gpuss-0 41000\nhvdc hz gpu now 1100000000\nhvdc status thermal 0",
        "hvdc temperature gpuss-0 63500\nhvdc hz gpu now 500000000\nhvdc status thermal 3",
        "hvdc temperature gpuss-0 52000\nhvdc hz gpu now 900000000\nhvdc status thermal 1",
    )
    assert len(found.seen) == 3
    assert found.hottest is not None
    assert found.hottest[1:] == ("gpuss-0", 63.5)
    assert found.throttling == "severe"
    assert found.clocks_hz("gpu") == (500_000_000, 1_100_000_000)
    assert found.clocks_hz("policy0") is None
    assert found.cost_s == pytest.approx(1.4)
    text = found.text()
    assert "3 looks, hottest 63.5 °C (gpuss-0, after 0 s), GPU 500 to 1100 MHz, throttling up to severe" in text
    assert text.endswith("which took 1.40 s of one processor")
    assert len(found.facts()["seen"]) == 3  # type: ignore[arg-type]


def test_power_is_the_whole_phones_and_only_from_its_battery() -> None:
    draining = "hvdc state charging Discharging\nhvdc microamperes battery -1500000\nhvdc microvolts battery 4000000"
    found = samples(draining, draining.replace("Discharging", "Charging"), draining.replace("-15", "25"))
    assert found.power_w == (6.0, 10.0)
    assert "whole phone 8.00 W on average of 2 (by its battery)" in found.text()


def test_nothing_seen_says_nothing() -> None:
    assert samples("", "a driver's words").seen == []
    assert samples().text() == ""


@given(st.lists(st.text(max_size=80), max_size=30))
def test_any_lines_are_taken(said: list[str]) -> None:
    found = Samples()
    for line in [*said, module._END]:
        found.take(line)
    assert isinstance(found.text(), str)


def test_endless_lines_are_not_kept() -> None:
    found = Samples()
    for _ in range(100):
        found.take("x" * 10_000)
    assert sum(map(len, found._lines)) <= module.SAMPLE_BYTES


@pytest.fixture(params=SHELLS)
def follow(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """As a place does it, with sensors of a test."""
    zone = tmp_path / "class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("gpuss-0\n")
    (zone / "temp").write_text("41500\n")

    def run(text: str, lines: Callable[[str], None], enough: threading.Event) -> None:
        process = subprocess.Popen(
            [str(request.param), "-c", text.replace("/sys/", f"{tmp_path}/")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        followed(process, lines, enough)
        assert process.poll() is not None, "it does not outlive the block"

    return run


def test_a_shell_looks_until_the_block_ends(follow: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "loop", lambda: loop(1))
    with sampling(follow) as found:
        end_s = time.monotonic() + 20
        while len(found.seen) < 2 and time.monotonic() < end_s:
            time.sleep(0.02)
    assert [look for _, look in found.seen[:2]] == [Conditions({"gpuss-0": 41.5})] * 2
    assert found.seen[0][0] < found.seen[1][0]


@pytest.mark.parametrize("shell", SHELLS)
def test_who_looks_ends_with_who_asked(shell: str) -> None:
    """However that one ended: what is left of it is that its end of the input is closed."""
    process = subprocess.Popen([shell, "-c", loop(1)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    time.sleep(0.3)
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(10) != 0


def test_a_look_costs_little(follow: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by the shell itself; files alone, as the services of Android are not here."""
    monkeypatch.setattr(module, "loop", lambda: loop(1))
    with sampling(follow) as found:
        end_s = time.monotonic() + 20
        while len(found.seen) < 2 and time.monotonic() < end_s:
            time.sleep(0.02)
    assert found.cost_s / max(1, len(found.seen)) < 0.1


def test_that_it_cannot_look_costs_nothing_else() -> None:
    def fail(text: str, lines: Callable[[str], None], enough: threading.Event) -> None:
        raise OSError("no")

    with sampling(fail) as found:
        pass
    assert found.seen == []


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    from hvdc.pipeline.runtime_kept import Runtime

    place = HostPlace(Runtime("host", tmp_path, "", "", {}, built=False), None, None)
    with sampling(place.follow) as found:
        time.sleep(0.3)
    assert found.cost_s >= 0
