"""The rate tables of this folder, computed from sentences of the HeteroVDiff paper ("the paper").

The paper prints no rates in its text, and its text is not consistent with itself. At 49 frames there are two tables:

- **a**, of section 3.3: how long engines wait at two cuts. T_G + T_N and N·L·T_N + T_V follow, and with them the cut
  and every idle time; T_G, T_N and T_V alone don't.
- **b**, of section 6: T_G, T_N and T_V follow from the deployed cut, its period and its decode, which are therefore
  inputs: a plan that agrees with them has predicted nothing.

Both have the solo rates of section 3.1. At 33, 25 and 17 frames the text states no time of a block or of a decode, and
none follows from what it states: those tables hold the figures that it has, and no rate. (At 17 frames 329.3 s on the
NPU alone, GPU-only's 5.2 videos an hour and a ratio of 2.7 would give solo rates, if a decode took the same in both. At
49 frames it doesn't: 917 - 603 = 314 s in the one, 2,620 - 2,350 = 270 s in the other.)

    python -m examples.rates.derive            prints the tables
    python -m examples.rates.derive --write    writes them
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdc.plan.rates import RateTable, rates_toml

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Said:
    """A sentence of the paper, or a part of one, in plain letters."""

    section: str
    words: str

    def number(self, text: str) -> float:
        """A number that stands in the sentence, as it is written there."""
        if not re.search(rf"(?<![\d.,]){re.escape(text)}(?![\d]|[.,]\d)", self.words):
            raise ValueError(f"{text} does not stand in: {self.words}")
        return float(text.replace(",", ""))

    def source(self, how: str = "") -> str:
        """What a table says of a number that is taken from here, or computed so."""
        return f"paper, section {self.section}{how and f', {how}'}: {self.words}"


SOLO = Said(
    "3.1",
    "at the solo rates in Table 1, the N·L=180 DiT block executions take 2,350 s on the GPU and 603 s on the NPU,"
    " a 3.90× difference",
)
NPU_ONLY = Said("3.1", "our NPU-only pipeline produces one video every 916.7 s with the decoder inside the pipeline")
STEP_CUTS = Said(
    "3.3",
    "At the co-run rates in Table 1, the neighbouring step-level cuts occur after blocks 30 and 60. The first "
    "leaves the GPU idle for 356 s, while the second leaves the NPU idle for 121 s.",
)
CUTS = Said(
    "6.2",
    "The deployed cuts are the ones the rate model selects for each workload, k_b=51, 54, 59 and 61, all before "
    "the first expert switch at block κL=90.",
)
STREAM = Said(
    "6.2",
    "At 49 frames it completes a video every 677 s against 917 s, which is 5.3 against 3.9 videos per hour, a "
    "gain of 1.35×.",
)
GAIN_17 = Said("6.2", "The gain rises to 1.50× at 17 frames.")
ARM = Said("6.2", "A GPU-arm video takes 2,620 s at 49 frames against the deadline of 1,375 s.")
LATENCY = Said(
    "6.2",
    "HeteroVDiff meets the deadline because every video crosses both engines and none takes longer than 1,325 s.",
)
TENSOR = Said(
    "6.2",
    "Hetero-Tensor finishes a video in 860.5 s at 49 frames, 0.94× NPU-only, because the per-GEMM split saves "
    "about 50 ms of GEMM time per block and pays 155 ms of waiting and cache maintenance, so the 4,680 hand-offs "
    "per video cost more time than the GPU's slices save.",
)
SPEED_UP = Said(
    "6.2",
    "As M falls, the GPU-to-NPU block-time ratio drops from 3.9 to 2.7, so the balanced cut moves later and the "
    "GPU carries more of each video, and the NPU's co-run speed-up grows from 10% to 16–19%.",
)
IDLE = Said(
    "6.5.1",
    "At k_b=30 the GPU finishes its prefix 334 s before the NPU finishes the suffix and the decode. At k_b=60 the"
    " NPU waits 132 s for the GPU. The periods are 12.5% and 14.5% above the deployed cut.",
)
WITHOUT = Said(
    "6.5.1",
    "Balancing block rates alone without T_V gives k_b=34 and a period 6.3% above the deployed cut because the "
    "NPU still owes a decode that no longer fits in the GPU's shadow.",
)
FROM_SOLO = Said(
    "6.5.1",
    "Solo rates give k_b=57 and a period 10.1% above it because they over-estimate the GPU and hand it 6 blocks "
    "too many.",
)
DEPLOYED = Said("6.5.1", "Co-run rates with T_V give the deployed k_b=51 and balance the two stages to within 1 s.")
DRIFT = Said(
    "6.5.1",
    "Every period is reported at the deployed run's decoder time T_V=267 s because that time drifted from 186 to "
    "270 s between measurement days.",
)
SWEEP = Said(
    "6.5 (SLO sensitivity)",
    "Figure 7 sweeps the deadline factor f from 1.25 to 3 at 17 frames, sets D=f×329.3 s and plots videos per "
    "hour within the SLO for the five configurations.",
)
WORST = Said(
    "6.5 (SLO sensitivity)",
    "The worst HeteroVDiff video takes 1.24× the NPU-only latency because it crosses both engines, while a DP "
    "video on the GPU arm takes 2.09×.",
)
HOLDS = Said(
    "6.5 (SLO sensitivity)",
    "HeteroVDiff therefore clears every deadline in the sweep and holds 16.4 videos per hour, the highest line "
    "throughout.",
)
NPU_ARM = Said(
    "6.5 (SLO sensitivity)",
    "Only the videos from its NPU arm count, and that arm alone completes 10.9 videos per hour, the same as NPU-only.",
)
DP_AT_3 = Said(
    "6.5 (SLO sensitivity)", "At f=3 the deadline is long enough for the GPU-arm videos to count, so DP rises to 15.5."
)
GPU_ONLY = Said("6.5 (SLO sensitivity)", "GPU-only starts meeting the deadline at the same point and reaches 5.2.")
TENSOR_17 = Said("6.5 (SLO sensitivity)", "Hetero-Tensor stays at 10.7 at every deadline.")

STEPS, LAYERS = 6, 30
TOKENS = {49: 20_280, 33: 14_040, 25: 10_920, 17: 7_800}
"""Frames -> tokens of a step (section 6.1)."""
CUT = {49: "51", 33: "54", 25: "59", 17: "61"}


def seconds(value: float) -> float:
    """To a tenth of a millisecond: the paper's figures have three or four digits."""
    return round(value, 4)


