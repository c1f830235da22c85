"""A context binary is timed, or run with given inputs, on a hosted phone. It has not run against the real service.

Of a binary with several graphs the service runs one, chosen by ``context_enable_graphs`` (qai-hub's docstring of
``submit_link_job``). Times are microseconds and memory is bytes, as in the client's ``download_profile``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from exporters.aihub.compile import AiHubCompiled, AiHubGraph
from exporters.aihub.errors import AiHubError
from exporters.aihub.jobs import Jobs
from exporters.aihub.options import AiHubOptions, Waiting
from exporters.aihub.progress import Say, silent
from exporters.aihub.service import Service
from exporters.aihub.state import Run, run_key
from exporters.aihub.uploads import binary_run, uploaded
from exporters.qnn.metadata import GraphInfo

_PATIENCE = Waiting()


class Graph(Protocol):
    """A graph of a binary, `AiHubGraph` or `exporters.qnn.compile.CompiledGraph`."""

    @property
    def name(self) -> str: ...
    @property
    def name_in_binary(self) -> str: ...
    @property
    def info(self) -> GraphInfo | None: ...


class Binary(Protocol):
    """A context binary: the service's own, or one that `exporters.qnn.compile` made, which is uploaded."""

    @property
    def path(self) -> Path: ...
    @property
    def sha256(self) -> str: ...
    @property
    def graphs(self) -> Sequence[Graph]: ...


@dataclass(frozen=True)
class KeptBinary:
    """A context binary of a file, whoever made it. ``info`` of its graphs is None where the file was not read."""

    path: Path
    sha256: str
    graphs: tuple[AiHubGraph, ...]


@dataclass(frozen=True)
class GraphProfile:
    """What one graph took on the phone; None where the service did not say.

    ``times_us`` are the single runs behind ``inference_us``, ``layers`` counts layers by compute unit.
    """

    graph: str
    inference_us: int
    peak_bytes: int | None
    first_load_us: int | None
    warm_load_us: int | None
    times_us: tuple[int, ...]
    layers: dict[str, int]
    device: str
    job_id: str
    url: str

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Inference:
    """Outputs by name, as the service returns them: of which dtype, and under which names, is up to it."""

    graph: str
    outputs: dict[str, np.ndarray]
    device: str
    job_id: str
    url: str


def profile(
    compiled: Binary, options: AiHubOptions, state: Path, progress: Say = silent, waiting: Waiting = _PATIENCE
) -> tuple[GraphProfile, ...]:
    """Times every graph of a binary, each by a job of its own, with random inputs.

    Raises:
        AiHubError: as `exporters.aihub.compile.compile_graphs`.
    """
    on = _Phone(compiled, options, state, progress, waiting, {"task": "profile"})
    ended = on.jobs.wait("profile", on.start("profile", compiled.graphs))
    return tuple(_profile(on, graph.name, job) for graph, job in zip(compiled.graphs, ended.values(), strict=True))


def infer(
    compiled: Binary,
    inputs: Mapping[str, np.ndarray],
    options: AiHubOptions,
    state: Path,
    graph: str = "",
    progress: Say = silent,
    waiting: Waiting = _PATIENCE,
) -> Inference:
    """Runs one graph once. ``graph`` may stay empty when the binary has only one.

    Raises:
        AiHubError: as `exporters.aihub.compile.compile_graphs`, or there is no such graph or input.
    """
    named = {one.name: one for one in compiled.graphs}
    if graph not in named and (graph or len(named) != 1):
        raise AiHubError(
            "this binary has no such graph", where=str(compiled.path), expected=", ".join(named), found=repr(graph)
        )
    one = named[graph] if graph else next(iter(named.values()))
    ordered = _ordered(one, inputs)
    about = {"task": "infer", "inputs": {name: _digest(value) for name, value in ordered.items()}}
    on = _Phone(compiled, options, state, progress, waiting, about)
    data = {name: [np.ascontiguousarray(value)] for name, value in ordered.items()}
    job = next(iter(on.jobs.wait("infer", on.start("infer", [one], data)).values()))
    found = on.service.call("infer", f"downloading the outputs of job {job.job_id}", job.download_output_data, job.url)
    if not found:
        raise AiHubError("Qualcomm AI Hub returned no outputs", where=f"job {job.job_id}, {job.url}")
    outputs = {name: np.asarray(values[0]) for name, values in found.items()}
    return Inference(one.name, outputs, job.device.name, job.job_id, job.url)


