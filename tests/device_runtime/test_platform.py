"""Shared memory, processes and messages: what the two processes of a stream stand on."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.artifacts import Spec, edit_tensor, make_artifact, read_manifest

BIG = Spec(layers=3, width=256, ffn_width=704, calibrated=True)
"""Regions just below the cap of test artifacts."""
SHARED = ("region", "adapter")


@pytest.fixture(scope="module")
def tool(programs: dict[str, Path]) -> Path:
    return programs["hvdc_platform_check"]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_artifact(tmp_path_factory.mktemp("shared") / "a.hvdc", BIG)


def say(tool: Path, *arguments: object, given: str = "") -> tuple[int, list[str]]:
    """Exit status and lines, also those of a child, whose stdout is stderr."""
    done = subprocess.run(
        [tool, *map(str, arguments)], input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert "Sanitizer" not in done.stdout, done.stdout
    return done.returncode, done.stdout.splitlines()


def shared_bytes(artifact: Path) -> int:
    return sum(f.bytes for f in read_manifest(artifact).files if f.kind in SHARED)


def test_a_host_has_one_kind_of_shared_memory(tool: Path) -> None:
    """The kinds of a phone are compiled for a phone only; here is nothing that pretends to be one."""
    assert say(tool, "kinds") == (0, ["kind memfd works", "chosen memfd"])


def test_what_is_sealed_cannot_be_changed(tool: Path) -> None:
    """Neither through the mapping nor the descriptor, nor through one that root opens again."""
    _, (value, *outcomes) = say(tool, "seal")
    assert value == "value 42"
    assert [line.split(" ")[0] for line in outcomes] == [
        "write", "map", "protect", "write-again", "map-again", "shrink", "grow", "unseal"
    ]  # fmt: skip
    assert not [line for line in outcomes if line.endswith("worked")]


def test_weights_are_loaded_and_verified(tool: Path, artifact: Path) -> None:
    files = sum(f.kind in SHARED for f in read_manifest(artifact).files)
    status, (line,) = say(tool, "load", artifact)
    assert status == 0
    assert line.split(" ")[2:] == ["same", "read-only", str(files), str(shared_bytes(artifact)), "memfd"]


@pytest.mark.parametrize("kind", ["region", "adapter", "host", "schedule", "calibration"])
def test_a_changed_byte_of_any_file_is_found_while_loading(tool: Path, tmp_path: Path, kind: str) -> None:
    root = make_artifact(tmp_path / "a.hvdc", Spec(calibrated=True))
    path = next(f.path for f in read_manifest(root).files if f.kind == kind)
    data = bytearray((root / path).read_bytes())
    data[len(data) // 2] ^= 1
    (root / path).write_bytes(data)
    status, (line,) = say(tool, "load", root)
    assert status == 1
    assert line.startswith(f"failure 2 {path}: its SHA-256 is not the one in the artifact's index")


def test_weights_that_do_not_fit_are_refused_before_any_is_copied(tool: Path, artifact: Path) -> None:
    kib = shared_bytes(artifact) // 1024
    assert say(tool, "load", artifact, kib)[0] == 0
    status, (line,) = say(tool, "load", artifact, kib - 1)
    assert status == 1
    assert line.startswith("failure 4 the weights take ")
    assert "are allowed; raise the limit" in line


MIB = 1 << 20


@pytest.mark.parametrize(
    ("group", "files", "available"),
    [
        ("0::/\n", {}, 1000),
        ("0::/\n", {"memory.max": "max"}, 1000),
        ("0::/\n", {"memory.max": 600 * MIB, "memory.current": 200 * MIB}, 400),
        ("0::/\n", {"memory.max": 600 * MIB, "memory.current": 200 * MIB, "memory.stat": "x 1\ninactive_file 50"}, 450),
        ("0::/\n", {"memory.max": 600 * MIB, "memory.current": 700 * MIB}, 0),
        ("0::/\n", {"memory.max": 6000 * MIB}, 1000),
        ("2:cpu:/a\n0::/a/b\n", {"a/memory.max": 300 * MIB, "a/b/memory.max": "max"}, 300),
        ("0::/a/b\n", {"a/memory.max": 300 * MIB, "a/b/memory.max": 200 * MIB, "memory.max": 250 * MIB}, 200),
        ("0::/elsewhere\n", {"memory.max": 70 * MIB}, 70),
        ("4:memory:/a\n", {"memory.max": 70 * MIB}, 1000),
        ("", {"memory.max": 70 * MIB}, 1000),
    ],
)
def test_available_memory_is_the_machines_or_less_in_a_control_group(
    tool: Path, group: str, files: dict[str, object], available: int, tmp_path: Path
) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "sys" / "fs" / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:   {1000 * 1024} kB\n")
    (proc / "self" / "cgroup").write_text(group)
    for name, value in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        text = str(value).replace("inactive_file 50", f"inactive_file {50 * MIB}")
        (groups / name).write_text(f"{text}\n")
    assert say(tool, "available", tmp_path) == (0, [str(available * MIB)])


def test_available_memory_is_not_known_where_nothing_says_it(tool: Path, tmp_path: Path) -> None:
    assert say(tool, "available", tmp_path) == (0, [str(2**64 - 1)])


class Sharing:
    """`hvdc_platform_check share`: both processes with the weights mapped, until it is left."""

    def __init__(self, tool: Path, artifact: Path) -> None:
        self._process = subprocess.Popen(
            [tool, "share", artifact, artifact],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        said = dict(line.split(" ", 1) for line in (self._process.stdout.readline() for _ in range(2)))
        self.facts = {who: rest.split() for who, rest in said.items()}
        self.pids = {who: int(rest[0]) for who, rest in self.facts.items()}

    def __enter__(self) -> Sharing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        out, _ = self._process.communicate(timeout=30)
        if kind is None:
            assert out.splitlines() == ["reader: it ended with status 0"]
            assert self._process.returncode == 0


def weight_pages(pid: int) -> dict[str, int]:
    """Bytes of the weights' mappings of a process, by field of /proc/PID/smaps."""
    total: dict[str, int] = {}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if "-" in key.split(" ")[0]:
            inside = "memfd:hvdc:" in line
            assert not inside or line.split(" ")[1] == "r--s", line
        elif inside and rest.endswith("kB"):
            total[key] = total.get(key, 0) + 1024 * int(rest.split()[0])
    return total


