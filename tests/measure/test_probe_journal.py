"""What a probe that did not come to its end leaves for the next one: its facts, and what is not tried again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc.measure.probe_journal import DIED, STOPPED, Asked, Journal, arguments, open_journal
from tests.measure.phones import FACTS, MIB, lines

ASKED = Asked("R5CX1234567", "samsung SM-S931B, Android 15", "boot-1", "sources", ("", ""))
UPTO = next(i for i, fact in enumerate(FACTS) if fact == {"fact": "trying", "what": "region", "bytes": 511 * MIB})
TODAY = "2026-11-30"


def opened(folder: Path, asked: Asked = ASKED, *, forget: bool = False, today: str = TODAY) -> Journal:
    return open_journal(folder, asked, today, lambda text: None, forget=forget)


def left(folder: Path, count: int, *more: str, asked: Asked = ASKED) -> None:
    """A probe that heard so many lines, and no more."""
    journal = opened(folder, asked)
    journal.open()
    for line in [*lines(FACTS[:count]), *more]:
        journal.keep(line)


def test_a_phone_that_went_down_is_not_asked_the_same_again(tmp_path: Path) -> None:
    left(tmp_path, UPTO + 1)
    again = opened(tmp_path, replace(ASKED, boot="boot-2"))
    assert again.deadly == (("region", 511 * MIB),)
    known = again.known()
    assert known.largest is not None
    assert known.largest.bytes == 510 * MIB
    assert known.trying is None
    words = arguments(known)
    assert words == ["--avoid", f"region:{511 * MIB}", "--known-mib", 510]


def test_a_phone_that_stayed_up_only_lost_its_cable(tmp_path: Path) -> None:
    left(tmp_path, UPTO + 1)
    again = opened(tmp_path)
    assert again.deadly == ()
    assert arguments(again.known()) == ["--known-mib", 510], "it goes on where it was"


def test_a_phone_that_does_not_say_whether_it_went_down_is_taken_for_one(tmp_path: Path) -> None:
    asked = replace(ASKED, boot="")
    left(tmp_path, UPTO + 1, asked=asked)
    assert opened(tmp_path, asked).deadly == (("region", 511 * MIB),)


def test_a_program_that_died_is_not_asked_the_same_again(tmp_path: Path) -> None:
    left(tmp_path, UPTO + 1, DIED)
    assert opened(tmp_path).deadly == (("region", 511 * MIB),)


def test_what_a_person_stopped_was_not_deadly(tmp_path: Path) -> None:
    left(tmp_path, UPTO + 1, STOPPED)
    again = opened(tmp_path, replace(ASKED, boot="boot-2"))
    assert again.deadly == ()
    assert again.has_facts


def test_deadly_steps_add_up_and_outlive_the_end(tmp_path: Path) -> None:
    left(tmp_path, UPTO + 1, DIED)
    left(tmp_path, 3, DIED)  # "gpu" is tried
    third = opened(tmp_path)
    assert third.deadly == (("region", 511 * MIB), ("gpu", 0))
    third.open()
    third.close(is_done=True)
    fourth = opened(tmp_path)
    assert (fourth.deadly, fourth.has_facts) == (third.deadly, False)
    assert opened(tmp_path, forget=True).deadly == ()


def test_an_end_without_deaths_leaves_nothing(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.open()
    for line in lines(FACTS):
        journal.keep(line)
    journal.close(is_done=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changed", [{"sources": "others"}, {"options": ("Adreno", "")}])
def test_other_programs_and_engines_start_over_and_know_the_danger(tmp_path: Path, changed: dict[str, str]) -> None:
    left(tmp_path, UPTO + 1, DIED)
    again = opened(tmp_path, replace(ASKED, **changed))  # type: ignore[arg-type]
    assert (again.has_facts, again.deadly) == (False, (("region", 511 * MIB),))


@pytest.mark.parametrize("changed", [{"device": "R5CX7654321"}, {"what": "samsung SM-S931B, Android 16"}])
def test_another_device_or_system_knows_nothing(tmp_path: Path, changed: dict[str, str]) -> None:
    left(tmp_path, UPTO + 1, DIED)
    again = opened(tmp_path, replace(ASKED, **changed))  # type: ignore[arg-type]
    assert (again.has_facts, again.deadly) == (False, ())


def test_the_day_is_that_of_the_first_fact(tmp_path: Path) -> None:
    left(tmp_path, 5)
    assert opened(tmp_path, today="2026-12-02").begun == TODAY


def test_mappings_that_are_known_are_not_made_again(tmp_path: Path) -> None:
    """Counted to the end, or until the phone went down; not where the probe ended in between."""
    left(tmp_path, len(FACTS) - 1)
    known = opened(tmp_path).known()
    assert arguments(known)[-4:] == ["--skip", "count", "--skip", "total"]
    total = [{"fact": "mapped", "what": "total", "count": 3, "total_bytes": 384 * MIB, "gpu": True, "dsp": True},
             {"fact": "trying", "what": "total", "bytes": 512 * MIB}]  # fmt: skip
    upto = next(i for i, fact in enumerate(FACTS) if fact.get("what") == "total")
    for boot, skipped in (("boot-1", False), ("boot-2", True)):
        folder = tmp_path / boot
        folder.mkdir()
        left(folder, upto, *lines(total))
        known = opened(folder, replace(ASKED, boot=boot)).known()
        assert known.summed is not None
        assert known.summed.count == 3
        assert (arguments(known)[-1] == "total") == skipped


def test_no_serial_is_kept(tmp_path: Path) -> None:
    left(tmp_path, len(FACTS))
    (path,) = tmp_path.iterdir()
    assert ASKED.device not in path.read_text() + path.name


@given(
    text=st.one_of(st.text(max_size=300), st.sampled_from([json.dumps(f) for f in FACTS])), more=st.text(max_size=80)
)
def test_a_damaged_journal_is_none(tmp_path_factory: pytest.TempPathFactory, text: str, more: str) -> None:
    folder = tmp_path_factory.mktemp("journal")
    (folder / f"{ASKED.key}.jsonl").write_text(f"{text}\n{more}\n")
    assert opened(folder).known().regions == []


def test_a_torn_last_line_costs_itself(tmp_path: Path) -> None:
    left(tmp_path, UPTO, '{"fact": "region", "by')
    again = opened(tmp_path)
    assert again.known().largest is not None


def test_a_full_disk_ends_the_keeping_alone(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.open()

    class Full:
        def tell(self) -> int:
            return 0

        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    journal._file = Full()  # type: ignore[assignment]
    journal.keep('{"fact": "done"}')
    journal.keep('{"fact": "done"}')
    journal.close(is_done=False)
