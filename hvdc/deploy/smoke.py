"""What a deployed version can do on its device, found out by its own programs: each a sentence.

Trying is short: blocks of few tokens on each engine, whose results are compared with those that the artifact's weights
must give, which it holds (`hvdc.artifact.answer_records`). How fast a device is, is another question (`hvdc bench`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hvdc.deploy.adb import AdbDevice, Answer, quoted
from hvdc.deploy.compared import all_right, compared_text, read_compared
from hvdc.deploy.device_facts import FASTRPC, OPENCL, DeviceFacts
from hvdc.deploy.in_use import BUSY, InUseError, guarded, in_use
from hvdc.deploy.layout import ARTIFACT, Layout

State = Literal["ok", "failed", "not tried"]

SELFTEST_S, BENCH_S = 300.0, 900.0
NOT_THERE = 127
"""A shell's status for a program that it does not find."""
TOKENS = 256
"""Of a block that is only executed: enough for every kernel, few enough for a phone's processors."""
PORTABLE = ", as a portable program on processors"
USAGE, WRONG = 2, 6
"""Exit statuses of ``hvdc_bench``: an option that it does not know, a result that is not the stored answer."""


@dataclass(frozen=True)
class Tried:
    """One thing that was tried, and a sentence about it."""

    name: str
    state: State
    text: str


@dataclass(frozen=True)
class Programs:
    """Where a version's programs lie on a device. ``folder``: of the version. ``target``: what they are built for.
    ``lock``: which `run` holds meanwhile, as all programs on the device's engines do; ``""``: none."""

    device: AdbDevice
    folder: str
    target: str
    lock: str = ""

    @property
    def artifact(self) -> str:
        return f"{self.folder}/{ARTIFACT}"

    @property
    def runtime(self) -> str:
        return f"{self.artifact}/runtime"

    def path(self, program: str) -> str:
        return f"{self.runtime}/{self.target}-{program}"

    def run(self, program: str, *words: object, timeout_s: float, given: str = "") -> Answer:
        """``given``: a line of standard input. Raises LinkError, DeviceError; InUseError: another one works there."""
        command = quoted([self.path(program), *words])
        script = f"printf '%s\\n' {quoted([given])} | {command}" if given else f"exec {command}"
        if self.lock:
            # A shell of its own becomes the program, so that the number that the lock names is the program's.
            script = f"exec sh -c {quoted([guarded(self.lock, f'hvdc deploy, trying {program}', script)])}"
        answer = self.device.script(script, timeout_s=timeout_s)
        if self.lock and answer.status == BUSY:
            raise in_use(answer.said, self.device.serial, self.lock)
        return answer


def asked_arch(programs: Programs) -> tuple[int | None, str]:
    """The architecture that the DSP says it is, or None and why it was not said. Raises LinkError, DeviceError."""
    answer = programs.run("hvdc_selftest", "--json", "--skels", programs.runtime, timeout_s=SELFTEST_S)
    arch = _json(answer).get("arch")
    if isinstance(arch, int) and not isinstance(arch, bool) and 0 < arch < 1000:
        return arch, ""
    return None, answer.said or f"hvdc_selftest ended with status {answer.status} and said nothing"


def smoke_test(
    programs: Programs, facts: DeviceFacts, layout: Layout, *, is_calibrated: bool, has_answer: bool,
    say: Callable[[str], None],
) -> list[Tried]:  # fmt: skip
    """Try everything; what fails is a result, and so is that another program works on the device.

    Raises LinkError, DeviceError for a device that is lost.
    """
    tried: list[Tried] = []
    try:
        _try(tried, programs, facts, layout, is_calibrated=is_calibrated, has_answer=has_answer, say=say)
    except InUseError as error:
        text = f"{error.what} ({error.found}): run the same command again when it has ended; nothing is sent anew"
        tried.append(Tried("engines", "not tried", text))
        say(f"{tried[-1].name}: {tried[-1].text}")
    return tried