def rollup_pss(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])


def test_two_processes_hold_the_weights_once(programs: dict[str, Path], tmp_path: Path) -> None:
    """Both have every page mapped, read-only; each page counts half to either (Pss)."""
    big = make_artifact(tmp_path / "big.hvdc", replace(BIG, layers=24))
    small = make_artifact(tmp_path / "small.hvdc", Spec(calibrated=True))
    sizes = {root: shared_bytes(root) for root in (big, small)}
    assert sizes[big] > 16 << 20
    both: dict[Path, int] = {}
    for root in (big, small):
        with Sharing(programs["hvdc_platform_check"], root) as sharing:
            assert [facts[1:3] for facts in sharing.facts.values()] == [["same", "read-only"]] * 2
            pages = [weight_pages(pid) for pid in sharing.pids.values()]
            assert [p["Rss"] for p in pages] == [sizes[root]] * 2
            assert [p["Pss"] for p in pages] == [sizes[root] // 2] * 2
            both[root] = sum(rollup_pss(pid) for pid in sharing.pids.values())
    # The artifact's own mapping counts once too: the files in the page cache, which `same` has read.
    data = {root: sum(f.bytes for f in read_manifest(root).files) for root in (big, small)}
    extra = both[big] - both[small] - (sizes[big] - sizes[small]) - (data[big] - data[small])
    assert abs(extra) < 4 << 20, "a second copy of the weights would be more than 16 MiB"


def test_the_reader_refuses_another_artifact(tool: Path, artifact: Path, tmp_path: Path) -> None:
    other = make_artifact(tmp_path / "other.hvdc", Spec(seed=1))
    status, lines = say(tool, "share", artifact, other)
    assert status == 1
    assert "failure 2 the two processes have opened different artifacts" in "\n".join(lines)


def test_the_reader_refuses_an_artifact_that_differs_in_one_weight(tool: Path, artifact: Path, tmp_path: Path) -> None:
    """Same names, same sizes: only the hashes tell."""
    other = make_artifact(tmp_path / "other.hvdc", BIG)

    def flip(data: bytearray, _: object) -> None:
        data[0] ^= 1

    edit_tensor(other, "blocks.0.attn1.to_q.weight", flip)
    status, lines = say(tool, "share", artifact, other)
    assert status == 1
    assert "different artifacts" in "\n".join(lines)


LIES = {
    "no-offer": "message 259 of 48 bytes where message 256",
    "short-offer": "message 256 of 47 bytes",
    "fewer-files": "the other process offers",
    "more-bytes": "the other process offers",
    "no-descriptor": "came without its descriptor",
    "another-file": "which is not due",
    "another-size": "where",
    "twice": "which is not due",
    "unsealed": "can still be written",
    "larger": "where",
    "not-memory": "where",
}


@pytest.mark.parametrize("lie", LIES)
def test_an_owner_that_lies_is_found_out(tool: Path, artifact: Path, lie: str) -> None:
    """The owner hears the reader's reason, and nothing was mapped for good: the reader ends."""
    status, lines = say(tool, "share", artifact, artifact, lie)
    assert status == 1
    said = [line for line in lines if line.startswith("failure")]
    assert len(said) == 2, "the owner's line and the reader's"
    assert all(LIES[lie] in line for line in said), lines
    assert "reader: it ended with status 1" in lines


def test_an_owner_that_goes_away_is_noticed(tool: Path, artifact: Path) -> None:
    _, lines = say(tool, "share", artifact, artifact, "gone")
    assert any("has closed its end" in line for line in lines)


def test_a_reader_that_says_nothing_is_given_up(tool: Path, artifact: Path) -> None:
    """Both wait for each other; the owner's patience of 1 s ends first."""
    _, lines = say(tool, "share", artifact, artifact, "silent")
    assert "failure 5 the other process has been silent for 1.0 s" in lines


def test_a_child_says_how_it_ended(tool: Path) -> None:
    assert say(tool, "child", "/bin/sh", "-c", "exit 7")[1][0] == "it ended with status 7"
    assert say(tool, "child", "/bin/sh", "-c", "kill -9 $$")[1][0] == "it was killed by signal 9"
    assert say(tool, "child", "/bin/sleep", "100")[1] == ["still there", "it was killed by signal 9"]


def test_a_program_that_is_not_there_is_said(tool: Path) -> None:
    _, (line,) = say(tool, "child", "/nonexistent/program")
    assert line == "failure 5 the process /nonexistent/program cannot be started: No such file or directory"


def test_a_child_that_does_not_begin_is_given_up(tool: Path) -> None:
    """Stopped between fork and exec, where nobody else has a hold of it."""
    status, (line,) = say(tool, "stopped", "/bin/true")
    assert status == 1
    assert "the process /bin/true has not begun within 0.5 s: it was stopped" in line


def test_a_child_inherits_four_descriptors(tool: Path) -> None:
    """stdin is /dev/null, stdout is stderr, 3 is the socket; others stay with the caller, close-on-exec or not."""
    extra = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(extra, True)
    see = "for fd in $(seq 0 99); do [ -e /proc/$$/fd/$fd ] && readlink /proc/$$/fd/$fd; done; true"
    try:
        command = [str(tool), "child", "/bin/sh", "-c", see]
        to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, text=True, check=True, pass_fds=(extra,), **to)
    finally:
        os.close(extra)
    stdin, stdout, stderr, third, ended, _ = done.stdout.splitlines()
    assert ended == "it ended with status 0"
    assert stdin == "/dev/null"
    assert stdout.startswith("pipe:")
    assert stderr.startswith("pipe:")
    assert third.startswith("socket:")


