"""What was found in a checkpoint, as a value that can be printed: nothing that hvdc decided stays unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporters.names import Layout
from exporters.scales import Ignored


@dataclass(frozen=True)
class Report:
    """Facts about one opened checkpoint.

    ``experts`` says where each expert came from. ``left_out_energy`` (linear -> share, 0 to 1) fills up while
    factors of a merged checkpoint are read; it is empty for every other form. ``notes`` are sentences.
    """

    layout: Layout
    container: str
    stored_dtypes: Mapping[str, int]
    prefixes: tuple[str, ...]
    experts: Mapping[str, str]
    alpha_over_rank: float = 0.0
    alpha_source: str = ""
    ignored: tuple[Ignored, ...] = ()
    left_out_energy: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report as plain lines, for a terminal or a log."""
        names = {
            "dcm": "DCM (PEFT-wrapped diffusers names)",
            "wan": "official Wan names",
            "diffusers": "diffusers names",
        }
        dtypes = ", ".join(f"{count:,} {dtype}" for dtype, count in sorted(self.stored_dtypes.items()))
        out = [f"layout: {names[self.layout]}, {self.container}", f"stored as: {dtypes}"]
        if self.prefixes:
            out.append(f"prefixes removed: {', '.join(self.prefixes)}")
        out += [f"{expert} expert: {source}" for expert, source in self.experts.items()]
        if self.alpha_source:
            out.append(f"alpha / rank: {self.alpha_over_rank:g}, from {self.alpha_source}")
        if self.left_out_energy:
            linear, worst = max(self.left_out_energy.items(), key=lambda item: item[1])
            out.append(f"energy left out: at most {worst:.3g} ({linear}) in {len(self.left_out_energy)} linears")
        out += [f"note: {note}" for note in self.notes]
        by_reason: dict[str, list[str]] = {}
        for ignored in self.ignored:
            by_reason.setdefault(ignored.reason, []).append(ignored.name)
        out += [f"ignored ({reason}): {', '.join(names)}" for reason, names in by_reason.items()]
        return out