class _Phone:
    """Starts jobs on one binary."""

    def __init__(
        self,
        compiled: Binary,
        options: AiHubOptions,
        state: Path,
        say: Say,
        waiting: Waiting,
        about: Mapping[str, Any],
    ) -> None:
        self.service = Service(waiting, say)
        self._say = say
        self._compiled = compiled
        self._device = self.service.device(options)
        whole = {
            **about,
            "binary": compiled.sha256,
            "graphs": [graph.name_in_binary for graph in compiled.graphs],
            "options": options.to_json(),
            "service": self.service.api_url,
        }
        self._binary = binary_run(state, compiled.sha256, self.service.api_url)
        self.jobs = Jobs(self.service, Run(state, run_key(whole), whole), waiting, say)

    def start(
        self, step: str, graphs: Sequence[Graph], data: dict[str, list[np.ndarray]] | None = None
    ) -> dict[str, Any]:
        """The jobs by slot, in the graphs' order. Without data the service makes it up, and times the graph."""
        several = len(self._compiled.graphs) > 1
        started = {}
        for graph in graphs:
            slot = f"{step} {graph.name}"
            flags = f"--qnn_options context_enable_graphs={graph.name_in_binary}" if several else ""

            def submit(name: str, flags: str = flags) -> Any:
                self.service.require(self._device)
                return self.service.client.submit_inference_job(
                    self._model(),
                    device=self._device,
                    inputs=data,
                    name=name,
                    options=flags,
                    retry=False,
                    profile=data is None,
                )

            started[slot] = self.jobs.start(step, slot, submit)
        return started

    def _model(self) -> Any:
        """The binary as the service has it: it is uploaded where the service neither made it nor was given it."""
        if isinstance(self._compiled, AiHubCompiled) and self._compiled.model_id:
            return self.service.client.get_model(self._compiled.model_id)
        return uploaded(self.service, self._binary, "binary", lambda: self._compiled.path, self._say)


def _profile(on: _Phone, graph: str, job: Any) -> GraphProfile:
    found = on.service.call("profile", f"downloading the profile of job {job.job_id}", job.download_profile, job.url)
    summary = found.get("execution_summary", {}) if found else {}
    if not summary.get("estimated_inference_time"):
        raise AiHubError(
            "Qualcomm AI Hub's profile has no inference time",
            where=f"job {job.job_id}, {job.url}",
            found=", ".join(summary) or "no profile",
        )
    return GraphProfile(
        graph=graph,
        inference_us=summary["estimated_inference_time"],
        peak_bytes=summary.get("estimated_inference_peak_memory") or None,
        first_load_us=summary.get("first_load_time") or None,
        warm_load_us=summary.get("warm_load_time") or None,
        times_us=tuple(summary.get("all_inference_times") or ()),
        layers=dict(Counter(layer["compute_unit"] for layer in found.get("execution_detail", ()))),
        device=job.device.name,
        job_id=job.job_id,
        url=job.url,
    )


def _ordered(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs in the binary's order, which the client says matters, where the binary was read."""
    if graph.info is None:
        return dict(inputs)
    wanted = {t.name: (t.dims, t.dtype.replace("ufixed", "uint")) for t in graph.info.inputs}
    found = {name: (value.shape, str(value.dtype)) for name, value in inputs.items()}
    if wanted != found:
        raise AiHubError(
            "these are not the inputs of the graph",
            where=f"graph {graph.name!r}",
            expected=", ".join(f"{n} {d} {list(s)}" for n, (s, d) in wanted.items()),
            found=", ".join(f"{n} {d} {list(s)}" for n, (s, d) in found.items()),
            fix="give every input once, quantised, in its shape",
        )
    return {name: inputs[name] for name in wanted}


def _digest(value: np.ndarray) -> str:
    return hashlib.sha256(f"{value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes()).hexdigest()