def test_a_child_dies_with_its_parent(tool: Path) -> None:
    with subprocess.Popen([tool, "child", "/bin/sleep", "100"], stdout=subprocess.PIPE) as parent:
        children: list[str] = []
        while not children:
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        # Until it has become the other program it is a copy of its parent.
        while Path(f"/proc/{children[0]}/comm").read_text().strip() != "sleep":
            time.sleep(0.005)
        parent.kill()
    for _ in range(1000):
        if not Path(f"/proc/{children[0]}/cmdline").exists() or not Path(f"/proc/{children[0]}/cmdline").read_bytes():
            return
        time.sleep(0.005)
    raise AssertionError("it is still there")


class Channel:
    """`hvdc_platform_check channel`."""

    def __init__(self, tool: Path) -> None:
        self._process = subprocess.Popen([tool, "channel"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(line + "\n")
        stdin.flush()
        return stdout.readline().rstrip("\n")

    def make(self, kind: int, payload: bytes) -> bytes:
        """A message as it is sent first."""
        return bytes.fromhex(self.ask(f"make {kind} {payload.hex()}"))

    def take(self, packet: bytes) -> tuple[int, int, int, str]:
        """What a receiver makes of it as the first one: 0 message, 3 damage; kind; bytes; why not."""
        received, kind, size, why = self.ask(f"take {packet.hex()}").split(" ", 3)
        return int(received), int(kind), int(size), why

    def close(self) -> None:
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def channel(tool: Path) -> Iterator[Channel]:
    running = Channel(tool)
    yield running
    running.close()


PACKET_HEAD_BYTES = 40


@pytest.mark.parametrize("size", [0, 1, 8, 100, 1535, 1536])
def test_a_message_arrives_as_it_was_sent(channel: Channel, size: int) -> None:
    packet = channel.make(7, bytes(range(256)) * 6)[: PACKET_HEAD_BYTES + size]
    whole = channel.make(7, packet[PACKET_HEAD_BYTES:])
    assert len(whole) == PACKET_HEAD_BYTES + size
    assert channel.take(whole) == (0, 7, size, "")


def test_a_message_that_is_too_long_is_not_sent(channel: Channel) -> None:
    assert "longer than any may be" in channel.ask(f"make 7 {bytes(1537).hex()}")


def test_any_flipped_bit_is_noticed(channel: Channel) -> None:
    packet = channel.make(7, b"payload")
    for at in range(len(packet)):
        for bit in range(8):
            damaged = bytearray(packet)
            damaged[at] ^= 1 << bit
            assert channel.take(bytes(damaged))[0] == 3, (at, bit)


def test_any_other_length_is_noticed(channel: Channel) -> None:
    packet = channel.make(7, b"payload")
    for size in range(1, len(packet)):
        assert channel.take(packet[:size])[0] == 3
    assert channel.take(packet + b"\0")[0] == 3
    assert "longer than any message" in channel.take(packet + bytes(4000))[3]


def test_another_abi_says_so(channel: Channel) -> None:
    packet = bytearray(channel.make(7, b"payload"))
    packet[4] ^= 2
    assert channel.take(bytes(packet))[3].startswith("the other process speaks ABI version 1 and this one 3")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(packet=st.binary(min_size=1, max_size=300), cut=st.integers(0, 47))
def test_no_other_bytes_are_a_message(channel: Channel, packet: bytes, cut: int) -> None:
    real = channel.make(7, b"payload")
    assert channel.take(packet)[0] == 3
    assert (real[:cut] + packet == real) or channel.take(real[:cut] + packet)[0] == 3
