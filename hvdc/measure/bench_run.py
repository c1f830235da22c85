"""A whole `hvdc bench`: the artifact is opened, the runtime found, blocks and decoder measured, the table written."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvdc.artifact.decoder import Decoder
from hvdc.artifact.manifest import Manifest
from hvdc.artifact.reader import open_artifact
from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.layout import Layout
from hvdc.errors import UsageError
from hvdc.files import explaining, write_durably
from hvdc.measure.bench import Benched, BenchRequest, bench
from hvdc.measure.host_decode import with_host_decode
from hvdc.measure.phone import Deployed, deployed_place
from hvdc.measure.places import HostPlace
from hvdc.measure.rate_table import rate_table
from hvdc.pipeline.cache import cache_folder
from hvdc.pipeline.runtime_build import find_runtime
from hvdc.plan.rates import RateTable, rates_toml
from hvdc.progress import Progress


@dataclass(frozen=True)
class Measured:
    """``output`` None: no table is written."""

    benched: Benched
    table: RateTable
    output: Path | None

    def write(self) -> None:
        """The table's file, whole or not at all. Raises HvdcError."""
        if self.output is not None:
            with explaining(self.output):
                write_durably(self.output, rates_toml(self.table).encode())

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        b = self.benched
        return {
            "device": self.table.device,
            "steady": not b.unsteady(),
            "max_spread": b.request.max_spread,
            "unsteady": [series.text() for series in b.unsteady()],
            "cooling": b.request.cooling,
            "rest_s": b.request.rest_s,
            "took_s": b.took_s,
            "before": b.before.facts(),
            "during": b.during.facts(),
            "after": b.after.facts(),
            "table": None if self.output is None else str(self.output),
            "report": b.report.model_dump(mode="json", by_alias=True, exclude={"artifact"}),
        }


def measure_host(
    path: Path, request: BenchRequest, decoder: str | None, output: Path | None, *, force: bool, progress: Progress,
    say: Callable[[str], None],
) -> Measured:  # fmt: skip
    """On this machine. ``decoder``: of `run_decoders.HOST_DECODERS`; None: nothing is decoded.

    Raises UsageError, ArtifactError, HvdcError; ProgramError with the program's own sentence.
    """
    check_table_path(output, force=force)
    with open_artifact(path) as artifact:
        manifest = artifact.manifest
        check_measurable(manifest, request, path)
        has_decoder = _has_decoder(manifest, decoder)
        if has_decoder and decoder == "emulator":
            from hvdc.pipeline.run_decoders import InStream

            request = replace(request, qnn_libraries=str(InStream(artifact).libraries))
        kernels = cache_folder("kernels")
        place = HostPlace(find_runtime("host", progress, say), path, kernels)
        benched = bench(request, place, progress, say)
        if has_decoder and decoder != "emulator":
            benched = with_host_decode(benched, artifact, place, progress, say)
    return Measured(benched, rate_table(benched, manifest, table_name(output)), output)


def measure_device(
    path: Path, request: BenchRequest, device: AdbDevice, layout: Layout, name: str | None, output: Path | None, *,
    decode: bool, force: bool, progress: Progress, say: Callable[[str], None],
) -> Measured:  # fmt: skip
    """On a device, with the programs of the artifact that was deployed there.

    Raises as `measure_host`; DeviceError: the artifact is not on the device, or the device is lost.
    """
    check_table_path(output, force=force)
    with open_artifact(path) as artifact:
        manifest = artifact.manifest
        check_measurable(manifest, request, path)
    deployed = deployed_place(device, layout, path, name)
    if decode and manifest.decoder is not None:
        libraries, words = _libraries(manifest.decoder, deployed, say), tuple(deployed.place.facts.qnn_words())
        request = replace(request, qnn_libraries=libraries, qnn_words=words)
    deployed.place.require_free()
    benched = bench(request, deployed.place, progress, say)
    return Measured(benched, rate_table(benched, manifest, table_name(output)), output)


def check_table_path(output: Path | None, *, force: bool) -> None:
    """Before minutes of measuring. Raises UsageError."""
    if output is None:
        return
    if output.exists() and not (force and output.is_file()):
        fix = "choose another -o, or --force to replace it" if output.is_file() else "choose another -o"
        raise UsageError("the output exists", where=str(output), fix=fix)
    if not output.parent.is_dir() or not os.access(output.parent, os.W_OK | os.X_OK):
        raise UsageError("the output's directory does not exist, or is not writable", where=str(output.parent))


def check_measurable(manifest: Manifest, request: BenchRequest, path: Path) -> None:
    """Raises UsageError: the GPU's engine needs activation scales."""
    if manifest.calibration is None and request.engine != "npu":
        raise UsageError(
            "the artifact has no activation scales, and the GPU's arithmetic needs them", where=str(path),
            fix="compile it with --prompts or --calibration, or measure with --engine npu",
        )  # fmt: skip


def table_name(output: Path | None) -> str:
    """The output's."""
    return (output.stem if output is not None else "") or "measured"


def _has_decoder(manifest: Manifest, decoder: str | None) -> bool:
    return decoder is not None and manifest.decoder is not None


def _libraries(decoder: Decoder, deployed: Deployed, say: Callable[[str], None]) -> str | None:
    """Those with which the device decodes; None, with a note, where it cannot."""
    if not decoder.binaries:
        say("the decoder is not measured: the artifact has no binaries of it for a phone")
    elif deployed.libraries is None:
        say("the decoder is not measured: it was deployed without QAIRT's libraries (hvdc deploy --qairt DIR)")
    else:
        return deployed.libraries
    return None
