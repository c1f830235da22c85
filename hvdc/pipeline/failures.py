"""What went wrong, whichever library said so: an exit status and the fields of a message for people."""

from __future__ import annotations

from exporters.errors import CheckpointError
from exporters.qnn.errors import QnnError
from hvdc.errors import Exit, HvdcError
from layouts.regions import RegionTooLargeError

__all__ = ["CheckpointError", "RegionTooLargeError", "describe_failure"]


def describe_failure(error: BaseException) -> tuple[Exit, dict[str, str]]:
    """Exit status and the fields ``what``, ``where``, ``expected``, ``found``, ``fix`` (those that say something)."""
    if isinstance(error, HvdcError):
        return error.exit_status, {"what": error.what, **error.details()}
    if isinstance(error, CheckpointError):
        fields = {f: getattr(error, f) for f in ("what", "where", "expected", "found", "fix")}
        return Exit.BAD_CHECKPOINT, {name: value for name, value in fields.items() if value}
    if isinstance(error, QnnError):
        return Exit.FAILURE, {name: value for name, value in error.fields().items() if value}
    if isinstance(error, RegionTooLargeError):
        return Exit.BAD_CHECKPOINT, {
            "what": f"the region {error.region} is too large for the target",
            "expected": f"at most {error.cap_bytes:,} bytes",
            "found": f"{error.region_bytes:,} bytes",
            "fix": "choose a --target that maps larger regions, or a smaller model",
        }
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED, {"what": "interrupted"}
    if isinstance(error, OSError):
        return Exit.FAILURE, {"what": error.strerror or str(error), "where": str(error.filename or "")}
    if isinstance(error, MemoryError):
        return Exit.FAILURE, {"what": "out of memory", "fix": "use fewer --jobs"}
    from quant.decoder.errors import DecoderQuantError  # here: `hvdc doctor` runs where another `quant` hides ours

    if isinstance(error, DecoderQuantError):
        fields = {"what": error.what, "where": error.where, "fix": error.fix}
        return Exit.FAILURE, {name: value for name, value in fields.items() if value}
    return Exit.FAILURE, {
        "what": f"unexpected {type(error).__name__}: {error}",
        "fix": "run `hvdc -v …` for the traceback and report it",
    }
