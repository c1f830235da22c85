"""The toolchain's words, translated: recorded lines in, what is wrong and what to change out."""

from __future__ import annotations

import signal

import pytest

from exporters.qnn.errors import QnnError
from exporters.qnn.messages import Node, explain, is_wanted, value_of
from exporters.qnn.options import Limits
from exporters.qnn.process import Ended
from tests.exporters.qnn import recorded


def explained(log: tuple[str, ...], error: str, nodes: dict[str, Node] | None = None) -> QnnError:
    chosen = tuple(line for line in (*recorded.NOISE, *log) if is_wanted(line))
    return explain(error, chosen, "compiling", "graph 'g'", (nodes or {}).get)


def test_lines_of_graphs_that_compile_are_not_kept() -> None:
    assert not [line for line in recorded.NOISE if is_wanted(line)]


def test_an_operator_above_vtcm() -> None:
    error = explained(recorded.TILING, recorded.MEMORY_ERROR, {"Mul_n_6": Node("Mul", (1, 96, 4, 480, 832))})
    assert error.what == "an operator cannot be cut into pieces that fit into VTCM"
    assert error.where == "graph 'g', 'Mul_n_6' (Mul of rank 5 on [1, 96, 4, 480, 832])"
    assert error.found == "q::*InputSlicePad needs 153,354,240 bytes in one piece"
    assert "smaller tile" in error.fix
    assert error.log[-1] == recorded.MEMORY_ERROR


def test_an_operator_above_vtcm_in_the_words_of_another_version() -> None:
    """Without the node, and with the limit instead of what is needed."""
    error = explained(
        ("x.cc:1::ERROR:Operator named q::Reshape not sufficiently tiled to fit in TCM (8388608)",),
        recorded.MEMORY_ERROR,
    )
    assert error.where == "graph 'g', QNN operator q::Reshape"
    assert error.expected == "at most the VTCM, 8,388,608 bytes"


@pytest.mark.parametrize(
    ("log", "what", "expected", "found"),
    [
        (recorded.GRAPH_LIMIT, "more memory than one graph may have", "at most 3,670,016 KB", "3,932,168 KB estimated"),
        (recorded.POOL, "than one graph can address", "below 4 GiB", "4,534,567,424 bytes"),
        (recorded.SPILL, "spill-fill", "below 4 GB", "4 GB or more"),
    ],
)
def test_a_graph_above_its_memory(log: tuple[str, ...], what: str, expected: str, found: str) -> None:
    """The same code 1002 as the operator above, told apart by the log."""
    error = explained(log, recorded.MEMORY_ERROR)
    assert what in error.what
    assert (error.expected, error.found) == (expected, found)
    assert "stages" in error.fix


def test_1002_without_a_reason_in_the_log() -> None:
    error = explained((), recorded.MEMORY_ERROR)
    assert "a memory limit of the graph, or an operator that does not fit" in error.what
    assert "Code: 1002" in error.found


def test_contexts_that_are_too_large_together() -> None:
    line = "<E> Failed to find available PD for contextId 4 on deviceId 0 coreId 0 with context size estimate 837987072"
    assert "837,987,072 bytes" in explained((line,), recorded.MEMORY_ERROR).found


def test_an_operator_in_a_form_that_is_not_supported() -> None:
    error = explained(recorded.RANK, recorded.FALLBACK_ERROR, {"Sqrt_n_6": Node("Sqrt", (1, 8, 2, 8, 8))})
    assert error.what == "the HTP does not support the operator Sqrt in this form"
    assert "'Sqrt_n_6' (Sqrt of rank 5 on [1, 8, 2, 8, 8])" in error.where
    assert error.found == "QNN's ElementWiseSquareRoot: error 3110, rank 5 is not supported"
    assert "rank 4" in error.fix


def test_an_operator_whose_node_has_no_name_in_the_model() -> None:
    error = explained(recorded.RANK, recorded.FALLBACK_ERROR)
    assert "ElementWiseSquareRoot" in error.what
    assert "'Sqrt_n_6'" in error.where


@pytest.mark.parametrize(("log", "name"), [(recorded.NO_SUCH_OPERATOR, "Erf"), (recorded.LEFT, "Det")])
def test_an_operator_that_does_not_exist(log: tuple[str, ...], name: str) -> None:
    error = explained(log, recorded.FALLBACK_ERROR)
    assert error.what == f"the HTP does not have the operator {name}"
    assert f"'{name}_n_6'" in error.where


def test_several_operators_that_do_not_exist() -> None:
    error = explained((*recorded.NO_SUCH_OPERATOR, *recorded.LEFT), recorded.FALLBACK_ERROR)
    assert "'Erf_n_6' (and 1 more: Det_n_6)" in error.where


def test_refused_options() -> None:
    assert "refused the options" in explained(recorded.BAD_DEVICE, recorded.FALLBACK_ERROR).what


def test_nodes_left_without_a_word() -> None:
    assert "not every node" in explained((), recorded.FALLBACK_ERROR).what


def test_an_unknown_failure_keeps_the_toolchains_words() -> None:
    error = explained(("2026-11-29 22:12:50.2 [V:onnxruntime:Default, q.cc:519 QnnLogging]  <E> moon",), "Fail: odd")
    assert error.what == "compiling failed"
    assert error.found == "Fail: odd; <E> moon"


@pytest.mark.parametrize(
    ("ended", "what", "found"),
    [
        (Ended("time", seconds=2.04, limits=Limits(seconds=2)), "took too long", "not done after 2.0 s"),
        (Ended("memory", peak_rss_bytes=5000, limits=Limits(memory_bytes=4096)), "too much memory", "5,000 bytes"),
        (Ended("signal", code=signal.SIGKILL), "killed from outside", "SIGKILL"),
        (Ended("signal", code=signal.SIGSEGV, tail=("a", "b")), "library crashed", "SIGSEGV; its last words: a; b"),
        (Ended("signal", code=40), "library crashed", "signal 40"),
        (Ended("silent", code=3), "without a result", "exit status 3"),
    ],
)
def test_a_process_that_did_not_answer(ended: Ended, what: str, found: str) -> None:
    with pytest.raises(QnnError, match=what) as caught:
        value_of(ended, "compiling", "g.onnx")
    assert found in caught.value.found
    assert caught.value.where == "g.onnx"
    assert caught.value.fix


def test_a_crash_on_shared_weights_says_why() -> None:
    log = ("<E> Shared weights buffer isn't supported on this platform",)
    with pytest.raises(QnnError) as caught:
        value_of(Ended("signal", code=signal.SIGSEGV, log=log), "running", "b.bin")
    assert "share weights" in caught.value.fix


def test_answers_and_refusals_come_through() -> None:
    assert value_of(Ended("answered", value=7), "", "") == 7
    fields = QnnError("no", where="here", fix="go").fields()
    with pytest.raises(QnnError) as caught:
        value_of(Ended("refused", value=fields), "", "")
    assert caught.value.fields() == fields


def test_an_error_is_read_from_top_to_bottom() -> None:
    error = QnnError("what", where="w", expected="e", found="f", fix="x", log=("never printed",))
    assert str(error) == "what\nwhere: w\nexpected: e\nfound: f\nfix: x"
    assert str(QnnError("what")) == "what"
