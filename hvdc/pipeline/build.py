"""Carry a prepared build out: tables → data files → manifest → index → verify → publish."""

from __future__ import annotations

import hashlib
import math
import platform
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from exporters import schedule
from exporters.adaln import Tables, fold_tables
from exporters.checkpoint import Checkpoint
from exporters.errors import CheckpointError
from hvdc import __version__
from hvdc.artifact.index_write import build_index
from hvdc.artifact.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    FileEntry,
    Format,
    Geometry,
    Manifest,
    Source,
    Step,
    Target,
    TensorEntry,
    model_sha256,
)
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.runtime import FOLDER as RUNTIME_FOLDER
from hvdc.errors import HvdcError
from hvdc.pipeline.artifact_plan import ADALN, EXPERTS, HEAD_TABLE, ROPE, ArtifactPlan, FilePlan
from hvdc.pipeline.decoder_parts import DecoderParts
from hvdc.pipeline.latents_file import require_own_weights
from hvdc.pipeline.prepare import Prepared, Request, fingerprint, parameters, table_sources
from hvdc.pipeline.runtime_parts import answer_for, is_program, kept_runtimes, runtime_files
from hvdc.pipeline.tensors import Buffers, FileMaker, InterruptedBuildError
from hvdc.pipeline.workspace import Done, Workspace
from hvdc.progress import Progress
from quant.smooth import Rescaling


@dataclass(frozen=True)
class Built:
    """A published artifact."""

    path: Path
    manifest: Manifest
    resumed_files: int
    """Files that were taken over from an unfinished build."""
    unanswered: str = ""
    """Why no answer to try devices with was stored; empty if one was."""


def build(prepared: Prepared, progress: Progress) -> Built:
    """Write the artifact of ``prepared.request.output``.

    Raises HvdcError, CheckpointError. On any exception, KeyboardInterrupt included, the output does not exist (or is
    still the artifact from before) and the ``.partial`` directory holds whole files that `--resume` goes on with;
    after CheckpointError it is gone, for no resumed build of that checkpoint could succeed.
    """
    request = prepared.request
    if request.output is None:
        raise ValueError("a build needs an output")
    identity = fingerprint(prepared)
    with Workspace(request.output, identity, resume=request.resume, replace=request.force) as workspace:
        resumed = len(workspace.done)
        try:
            done = _data_files(prepared, workspace, progress)
            if fingerprint(prepared) != identity:
                raise CheckpointError(
                    "the checkpoint changed while it was compiled",
                    where=str(request.checkpoint),
                    fix="run the command again when nothing writes to it any more",
                )
            sources = {name: value for entry in done for name, value in entry.sources.items()}
            sha256 = source_sha256(prepared.checkpoint, sources)
            _require_own_calibration(request, sha256)
            require_own_weights(request.latents, sha256, "--latents")
        except CheckpointError:
            workspace.discard()
            raise
        manifest = make_manifest(prepared, done, sha256)
        data = manifest.to_json()
        workspace.write_plain(MANIFEST_NAME, data)
        workspace.write_plain(INDEX_NAME, build_index(manifest, data))
        with open_artifact(workspace.path) as written:
            answer, unanswered = answer_for(written, progress)
        for name, content in runtime_files(kept_runtimes(), answer).items():
            workspace.write_plain(f"{RUNTIME_FOLDER}/{name}", content, executable=is_program(name))
        open_artifact(workspace.path).close()
        workspace.publish()
    return Built(request.output, manifest, resumed, unanswered)


def _require_own_calibration(request: Request, tensors_sha256: str) -> None:
    """Scales of other weights are wrong without looking wrong. Raises CheckpointError."""
    held = None if request.activations is None else request.activations.tensors_sha256
    if held in (None, tensors_sha256):
        return
    raise CheckpointError(
        "the calibration is of another checkpoint: sizes agree, weights do not",
        where=str(request.checkpoint),
        expected=f"tensors_sha256 {tensors_sha256} (this checkpoint)",
        found=str(held),
        fix="calibrate this checkpoint, with the same adapter",
    )


