"""`hvdc probe` that ended before its end: what was learnt is kept, and what was deadly is not tried again."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvdc.files import write_durably
from hvdc.targets import read_target
from tests.commands import Result
from tests.measure.phones import FACTS, MIB, text
from tests.measure.probing.small import AT_511, words


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
