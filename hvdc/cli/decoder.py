"""What commands say about an artifact's decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdc.artifact.decoder import Decoder
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import Artifact
from hvdc.cli.output import out, table
from hvdc.progress import Progress

if TYPE_CHECKING:  # it imports ONNX
    from hvdc.pipeline.decoder_trials import Emulated

FRAMES = "frames"
"""The output of a decoder's last graph."""

WITHOUT = "none: the artifact makes latents, not frames (compile with --vae)"


def decoder_line(decoder: Decoder | None) -> str:
    """One line for people."""
    if decoder is None:
        return WITHOUT
    t, q = decoder.tiles, decoder.quantisation
    psnr = "" if q.psnr_db is None else f", {q.psnr_db:.1f} dB against FP32"
    shape = f"INT8 in tiles of {t.rows} × {t.columns} latent pixels{psnr}"
    if not decoder.binaries:
        return f"{shape}; ONNX only: it cannot decode on a phone yet"
    b = decoder.binaries[0]
    said = {"metadata": "metadata read back", "emulator": "emulated", "device": "run on a phone"}
    ran = " and ".join(said[check] for check in b.checks)
    unseen = "" if "device" in b.checks else "; no phone has loaded it"
    return f"{shape}; QNN binary for soc {b.soc}, v{b.arch} ({ran}{unseen})"


def decoder_facts(decoder: Decoder | None) -> dict[str, Any] | None:
    """For `--json`: the manifest's entry without its ports."""
    if decoder is None:
        return None
    facts = decoder.model_dump(mode="json", exclude={"graphs": {"__all__": {"inputs", "outputs"}}})
    return {**facts, "has_binary": bool(decoder.binaries), "text": decoder_line(decoder)}


@dataclass
class DecoderChecks:
    """What was found out about a decoder's binaries.

    ``not_read``: why their metadata could not be. ``not_emulated``: why that was asked for and not done.
    """

    emulated: list[Emulated] = field(default_factory=list)
    not_read: str = ""
    not_emulated: str = ""
    other_build: str = ""
    """Of the emulator, where the binaries are of another build of the toolchain, as a sentence."""

    def facts(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "emulated": [row.to_json() for row in self.emulated],
            "binaries_not_read": self.not_read or None,
            "not_emulated": self.not_emulated or None,
            "emulator_of_other_build": self.other_build or None,
        }

    def print_table(self) -> None:
        """For people: single operators and frames one by one, caches together; then what was asked of them."""
        if self.not_read:
            out().print(f"binaries  not read back: {self.not_read}")
        if self.not_emulated:
            out().print(f"emulator  not run: {self.not_emulated}")
        if not self.emulated:
            return
        if self.other_build:
            out().print(f"emulator  {self.other_build}")
        shown = [row for row in self.emulated if row.is_operator or row.output == FRAMES]
        others = [row for row in self.emulated if row not in shown]
        rows = [
            (r.what, r.output if r.output == FRAMES else "", *_steps([r]), _decibels(r.psnr_db), _judged([r]))
            for r in shown
        ]
        if others:
            rows.append((f"{len(others)} other outputs", "worst", *_steps(others), "", _judged(others)))
        title = "On the x86 emulator against an exact reference, in steps of 8 bits"
        table(title, ("what", "", ">largest", ">mean", ">PSNR, dB", ""), rows)
        asked = {_kind(row): row.in_words()[0] for row in self.emulated}
        out().print("\n".join(f"allowed of {kind}: {words}" for kind, words in asked.items()))


def _kind(row: Emulated) -> str:
    """Of those that the same is asked of."""
    return "operators" if row.is_operator else FRAMES if row.output == FRAMES else "other outputs"


def _steps(rows: list[Emulated]) -> tuple[str, str]:
    """Largest and mean, of the worst."""
    return f"{max(row.max_lsb for row in rows):.3f}", f"{max(row.mean_lsb for row in rows):.3f}"


def _decibels(psnr_db: float | None) -> str:
    return "" if psnr_db is None else f"{psnr_db:.1f}"


def _judged(rows: list[Emulated]) -> str:
    return "ok" if all(row.passed for row in rows) else "too far off"


def check_decoder(
    artifact: Artifact,
    checks: dict[str, list[ArtifactError]],
    progress: Progress,
    *,
    emulated: bool,
    vae: Path | None,
) -> DecoderChecks:
    """Whatever this machine can find out, into ``checks`` as far as it comes.

    Raises, where ``emulated`` is asked for: UsageError if it is not possible, CheckpointError, HvdcError, QnnError.
    """
    from hvdc.pipeline import decoder_checks
    from hvdc.pipeline.decoder_checks import emulate, emulation_findings

    found = DecoderChecks()
    entry = artifact.manifest.decoder
    checks["graphs"] = _findings(decoder_checks.port_findings, artifact)
    if entry is not None and entry.binaries:
        found.not_read = decoder_checks.why_not_read()
        if not found.not_read:
            checks["binaries"] = _findings(decoder_checks.metadata_findings, artifact)
    faulty = [name for name in ("graphs", "binaries") if checks.get(name)]
    if emulated and faulty:  # nothing damaged is given to the libraries
        found.not_emulated = f"the decoder's {' and '.join(faulty)} have faults"
    elif emulated:
        try:
            found.emulated = emulate(artifact, vae, progress)
            checks["emulator"] = emulation_findings(found.emulated)
            found.other_build = decoder_checks.other_build(entry)
        except ArtifactError as error:
            checks["emulator"] = [error]
    return found


def _findings(check: Callable[[Artifact], list[ArtifactError]], artifact: Artifact) -> list[ArtifactError]:
    """A file that is not the one that was compiled is a finding too."""
    try:
        return check(artifact)
    except ArtifactError as error:
        return [error]
