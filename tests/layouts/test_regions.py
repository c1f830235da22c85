"""Regions: aligned, without overlap, whole pages, below the cap; groups are joined but never split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layouts.regions import (
    REGION_GRANULE_BYTES,
    TENSOR_ALIGNMENT_BYTES,
    Item,
    RegionTooLargeError,
    align_up,
    group_items,
    plan_region,
)

CAP = 511 << 20
ITEMS = st.lists(st.integers(1, 100_000), min_size=1, max_size=30).map(
    lambda sizes: [Item(f"t{i}", size) for i, size in enumerate(sizes)]
)


@given(ITEMS)
def test_tensors_are_aligned_in_order_and_gaps_smaller_than_the_alignment(items: list[Item]) -> None:
    region = plan_region("r", items)
    end = 0
    for item, place in zip(items, region.placements, strict=True):
        assert (place.name, place.bytes) == (item.name, item.bytes)
        assert place.offset % TENSOR_ALIGNMENT_BYTES == 0
        assert 0 <= place.offset - end < TENSOR_ALIGNMENT_BYTES
        end = place.offset + place.bytes
    assert region.bytes % REGION_GRANULE_BYTES == 0
    assert 0 <= region.bytes - end < REGION_GRANULE_BYTES
    assert region.padding_bytes == region.bytes - sum(item.bytes for item in items)


def test_the_cap_is_inclusive_and_one_byte_more_is_refused_with_its_numbers() -> None:
    assert plan_region("block 7", [Item("w", CAP)], CAP).bytes == CAP == 535_822_336
    with pytest.raises(RegionTooLargeError, match="block 7") as caught:
        plan_region("block 7", [Item("w", CAP + 1)], CAP)
    assert (caught.value.region_bytes, caught.value.cap_bytes) == (CAP + REGION_GRANULE_BYTES, CAP)


@given(st.lists(ITEMS, min_size=1, max_size=12), st.integers(3_200_000, 10_000_000))
def test_groups_are_joined_while_they_fit_and_stay_whole(groups: list[list[Item]], cap: int) -> None:
    named = [(f"g{i}", [Item(f"g{i}.{item.name}", item.bytes) for item in items]) for i, items in enumerate(groups)]
    joined = group_items(named, cap)
    assert [item for _, items in joined for item in items] == [item for _, items in named for item in items]
    starts = [name for name, _ in joined]
    for name, items in joined:
        assert plan_region(name, items).bytes <= cap
        assert items[0].name.startswith(f"{name}.")
    for (_, left), right in zip(joined, starts[1:], strict=False):  # no two neighbours would have fitted together
        first = dict(named)[right]
        assert plan_region("both", [*left, *first]).bytes > cap


def test_a_group_above_the_cap_is_refused_by_name() -> None:
    with pytest.raises(RegionTooLargeError, match="'big'"):
        group_items([("small", [Item("a", 10)]), ("big", [Item("b", 10_000)])], 8192)


def test_empty_regions_and_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        plan_region("r", [])
    with pytest.raises(ValueError, match="0 bytes"):
        plan_region("r", [Item("t", 0)])


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_align_up_is_the_smallest_multiple(value: int, alignment: int) -> None:
    up = align_up(value, alignment)
    assert up % alignment == 0
    assert 0 <= up - value < alignment