def _data_files(prepared: Prepared, workspace: Workspace, progress: Progress) -> list[Done]:
    """Make every data file that is not done yet, on ``jobs`` threads; returns all of them in plan order."""
    checkpoint, activations = prepared.checkpoint, prepared.request.activations
    rescaling = Rescaling(checkpoint.geometry, {} if activations is None else activations.smoothing)
    maker = FileMaker(
        checkpoint.tensors,
        lambda: table_arrays(
            rescaled_tables(rescaling, fold_tables(checkpoint.geometry, checkpoint.tensors, prepared.steps))
        ),
        table_sources(checkpoint.geometry),
        checkpoint.geometry.alpha_over_rank,
        {} if activations is None else activations.tensors(),
        rescaling.tensor,
    )
    pending = [f for f in prepared.plan.files if f.path not in workspace.done]
    pending.sort(key=lambda f: f.kind != "schedule")  # the tables are one long piece of work: they begin first
    buffers = Buffers(max(f.region.bytes for f in prepared.plan.files if f.kind != "decoder"))
    computing = threading.Semaphore(prepared.request.jobs)
    progress.start("compiling", _read_bytes(prepared, pending), len(pending))

    def one(file: FilePlan) -> Done:
        with computing:
            if file.kind == "decoder":
                done = _copied(file, prepared.request.decoder, workspace)
            else:
                data, sources = maker.make(file, buffers.mine(), progress.advance)
                done = workspace.write(file.path, data.data, sources, _left_out_energy(checkpoint, file))
        progress.item_done(file.path)
        return done

    # One thread more than may compute: while it waits for the disk, all cores go on.
    pool = ThreadPoolExecutor(prepared.request.jobs + 1, thread_name_prefix="compile")
    try:
        futures = [pool.submit(one, file) for file in pending]
        wait(futures, return_when=FIRST_EXCEPTION)
        fresh = {done.path: done for done in _results(futures)}
    finally:
        maker.stop.set()  # threads see it before their next strip
        pool.shutdown(cancel_futures=True)
        progress.finish()
    done = workspace.done | fresh
    return [done[file.path] for file in prepared.plan.files]


