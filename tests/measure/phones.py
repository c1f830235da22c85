"""What `hvdc_probe` would say on a phone, made up after what the paper reports of one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

MIB = 1 << 20


def _region(mib: int) -> list[dict[str, Any]]:
    found = {"fact": "region", "bytes": mib * MIB, "works": True, "tried": True, "gpu": True, "dsp": True}
    return [{"fact": "trying", "what": "region", "bytes": mib * MIB}, found | {"refused_by": "", "why": ""}]


def _dot(form: str, why: str = "") -> dict[str, Any]:
    return {"fact": "dot", "index": 0, "form": form, "right": not why, "why": why}


_BOTH = {"gpu": True, "dsp": True}

FACTS: list[dict[str, Any]] = [
    {"hvdc_probe": 1},
    {"fact": "memory", "total_bytes": 11_650_097_152, "available_bytes": 6 << 30, "page_bytes": 4096},
    {"fact": "trying", "what": "gpu", "bytes": 0},
    {"fact": "gpu", "index": 0, "platform": "QUALCOMM Snapdragon(TM)", "device": "QUALCOMM Adreno(TM) 830",
     "driver": "0800.64", "is_cpu": False, "max_buffer_bytes": 1 << 30},
    _dot("khr"), _dot("qcom"), _dot("nvidia", "no PTX"), _dot("plain"),
    {"fact": "trying", "what": "dsp", "bytes": 0},
    {"fact": "dsp", "arch": 79, "contexts": 6, "vtcm_bytes": 8 * MIB},
    {"fact": "kind", "name": "dma-buf heap", "works": True, "why": ""},
    {"fact": "kind", "name": "memfd", "works": True, "why": ""},
    {"fact": "trying", "what": "sharing", "bytes": 65536},
    {"fact": "sharing", "kind": "dma-buf heap", "way": "qcom-dmabuf", "shares": True, "why": "", **_BOTH},
    {"fact": "sharing", "kind": "memfd", "way": "copy", "gpu": False, "dsp": False, "shares": False, "why": "no way"},
    {"fact": "chosen", "kind": "dma-buf heap"},
    *_region(256), *_region(510), *_region(511),
    {"fact": "mapped", "what": "count", "count": 16, "total_bytes": MIB, **_BOTH},
    {"fact": "mappings", "what": "count", "count": 256, "total_bytes": 16 * MIB, "refused": False, "why": "", **_BOTH},
    {"fact": "trying", "what": "total", "bytes": 3328 * MIB},
    {"fact": "mappings", "what": "total", "count": 25, "total_bytes": 3200 * MIB, "refused": True,
     "why": "FastRPC does not take a descriptor of 134217728 bytes", **_BOTH},
    {"fact": "done"},
]  # fmt: skip


def lines(facts: Iterable[dict[str, Any]]) -> list[str]:
    return [json.dumps(fact) for fact in facts]


def text(facts: Iterable[dict[str, Any]]) -> str:
    """As the program prints it."""
    return "".join(f"{line}\n" for line in lines(facts))
