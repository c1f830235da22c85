"""The cut of a video of 49 frames: sections 3.3 and 6.5.1 of the paper."""

from __future__ import annotations

from statistics import fmean

from examples.rates.derive import CUTS, DEPLOYED, DRIFT, FROM_SOLO, IDLE, SOLO, SPEED_UP, STEP_CUTS, STREAM, WITHOUT
from examples.reproduction.row import Row
from exporters.schedule import make_schedule
from hvdc.plan.balance import Balance, balance_of
from hvdc.plan.cut import Rates, best_cut, gpu_stage_s, npu_stage_s, period_s
from hvdc.plan.rate_fields import Idle
from hvdc.plan.rates import RateTable

A, B, IDLE_65 = "A", "B", "idle, §6.5.1"


def cut_rows(a: RateTable, b: RateTable) -> list[Row]:
    """Of the tables by section 3.3 and by section 6."""
    return [*_idle_times(a), *_placed(b), *_other_cuts(b), *_solo(b)]


def balance_of_a(a: RateTable) -> Balance:
    """Table A."""
    return balance_of(a.idle, a.executions)


def _balance_of_6(executions: int) -> Balance:
    """Section 6.5.1's idle times at the same two cuts."""
    waits = (("gpu", 30, "334"), ("npu", 60, "132"))
    idle = [Idle(engine=e, cut=cut, seconds=IDLE.number(text), source=IDLE.source()) for e, cut, text in waits]
    return balance_of(idle, executions)


def _idle_times(a: RateTable) -> list[Row]:
    of_3, of_6 = balance_of_a(a), _balance_of_6(a.executions)
    why = (
        "Idle times at two cuts give T_G + T_N and the balance, whatever T_V is: "
        f"{of_3.both_blocks_s:.1f} s and {of_3.point:.1f} by section 3.3, {of_6.both_blocks_s:.1f} s and "
        f"{of_6.point:.1f} by section 6.5.1. The sections disagree; the deployed cut agrees with the later one."
    )
    rows = [
        Row("GPU idle at cut 30", STEP_CUTS, "356", "s", of_3.npu_longer_s(30), "input", A),
        Row("NPU idle at cut 60", STEP_CUTS, "121", "s", -of_3.npu_longer_s(60), "input", A),
    ]
    for balance, source in ((of_3, A), (of_6, IDLE_65)):
        gap_s = abs(balance.npu_longer_s(51))
        rows += [
            Row("deployed cut", DEPLOYED, "51", "block", balance.best_cut(), "prediction", source, why),
            Row("gap between the stages at 51", DEPLOYED, "1", "s", gap_s, "prediction", source, why, at_most=True),
        ]
    return rows


def _placed(b: RateTable) -> list[Row]:
    rates, executions = b.rates, b.executions
    cut = best_cut(rates, executions)
    gap_s = abs(gpu_stage_s(rates, cut) - npu_stage_s(rates, executions, cut))
    without = Rates(rates.gpu_block_s, rates.npu_block_s, 0.0)
    semantic = sum(step.expert == "semantic" for step in make_schedule())
    return [
        Row("deployed cut", DEPLOYED, "51", "block", cut, "input", B),
        Row(
            "gap between the stages at 51",
            DEPLOYED,
            "1",
            "s",
            gap_s,
            "input",
            B,
            "B's T_G and T_N are computed as if both stages took the period.",
            at_most=True,
        ),
        Row("T_V of the deployed run", DRIFT, "267", "s", rates.decode_s, "input", B),
        Row("cut without T_V", WITHOUT, "34", "block", best_cut(without, executions), "prediction", B),
        Row("first block of the detail expert, κL", CUTS, "90", "block", semantic * b.layers, "prediction", "schedule"),
    ]


def _other_cuts(b: RateTable) -> list[Row]:
    rates, executions = b.rates, b.executions
    best_s = period_s(rates, executions, best_cut(rates, executions))

    def longer(cut: int) -> float:
        return 100 * (period_s(rates, executions, cut) / best_s - 1)

    why = _implied(b)
    return [
        Row("period at 30, above that at 51", IDLE, "12.5", "%", longer(30), "prediction", B, why),
        Row("period at 34, above that at 51", WITHOUT, "6.3", "%", longer(34), "prediction", B, why),
        Row("period at 57, above that at 51", FROM_SOLO, "10.1", "%", longer(57), "prediction", B, why),
        Row("period at 60, above that at 51", IDLE, "14.5", "%", longer(60), "prediction", B, why),
        Row("GPU idle at 30", IDLE, "334", "s", _gpu_waits_s(rates, executions, 30), "prediction", B, why),
        Row("NPU idle at 60", IDLE, "132", "s", -_gpu_waits_s(rates, executions, 60), "prediction", B, why),
    ]


