"""What a machine can give, as Linux and a container say it."""

from __future__ import annotations

from pathlib import Path

from hvdc.pipeline.machine import free_memory_bytes, memory_bytes

GIB = 1 << 30


def machine(folder: Path, **files: str) -> tuple[Path, Path]:
    """Files of /proc and of the container."""
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder / "meminfo", folder


def test_what_linux_estimates(tmp_path: Path) -> None:
    at = machine(tmp_path, meminfo="MemTotal: 8388608 kB\nMemFree: 100 kB\nMemAvailable: 2097152 kB\n")
    assert free_memory_bytes(*at) == 2 * GIB


def test_a_container_may_have_less(tmp_path: Path) -> None:
    at = machine(
        tmp_path, meminfo="MemAvailable: 8388608 kB\n", memory_max=f"{4 * GIB}\n", memory_current=f"{3 * GIB}\n",
        memory_stat=f"anon 5\ninactive_file {GIB}\n",
    )  # fmt: skip
    assert free_memory_bytes(*at) == 2 * GIB, "cached files are given up"


def test_a_container_without_a_limit(tmp_path: Path) -> None:
    at = machine(tmp_path, meminfo="MemAvailable: 1048576 kB\n", memory_max="max\n", memory_current="9\n")
    assert free_memory_bytes(*at) == GIB


def test_where_nothing_is_said_it_is_all_there_is(tmp_path: Path) -> None:
    assert free_memory_bytes(*machine(tmp_path)) == memory_bytes() > 0
    assert free_memory_bytes(*machine(tmp_path, meminfo="strange\n", memory_max="\n")) == memory_bytes()
