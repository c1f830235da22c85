"""``hvdc validate``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click

from hvdc.artifact.answer_records import ANSWER_NAME
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.manifest import Manifest
from hvdc.artifact.reader import Artifact, open_artifact
from hvdc.artifact.runtime import FOLDER as RUNTIME_FOLDER
from hvdc.artifact.runtime import read_answer, runtime_findings
from hvdc.artifact.validate import validate_deep
from hvdc.cli.activations import activations_facts, activations_line
from hvdc.cli.decoder import DecoderChecks, check_decoder, decoder_facts, decoder_line
from hvdc.cli.output import describe_error, json_number, out, print_json, progress_for, table
from hvdc.errors import Exit, UsageError
from hvdc.pipeline.against import Comparison, compare, open_source
from hvdc.pipeline.failures import describe_failure
from hvdc.progress import Progress


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--deep", is_flag=True, help="Read every byte: hashes, padding, scales, no -128, finite values.")
@click.option("--against", type=click.Path(path_type=Path), help="Compare every weight with this checkpoint.")
@click.option("--adapter", type=click.Path(path_type=Path), help="The adapter that the checkpoint was compiled with.")
@click.option("--lora-alpha", type=float, help="The alpha that it was compiled with, if by --lora-alpha.")
@click.option("--emulate", is_flag=True, help="Run the decoder's graphs on the x86 emulator of the phone's NPU.")
@click.option("--vae", type=click.Path(path_type=Path), help="For --emulate of large tiles: the VAE, for small ones.")
@click.option("--junit", type=click.Path(path_type=Path), help="Also write the result as JUnit XML.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    artifact: Path,
    deep: bool,
    against: Path | None,
    adapter: Path | None,
    lora_alpha: float | None,
    emulate: bool,
    vae: Path | None,
    junit: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Prove that ARTIFACT is sound. Exit status 0 if it is, 4 if not.

    Without options: directory, manifest, index, sizes, offsets, paths. --deep reads all data. --against takes the
    checkpoint that it was compiled from: each weight must lie within half a quantisation step, everything else must
    be equal. A decoder's graphs are compared with the manifest, and its binaries asked what they hold, where Qualcomm's
    libraries are installed; --emulate also runs single operators and the decoder's graphs on their x86 emulator,
    against an exact reference.

    \b
    Examples:
      hvdc validate dcm.hvdc
      hvdc validate --deep --against DCM_WAN/transformer dcm.hvdc
      hvdc validate --deep --junit validate.xml dcm.hvdc
    """
    if against is None and (adapter is not None or lora_alpha is not None):
        raise UsageError("--adapter and --lora-alpha are for --against", fix="add --against CHECKPOINT")
    if vae is not None and not emulate:
        raise UsageError("--vae is for --emulate", fix="add --emulate")
    if junit is not None and not junit.parent.is_dir():
        raise UsageError(
            "the folder for the JUnit file does not exist",
            where=str(junit.parent),
            fix="make it, or choose another --junit",
        )
    progress = progress_for(quiet=quiet or as_json)
    checks: dict[str, list[ArtifactError]] = {}
    comparison: Comparison | None = None
    decoder: DecoderChecks | None = None
    manifest: Manifest | None = None
    doing = "layout"
    try:
        with open_artifact(artifact) as opened:
            checks["layout"], manifest = [], opened.manifest
            if (artifact / RUNTIME_FOLDER).exists():
                checks["runtime"] = runtime_findings(artifact)
            if emulate:
                doing = "emulator"
                _require_emulator(opened, vae)
            if deep:
                doing = "deep"
                progress.start("validating", opened.manifest.totals.data_bytes, len(opened.manifest.files))
                checks["deep"] = validate_deep(opened, _by_file(progress, opened.manifest))
                if not any(checks.values()) and (answer := read_answer(artifact)) is not None:
                    doing = "answer"
                    checks["answer"] = _answer_findings(opened, answer, progress)
            if opened.manifest.decoder is not None and (deep or emulate or opened.manifest.decoder.binaries):
                doing = "emulator" if emulate else "binaries"
                decoder = check_decoder(opened, checks, progress, emulated=emulate, vae=vae)
            if against is not None:
                doing = "against"
                with open_source(against, adapter, opened.manifest, lora_alpha=lora_alpha) as checkpoint:
                    comparison = compare(opened, checkpoint, progress)
                checks["against"] = list(comparison.findings)
    except ArtifactError as error:
        checks["layout"] = [error]
    except Exception as error:
        if junit is not None:
            _write_junit(junit, artifact, checks, stopped=(doing, error))
        raise
    finally:
        progress.finish()
    if junit is not None:
        _write_junit(junit, artifact, checks)
    if as_json:
        print_json(_facts(artifact, checks, manifest, comparison) | (decoder.facts() if decoder is not None else {}))
    else:
        if decoder is not None:
            decoder.print_table()
        _print(artifact, checks, manifest, comparison)
    return Exit.BAD_ARTIFACT if any(checks.values()) else Exit.OK


