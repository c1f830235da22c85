"""The official client, and calls through it that outlive a dropped connection. Not run against the real service.

The client reports every trouble with the network as its own ``InternalError`` after half a minute of attempts, or lets
the errors of its HTTP and S3 libraries through. These are tried again; what the service refuses is not.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import sys
import threading
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any, TypeVar

from exporters.aihub.errors import AiHubError
from exporters.aihub.options import AiHubOptions, Waiting
from exporters.aihub.progress import Progress, Say

T = TypeVar("T")

NEEDED = (0, 56)
"""Version of qai-hub that this package was written against; in this one, profiling became a kind of inference job."""

INSTALL = "pip install 'hvdc[aihub]'"
SIGN_IN = (
    "1. sign in at aihub.qualcomm.com and copy the token from Account → Settings → API token; "
    "2. run: qai-hub configure --api_token TOKEN"
)
_NETWORK = {"requests", "urllib3", "botocore", "s3transfer", "http"}
_BOX = re.compile(r"[┌┐└┘─│|]+")


def why_not() -> str:
    """Why Qualcomm AI Hub cannot be used, ``""`` if nothing speaks against it. Asks nobody over the network."""
    if importlib.util.find_spec("qai_hub") is None:
        return f"the client qai-hub is not installed: {INSTALL}"
    version = metadata.version("qai-hub")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < NEEDED:
        return f"qai-hub {version} is too old, {NEEDED[0]}.{NEEDED[1]} or newer is needed: {INSTALL}"
    try:
        hub: Any = importlib.import_module("qai_hub")
        token = hub.Client().config.api_token
    except Exception as error:  # the client's own, a broken file's, or an import's
        if type(error).__name__ == "UserError":  # no file, or no token in it
            return f"no API token of Qualcomm AI Hub is configured: {SIGN_IN}"
        return f"the client qai-hub cannot be used: {plain(error)}; configure it anew: {SIGN_IN}"
    return "" if token.strip() else f"no API token of Qualcomm AI Hub is configured: {SIGN_IN}"


class Service:
    """A client with the configured token. ``hub`` is the module, ``client`` its client, ``api_url`` whom it talks to.

    Raises:
        AiHubError: AI Hub cannot be used here, as `why_not` says.
    """

    def __init__(self, waiting: Waiting, say: Say) -> None:
        reason = why_not()
        if reason:
            what, _, fix = reason.partition(": ")
            raise AiHubError(f"Qualcomm AI Hub cannot be used: {what}", fix=fix)
        self.hub: Any = importlib.import_module("qai_hub")
        self.client: Any = self.hub.Client()
        self.client.set_verbose(False)
        self.api_url: str = self.client.config.api_url
        self.version = metadata.version("qai-hub")
        self._waiting = waiting
        self._say = say

    def device(self, options: AiHubOptions) -> Any:
        """The client's description of a device."""
        return self.hub.Device(options.device, options.os, list(options.attributes))

    def require(self, device: Any) -> None:
        """Inside `call`: the service has such a device.

        Raises:
            AiHubError: it has none.
        """
        if not self.client.get_devices(device.name, device.os, device.attributes):
            wanted = [device.name, f"OS {device.os}" if device.os else "", *device.attributes]
            raise AiHubError(
                "Qualcomm AI Hub has no such device",
                where=self.api_url,
                found=", ".join(filter(None, wanted)),
                fix="choose one of those that qai-hub list-devices shows",
            )

    def call(self, step: str, what: str, function: Callable[[], T], where: str = "") -> T:
        """What the function returns; it is called again, after a pause, where only the connection failed.

        ``what`` completes "while …". The client prints what it does: that goes nowhere.

        Raises:
            AiHubError: the service refused, or could not be reached in all tries.
        """
        pause = self._waiting.poll_s
        for left in reversed(range(self._waiting.tries)):
            try:
                with contextlib.redirect_stdout(_Quiet()):
                    return function()
            except AiHubError:
                raise
            except Exception as error:
                if not transient(error):
                    raise _refused(what, error, where or self.api_url) from error
                if not left:
                    raise AiHubError(
                        f"Qualcomm AI Hub could not be reached while {what}",
                        where=where or self.api_url,
                        found=plain(error),
                        fix="check the connection and run the same command again: it goes on with the same jobs",
                    ) from error
                self._say(Progress(step, next_poll_s=pause, note=f"no connection while {what}: {plain(error)}"))
            time.sleep(pause)
            pause = self._waiting.longer(pause)
        raise AssertionError("the last try returns or raises")


class _Quiet(io.TextIOBase):
    """Standard output without what this thread writes; other threads may be drawing progress there."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._real = sys.stdout

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._real.write(text)

    def flush(self) -> None:
        self._real.flush()

    def isatty(self) -> bool:
        return self._real.isatty()


def transient(error: Exception) -> bool:
    """Whether trying again may help: the network's errors, the service's 5xx, and its plea to slow down."""
    kinds = type(error).__mro__
    if {"InternalError", "RateLimitedError"} & {kind.__name__ for kind in kinds if kind.__module__ == "qai_hub.client"}:
        return True
    return isinstance(error, ConnectionError | TimeoutError) or any(
        k.__module__.split(".")[0] in _NETWORK for k in kinds
    )


def status_code(error: BaseException | None) -> int | None:
    """The HTTP status behind an error of the client, which hides it in the exception's context."""
    while error is not None:
        code = getattr(error, "status_code", None)
        if isinstance(code, int):
            return code
        error = error.__cause__ or error.__context__
    return None


def plain(error: BaseException) -> str:
    """An error's text in one line, without the box that the client draws around it."""
    return " ".join(_BOX.sub(" ", str(error)).split()) or type(error).__name__


def _refused(what: str, error: Exception, where: str) -> AiHubError:
    if status_code(error) == 401:
        return AiHubError(
            "Qualcomm AI Hub does not accept the API token",
            where=where,
            found=plain(error),
            fix=f"set it anew: {SIGN_IN}",
        )
    if isinstance(error, OSError):
        return AiHubError(
            f"a file cannot be read or written while {what}: {error.strerror or error}",
            where=str(error.filename or ""),
            fix="check permissions and free space, then run the same command again",
        )
    return AiHubError(
        f"Qualcomm AI Hub refused while {what}",
        where=where,
        found=plain(error),
        fix="correct what it names, then run the same command again",
    )