def figure(name: str, said: Said, text: str, *, is_input: bool = False) -> dict[str, Any]:
    """A figure as it is stated."""
    return {"name": name, "value": said.number(text), "is_input": is_input, "source": said.source()}


def solo() -> dict[str, Any]:
    """Section 3.1: what each engine takes alone."""
    executions, gpu_s, npu_s = SOLO.number("180"), SOLO.number("2,350"), SOLO.number("603")
    video_s = NPU_ONLY.number("916.7")
    return {
        "gpu": {"solo_block_s": {"value": seconds(gpu_s / executions), "source": SOLO.source("2,350 / 180")}},
        "npu": {"solo_block_s": {"value": seconds(npu_s / executions), "source": SOLO.source("603 / 180")}},
        "decode": {
            "solo_s": {
                "value": seconds(video_s - npu_s),
                "source": NPU_ONLY.source("916.7 less the 603 s of its blocks"),
            }
        },
        "reported": (figure("npu_only_period_s", NPU_ONLY, "916.7", is_input=True),),
    }


def table_a() -> dict[str, Any]:
    """Section 3.3: idle times."""
    return solo() | {
        "idle": tuple(
            {
                "engine": engine,
                "cut": int(STEP_CUTS.number(cut)),
                "seconds": STEP_CUTS.number(idle_s),
                "source": STEP_CUTS.source(),
            }
            for engine, cut, idle_s in (("gpu", "30", "356"), ("npu", "60", "121"))
        ),
    }


