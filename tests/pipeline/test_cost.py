"""Whether a clip fits into a GPU's memory: what is free counts, in the decision, the message and the proposal."""

from __future__ import annotations

import pytest
import torch

from exporters.model import DCM_WAN21_1_3B, TINY
from hvdc.config import CompileConfig
from hvdc.errors import HvdcError
from hvdc.pipeline.cost import activation_bytes, block_flops, check_memory, cpu_duration_s, weight_bytes
from hvdc.pipeline.prepare import video_of
from hvdc.pipeline.ranks import Ranks

GIB = 1 << 30
GPU = Ranks(device=torch.device("cuda", 0))
G = DCM_WAN21_1_3B
VIDEO = video_of(CompileConfig(), G)


def memory(monkeypatch: pytest.MonkeyPatch, free: float, total: float = 140.0, reserved: float = 0.0) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free * GIB), int(total * GIB)))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: int(reserved * GIB))


def refusal() -> HvdcError:
    with pytest.raises(HvdcError) as caught:
        check_memory(G, VIDEO, 6, "fp32", GPU)
    return caught.value


def test_a_gpu_that_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, free=7.0)
    error = refusal()
    assert (error.found, error.fix) == ("7.0 GiB free", "this would fit: --frames 17 --height 240 --width 416")
    memory(monkeypatch, free=1.0)
    error = refusal()
    assert (error.found, error.fix) == ("1.0 GiB free", "use a GPU with more free memory, or --dtype bf16")


def test_the_proposal_fits_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for tenths in range(50, 90):
        memory(monkeypatch, free=tenths / 10)
        need = weight_bytes(G, "fp32") + activation_bytes(G, VIDEO.tokens, "fp32")
        if need <= tenths / 10 * GIB:
            assert check_memory(G, VIDEO, 6, "fp32", GPU) == []
            continue
        words = refusal().fix.split()
        if words[0] == "use":
            continue
        clip = CompileConfig(frames=int(words[4]), height=int(words[6]), width=int(words[8]))
        assert check_memory(G, video_of(clip, G), 6, "fp32", GPU) == []


def test_what_this_process_holds_is_free_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory in the middle: the weights are on the device already."""
    memory(monkeypatch, free=1.0, reserved=6.0)
    assert refusal().found == "7.0 GiB free"


def test_time_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdc.pipeline.cost._cpu_flops", lambda: 1e6)
    video = video_of(CompileConfig(frames=5, height=64, width=64), TINY)
    assert cpu_duration_s(TINY, video, 12) == 12 * TINY.layers * block_flops(TINY, video.tokens) / 1e6
