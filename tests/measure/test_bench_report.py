"""The report of `hvdc_bench`: read whole, or refused in a sentence."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc.measure.bench_report import MAX_BYTES, BenchReportError, parse_report
from tests.measure.programs import MEDIANS, report, series


def parse(values: object) -> Any:
    return parse_report(json.dumps(values).encode(), "a test")


def test_a_report_is_read() -> None:
    found = parse(report(8))
    for (engine, beside, expert), median_s in MEDIANS.items():
        one = found.find(engine, "block", beside, expert)
        assert one is not None
        assert one.median_s == median_s
    assert found.find("npu", "decode", "nothing", None) is None
    assert found.gpu.import_ == "qcom-dmabuf"


WRONG: dict[str, tuple[Any, str]] = {
    "another version": (report(8, hvdc_bench=1), "another version"),
    "no version": ({"series": []}, "another version"),
    "true for a version": (report(8, hvdc_bench=True), "another version"),
    "a list": ([1], "another version"),
    "no series": ({k: v for k, v in report(8).items() if k != "series"}, "'series'"),
    "an unknown key": (report(8, more=1), "'more'"),
    "an unknown engine": (report(8, series=[series("dsp", "block", "nothing", "detail", 1.0)]), r"'series\.0\.engine'"),
    "no time": (report(8, series=[series("npu", "block", "nothing", "detail", 0.0)]), r"'series\.0\.min_s'"),
    "a negative time": (report(8, series=[series("npu", "block", "nothing", "detail", -1.0)]), r"'series\.0\."),
    "a time in words": (report(8, series=[series("npu", "block", "nothing", "detail", 1.0) | {"max_s": "x"}]), "max_s"),
    "twice": (report(8, series=[series("npu", "block", "nothing", "detail", 1.0)] * 2), "a series twice"),
    "out of order": (
        report(8, series=[series("npu", "block", "nothing", "detail", 1.0) | {"min_s": 2.0}]), "contradicts itself"
    ),
    "no tokens": (report(0), "'tokens'"),
    "a hash that is none": (report(8, index_sha256="x"), "'index_sha256'"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "message"), WRONG.values(), ids=WRONG)
def test_what_makes_no_sense_is_refused(values: object, message: str) -> None:
    with pytest.raises(BenchReportError, match=message) as caught:
        parse(values)
    assert caught.value.where == "a test"
    assert "hvdc runtime build" in caught.value.fix


@pytest.mark.parametrize("number", ["Infinity", "NaN", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    text = json.dumps(report(8)).replace('"median_s": 3.0', f'"median_s": {number}', 1)
    with pytest.raises(BenchReportError, match=r"makes no sense|no JSON"):
        parse_report(text.encode(), "a test")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"Segmentation fault\n", b"[" * 100_000, b"null", b"3"])
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(BenchReportError):
        parse_report(data, "a test")


def test_a_report_without_end_is_refused() -> None:
    with pytest.raises(BenchReportError, match="too long"):
        parse_report(b" " * (MAX_BYTES + 1), "a test")


@given(st.integers(0, 10_000), st.binary(max_size=8))
def test_a_damaged_report_is_read_or_refused(at: int, put: bytes) -> None:
    """Never anything else."""
    data = bytearray(json.dumps(report(8)).encode())
    at %= len(data)
    data[at : at + len(put)] = put
    with contextlib.suppress(BenchReportError):
        parse_report(bytes(data), "a test")