def _try(
    tried: list[Tried], programs: Programs, facts: DeviceFacts, layout: Layout, *, is_calibrated: bool,
    has_answer: bool, say: Callable[[str], None],
) -> None:  # fmt: skip
    for try_it in (_starts, _opens, _dsp, _dot_products):
        tried.append(try_it(programs, facts))
        say(f"{tried[-1].name}: {tried[-1].text}")
        if tried[0].state == "failed":
            return
    executed = []
    for engine in ("npu", "gpu"):
        why = _why_no_gpu(facts, is_calibrated) if engine == "gpu" else ""
        found = (
            (Tried(f"{engine} block", "not tried", why),)
            if why
            else _block(programs, engine, facts, layout, has_answer)
        )
        for each in found:
            say(f"{each.name}: {each.text}")
        tried += found
        executed.append(found[0].state == "ok")
    if all(executed):
        tried.append(_executed(programs, "both", facts, layout))
        say(f"{tried[-1].name}: {tried[-1].text}")


def _starts(programs: Programs, facts: DeviceFacts) -> Tried:
    answer = programs.run("hvdc_runner", "--help", timeout_s=60)
    if answer.status == 0 and answer.text.startswith("usage: hvdc_runner"):
        return Tried("programs", "ok", "the device executes them")
    return Tried("programs", "failed", f"the device does not execute them: {answer.said or answer.status}")


def _opens(programs: Programs, facts: DeviceFacts) -> Tried:
    answer = programs.run("hvdc_check", timeout_s=120, given=f"open {programs.artifact}")
    if answer.text.startswith("0 OK"):
        return Tried("artifact", "ok", "the runtime's reader opens it there")
    return Tried("artifact", "failed", f"the runtime's reader refuses it there: {answer.said}")


def _dsp(programs: Programs, facts: DeviceFacts) -> Tried:
    if FASTRPC not in facts.libraries:
        return Tried("DSP self-test", "not tried", f"there is no {FASTRPC} on the device")
    answer = programs.run("hvdc_selftest", "--json", "--skels", programs.runtime, timeout_s=SELFTEST_S)
    report = _json(answer)
    checks = [check for check in report.get("checks", ()) if isinstance(check, dict)]
    failed = [check for check in checks if check.get("state") == "FAILED"]
    if failed:
        first = failed[0]
        text = f"{len(failed)} of {len(checks)} checks failed, the first {first.get('name')}: {first.get('meaning')}"
        return Tried("DSP self-test", "failed", text)
    if not checks:
        return Tried("DSP self-test", "failed", answer.said or f"status {answer.status}, and no report")
    return Tried(
        "DSP self-test",
        "ok",
        f"Hexagon v{report.get('arch')}: {len(checks)} check{'s' * (len(checks) != 1)}, none failed",
    )


def _dot_products(programs: Programs, facts: DeviceFacts) -> Tried:
    name = "GPU dot products"
    if OPENCL not in facts.libraries:
        return Tried(name, "not tried", f"there is no {OPENCL} that a program may load")
    answer = programs.run("hvdc_probe", "--only", "gpu", timeout_s=SELFTEST_S)
    if answer.status == NOT_THERE:
        return Tried(name, "not tried", "the artifact's runtime is older than this: hvdc runtime build --into it")
    said = [fact for line in answer.text.splitlines() if (fact := _object(line))]
    right = [str(fact.get("form")) for fact in said if fact.get("fact") == "dot" and fact.get("right") is True]
    if right:
        return Tried(name, "ok", f"{', '.join(right)}: compiled, and every sum of INT8 products is right")
    why = next((str(fact["why"]) for fact in said if fact.get("why")), answer.said or f"status {answer.status}")
    return Tried(name, "failed", f"no form of them is right: {why[:400]}")


def _why_no_gpu(facts: DeviceFacts, is_calibrated: bool) -> str:
    if OPENCL not in facts.libraries:
        return f"there is no {OPENCL} that a program may load"
    return "" if is_calibrated else "the artifact has no activation scales, which the GPU needs"


