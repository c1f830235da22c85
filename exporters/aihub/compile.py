"""Graphs become one context binary in Qualcomm's cloud, or nothing. It has not run against the real service.

The graphs are uploaded, each is compiled by a job of its own, several are linked by one more job (which stores equal
weights once), and the result is downloaded into a folder beside the output. Only a binary that was checked is moved to
its name. What was submitted stands in a state file, so that the same call after an interruption submits nothing twice.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exporters.aihub import check
from exporters.aihub.errors import AiHubError
from exporters.aihub.jobs import Jobs
from exporters.aihub.options import AiHubOptions, Waiting
from exporters.aihub.progress import Progress, Say, silent
from exporters.aihub.service import Service
from exporters.aihub.state import Run, run_key
from exporters.aihub.uploads import binary_run, uploaded
from exporters.durable import hash_and_sync, sync_folder
from exporters.qnn import graphs as qdq
from exporters.qnn.metadata import GraphInfo, Metadata

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_PATIENCE = Waiting()

Accept = Callable[[Path, str], "Metadata | None"]
"""Takes a downloaded file and where it came from, or raises."""


@dataclass(frozen=True)
class AiHubGraph:
    """``name_in_binary`` is what a runtime asks the context for; ``info`` is None where the binary was not read."""

    name: str
    name_in_binary: str
    info: GraphInfo | None


@dataclass(frozen=True)
class AiHubJob:
    """A job that made the binary."""

    name: str
    job_id: str
    url: str


@dataclass(frozen=True)
class AiHubCompiled:
    """A finished context binary.

    ``metadata`` is None where Qualcomm's libraries are not at hand: then only the file's first bytes were looked at,
    and neither SoC nor inputs and outputs were compared. ``model_id`` is the service's id of the binary, ``client``
    the version of qai-hub.
    """

    path: Path
    size_bytes: int
    sha256: str
    graphs: tuple[AiHubGraph, ...]
    metadata: Metadata | None
    options: AiHubOptions
    jobs: tuple[AiHubJob, ...]
    model_id: str
    client: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As plain values; ``path`` becomes the file's name."""
        return {**asdict(self), "path": self.path.name, "options": self.options.to_json()}


def compile_graphs(
    graphs: Sequence[tuple[str, Path]],
    output: Path,
    options: AiHubOptions,
    state: Path,
    progress: Say = silent,
    waiting: Waiting = _PATIENCE,
    accept: Accept = check.is_binary,
) -> AiHubCompiled:
    """Compiles QDQ graphs, given as (name, ONNX file), to one context binary at ``output``.

    The same call after an interruption, an error or a success goes on with the jobs of the JSON file ``state``, unless
    graphs, names or options are others. A file that was at ``output`` is replaced when, and only when, the new one is
    complete. The graphs are sent to Qualcomm.

    ``accept`` judges the download. Only tests have another one, which lets the stand-in's bytes through.

    Raises:
        AiHubError: the service cannot be used or reached, refuses, a job failed or takes too long, or the result is
            not the binary that was asked for; ``too_large`` where smaller graphs may do. Nothing is left at the output.
        QnnError: a graph or an option is refused before anything is sent.
    """
    begun = time.monotonic()
    if not output.parent.is_dir():
        raise AiHubError("the output's folder does not exist", where=str(output.parent), fix="make the folder")
    if output.is_dir():
        raise AiHubError("the output is a folder", where=str(output), fix="give a file name")
    signatures, contents = _load(graphs)
    linked = options.links(len(signatures))
    flags = {n: options.compile_flags(n, [p.name for p in s.outputs], linked) for n, s in signatures.items()}
    service = Service(waiting, progress)
    about = {
        "graphs": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
        "options": options.to_json(),
        "service": service.api_url,
    }
    run = Run(state, run_key({**about, "order": list(contents)}), about)
    jobs = Jobs(service, run, waiting, progress)
    device = service.device(options)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", suffix=".partial", dir=output.parent) as name:
            folder = Path(name)
            started = {}
            for graph, content in contents.items():
                slot = f"compile {graph}"

                def submit(job: str, graph: str = graph, content: bytes = content) -> Any:
                    service.require(device)  # before an upload that may take long
                    model = uploaded(service, run, graph, lambda: _written(folder, graph, content), progress)
                    return service.client.submit_compile_job(
                        model, device=device, name=job, options=flags[graph], retry=False
                    )

                started[slot] = jobs.start("compile", slot, submit)
            ended = jobs.wait("compile", started)
            last = next(iter(ended.values()))
            if linked:
                models = [_target(service, job) for job in ended.values()]

                def link(job: str) -> Any:
                    return service.client.submit_link_job(models, device=device, name=job, options=options.link_flags())

                slot = "link " + " ".join(contents)
                ended |= jobs.wait("link", {slot: jobs.start("link", slot, link)})
                last = ended[slot]
            binary, model = _download(service, last, folder, progress)
            where = f"job {last.job_id}, {last.url}"
            progress(Progress("check", note=where))
            metadata = accept(binary, where)
            inside = check.pair(metadata, signatures, options, where) if metadata else {}
            sha256 = hash_and_sync(binary)
            size = binary.stat().st_size
            binary_run(state, sha256, service.api_url).note_upload("binary", model.model_id)
            binary.replace(output)
            sync_folder(output.parent)
    except OSError as error:
        raise AiHubError(
            f"the binary cannot be written: {error.strerror or error}",
            where=str(output),
            fix="check the folder's permissions and free space",
        ) from error
    return AiHubCompiled(
        path=output,
        size_bytes=size,
        sha256=sha256,
        graphs=tuple(AiHubGraph(n, inside[n].name if n in inside else n, inside.get(n)) for n in signatures),
        metadata=metadata,
        options=options,
        jobs=tuple(AiHubJob(slot, job.job_id, job.url) for slot, job in ended.items()),
        model_id=model.model_id,
        client=service.version,
        seconds=round(time.monotonic() - begun, 3),
    )


