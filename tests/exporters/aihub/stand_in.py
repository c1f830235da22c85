"""A local server that speaks the protocol of the client qai-hub 0.56, as read from its source, and compiles nothing.

It is no copy of the real service: what that answers beyond what the client reads is not known here. Every model that it
"makes" begins with `check.FAKE`, unless a test puts other bytes in. Its faults are fields that tests set.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

pytest.importorskip("qai_hub", reason="the client qai-hub is not installed: pip install 'hvdc[aihub]'")

import h5py
import numpy as np
from qai_hub import public_api_pb2 as pb
from qai_hub.util.dataset_entries_converters import dataset_entries_to_h5, h5_to_dataset_entries

from exporters.aihub.check import FAKE

TOKEN = "the-right-token"  # noqa: S105
DEVICE = "Samsung Galaxy S25 (Family)"
ATTRIBUTES = ["chipset:qualcomm-snapdragon-8-elite", "framework:qnn", "framework:onnx", "os:android"]
TYPES = {"qnn_dlc": pb.MODEL_TYPE_QNN_DLC, "qnn_context_binary": pb.MODEL_TYPE_QNN_CONTEXT_BINARY}
RUNNING = {
    "compile_job": pb.JOB_STATE_OPTIMIZING_MODEL,
    "link_job": pb.JOB_STATE_LINKING_MODELS,
    "inference_job": pb.JOB_STATE_MEASURING_PERFORMANCE,
}

Arrays = dict[str, np.ndarray]
Compute = Callable[[str, Arrays], Arrays]


@dataclass
class Drop:
    """The connection of the next request that fits is closed without an answer, before or after it has an effect."""

    method: str
    path: str
    after: bool = False


class RefusalError(Exception):
    """An answer other than 200."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class StandIn:
    """The server, in a thread, between ``with`` and its end.

    - ``polls``: how often a job must be asked for before it is done; the client asks once when it submits.
    - ``refuse``: kind of job, such as ``compile_job``, to the text with which its submission is answered 400.
    - ``fail``: kind of job to the reason with which it ends; the next submissions succeed when it is taken out.
    - ``logs``: kind of job to the log that there is of it when it has failed.
    - ``never``: kinds of jobs that stay as they are.
    - ``drops``: requests whose connection is closed, each once.
    - ``truncate``: so many downloads end in the middle.
    - ``busy``: so many submissions are answered 429.
    - ``part_bytes``: an upload of more comes in parts.
    - ``made``: the bytes of every model that a job makes.
    - ``compute``: from the name of a graph in a binary ("": the only one) and its inputs, what an inference gives.
    """

    def __init__(self) -> None:
        self.token = TOKEN
        self.polls = 2
        self.refuse: dict[str, str] = {}
        self.fail: dict[str, str] = {}
        self.logs: dict[str, str] = {}
        self.never: set[str] = set()
        self.drops: list[Drop] = []
        self.truncate = 0
        self.busy = 0
        self.part_bytes = 4096
        self.made = FAKE + b"\n" + bytes(range(256)) * 64
        self.compute: Compute = turned_around
        self.asked: list[str] = []
        self.jobs: dict[str, pb.Job] = {}
        self.models: dict[str, pb.Model] = {}
        self.files: dict[str, bytes] = {}
        self.detail = _detail()
        self._parts: dict[str, bytes] = {}
        self._polled: dict[str, int] = {}
        self._results: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> StandIn:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def count(self, method: str, path: str) -> int:
        """How many requests were made whose path, without ``/api/v1``, is this expression."""
        return sum(bool(re.fullmatch(f"{method} (/api/v1)?{path}", line)) for line in self.asked)

    def of(self, kind: str) -> list[Any]:
        """The jobs of a kind, in their order."""
        return [getattr(job, kind) for job in self.jobs.values() if job.WhichOneof("job") == kind]

    def ini(self, token: str | None = None) -> str:
        """Text of a ``client.ini`` that points here."""
        return (
            f"[api]\napi_token = {self.token if token is None else token}\napi_url = {self.url}\nweb_url = {self.url}\n"
        )

    # --- what the client asks for ---

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes, authorised: bool) -> bytes:
        """The answer to one request, as bytes of protobuf or of a file."""
        with self._lock:
            if path.startswith("/files/"):
                return self.files[path.split("/")[2]]
            if method == "PUT" and path.startswith("/parts/"):
                self._parts[path] = body
                return b""
            if method == "POST" and path.startswith("/form/"):
                self.files[path.split("/")[2]] = _form_file(body)
                return b""
            if not authorised:
                raise RefusalError(401, "")
            for route, serve in self._routes():
                found = re.fullmatch(route, f"{method} {path}")
                if found:
                    return serve(*found.groups(), query, body).SerializeToString()
            raise RefusalError(404, f"no {method} {path}")

    def _routes(self) -> list[tuple[str, Callable[..., Any]]]:
        api = "/api/v1"
        return [
            (f"GET {api}/devices/", self._devices),
            (f"POST {api}/models/", self._new_model),
            (f"GET {api}/models/(\\w+)/", lambda m, *_: self._known(self.models, m)),
            (f"GET {api}/models/(\\w+)/multipart_upload/", self._model_urls),
            (f"POST {api}/models/(\\w+)/multipart_upload/", self._model_done),
            (f"GET {api}/models/(\\w+)/download/", self._model_file),
            (f"POST {api}/datasets/", lambda *_: self._created("d")),
            (f"GET {api}/datasets/(\\w+)/upload_url/", self._dataset_url),
            (f"PATCH {api}/datasets/(\\w+)/", lambda d, *_: pb.CreateUpdateResponse(id=d)),
            (f"GET {api}/datasets/(\\w+)/", lambda d, *_: pb.Dataset(dataset_id=d, name="outputs", permanent=True)),
            (f"GET {api}/datasets/(\\w+)/download_data/", self._dataset_file),
            (f"POST {api}/jobs/", self._new_job),
            (f"GET {api}/jobs/(\\w+)/", self._job),
            (f"GET {api}/jobs/(\\w+)/result/", self._result),
            (f"GET {api}/jobs/(\\w+)/device_runs/latest/artifact_list/\\d+/", self._job_log),
            (f"GET {api}/job_summaries/", self._summaries),
        ]

    def _created(self, letter: str) -> pb.CreateUpdateResponse:
        made = pb.CreateUpdateResponse(id=f"{letter}{next(self._numbers):04d}")
        made.creation_time.seconds = int(time.time())
        return made

    def _known(self, table: dict[str, Any], key: str) -> Any:
        if key not in table:
            raise RefusalError(404, "no such object")
        return table[key]

    def _devices(self, query: dict[str, list[str]], body: bytes) -> pb.DeviceList:
        names, attributes = query.get("name", [""]), query.get("attributes", [])
        fits = names[0] in ("", DEVICE) and set(attributes) <= set(ATTRIBUTES)
        return pb.DeviceList(devices=[pb.Device(name=DEVICE, os="15", attributes=ATTRIBUTES)] if fits else [])

    def _new_model(self, query: Any, body: bytes) -> pb.CreateUpdateResponse:
        made = self._created("m")
        model = pb.Model.FromString(body)
        model.model_id = made.id
        self.models[made.id] = model
        return made

    def _model_urls(self, model: str, query: dict[str, list[str]], body: bytes) -> pb.FileUploadResponse:
        count = -(-int(query["file_size"][0]) // self.part_bytes)
        urls = pb.FileMultipartUploadURL(upload_id=f"u{model}", max_part_size=self.part_bytes)
        urls.urls.extend(f"{self.url}/parts/{model}/{n}" for n in range(count))
        return pb.FileUploadResponse(multipart_url=urls)

    def _model_done(self, model: str, query: Any, body: bytes) -> pb.CreateUpdateResponse:
        etags = pb.FileMultipartUploadComplete.FromString(body).etags
        assert all(etags)
        self.files[model] = b"".join(self._parts[f"/parts/{model}/{n}"] for n in range(len(etags)))
        return pb.CreateUpdateResponse(id=model)

    def _model_file(self, model: str, *_: Any) -> pb.FileDownloadResponse:
        url = pb.FileDownloadURL(url=f"{self.url}/files/{model}", filename=f"{model}.bin")
        return pb.FileDownloadResponse(url=url)

    def _dataset_url(self, dataset: str, *_: Any) -> pb.FileUploadResponse:
        return pb.FileUploadResponse(url=pb.FileUploadURL(url=f"{self.url}/form/{dataset}", file_field_name="file"))

    def _dataset_file(self, dataset: str, *_: Any) -> pb.FileDownloadResponse:
        url = pb.FileDownloadURL(url=f"{self.url}/files/{dataset}", filename=f"{dataset}.h5")
        return pb.FileDownloadResponse(url=url)

    def _new_job(self, query: Any, body: bytes) -> pb.CreateUpdateResponse:
        job = pb.Job.FromString(body)
        kind = job.WhichOneof("job")
        if self.busy:
            self.busy -= 1
            raise RefusalError(429, "slow down")
        if kind in self.refuse:
            raise RefusalError(400, json.dumps({"detail": self.refuse[kind]}))
        made = self._created("j")
        one = getattr(job, kind)
        setattr(one, f"{kind}_id", made.id)
        one.creation_time.CopyFrom(made.creation_time)
        one.job_state = pb.JOB_STATE_CREATED
        if kind == "compile_job":
            one.device.CopyFrom(one.devices.devices[0])
            assert self.files[one.model.model_id], "the model was uploaded"
        if kind == "link_job":
            assert all(self.models[m.model_id].model_type == TYPES["qnn_dlc"] for m in one.models.models)
        if kind != "inference_job":
            runtime = "qnn_dlc" if "--target_runtime qnn_dlc" in one.options else "qnn_context_binary"
            target = self._created("m").id
            model = pb.Model(model_id=target, model_type=TYPES[runtime], name="target", producer_id=made.id)
            self.models[target] = model
            one.target_model.CopyFrom(model)
        self.jobs[made.id] = job
        return made

    def _job(self, job_id: str, *_: Any) -> pb.Job:
        job = self._known(self.jobs, job_id)
        kind = job.WhichOneof("job")
        one = getattr(job, kind)
        if one.job_state in (pb.JOB_STATE_DONE, pb.JOB_STATE_FAILED):
            return job
        self._polled[job_id] = self._polled.get(job_id, 0) + 1
        if kind in self.never or self._polled[job_id] < self.polls:
            one.job_state = RUNNING[kind] if self._polled[job_id] > 1 else pb.JOB_STATE_CREATED
        elif kind in self.fail:
            one.job_state, one.failure_reason = pb.JOB_STATE_FAILED, self.fail[kind]
            if kind in self.logs:
                job.available_artifacts.append(pb.JOB_ARTIFACT_TYPE_HUB_LOG)
                self.files[f"{job_id}.log"] = self.logs[kind].encode()
        else:
            one.job_state = pb.JOB_STATE_DONE
            if kind == "inference_job":
                self._infer(job_id, one)
            else:
                self.files[one.target_model.model_id] = self.made
        return job

    def _infer(self, job_id: str, job: pb.InferenceJob) -> None:
        if not job.dataset.dataset_id:
            return
        with h5py.File(io.BytesIO(self.files[job.dataset.dataset_id])) as file:
            inputs = {name: values[0] for name, values in h5_to_dataset_entries(file).items()}
        chosen = re.search(r"context_enable_graphs=(\w+)", job.options)
        outputs = self.compute(chosen[1] if chosen else "", inputs)
        out = io.BytesIO()
        with h5py.File(out, "w") as file:
            dataset_entries_to_h5({name: [value] for name, value in outputs.items()}, file)
        self._results[job_id] = self._created("d").id
        self.files[self._results[job_id]] = out.getvalue()

    def _result(self, job_id: str, *_: Any) -> pb.JobResult:
        result = pb.InferenceJobResult(inference_job_id=job_id, output_dataset_id=self._results.get(job_id, ""))
        if self.jobs[job_id].inference_job.is_profiling_on:
            result.detail.CopyFrom(self.detail)
        return pb.JobResult(inference_job_result=result)

    def _job_log(self, job_id: str, *_: Any) -> pb.NamedArtifactDownloadURLList:
        url = pb.NamedArtifactDownloadURL(url=f"{self.url}/files/{job_id}.log", filename=f"{job_id}.log")
        return pb.NamedArtifactDownloadURLList(artifacts=[url])

    def _summaries(self, *_: Any) -> pb.JobSummaryList:
        out = pb.JobSummaryList()
        for job_id, job in reversed(self.jobs.items()):
            kind = job.WhichOneof("job")
            one = getattr(job, kind)
            summary = getattr(out.job_summaries.add(), f"{kind}_summary")
            summary.job_id, summary.name, summary.job_state = job_id, one.name, one.job_state
        return out


def turned_around(graph: str, inputs: Arrays) -> Arrays:
    """``x`` becomes ``out_x``, 255 becomes 0."""
    return {f"out_{name}": 255 - value for name, value in inputs.items()}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what some tests are about."""


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            pass

        def _serve(self) -> None:
            url = urlparse(self.path)
            stand_in.asked.append(f"{self.command} {url.path}")
            body = self._body()
            drop = next((d for d in stand_in.drops if re.fullmatch(f"{d.method} .*{d.path}", stand_in.asked[-1])), None)
            if drop:
                stand_in.drops.remove(drop)
            if drop and not drop.after:
                self.close_connection = True
                return
            authorised = self.headers.get("Authorization") == f"token {stand_in.token}"
            try:
                content, code = stand_in.answer(self.command, url.path, parse_qs(url.query), body, authorised), 200
            except RefusalError as error:
                content, code = str(error).encode(), error.code
            if drop:
                self.close_connection = True
                return
            self.send_response(code)
            protobuf = url.path.startswith("/api/") and code == 200
            self.send_header("Content-Type", "application/x-protobuf" if protobuf else "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"part"')
            self.end_headers()
            if url.path.startswith("/files/") and stand_in.truncate:
                stand_in.truncate -= 1
                self.close_connection = True
                content = content[: len(content) // 2]
            self.wfile.write(content)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            out = b""
            while size := int(self.rfile.readline(), 16):
                out += self.rfile.read(size)
                self.rfile.readline()
            return out

        do_GET = do_POST = do_PUT = do_PATCH = _serve  # noqa: N815

    return Handler


def _form_file(body: bytes) -> bytes:
    """The file inside a multipart form."""
    boundary = body.split(b"\r\n", 1)[0]
    part = next(part for part in body.split(boundary) if b"filename=" in part)
    return part.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n")


def _detail() -> pb.ProfileDetail:
    detail = pb.ProfileDetail(
        major_version=1,
        minor_version=2,
        execution_time=1234,
        after_execution_peak_memory=56 << 20,
        cold_load_time=9000,
        warm_load_time=800,
        all_execution_times=[1234, 1300],
    )
    for name, unit in (("a", pb.COMPUTE_UNIT_NPU), ("b", pb.COMPUTE_UNIT_NPU), ("c", pb.COMPUTE_UNIT_CPU)):
        detail.layer_details.add(name=name, compute_unit=unit, layer_type_name="Conv")
    return detail
