"""Stand-ins for the runtime's programs: shell scripts that answer what a test wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdc.measure.bench import PROGRAM
from hvdc.pipeline.runtime_kept import Runtime

MEDIANS = {
    ("npu", "nothing", "semantic"): 3.0, ("npu", "nothing", "detail"): 3.2,
    ("npu", "gpu", "semantic"): 3.3, ("npu", "gpu", "detail"): 3.5,
    ("gpu", "nothing", "semantic"): 12.0, ("gpu", "nothing", "detail"): 12.5,
    ("gpu", "npu", "semantic"): 13.0, ("gpu", "npu", "detail"): 13.6,
}  # fmt: skip
"""Seconds of a block, made up: engine, what works beside it, expert."""


def series(
    engine: str, what: str, beside: str, expert: str | None, median_s: float, spread: float = 0.02
) -> dict[str, Any]:
    """Five times around a median."""
    half = median_s * spread / 2
    return {
        "engine": engine, "what": what, "beside": beside, "expert": expert, "count": 5, "min_s": median_s - half,
        "median_s": median_s, "max_s": median_s + half, "spread": spread,
    }  # fmt: skip


def report(tokens: int, **changes: Any) -> dict[str, Any]:
    """What `hvdc_bench --json` says, with ``changes``."""
    blocks = [series(e, "block", b, x, s) for (e, b, x), s in MEDIANS.items()]
    return {
        "hvdc_bench": 2, "artifact": "a.hvdc", "index_sha256": "0" * 64, "tokens": tokens, "own_tokens": tokens,
        "threads": 2, "warm_up": 1, "repeat": 5, "decode_repeat": 1, "spread_limit": 0.1,
        "gpu": {"platform": "P", "device": "Adreno of a test", "dot": "khr", "import": "qcom-dmabuf"},
        "npu": {"place": "Hexagon v79 of a test", "sums": "fast"}, "decoder": None, "weights": "memfd",
        "series": [*blocks, series("cpu", "text_projection", "nothing", "semantic", 0.1, 1.5)],
        "rates": {"gpu_block_s": 13.2, "npu_block_s": 3.4, "decode_s": None}, "steady": True,
    } | changes  # fmt: skip


def stand_in(folder: Path, answer: str, status: int = 0, said: Sequence[str] = (), name: str = PROGRAM) -> Runtime:
    """A runtime whose program prints ``answer``, says ``said`` on standard error, and keeps the words it was called
    with in ``words``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answer").write_text(answer)
    (folder / "said").write_text("".join(f"{line}\n" for line in said))
    lines = (
        "#!/bin/sh",
        f"cd '{folder}'",
        "printf '%s\\n' \"$@\" >words",
        "cat said >&2",
        "cat answer",
        f"exit {status}",
    )
    (folder / name).write_text("\n".join(lines) + "\n")
    (folder / name).chmod(0o755)
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return Runtime("host", folder, "no compiler", "x86_64", {name: digest}, built=False)


def events(total: int) -> list[str]:
    """Lines of progress."""
    return [json.dumps({"event": "measured", "what": "npu", "done": i + 1, "total": total}) for i in range(total)]
