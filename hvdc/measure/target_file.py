"""What a probe found as a target description: each value with where and when it was measured, or its other source."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hvdc.deploy.device_facts import SOCS, DeviceFacts
from hvdc.measure.platform_facts import Mappings, PlatformFacts, Region, size_text
from hvdc.measure.probe import Probed
from hvdc.targets import Choice, Choices, Count, Limit, TargetDescription

UNFINISHED = "UNFINISHED probe"


@dataclass(frozen=True)
class Described:
    """``notes``: what was not measured, or not as it should be, as sentences. ``unfinished``: a mark with the device's
    key, by which the same command knows its own file again; ``""``: the probe came to its end."""

    target: TargetDescription
    notes: tuple[str, ...]
    unfinished: str = ""


def describe(probed: Probed, base: TargetDescription, device: DeviceFacts | None) -> Described:
    """``base`` gives what cannot be measured, or was not, with its own sources. ``device`` None: this machine."""
    facts, notes = probed.facts, []
    values: dict[str, object] = {}
    if device is not None and device.soc:
        named = f"{SOCS[device.soc][0]} ({device.soc})" if device.soc in SOCS else device.soc
        values["soc"] = named
        if device.soc.lower() != base.name:
            values["name"] = "".join(c if c.isalnum() or c in "_-" else "-" for c in device.soc.lower())
            notes.append(f"QNN's number of the SoC and its graph limits are those of {base.name}: check them")
    source = f"measured {probed.days()} by hvdc probe on {probed.what}"
    if facts.dsp is not None and facts.dsp.arch:
        values["hexagon_arch"] = f"v{facts.dsp.arch}"
    if facts.dsp is not None and facts.dsp.vtcm_bytes:
        values["vtcm_bytes"] = Limit(value=facts.dsp.vtcm_bytes, source=f"{source}: what the DSP's session says")
    if facts.dsp is None:
        why = f": {facts.no_dsp}" if facts.no_dsp else ""
        notes.append(f"no DSP took part, so that nothing is known of what it maps{why}")
    if facts.memory_bytes:
        values["usable_memory_bytes"] = Limit(value=facts.memory_bytes, source=f"{source}: the kernel's total")
    values |= _gpu(facts, source, notes)
    values |= _memory(probed, source, notes)
    kept = [name for name in base.limits() if name not in values]
    if kept:
        notes.append(f"not measured, and as in {base.name}: {', '.join(kept)}")
    if probed.ended:
        notes.append(f"the probe was cut short: {probed.ended}")
    for what, size in facts.deadly:
        with_size = f" of {size_text(size)}" if size else ""
        notes.append(f"not tried, since a probe before has ended at it: {what}{with_size}")
    unknown = dict.fromkeys(("gpu_import", "dot_forms", "mapping_count"))
    found = base.model_copy(update=unknown | values)
    unfinished = f"{UNFINISHED} {probed.key}" if probed.ended else ""
    return Described(TargetDescription.model_validate(found.model_dump()), tuple(notes), unfinished)


def target_toml(described: Described) -> str:
    """The text of a file that `hvdc compile --target FILE` reads."""
    import tomli_w  # here: only what measures writes descriptions

    again = ["The same command goes on with it."] if described.unfinished else []
    mark = [described.unfinished] if described.unfinished else []
    head = [*mark, "A target description by hvdc probe, for hvdc compile --target FILE.", *again, *described.notes]
    lines = "".join(f"# {' '.join(line.split())}\n" for line in head)
    return lines + "\n" + tomli_w.dumps(described.target.model_dump(exclude_none=True), multiline_strings=False)


def unfinished_key(text: str) -> str | None:
    """Of which device a file is that a probe has not finished; None: it is none such."""
    found = re.match(rf"# {UNFINISHED} ([0-9a-f]{{16}})\n", text)
    return None if found is None else found[1]


def _gpu(facts: PlatformFacts, source: str, notes: list[str]) -> dict[str, object]:
    if not facts.gpus:
        why = f": {facts.no_gpu}" if facts.no_gpu else ""
        notes.append(f"no GPU took part{why}")
        return {}
    gpu = facts.gpus[0]
    values: dict[str, object] = {"gpu": gpu.device}
    if gpu.max_buffer_bytes:
        said = f"{source}: CL_DEVICE_MAX_MEM_ALLOC_SIZE of driver {gpu.driver}"
        values["opencl_buffer_bytes"] = Limit(value=gpu.max_buffer_bytes, source=said)
    if gpu.dots:
        refused = ", ".join(form for form, why in gpu.dots.items() if why) or "none"
        said = f"{source}: compiled, and a product's sums compared; refused: {refused}"
        values["dot_forms"] = Choices(value=gpu.right_dots, source=said)
    if (chosen := facts.chosen) is not None:
        kinds = "; ".join(f"{kind}: {sharing.text()}" for kind, sharing in facts.sharing.items())
        said = f"{source}: of kind {facts.kind}, written on one side and read on the other. Taken by engines: {kinds}"
        values["gpu_import"] = Choice(value=chosen.way, source=said)
        if not chosen.shares:
            notes.append(f"no kind of shared memory is taken by all engines: weights would be copied ({chosen.why})")
        first = next((kind for kind, why in facts.kinds.items() if not why), None)
        if first != facts.kind:
            why = "the first that two mappings agree on"
            notes.append(f"{facts.kind} is shared by all engines; the runtime takes {first}, {why}")
    return values


def _memory(probed: Probed, source: str, notes: list[str]) -> dict[str, object]:
    facts = probed.facts
    values: dict[str, object] = {}
    if (largest := facts.largest) is not None:
        said = f"{source}: the largest region of kind {facts.kind} that {_who(largest)} share; {_beyond(probed)}"
        values["region_cap_bytes"] = Limit(value=largest.bytes, source=said)
    else:
        notes.append("no region of shared memory worked")
    if (summed := facts.summed) is not None and summed.total_bytes:
        said = f"{source}: {summed.count} regions mapped at once by {_who(summed)}; {_end(summed, probed)}"
        values["mapping_budget_bytes"] = Limit(value=summed.total_bytes, source=said)
    if (counted := facts.counted) is not None and counted.count:
        each = counted.total_bytes // counted.count >> 10
        said = f"{source}: regions of {each} KiB mapped at once by {_who(counted)}; {_end(counted, probed)}"
        values["mapping_count"] = Count(value=counted.count, source=said)
    return values


def _who(found: Region | Mappings) -> str:
    parts = ["CPU", *(["GPU"] if found.gpu else []), *(["DSP"] if found.dsp else [])]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _beyond(probed: Probed) -> str:
    facts = probed.facts
    deadly = [size for what, size in facts.deadly if what == "region"]
    if deadly:
        return f"a probe before has ended while it tried {size_text(min(deadly))}"
    if facts.trying is not None and facts.trying[0] == "region":
        return f"the probe ended while it tried {size_text(facts.trying[1])}"
    if (refused := facts.smallest_refused) is not None:
        why = f": {refused.why}" if refused.why else ""
        return f"{size_text(refused.bytes)} was refused by {refused.refused_by or 'it'}{why}"
    return "more was not tried"


def _end(found: Mappings, probed: Probed) -> str:
    if found.refused:
        return f"one more was refused: {found.why or 'it is not said why'}"
    if probed.facts.trying is not None:
        return "at least, since the probe ended there"
    return "at least, since more was not tried"
