"""What is asked of Qualcomm AI Hub, and how long to wait for it. Nothing here has run against the real service.

Sources: the docstrings of qai-hub 0.56 (``submit_compile_and_link_jobs``, ``submit_link_job``) for ``qnn_dlc``,
``context_enable_graphs``, ``default_graph_htp_optimizations`` and the rule that only DLCs are linked; Qualcomm's
ai-hub-models for ``--output_names`` and ``--qairt_version``. Some public repositories report that the service now calls
``qnn_context_binary`` deprecated: ``runtime="qnn_dlc"`` is the other way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from exporters.aihub.errors import AiHubError
from exporters.qnn.options import QnnOptions

S25 = "Samsung Galaxy S25 (Family)"
ELITE = "chipset:qualcomm-snapdragon-8-elite"
"""The attribute of devices with a Snapdragon 8 Elite (SM8750)."""

_QAIRT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_PORT = re.compile(r"[A-Za-z0-9_./:-]+")


@dataclass(frozen=True)
class AiHubOptions:
    """For what and on what; what changes the result, or where it is made, is here and nothing else is.

    ``device`` is a name of ``qai-hub list-devices``; with ``device=""`` any phone with the ``attributes``, such as
    ``(ELITE,)``, is taken. ``soc``, ``arch``, ``vtcm_mb`` and ``optimization`` are those of `QnnOptions`; the first
    two are not sent, the device decides, but a binary for another SoC is refused.

    ``runtime`` is how one graph becomes a binary: at once, or as a DLC that is linked alone. Several graphs always
    become DLCs, since the client links nothing else. ``qairt`` is a version of Qualcomm's SDK, empty for the service's.

    Raises:
        QnnError: a value that cannot be meant.
    """

    device: str = S25
    os: str = ""
    attributes: tuple[str, ...] = ()
    soc: int = 69
    arch: int = 79
    vtcm_mb: int = 8
    optimization: int = 3
    runtime: Literal["qnn_context_binary", "qnn_dlc"] = "qnn_context_binary"
    qairt: str = ""

    def __post_init__(self) -> None:
        QnnOptions(self.soc, self.arch, self.vtcm_mb, self.optimization)  # has the same rules
        if not self.device and not self.attributes:
            raise AiHubError(
                "no device is named",
                expected="the name of a hosted device, or attributes that choose one",
                fix=f"set device, such as {S25!r}, or attributes, such as {ELITE!r}",
            )
        if isinstance(self.attributes, str):
            raise AiHubError("attributes is one text", found=repr(self.attributes), fix="give a tuple of texts")
        if self.runtime not in ("qnn_context_binary", "qnn_dlc"):
            raise AiHubError(
                "there is no such runtime", expected="qnn_context_binary or qnn_dlc", found=repr(self.runtime)
            )
        if self.qairt and not _QAIRT.fullmatch(self.qairt):
            raise AiHubError("this is not a version of QAIRT", expected="such as 2.45", found=repr(self.qairt))

    def links(self, count: int) -> bool:
        """Whether so many graphs are linked after they are compiled."""
        return count > 1 or self.runtime == "qnn_dlc"

    def compile_flags(self, name: str, outputs: Sequence[str], linked: bool) -> str:
        """The options of a compile job. A DLC only learns its graph's name; the HTP's options come with the link.

        The outputs are named, since the service is said to call them ``output_0`` and so on otherwise.
        """
        for output in outputs:
            if not _PORT.fullmatch(output):
                raise AiHubError(
                    "the name of an output cannot be passed to Qualcomm AI Hub",
                    where=f"graph {name!r}",
                    expected="letters, digits and _ . / : -",
                    found=repr(output),
                    fix="rename the output",
                )
        qnn = f"context_enable_graphs={name}" + ("" if linked else f";{self._htp()}")
        runtime = "qnn_dlc" if linked else "qnn_context_binary"
        return self._with_qairt(f"--target_runtime {runtime} --output_names {','.join(outputs)} --qnn_options {qnn}")

    def link_flags(self) -> str:
        """The options of a link job."""
        return self._with_qairt(f"--qnn_options {self._htp()}")

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {**asdict(self), "attributes": list(self.attributes)}

    def _htp(self) -> str:
        return f"default_graph_htp_optimizations=O={self.optimization};default_graph_htp_vtcm_size={self.vtcm_mb}"

    def _with_qairt(self, flags: str) -> str:
        return f"{flags} --qairt_version {self.qairt}" if self.qairt else flags


@dataclass(frozen=True)
class Waiting:
    """Patience. Jobs are asked for every ``poll_s`` seconds, then more seldom, up to ``poll_max_s``.

    ``limit_s`` bounds the waiting for the jobs of one step (the service itself ends jobs after some hours). A call
    that finds no connection is made ``tries`` times, with the same pauses; the client's own attempts, half a minute
    for each of ours, are not counted.
    """

    poll_s: float = 10.0
    poll_max_s: float = 60.0
    limit_s: float = 6 * 3600.0
    tries: int = 8

    def __post_init__(self) -> None:
        if not (0 < self.poll_s <= self.poll_max_s and self.limit_s > 0 and self.tries >= 1):
            raise AiHubError(
                "this waiting is impossible",
                expected="0 < poll_s <= poll_max_s, 0 < limit_s, 1 <= tries",
                found=str(self),
                fix="correct the values",
            )

    def longer(self, pause: float) -> float:
        """The pause after this one."""
        return min(1.5 * pause, self.poll_max_s)