def table_b() -> dict[str, Any]:
    """Section 6: the deployed cut."""
    values = solo()
    cut, period_s, decode_s = DEPLOYED.number("51"), STREAM.number("677"), DRIFT.number("267")
    executions, npu_s = SOLO.number("180"), SOLO.number("603") / SOLO.number("180")
    saved_s, paid_s = TENSOR.number("50") / 1000, TENSOR.number("155") / 1000
    values["gpu"]["co_run_block_s"] = {
        "value": seconds(period_s / cut),
        "source": STREAM.source("677 / 51, the period over the deployed cut"),
    }
    values["npu"]["co_run_block_s"] = {
        "value": seconds((period_s - decode_s) / (executions - cut)),
        "source": DEPLOYED.source("(677 - 267) / 129, the period without its decode over the other blocks"),
    }
    values["decode"]["co_run_s"] = {"value": decode_s, "source": DRIFT.source()}
    values["tensor_block_s"] = {
        "value": seconds(npu_s - saved_s + paid_s),
        "source": TENSOR.source("603 / 180 of section 3.1 - 0.050 + 0.155"),
    }
    values["reported"] += (
        figure("period_s", STREAM, "677", is_input=True),
        figure("deployed_cut", DEPLOYED, "51", is_input=True),
        figure("deployed_decode_s", DRIFT, "267", is_input=True),
        figure("decode_least_s", DRIFT, "186"),
        figure("decode_most_s", DRIFT, "270"),
        figure("stages_differ_at_most_s", DEPLOYED, "1"),
        figure("gain", STREAM, "1.35"),
        figure("videos_per_hour", STREAM, "5.3"),
        figure("npu_only_videos_per_hour", STREAM, "3.9"),
        figure("deadline_s", ARM, "1,375"),
        figure("latency_most_s", LATENCY, "1,325"),
        figure("dp_gpu_arm_latency_s", ARM, "2,620"),
        figure("tensor_period_s", TENSOR, "860.5"),
        figure("tensor_gain", TENSOR, "0.94"),
        figure("tensor_handoffs", TENSOR, "4,680"),
        figure("gpu_idle_at_30_s", IDLE, "334"),
        figure("npu_idle_at_60_s", IDLE, "132"),
        figure("longer_at_30_percent", IDLE, "12.5"),
        figure("longer_at_60_percent", IDLE, "14.5"),
        figure("cut_without_decode", WITHOUT, "34"),
        figure("longer_at_34_percent", WITHOUT, "6.3"),
        figure("cut_from_solo_rates", FROM_SOLO, "57"),
        figure("longer_at_57_percent", FROM_SOLO, "10.1"),
        figure("block_time_ratio", SPEED_UP, "3.9"),
        figure("npu_co_run_speed_up_percent", SPEED_UP, "10"),
    )
    return values


def shorter(frames: int) -> dict[str, Any]:
    """Sections 6.2 and 6.5: figures, from which no rate follows."""
    figures = [
        figure("deployed_cut", CUTS, CUT[frames]),
        figure("npu_co_run_speed_up_least_percent", SPEED_UP, "16"),
        figure("npu_co_run_speed_up_most_percent", SPEED_UP, "19"),
    ]
    if frames == 17:
        figures += [
            figure("gain", GAIN_17, "1.50"),
            figure("npu_only_latency_s", SWEEP, "329.3"),
            figure("latency_most_factor", WORST, "1.24"),
            figure("dp_gpu_arm_factor", WORST, "2.09"),
            figure("dp_counted_from_factor", DP_AT_3, "3"),
            figure("videos_per_hour", HOLDS, "16.4"),
            figure("npu_only_videos_per_hour", NPU_ARM, "10.9"),
            figure("dp_videos_per_hour", DP_AT_3, "15.5"),
            figure("gpu_only_videos_per_hour", GPU_ONLY, "5.2"),
            figure("tensor_videos_per_hour", TENSOR_17, "10.7"),
            figure("block_time_ratio", SPEED_UP, "2.7"),
        ]
    return {"reported": tuple(figures)}


HEAD = """\
# DCM-Wan2.1, {frames} frames at 832 x 480. Printed by derive.py, which says how: change that, not this.
"""
NOTES = {
    "-a": """\
# By section 3.3 of the paper: its text has idle times at two cuts, from which T_G + T_N and the cut follow, and no
# T_G, T_N or T_V. Section 6 has other rates: see the table b.
""",
    "-b": """\
# By section 6 of the paper. T_G and T_N are computed from the deployed cut, period and decode (is_input below), so
# agreement with those predicts nothing. Section 3.3 does not agree with these rates: see the table a.
""",
    "": """\
# Figures of the paper's text, from which no rate of a block or a decode follows: nothing can be planned with it.
""",
}


def tables() -> dict[str, str]:
    """File name -> text."""
    made = {}
    every = [(49, "-a", table_a()), (49, "-b", table_b()), *((frames, "", shorter(frames)) for frames in (33, 25, 17))]
    for frames, label, values in every:
        name = f"galaxy-s25-{frames}-frames{label}"
        table = RateTable.model_validate(
            {
                "name": name,
                "device": "Samsung Galaxy S25 (Snapdragon 8 Elite)",
                "target": "sm8750",
                "thermal": "cold: external cooler, screen off, plugged in (paper, section 6.1)",
                "frames": frames,
                "tokens": TOKENS[frames],
                "steps": STEPS,
                "layers": LAYERS,
                "semantic_steps": 3,
                **values,
            }
        )
        made[f"{name}.toml"] = HEAD.format(frames=frames) + NOTES[label] + "\n" + rates_toml(table)
    return made


def main() -> None:
    for name, text in tables().items():
        if "--write" in sys.argv[1:]:
            (HERE / name).write_text(text, "utf-8")
        else:
            sys.stdout.write(f"# {name}\n{text}\n")


if __name__ == "__main__":
    main()
