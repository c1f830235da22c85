"""What may be asked of the compiler: values that exist are valid, since the library takes wrong ones silently.

Measured with QAIRT 2.51: a conflicting ``htp_arch`` loses against ``soc_model`` without a word, ``vtcm_mb=99`` is
written into the binary as 103,809,024 bytes, and an unknown optimisation mode is taken as well.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from exporters.qnn.errors import QnnError

GIB = 1 << 30


@dataclass(frozen=True)
class Soc:
    """A phone SoC: Hexagon architecture (79 is V79) and its VTCM in MiB."""

    name: str
    arch: int
    vtcm_mb: int


SOCS = {
    43: Soc("Snapdragon 8 Gen 2 (SM8550)", 73, 8),
    57: Soc("Snapdragon 8 Gen 3 (SM8650)", 75, 8),
    69: Soc("Snapdragon 8 Elite (SM8750)", 79, 8),
    87: Soc("Snapdragon 8 Elite Gen 5 (SM8850)", 81, 8),
}
"""QNN's ``soc_model`` -> SoC.

Source: ExecuTorch, ``backends/qualcomm/serialization/qc_schema.py``, enum ``QcomChipset`` and its table of
``SocInfo``. Binaries of all four were compiled and carry the pair in their metadata.
"""

OPTIMISATIONS = (1, 2, 3)
"""``htp_graph_finalization_optimization_mode``: 1 compiles fastest, 3 optimises most (ONNX Runtime, QNN page)."""


@dataclass(frozen=True)
class QnnOptions:
    """What a context binary is compiled for.

    ``vtcm_mb`` is the VTCM in MiB that the graph may plan with; a phone that offers less refuses to load it.
    ``share_weights`` puts several graphs into one binary and stores equal weights once; the x86 emulator cannot
    load such a binary.

    Raises:
        QnnError: a value that the library would take and silently replace or misread.
    """

    soc: int = 69
    arch: int = 79
    vtcm_mb: int = 8
    optimization: int = 3
    share_weights: bool = False

    def __post_init__(self) -> None:
        for name in ("soc", "arch", "vtcm_mb", "optimization"):
            if type(getattr(self, name)) is not int:
                raise QnnError(
                    f"the option {name} must be a whole number", found=repr(getattr(self, name)), fix=f"correct {name}"
                )
        if type(self.share_weights) is not bool:
            raise QnnError("share_weights must be True or False", found=repr(self.share_weights))
        if self.soc not in SOCS:
            raise QnnError(
                "this SoC number is not known",
                expected=", ".join(f"{number} ({soc.name})" for number, soc in SOCS.items()),
                found=f"soc {self.soc}",
                fix="choose one of them, or add the SoC with its source to exporters.qnn.options.SOCS",
            )
        soc = SOCS[self.soc]
        if self.arch != soc.arch:
            raise QnnError(
                "SoC and Hexagon architecture contradict each other",
                expected=f"arch {soc.arch} for soc {self.soc}, {soc.name}",
                found=f"arch {self.arch}",
                fix="give the pair that belongs together",
            )
        if not 1 <= self.vtcm_mb <= soc.vtcm_mb:
            raise QnnError(
                "this much VTCM does not exist on the SoC",
                expected=f"1 to {soc.vtcm_mb} MiB on {soc.name}",
                found=f"{self.vtcm_mb} MiB",
                fix="choose a value of that range",
            )
        if self.optimization not in OPTIMISATIONS:
            raise QnnError(
                "there is no such optimisation level",
                expected=f"one of {', '.join(map(str, OPTIMISATIONS))}",
                found=str(self.optimization),
                fix="use 3 for a release, 1 for a quick compile",
            )

    def provider(self) -> dict[str, str]:
        """Options of ONNX Runtime's QNN execution provider, under its names."""
        options = {
            "soc_model": str(self.soc),
            "htp_arch": str(self.arch),
            "vtcm_mb": str(self.vtcm_mb),
            "htp_graph_finalization_optimization_mode": str(self.optimization),
            "offload_graph_io_quantization": "0",  # the default, 1, contradicts a session without a CPU
        }
        return options | ({"enable_htp_weight_sharing": "1"} if self.share_weights else {})

    def to_json(self) -> dict[str, int | bool]:
        """The fields as plain values; `QnnOptions(**fields)` is the same."""
        return asdict(self)


@dataclass(frozen=True)
class Limits:
    """What one process of the toolchain may use; it is killed when it takes more.

    ``seconds`` counts wall time. ``memory_bytes`` bounds resident memory, which is looked at fifty times a second:
    a process can be above it for one such interval. A whole Wan-shaped decoder at 480×832 took 4.3 GiB.
    """

    seconds: float = 900.0
    memory_bytes: int = 8 * GIB

    def __post_init__(self) -> None:
        if not self.seconds > 0 or not self.memory_bytes > 0:
            raise QnnError(
                "a limit must be above zero",
                found=f"{self.seconds} s, {self.memory_bytes} bytes",
                fix="raise the limits",
            )
