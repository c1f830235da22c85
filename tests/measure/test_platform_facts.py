"""Facts of `hvdc_probe`, line by line: what is no fact changes nothing, and what was tried last is known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc.errors import HvdcError
from hvdc.measure.platform_facts import MAX_FACTS, PlatformFacts
from tests.measure.phones import FACTS, MIB, lines


def taken(*said: object) -> PlatformFacts:
    facts = PlatformFacts()
    for line in said:
        facts.take(line if isinstance(line, str) else json.dumps(line))
    return facts


def test_a_phones_facts() -> None:
    facts = taken(*lines(FACTS))
    assert facts.is_done
    assert facts.odd_lines == 0
    assert facts.kind == "dma-buf heap"
    assert facts.chosen is not None
    assert (facts.chosen.way, facts.chosen.shares) == ("qcom-dmabuf", True)
    assert not facts.sharing["memfd"].shares
    assert facts.gpus[0].right_dots == ("khr", "qcom", "plain")
    assert facts.dsp is not None
    assert (facts.dsp.arch, facts.dsp.vtcm_bytes) == (79, 8 * MIB)
    assert facts.largest is not None
    assert facts.largest.bytes == 511 * MIB
    assert facts.smallest_refused is None
    assert facts.counted is not None
    assert facts.counted.count == 256
    assert facts.summed is not None
    assert (facts.summed.total_bytes, facts.summed.refused) == (3200 * MIB, True)
    assert facts.trying is None


@pytest.mark.parametrize("count", range(len(FACTS)))
def test_every_beginning_is_understood(count: int) -> None:
    """A phone may go down anywhere."""
    facts = taken(*lines(FACTS[:count]))
    assert facts.odd_lines == 0
    assert not facts.is_done
    last = FACTS[count - 1] if count else {}
    assert facts.trying == ((last["what"], last["bytes"]) if last.get("fact") == "trying" else None)


def test_a_refused_region_bounds_the_cap() -> None:
    region = {"fact": "region", "works": True, "tried": True, "gpu": True, "dsp": True, "refused_by": "", "why": ""}
    refused = {"works": False, "refused_by": "gpu", "why": "CL_INVALID_BUFFER_SIZE"}
    facts = taken(
        {"hvdc_probe": 1}, region | {"bytes": 256 * MIB}, region | refused | {"bytes": 320 * MIB},
        region | {"bytes": 288 * MIB}, region | refused | {"bytes": 300 * MIB},
        region | refused | {"bytes": 290 * MIB, "tried": False},
    )  # fmt: skip
    assert facts.largest is not None
    assert facts.smallest_refused is not None
    assert (facts.largest.bytes, facts.smallest_refused.bytes) == (288 * MIB, 300 * MIB)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "a driver's words",
        "{",
        "[" * 50_000,
        "3",
        "null",
        '{"fact": 3}',
        '{"fact": "weather"}',
        '{"fact": "region"}',
        '{"fact": "region", "bytes": -1, "works": true}',
        '{"fact": "memory", "total_bytes": "8"}',
        '{"fact": "memory", "total_bytes": true}',
        '{"fact": "memory", "total_bytes": 9223372036854775808}',
        '{"fact": "dot", "index": 0, "form": "khr", "right": "yes", "why": ""}',
        '{"fact": "mapped", "what": "sideways", "count": 1, "total_bytes": 1, "gpu": true, "dsp": true}',
        '{"fact": "trying", "what": null, "bytes": 0}',
    ],
)
def test_what_is_no_fact_changes_nothing(line: str) -> None:
    facts = taken({"hvdc_probe": 1}, line)
    assert facts.odd_lines == 1
    assert (facts.gpus, facts.regions, facts.memory_bytes, facts.trying) == ([], [], None, None)


def test_a_dot_product_of_no_device_is_odd() -> None:
    assert taken({"hvdc_probe": 1}, {"fact": "dot", "form": "khr", "right": True, "why": ""}).odd_lines == 1


def test_nothing_counts_before_the_version() -> None:
    facts = taken({"fact": "memory", "total_bytes": 5})
    assert (facts.has_begun, facts.memory_bytes) == (False, None)


@pytest.mark.parametrize("version", [0, 2, "1", None, True, [1]])
def test_another_version_is_refused(version: object) -> None:
    with pytest.raises(HvdcError, match="another version"):
        taken({"hvdc_probe": version})


def test_facts_without_end_are_refused() -> None:
    line = '{"fact": "trying", "what": "x", "bytes": 1}'
    facts = taken({"hvdc_probe": 1}, *[line] * MAX_FACTS)
    with pytest.raises(HvdcError, match="without end"):
        facts.take(line)


@given(
    st.lists(st.one_of(st.text(max_size=40), st.sampled_from([json.dumps(fact)[:60] for fact in FACTS])), max_size=20)
)
def test_any_lines_are_taken(said: list[str]) -> None:
    taken({"hvdc_probe": 1}, *said)