def _block(programs: Programs, engine: str, facts: DeviceFacts, layout: Layout, has_answer: bool) -> tuple[Tried, ...]:
    """Blocks whose results are compared; where they cannot be, one that is executed, and why they cannot."""
    if not has_answer:
        why = "the artifact holds no answer to compare with"
        return _executed(programs, engine, facts, layout), _not_compared(engine, why)
    words = ["--answer", *_words(programs, engine, facts, layout)]
    answer = programs.run("hvdc_bench", programs.artifact, *words, timeout_s=BENCH_S)
    if answer.status == USAGE and "--answer is no option" in answer.said:
        why = "the artifact's programs are older than its answer"
        return _executed(programs, engine, facts, layout), _not_compared(engine, why)
    found = _judged(f"{engine} block", engine, answer)
    if (
        found.state == "ok" and _place(_json(answer), engine) == PORTABLE
    ):  # which can add exactly: then every bit counts
        exact = programs.run("hvdc_bench", programs.artifact, *words, "--npu-sums", "exact", timeout_s=BENCH_S)
        bits = _judged(found.name, engine, exact)
        text = (
            f"{found.text}; with exact sums equal to the bit" if bits.state == "ok" else f"with exact sums: {bits.text}"
        )
        return (Tried(found.name, bits.state, text),)
    return (found,)


def _judged(name: str, engine: str, answer: Answer) -> Tried:
    """What ``hvdc_bench --answer`` found."""
    report = _json(answer)
    compared = read_compared(report)
    if answer.status not in (0, WRONG):
        return Tried(name, "failed", answer.said or f"status {answer.status}, and no report")
    if not compared:
        return Tried(name, "failed", "hvdc_bench compared it, and its report cannot be read: deploy again")
    right = answer.status == 0 and all_right(compared)
    return Tried(
        name, "ok" if right else "failed", f"{_tokens(report)}{_place(report, engine)}: {compared_text(compared)}"
    )


def _tokens(report: dict[str, Any]) -> str:
    tokens = report.get("tokens")
    return f"{tokens} tokens" if isinstance(tokens, int) else "few tokens"


def _not_compared(engine: str, why: str) -> Tried:
    fix = "hvdc runtime build --into ARTIFACT, with the --target of this device, then deploy again"
    return Tried(f"{engine} numbers", "not tried", f"{why}: {fix}")


def _words(programs: Programs, engine: str, facts: DeviceFacts, layout: Layout) -> list[object]:
    """Options of ``hvdc_bench`` that say which engine, and where."""
    kernels = layout.kernels
    words: list[object] = ["--engine", engine, "--json"]
    if engine != "npu":
        programs.device.shell("mkdir", "-p", kernels)
        words += ["--kernel-cache", kernels]
    if engine != "gpu" and FASTRPC not in facts.libraries:  # else Android's program would ask for a DSP
        words += ["--npu", "portable"]
    return words


def _executed(programs: Programs, engine: str, facts: DeviceFacts, layout: Layout) -> Tried:
    """A block that is executed, and no more."""
    words = ["--tokens", TOKENS, "--warm-up", 0, "--repeat", 1, "--spread-limit", 1e9]
    name = "both at once" if engine == "both" else f"{engine} block"
    answer = programs.run(
        "hvdc_bench", programs.artifact, *_words(programs, engine, facts, layout), *words, timeout_s=BENCH_S
    )
    report = _json(answer)
    blocks = [row for row in report.get("series", ()) if isinstance(row, dict) and row.get("what") == "block"]
    if answer.status != 0 or not blocks:
        return Tried(name, "failed", answer.said or f"status {answer.status}, and no report")
    if engine == "both":
        return Tried(name, "ok", "both engines executed blocks from one copy of the weights, which both had mapped")
    text = f"the artifact's weights were mapped and a block of {TOKENS} tokens executed{_place(report, engine)}"
    return Tried(name, "ok", text)


def _place(report: dict[str, Any], engine: str) -> str:
    """What executed blocks, as the end of a phrase."""
    described = report.get(engine)
    if not isinstance(described, dict):
        return ""
    if engine == "gpu":
        return f" on {described.get('device')}"
    place = described.get("place")
    return PORTABLE if place == "portable" else f" on {place}" if place else ""


def _json(answer: Answer) -> dict[str, Any]:
    return _object(answer.text)


def _object(text: str) -> dict[str, Any]:
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}
