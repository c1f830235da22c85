"""Artifacts to deploy: small, quickly made, with programs for a phone that are scripts, or for this machine."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hvdc.artifact.answer import Answers, Grid, Question, answer_bytes
from hvdc.artifact.answer_records import ANSWER_NAME, AnswerEngine
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.runtime import FOLDER, LIST_NAME, SOURCES_NAME, Build, Runtime, RuntimeFile
from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.deploy import Deployed, DeployRequest, deploy
from hvdc.progress import Silent
from hvdc.targets import load_target
from tests.adb_peer import Peer
from tests.artifacts import Spec, make_artifact, read_manifest, replace_data, write_manifest
from tests.commands import Result, hvdc

ADAPTER = "adapters/detail-000.bin"
STAYS_HERE = {f"{FOLDER}/{LIST_NAME}", f"{FOLDER}/{SOURCES_NAME}"}

SELFTEST = {"arch": 79, "contexts": 6, "vtcm_bytes": 8 << 20, "failed": 0,
            "checks": [{"name": "vector: sums", "state": "ok", "why": "", "meaning": ""}]}  # fmt: skip
BENCH = {"series": [{"what": "block", "engine": "npu"}], "gpu": {"device": "a GPU"}}

DOTS = [{"hvdc_probe": 1}, {"fact": "dot", "index": 0, "form": "khr", "right": False, "why": "not compiled"},
        {"fact": "dot", "index": 0, "form": "qcom", "right": True, "why": ""}, {"fact": "done"}]  # fmt: skip


def script(text: str) -> bytes:
    return f"#!/bin/sh\n{text}\n".encode()


PROGRAMS = {
    "hvdc_runner": script("echo 'usage: hvdc_runner ARTIFACT'"),
    "hvdc_check": script("echo '0 OK '"),
    "hvdc_selftest": script(f"echo '{json.dumps(SELFTEST)}'"),
    "hvdc_bench": script(f"echo '{json.dumps(BENCH)}'"),
    "hvdc_probe": script("\n".join(f"echo '{json.dumps(fact)}'" for fact in DOTS)),
}
"""What a phone's programs say where all is well: the peer executes scripts as it would the programs."""


def with_runtime(
    artifact: Path, programs: dict[str, bytes] | None = None, *, skels: bool = True, answer: bool = False
) -> Path:
    """Give an artifact a runtime for an Android phone whose programs are these scripts. ``answer``: it has one, of
    zeros, which these programs do not read."""
    folder = artifact / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = {SOURCES_NAME: b"none"}
    mine = {f"android-arm64-{name}": data for name, data in (PROGRAMS if programs is None else programs).items()}
    dsp = {f"hexagon-{arch}-libhvdc_skel.so": arch.encode() for arch in ("v79",)} if skels else {}
    files |= mine | dsp
    entries = {
        name: RuntimeFile(name=name, bytes=len(d), sha256=hashlib.sha256(d).hexdigest()) for name, d in files.items()
    }
    builds = [
        Build(target="android-arm64", machine="aarch64", compiler="none", programs=tuple(entries[n] for n in mine))
    ]
    if dsp:
        builds.append(
            Build(target="hexagon", machine="hexagon", compiler="none", programs=tuple(entries[n] for n in dsp))
        )
    for name, data in files.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o755)
    runtime = Runtime(hvdc="0", sources_sha256="0" * 64, sources=entries[SOURCES_NAME], builds=tuple(builds))
    if answer:
        data = _answer(artifact)
        (folder / ANSWER_NAME).write_bytes(data)
        entry = RuntimeFile(name=ANSWER_NAME, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        runtime = runtime.model_copy(update={"answer": entry})
    (folder / LIST_NAME).write_text(runtime.model_dump_json())
    return artifact


def _answer(artifact: Path) -> bytes:
    with open_artifact(artifact) as opened:
        geometry = opened.manifest.geometry
        grid = Grid(1, 1, 1, geometry.width, geometry.text_tokens)
        question = Question(AnswerEngine.NPU, 0, 0, 1, 1, 1.0, 1.0, 0.0)
        return answer_bytes(Answers(grid, (question,), (np.zeros((1, grid.width), np.float32),)), opened.index)


def files_of(version: Path) -> dict[str, bytes]:
    """Path -> bytes of everything in a folder that plays a version on a phone."""
    return {p.relative_to(version).as_posix(): p.read_bytes() for p in sorted(version.rglob("*")) if p.is_file()}


def deployed(*arguments: object) -> Result:
    """``hvdc deploy``; whatever it says is meant for people."""
    done = hvdc("deploy", *arguments)
    assert "Traceback" not in done.err, done.err
    assert "unexpected" not in done.err, done.err
    return done


def phone_artifact(root: Path, spec: Spec | None = None) -> Path:
    """A small artifact for a phone with Hexagon V79, with a runtime for it."""
    make_artifact(root, spec or Spec())
    manifest = read_manifest(root)
    sm8750 = load_target("sm8750")
    limits = {"region_cap_bytes": sm8750.region_cap_bytes.value}
    target = manifest.target.model_copy(update={"name": "sm8750", "soc": "SM8750", "hexagon_arch": "v79", **limits})
    write_manifest(root, manifest.model_copy(update={"target": target}))
    return with_runtime(root)


def with_another_adapter(artifact: Path, copy: Path, first: bytes = bytes(range(8))) -> Path:
    """The same artifact, but for the first bytes of its adapter."""
    shutil.copytree(artifact, copy)
    data = bytearray((copy / ADAPTER).read_bytes())
    data[: len(first)] = first
    replace_data(copy, ADAPTER, bytes(data))
    return copy


@dataclass(frozen=True)
class Onto:
    """Deploys to a device by the Python interface, without a process and without a smoke test."""

    device: AdbDevice
    said: list[str] = field(default_factory=list)

    def __call__(self, artifact: Path, **more: Any) -> Deployed:
        request = {"smoke": False, "wait_s": 5.0, "name": "dcm", **more}
        return deploy(DeployRequest(artifact=artifact, **request), self.device, Silent(), self.said.append)


def whole_version(peer: Peer, artifact: Path, name: str = "dcm") -> None:
    """What is in use on the phone is this artifact, to the last byte."""
    version = peer.phone.target / "hvdc" / "artifacts" / name / "current"
    arrived = files_of(version / "artifact.hvdc")
    assert arrived == {path: data for path, data in files_of(artifact).items() if path not in STAYS_HERE}
    listed = (version / "files.txt").read_text().splitlines()
    assert sorted(line.split()[2] for line in listed) == sorted(f"artifact.hvdc/{path}" for path in arrived)
