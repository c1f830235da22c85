"""What commands say about an artifact's decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdc.artifact.decoder import Decoder
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import Artifact
from hvdc.cli.output import out, table
from hvdc.pipeline.progress import Progress

if TYPE_CHECKING:  # it imports ONNX
    from hvdc.pipeline.decoder_checks import Emulated

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
    """What was found out about a decoder's binaries. ``not_read``: why their metadata could not be."""

    checks: dict[str, list[ArtifactError]] = field(default_factory=dict)
    emulated: list[Emulated] = field(default_factory=list)
    not_read: str = ""

    def facts(self) -> dict[str, Any]:
        """For `--json`."""
        return {"emulated": [asdict(row) for row in self.emulated], "binaries_not_read": self.not_read or None}

    def print_table(self) -> None:
        """For people: single operators and frames one by one, caches together."""
        if self.not_read:
            out().print(f"binaries  not read back: {self.not_read}")
        if not self.emulated:
            return
        shown = [row for row in self.emulated if row.what.startswith("operator") or row.output == FRAMES]
        caches = [row for row in self.emulated if row not in shown]
        rows = [(r.what, r.output if r.output == FRAMES else "", _steps(r.max_lsb), _steps(r.mean_lsb)) for r in shown]
        if caches:
            worst = max(row.mean_lsb for row in caches)
            rows.append(
                (f"{len(caches)} other outputs", "worst", _steps(max(r.max_lsb for r in caches)), _steps(worst))
            )
        title = "On the x86 emulator against an exact reference, in steps of 8 bits"
        table(title, ("what", "", ">largest", ">mean"), rows)


def _steps(value: float) -> str:
    return f"{value:.3f}"


def check_decoder(artifact: Artifact, progress: Progress, *, emulated: bool, vae: Path | None) -> DecoderChecks:
    """Whatever this machine can find out. Raises UsageError where ``emulated`` was asked for and is not possible."""
    from hvdc.pipeline import decoder_checks
    from hvdc.pipeline.decoder_checks import emulate, emulation_findings

    found = DecoderChecks()
    entry = artifact.manifest.decoder
    found.checks["graphs"] = _findings(decoder_checks.port_findings, artifact)
    if entry is not None and entry.binaries:
        found.not_read = decoder_checks.why_not_read()
        if not found.not_read:
            found.checks["binaries"] = _findings(decoder_checks.metadata_findings, artifact)
    if emulated and not any(found.checks.values()):  # what is damaged is not given to the libraries
        found.emulated = emulate(artifact, vae, progress)
        found.checks["emulator"] = emulation_findings(found.emulated)
    return found


def _findings(check: Callable[[Artifact], list[ArtifactError]], artifact: Artifact) -> list[ArtifactError]:
    """A file that is not the one that was compiled is a finding too."""
    try:
        return check(artifact)
    except ArtifactError as error:
        return [error]