def _copied(file: FilePlan, decoder: DecoderParts | None, workspace: Workspace) -> Done:
    """A file of the decoder, as it was made. Raises HvdcError where it is something else now."""
    assert decoder is not None  # noqa: S101 - who plans its files has one
    (tensor,) = file.tensors
    path, expected = decoder.files[tensor.name], decoder.hashes[tensor.name]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HvdcError(
            "a cached file of the decoder cannot be read",
            where=str(path),
            found=str(error),
            fix="remove it: it is made again",
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise HvdcError(
            "a cached file of the decoder changed while it was compiled in", where=str(path),
            expected=f"SHA-256 {expected}", found=found, fix="run the command again",
        )  # fmt: skip
    return workspace.write(file.path, memoryview(data), {}, {})


def _left_out_energy(checkpoint: Checkpoint, file: FilePlan) -> dict[str, float]:
    """Of the linears in a file whose factors were just read; empty unless a merged checkpoint is being split."""
    linears = dict.fromkeys(f"blocks.{t.block}.{t.linear}" for t in file.tensors)
    known = checkpoint.report.left_out_energy
    return {linear: known[linear] for linear in linears if linear in known}


def _read_bytes(prepared: Prepared, files: list[FilePlan]) -> int:
    """FP32 bytes of the canonical tensors that go into the files."""
    names = [t.source for f in files for t in f.tensors if t.source is not None]
    if any(f.kind == "schedule" for f in files):
        names += table_sources(prepared.geometry)
    return sum(4 * math.prod(prepared.checkpoint.tensors[name].shape) for name in names)


def _results(futures: list[Future[Done]]) -> list[Done]:
    """Results of all, or the first failure that is not merely a consequence of another."""
    for future in futures:
        error = future.exception() if future.done() and not future.cancelled() else None
        if error is not None and not isinstance(error, InterruptedBuildError):
            raise error
    return [future.result() for future in futures]


def rescaled_tables(rescaling: Rescaling, tables: Tables) -> Tables:
    """The tables of the rescaled model."""
    return replace(tables, adaln=rescaling.adaln(tables.adaln))


def table_arrays(tables: Tables) -> dict[str, npt.NDArray[np.generic]]:
    """Tables by the name they are stored under."""
    return {
        ADALN: tables.adaln,
        HEAD_TABLE: tables.head,
        **dict(zip(ROPE, tables.rope_frequencies, strict=True)),
    }


def source_sha256(checkpoint: Checkpoint, hashes: dict[str, str]) -> str:
    """SHA-256 over ``name shape hash`` lines of the canonical tensors in canonical order."""
    lines = []
    for name, tensor in checkpoint.tensors.items():
        shape = "x".join(map(str, tensor.shape))
        lines.append(f"{name} {shape} {hashes[name]}\n")
    return hashlib.sha256("".join(lines).encode("ascii")).hexdigest()


def file_entries(plan: ArtifactPlan, done: list[Done]) -> tuple[FileEntry, ...]:
    """Manifest entries of the planned files with their hashes."""
    entries = []
    for file, written in zip(plan.files, done, strict=True):
        offsets = {p.name: p.offset for p in file.region.placements}
        tensors = tuple(
            TensorEntry(
                name=t.name, linear=t.linear, kind=t.kind, dtype=t.dtype, tile_order=t.tile_order, block=t.block,
                expert=t.expert, shape=t.shape, padded_shape=t.padded_shape, scale=t.scale, offset=offsets[t.name],
                bytes=t.bytes,
            )
            for t in file.tensors
        )  # fmt: skip
        entries.append(
            FileEntry(
                path=file.path, kind=file.kind, first_block=file.first_block, block_count=file.block_count,
                bytes=file.region.bytes, sha256=written.sha256, tensors=tensors,
            )
        )  # fmt: skip
    return tuple(entries)


def manifest_steps(steps: Sequence[schedule.Step]) -> tuple[Step, ...]:
    """The schedule as a manifest writes it."""
    return tuple(
        Step(
            timestep=s.timestep,
            sigma=s.sigma,
            sigma_next=s.sigma_next,
            step_size=s.step_size,
            expert="detail" if s.expert == "detail" else "semantic",
        )
        for s in steps
    )


def make_manifest(prepared: Prepared, done: list[Done], tensors_sha256: str) -> Manifest:
    """The manifest of a build whose data files are written."""
    g, target = prepared.geometry, prepared.target
    files = file_entries(prepared.plan, done)
    activations = prepared.request.activations
    left_out = {linear: share for entry in done for linear, share in entry.left_out_energy.items()}
    return Manifest(
        format=Format(),
        tools={"hvdc": __version__, "numpy": np.__version__, "python": platform.python_version()},
        configuration=prepared.config,
        geometry=Geometry(**asdict(g), rope_axis_dims=g.rope_axis_dims),
        video=prepared.video,
        target=Target(
            name=target.name,
            soc=target.soc,
            hexagon_arch=target.hexagon_arch,
            region_cap_bytes=target.region_cap_bytes.value,
            mapping_budget_bytes=target.mapping_budget_bytes.value,
        ),
        experts=EXPERTS[: len(g.experts)],
        steps=manifest_steps(prepared.steps),
        source=Source(
            tensors_sha256=tensors_sha256,
            tensor_count=len(prepared.checkpoint.tensors),
            left_out_energy=left_out or None,
        ),
        parameters=parameters(g),
        totals=prepared.plan.totals(),
        calibration=activations.entry(prepared.video) if activations is not None else None,
        decoder=prepared.request.decoder.entry if prepared.request.decoder is not None else None,
        model_sha256=model_sha256([(f.path, f.bytes, f.sha256) for f in files]),
        files=files,
    )
