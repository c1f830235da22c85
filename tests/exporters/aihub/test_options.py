"""Values that can be meant, and the flags that become of them."""

from __future__ import annotations

import pytest

from exporters.aihub.options import ELITE, AiHubOptions, Waiting
from exporters.qnn.errors import QnnError


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"device": ""}, "no device"),
        ({"attributes": ELITE}, "attributes is one text"),
        ({"runtime": "tflite"}, "no such runtime"),
        ({"qairt": "2.45 --verbose"}, "not a version of QAIRT"),
        ({"soc": 1}, "SoC number"),
        ({"arch": 81}, "contradict"),
        ({"vtcm_mb": 99}, "VTCM"),
        ({"optimization": 0}, "optimisation level"),
    ],
)
def test_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(QnnError, match=said):
        AiHubOptions(**values)


@pytest.mark.parametrize(
    "values", [{"poll_s": 0}, {"poll_s": 5, "poll_max_s": 4}, {"limit_s": 0}, {"tries": 0}, {"limit_s": float("nan")}]
)
def test_impossible_waiting(values: dict[str, float]) -> None:
    with pytest.raises(QnnError, match="impossible"):
        Waiting(**values)


def test_an_output_that_would_become_another_flag() -> None:
    with pytest.raises(QnnError, match="name of an output"):
        AiHubOptions().compile_flags("g", ["y --target_runtime onnx"], False)


def test_which_graphs_are_linked() -> None:
    assert [AiHubOptions().links(n) for n in (1, 2)] == [False, True]
    assert AiHubOptions(runtime="qnn_dlc").links(1)


def test_pauses_grow_to_a_limit() -> None:
    waiting, pause, pauses = Waiting(poll_s=10, poll_max_s=30), 10.0, []
    for _ in range(4):
        pause = waiting.longer(pause)
        pauses.append(pause)
    assert pauses == [15, 22.5, 30, 30]