def _load(graphs: Sequence[tuple[str, Path]]) -> tuple[dict[str, qdq.Signature], dict[str, bytes]]:
    """Signatures, and the models as single files, by name."""
    names = [name for name, _ in graphs]
    if not names:
        raise AiHubError("there is no graph to compile", fix="give at least one (name, ONNX file)")
    for name in names:
        if not _NAME.fullmatch(name):
            raise AiHubError(
                "this name cannot be used for a graph",
                expected="a letter, then up to 63 letters, digits or _",
                found=repr(name),
                fix="choose another name",
            )
    if len({name.lower() for name in names}) != len(names):
        raise AiHubError("two graphs have the same name", found=", ".join(names), fix="give each a name of its own")
    signatures, contents = {}, {}
    for name, path in graphs:
        where = f"graph {name!r}, {path}"
        model = qdq.load(path)
        if qdq.is_context(model):
            raise AiHubError("this graph is compiled already", where=where, fix="give the QDQ graph it came from")
        signatures[name] = qdq.signature(model, where)
        contents[name] = qdq.serialised(model, where)
    return signatures, contents


def _written(folder: Path, graph: str, content: bytes) -> Path:
    path = folder / f"{graph}.onnx"
    path.write_bytes(content)
    return path


def _target(service: Service, job: Any) -> Any:
    """The model that a successful job made."""
    model = service.call("download", f"asking for the model of job {job.job_id}", job.get_target_model, job.url)
    if model is None:
        raise AiHubError(
            "Qualcomm AI Hub's job succeeded without a model",
            where=f"job {job.job_id}, {job.url}",
            fix="read the job's page; move the file of submitted jobs away to compile anew",
        )
    return model


def _download(service: Service, job: Any, folder: Path, progress: Say) -> tuple[Path, Any]:
    """The file, inside the folder, and the model it is."""
    model = _target(service, job)
    progress(Progress("download", note=f"the model of job {job.job_id}"))

    def fetch() -> Path:
        inner = Path(tempfile.mkdtemp(dir=folder))  # the client makes up another name where one exists
        try:
            return Path(model.download(str(inner / "context.bin")))
        except BaseException:
            shutil.rmtree(inner, ignore_errors=True)
            raise

    return service.call("download", f"downloading the model of job {job.job_id}", fetch, job.url), model
