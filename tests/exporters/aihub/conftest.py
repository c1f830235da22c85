"""The stand-in server, a configuration that points to it and to nothing else, and small graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from exporters.aihub import compile as compiling
from exporters.aihub.compile import AiHubCompiled
from exporters.aihub.options import AiHubOptions, Waiting
from exporters.aihub.progress import Progress
from exporters.qnn.graphs import Signature, load, signature
from exporters.qnn.metadata import GraphInfo, Metadata, TensorInfo
from tests.exporters.qnn import build

if TYPE_CHECKING:
    from tests.exporters.aihub.stand_in import StandIn  # skips where the client is not installed

QUICK = Waiting(poll_s=0.002, poll_max_s=0.006, limit_s=20, tries=3)


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a token: the user's own configuration is neither read nor written."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("QAIHUB_CLIENT_INI", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def hasty_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The client's own attempts, half a minute long, become one; those of its transfers lose their pauses.

    It makes a session, and with it a connection, for every request: here they share one. It also looks for proxies and
    passwords each time, and our state file waits for the disk.
    """
    from requests.adapters import HTTPAdapter

    shared: dict[bool, HTTPAdapter] = {}

    def adapter(max_retries: Any) -> HTTPAdapter:
        return shared.setdefault(bool(max_retries), HTTPAdapter(max_retries=max_retries))

    monkeypatch.setattr("qai_hub.util.session.MAX_RETRIES", 0)
    monkeypatch.setattr("qai_hub.util.session.HTTPAdapter", adapter)
    monkeypatch.setattr("backoff._sync.time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr("requests.sessions.get_environ_proxies", lambda *_, **__: {})
    monkeypatch.setattr("requests.sessions.get_netrc_auth", lambda *_, **__: None)
    monkeypatch.setattr("os.fsync", lambda handle: None)
    yield
    for one in shared.values():
        one.close()


@pytest.fixture
def hub(home: Path, hasty_client: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A running stand-in, configured with the right token."""
    from tests.exporters.aihub.stand_in import StandIn

    with StandIn() as server:
        ini = home / "stand-in.ini"
        ini.write_text(server.ini())
        monkeypatch.setenv("QAIHUB_CLIENT_INI", str(ini))
        yield server


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """QDQ graphs by name."""
    folder = tmp_path_factory.mktemp("graphs")
    return {
        "flat": build.conv2d(folder / "conv2d.onnx"),
        "first": build.first_chunk(folder / "first.onnx"),
        "later": build.causal(folder / "causal.onnx"),
    }


def described(**graphs: Path) -> tuple[Metadata, dict[str, Signature]]:
    """Metadata as a binary of exactly these graphs, with the default options, would have it; and what was asked for."""
    signatures = {name: signature(load(path), "") for name, path in graphs.items()}
    return Metadata("b", "1", "1", "1", 69, 79, tuple(_info(name, s) for name, s in signatures.items())), signatures


def _info(name: str, signed: Signature) -> GraphInfo:
    inputs, outputs = (
        tuple(
            TensorInfo(p.name, p.dtype.replace("uint", "ufixed"), p.dims, p.scale, -(p.zero_point or 0)) for p in ports
        )
        for ports in (signed.inputs, signed.outputs)
    )
    return GraphInfo(name, inputs, outputs, vtcm_bytes=8 << 20, optimization=3, spill_fill_bytes=0)


@dataclass
class Compiler:
    """Calls with a state file and an output in a folder of their own. ``told`` is all progress."""

    folder: Path
    graphs: dict[str, Path]
    told: list[Progress] = field(default_factory=list)

    @property
    def output(self) -> Path:
        return self.folder / "out" / "x.bin"

    @property
    def state(self) -> Path:
        return self.folder / "state.json"

    def __call__(self, *names: str, **more: Any) -> AiHubCompiled:
        """`compile_graphs`, which refuses the stand-in's bytes."""
        return self._run(compiling.compile_graphs, names, **more)

    def unchecked(self, *names: str, **more: Any) -> AiHubCompiled:
        """What lies behind the check: its judge lets everything through."""

        def accept(path: Path, where: str) -> Metadata | None:
            return None

        more = {"progress": self.told.append, "waiting": QUICK, "accept": accept, **more}
        return self._run(compiling.compile_graphs, names, **more)

    def _run(self, function: Callable[..., AiHubCompiled], names: tuple[str, ...], **more: Any) -> AiHubCompiled:
        more = {"options": AiHubOptions(), "progress": self.told.append, "waiting": QUICK, **more}
        return function([(name, self.graphs[name]) for name in names], self.output, state=self.state, **more)

    def left(self) -> list[str]:
        """Names in the output's folder."""
        return [path.name for path in self.output.parent.iterdir()]


@pytest.fixture
def compiler(tmp_path: Path, graphs: dict[str, Path]) -> Compiler:
    (tmp_path / "out").mkdir()
    return Compiler(tmp_path, dict(graphs))
