"""One program at a time on a device's engines: held by the program, and by nobody once it has ended, however it did."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc.deploy import in_use as module
from hvdc.deploy.in_use import BUSY, guarded, in_use
from hvdc.deploy.leash import LEASH
from tests.deploy.holders import working

SHELLS = [shell for shell in ("mksh", "dash", "bash") if shutil.which(shell)]


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    if shutil.which("flock") is None:
        pytest.skip("there is no flock")
    return str(request.param)


def ask(
    shell: str, lock: Path, what: str = "hvdc run, b", command: str = "exec true", wait_s: int = 0
) -> tuple[int, str]:
    done = subprocess.run(
        [shell, "-c", guarded(str(lock), what, command, wait_s)], capture_output=True, text=True, check=False,
        timeout=30,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_second_one_is_told_who_and_since_when(shell: str, tmp_path: Path) -> None:
    with working(shell, tmp_path / "lock") as process:
        status, said = ask(shell, tmp_path / "lock")
        assert status == BUSY
        error = in_use(said, "a phone", "/x/lock")
    assert error.found.startswith("hvdc bench, dcm, from this computer, for ")
    assert f"adb shell kill {process.pid})" in error.fix


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_whatever_ends_it_frees_it(shell: str, tmp_path: Path, number: int) -> None:
    with working(shell, tmp_path / "lock") as process:
        os.kill(process.pid, number)
        process.wait(10)
        assert ask(shell, tmp_path / "lock") == (0, "")


def test_the_first_process_is_the_program_itself(shell: str, tmp_path: Path) -> None:
    """A device's daemon ends that one alone when the link is gone."""
    with working(shell, tmp_path / "lock") as process:
        end_s = time.monotonic() + 10
        command = Path(f"/proc/{process.pid}/cmdline")
        while b"sleep" not in command.read_bytes().split(b"\0")[0] and time.monotonic() < end_s:
            time.sleep(0.01)
        assert command.read_bytes().split(b"\0")[0].endswith(b"sleep")


def test_it_ends_with_who_started_it(shell: str, tmp_path: Path) -> None:
    """Its input ends with them, however they ended; and the lock is free then."""
    script = guarded(str(tmp_path / "lock"), "x", f"{LEASH}exec sleep 60 </dev/null")
    process = subprocess.Popen([shell, "-c", script], stdin=subprocess.PIPE)
    assert process.stdin is not None
    end_s = time.monotonic() + 10
    while (
        b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0] and time.monotonic() < end_s
    ):
        time.sleep(0.01)
    process.stdin.close()
    assert process.wait(10) == -signal.SIGTERM
    assert ask(shell, tmp_path / "lock") == (0, "")


def test_a_watcher_holds_no_lock(shell: str, tmp_path: Path) -> None:
    """The program ends by itself, and its input is open still. The watcher lets go as soon as it runs."""
    script = guarded(str(tmp_path / "lock"), "x", f"{LEASH}exec true </dev/null")
    process = subprocess.Popen([shell, "-c", script], stdin=subprocess.PIPE)
    assert process.wait(10) == 0
    assert ask(shell, tmp_path / "lock", wait_s=3) == (0, "")
    assert process.stdin is not None
    process.stdin.close()


def test_its_status_and_output_are_the_programs(shell: str, tmp_path: Path) -> None:
    assert ask(shell, tmp_path / "lock", command="echo said >&2; exec sh -c 'exit 7'") == (7, "said\n")


def test_a_link_is_left_alone(shell: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    status, said = ask(shell, tmp_path / "lock")
    assert status == BUSY
    assert "a link is in the way" in str(in_use(said, "a phone", "/x/lock"))
    assert (tmp_path / "elsewhere").read_text() == "precious"


def test_a_device_without_flock_keeps_nobody_out(tmp_path: Path) -> None:
    script = guarded(str(tmp_path / "lock"), "x", "echo ran", wait_s=0)
    (tmp_path / "bin").mkdir()
    date = shutil.which("date")
    assert date is not None
    (tmp_path / "bin" / "date").symlink_to(date)
    done = subprocess.run(
        ["/bin/sh", "-c", script], env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_another_computers_name_stays_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.node", lambda: "ada-laptop")
    script = guarded(str(tmp_path / "lock"), "hvdc run, a'b\"$(x)", "exec true")
    assert "ada" not in script
    subprocess.run(["/bin/sh", "-c", script], check=True)
    since, pid, computer, what = (tmp_path / "lock").read_text().strip().split(" ", 3)
    assert what == "hvdc run, abx"
    monkeypatch.setattr("platform.node", lambda: "another")
    said = f"{module.MARK} {int(since) + 7300} {since} {pid} {computer} {what}"
    assert in_use(said, "p", "l").found == "hvdc run, abx, from another computer, for 2 h 1 min"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h 0 min"), (-5, "a time that the device's clock")],
)
def test_how_long(seconds: int, text: str) -> None:
    said = f"{module.MARK} {1000 + seconds} 1000 77 01234567 hvdc probe"
    assert text in in_use(said, "p", "l").found


@given(st.text(max_size=200))
def test_nonsense_is_no_holder(said: str) -> None:
    assert in_use(said, "p", "l").what
