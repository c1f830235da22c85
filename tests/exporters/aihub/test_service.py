"""Whether the service can be used, and what is done about which error."""

from __future__ import annotations

import importlib.util
import threading
from importlib import metadata
from pathlib import Path

import pytest

from exporters.aihub import service
from exporters.aihub.errors import AiHubError
from exporters.aihub.progress import silent
from tests.exporters.aihub.conftest import QUICK, Compiler
from tests.exporters.aihub.stand_in import StandIn

qai_hub = pytest.importorskip("qai_hub")
requests = pytest.importorskip("requests")

STEPS = ("aihub.qualcomm.com", "Account → Settings → API token", "qai-hub configure --api_token TOKEN")


def test_ready(hub: StandIn) -> None:
    assert service.why_not() == ""
    assert hub.asked == [], "nobody was asked"


def test_without_a_configuration(home: Path, compiler: Compiler) -> None:
    reason = service.why_not()
    assert reason.startswith("no API token of Qualcomm AI Hub is configured: ")
    assert all(step in reason for step in STEPS)
    with pytest.raises(AiHubError, match="cannot be used: no API token") as caught:
        compiler("flat")
    assert all(step in caught.value.fix for step in STEPS)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[api]\n", "[api]\napi_token =\napi_url = u\nweb_url = u\n"])
def test_a_configuration_without_a_token(home: Path, text: str) -> None:
    (home / ".qai_hub").mkdir()
    (home / ".qai_hub" / "client.ini").write_text(text)
    assert service.why_not().startswith("no API token")


def test_a_configuration_at_its_usual_place(hub: StandIn, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QAIHUB_CLIENT_INI")
    (home / ".qai_hub").mkdir()
    (home / ".qai_hub" / "client.ini").write_text(hub.ini())
    assert service.why_not() == ""


def test_a_broken_configuration(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "x.ini").write_text("no section")
    monkeypatch.setenv("QAIHUB_CLIENT_INI", str(home / "x.ini"))
    assert "cannot be used" in service.why_not()
    assert STEPS[2] in service.why_not()


def test_without_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert service.why_not() == "the client qai-hub is not installed: pip install 'hvdc[aihub]'"


def test_an_old_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.9.1")
    assert service.why_not().startswith("qai-hub 0.9.1 is too old, 0.56 or newer is needed: pip install")


def test_a_wrong_token(hub: StandIn, compiler: Compiler, home: Path) -> None:
    (home / "stand-in.ini").write_text(hub.ini("an-old-one"))
    with pytest.raises(AiHubError, match="does not accept the API token") as caught:
        compiler("flat")
    assert all(step in caught.value.fix for step in STEPS)
    assert "an-old-one" not in str(caught.value)
    assert compiler.left() == []
    assert "an-old-one" not in compiler.state.read_text(), "no secret is written"
    assert hub.count("GET", "/devices/") == 1, "a refusal is not tried again"
    (home / "stand-in.ini").write_text(hub.ini())
    compiler.unchecked("flat")


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (qai_hub.InternalError("unavailable"), True),
        (qai_hub.client.RateLimitedError("slow down"), True),
        (requests.exceptions.ReadTimeout(), True),
        (requests.exceptions.ChunkedEncodingError(), True),
        (ConnectionResetError(), True),
        (qai_hub.UserError("no such device"), False),
        (ValueError("Failed to create compile job"), False),
        (PermissionError("no"), False),
    ],
)
def test_what_is_tried_again(hub: StandIn, error: Exception, again: bool) -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise error

    with pytest.raises(AiHubError) as caught:
        service.Service(QUICK, silent).call("compile", "trying", fail)
    assert len(calls) == (QUICK.tries if again else 1)
    assert caught.value.__cause__ is error


def test_only_the_client_is_silenced(hub: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    def chat() -> str:
        print("the client's chatter")
        thread = threading.Thread(target=print, args=("another thread's progress",))
        thread.start()
        thread.join()
        return "done"

    assert service.Service(QUICK, silent).call("compile", "chatting", chat) == "done"
    print("afterwards")
    assert capsys.readouterr().out == "another thread's progress\nafterwards\n"


def test_the_errors_of_the_transfers_to_s3(hub: StandIn) -> None:
    botocore = pytest.importorskip("botocore.exceptions", reason="botocore is not installed")
    assert service.transient(botocore.EndpointConnectionError(endpoint_url="u"))


def test_a_full_disk_is_said_to_be_one() -> None:
    said = service._refused("downloading", OSError(28, "No space left on device", "/tmp/x"), "")
    assert "No space left on device" in said.what
    assert said.where == "/tmp/x"