def _answer_findings(artifact: Artifact, answer: bytes, progress: Progress) -> list[ArtifactError]:
    from hvdc.pipeline.answer import answer_findings  # it imports PyTorch

    return answer_findings(artifact, answer, str(artifact.path / RUNTIME_FOLDER / ANSWER_NAME), progress)


def _require_emulator(artifact: Artifact, vae: Path | None) -> None:
    from hvdc.pipeline.decoder_checks import require_emulator  # it imports ONNX

    require_emulator(artifact, vae)


def _by_file(progress: Progress, manifest: Manifest) -> Callable[[str, int], None]:
    """Adapt counts of checked bytes: a file is done when all of its bytes are."""
    left = {file.path: file.bytes for file in manifest.files}

    def report(path: str, size: int) -> None:
        progress.advance(size)
        left[path] -= size
        if size and not left[path]:
            progress.item_done(path)

    return report


def _facts(
    artifact: Path, checks: dict[str, list[ArtifactError]], manifest: Manifest | None, comparison: Comparison | None
) -> dict[str, Any]:
    findings = [
        {"check": check, "code": f.code.name, **describe_error(f)[1]} for check, found in checks.items() for f in found
    ]
    facts: dict[str, Any] = {
        "artifact": str(artifact), "ok": not findings, "checks": list(checks), "findings": findings
    }  # fmt: skip
    if manifest is not None:
        facts["activations"] = activations_facts(manifest.calibration)
        facts["decoder"] = decoder_facts(manifest.decoder)
    if comparison is not None:
        facts["weights"] = [
            {"name": r.name, "sqnr_db": json_number(r.sqnr_db), "max_error_steps": json_number(r.max_error_steps)}
            for r in comparison.weights
        ]
        facts["tensors_compared"] = len(comparison.results)
        facts["tensors_measured"] = list(comparison.measured)
    return facts


def _print(
    artifact: Path, checks: dict[str, list[ArtifactError]], manifest: Manifest | None, comparison: Comparison | None
) -> None:
    console = out()
    for check, findings in checks.items():
        count = len(findings)
        console.print(f"{check:<8} {'ok' if not count else '1 fault' if count == 1 else f'{count} faults'}")
        for finding in findings[:20]:
            console.print(f"  {finding.what}")
            for name, value in finding.details().items():
                console.print(f"    {name}: {value}")
        if len(findings) > 20:
            console.print(f"  … and {len(findings) - 20} more; --json lists all")
    if comparison is not None and comparison.weights:
        groups: dict[str, list[tuple[float, float]]] = {}
        for result in comparison.weights:
            kind = ".".join(part for part in result.name.split(".")[2:] if part != "weight")
            groups.setdefault(kind, []).append((result.sqnr_db or 0.0, result.max_error_steps or 0.0))
        rows = [
            (kind, len(values), f"{min(v for v, _ in values):.2f}", f"{max(e for _, e in values):.4f}")
            for kind, values in groups.items()
        ]
        console.print()
        table("Against the checkpoint", ("linear", ">tensors", ">lowest SQNR, dB", ">largest error, steps"), rows)
        console.print(f"{len(comparison.results)} tensors compared")
    if comparison is not None and comparison.measured:
        console.print(
            f"not compared: {', '.join(comparison.measured)}; calibration measured them by running the model, "
            "so no checkpoint says what they must be"
        )
    if manifest is not None:
        console.print(f"activations  {activations_line(manifest.calibration)}")
        console.print(f"decoder   {decoder_line(manifest.decoder)}")
    console.print(f"{artifact}: {_verdict(checks)}")


def _verdict(checks: dict[str, list[ArtifactError]]) -> str:
    if checks.get("layout") or checks.get("deep"):
        return "NOT sound"
    if checks.get("against"):
        return "NOT what this checkpoint compiles to"
    return (
        "NOT sound"
        if any(checks.get(name) for name in ("runtime", "answer", "graphs", "binaries", "emulator"))
        else "sound"
    )


def _write_junit(
    path: Path,
    artifact: Path,
    checks: dict[str, list[ArtifactError]],
    *,
    stopped: tuple[str, Exception] | None = None,
) -> None:
    """One test case a check, as CI systems read it; what stopped a check, and those after it, is an error of it."""
    failed = sum(bool(findings) for findings in checks.values())
    errors = 0 if stopped is None else 1
    suite = ElementTree.Element(
        "testsuite", name="hvdc validate", tests=str(len(checks) + errors), failures=str(failed), errors=str(errors)
    )
    for check, findings in checks.items():
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(artifact.name), name=check)
        for finding in findings:
            failure = ElementTree.SubElement(case, "failure", message=_xml(finding.what), type=finding.code.name)
            failure.text = _xml(str(finding))
    if stopped is not None:
        check, error = stopped
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(artifact.name), name=check)
        message = _xml(describe_failure(error)[1]["what"])
        ElementTree.SubElement(case, "error", message=message, type=type(error).__name__).text = _xml(str(error))
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _xml(text: str) -> str:
    """Without what XML 1.0 cannot hold: a library's last words may have any control character."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