def _implied(b: RateTable) -> str:
    """What the stated periods and idle times would mean for a block at each cut."""
    period, decode, total = STREAM.number("677"), DRIFT.number("267"), b.executions
    at_30, at_60 = period * (1 + IDLE.number("12.5") / 100), period * (1 + IDLE.number("14.5") / 100)
    at_34, at_57 = period * (1 + WITHOUT.number("6.3") / 100), period * (1 + FROM_SOLO.number("10.1") / 100)
    gpu = {30: (at_30 - IDLE.number("334")) / 30, 51: period / 51, 57: at_57 / 57, 60: at_60 / 60}
    npu = {30: at_30, 34: at_34, 51: period, 60: at_60 - IDLE.number("132")}
    gpu_text = ", ".join(f"{seconds:.2f} s at {cut}" for cut, seconds in gpu.items())
    npu_text = ", ".join(f"{(seconds - decode) / (total - cut):.2f} s at {cut}" for cut, seconds in npu.items())
    return (
        f"Equation 4 has one T_G and one T_N for every cut. The stated periods and idle times mean a T_G of {gpu_text} "
        f"(alone: {_solo_rates(b)[0]:.2f} s), falling as the NPU has less to do beside it, and a T_N of {npu_text}."
    )


def _solo(b: RateTable) -> list[Row]:
    gpu, npu = _solo_rates(b)
    deployed_s, solo_s = b.rates.decode_s, b.costs().decode_when_alone()
    cuts = [best_cut(Rates(gpu, npu, decode_s), b.executions) for decode_s in (deployed_s, solo_s)]
    stated = int(FROM_SOLO.number("57"))
    # Of two neighbours the larger cut is better if its GPU stage is shorter than the smaller one's NPU stage.
    least_s, most_s = (cut * gpu - (b.executions - cut + 1) * npu for cut in (stated, stated + 1))
    why = (
        f"Solo rates with the deployed run's T_V = {deployed_s:.0f} s give {cuts[0]}, and {cuts[1]} with the "
        f"{solo_s:.0f} s that section 3.1 leaves for a decode when the NPU works alone. {stated} takes "
        f"{least_s:.0f} to {most_s:.0f} s, which the text does not have."
    )
    faster = 100 * (npu / b.rates.npu_block_s - 1)
    period, cut = STREAM.number("677"), int(DEPLOYED.number("51"))
    decode_s = period - (b.executions - cut) * npu / (1 + SPEED_UP.number("10") / 100)
    return [
        Row("all blocks on the GPU, alone", SOLO, "2,350", "s", gpu * b.executions, "input", "A, B"),
        Row("all blocks on the NPU, alone", SOLO, "603", "s", npu * b.executions, "input", "A, B"),
        Row("GPU's blocks ÷ NPU's, each alone", SOLO, "3.90", "×", gpu / npu, "follows", "§3.1"),
        Row(
            f"cut from solo rates, T_V = {deployed_s:.0f} s",
            FROM_SOLO,
            "57",
            "block",
            cuts[0],
            "not reproducible",
            "B, solo",
            why,
        ),
        Row(
            f"cut from solo rates, T_V = {solo_s:.0f} s",
            FROM_SOLO,
            "57",
            "block",
            cuts[1],
            "not reproducible",
            "B, solo",
            why,
        ),
        Row(
            "blocks too many for the GPU",
            FROM_SOLO,
            "6",
            "",
            FROM_SOLO.number("57") - DEPLOYED.number("51"),
            "follows",
            "57, 51",
        ),
        Row(
            "NPU's co-run speed-up",
            SPEED_UP,
            "10",
            "%",
            faster,
            "not reproducible",
            B,
            f"Its blocks take {b.rates.npu_block_s:.2f} s beside the GPU and {npu:.2f} s alone. 10 % would leave "
            f"{decode_s:.0f} s of the deployed period for a decode that is said to have taken {deployed_s:.0f} s.",
        ),
    ]


def _solo_rates(b: RateTable) -> tuple[float, float]:
    costs = b.costs()
    return fmean(costs.gpu.when_alone("gpu")), fmean(costs.npu.when_alone("npu"))


def _gpu_waits_s(rates: Rates, executions: int, cut: int) -> float:
    return npu_stage_s(rates, executions, cut) - gpu_stage_s(rates, cut)
