"""The toolchain's own words, picked from its log and translated into what is wrong and what to change.

ONNX Runtime's errors alone do not say: its code 1002, "memory allocation related error", stands for a graph above the
limit of its allocation as well as for a single operator that does not tile into VTCM. The lines that tell them apart
are logged by the QNN libraries, and only by ONNX Runtime's default logger at its most verbose. The patterns were taken
from QAIRT 2.51; recorded lines are kept in `tests/exporters/qnn/recorded.py`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exporters.qnn.errors import QnnError
from exporters.qnn.process import Ended

_GRAPH_LIMIT = re.compile(r"graph requires estimated allocation of (\d+) KB, limit is (\d+) KB")
_POOL = re.compile(r"DDR-tensor memory pool is too big: (\d+) bytes")
_SPILL = re.compile(r"Spill Fill >= (\d+) ?GB")
_TILING = re.compile(
    r'(?:"(?P<node>[^"]+)" generated: )?Operator named (?P<operator>\S+)(?: \(0x[0-9a-f]+\))? '
    r"not sufficiently tiled to fit in TCM(?: \((?P<limit>\d+)\))?(?:\.? Requires (?P<needed>\d+) bytes)?"
)
_UNSUPPORTED = re.compile(
    r"backendValidateOpConfig\(\) failed for node `(?P<node>[^`]*)` "
    r"of type `(?P<type>[^`]*)` with error code (?P<code>\d+)"
)
_RANK = re.compile(r"<E> .*has incorrect Rank (\d+)")
_CPU = re.compile(r"nodes that are assigned to the default CPU EP")
_NO_PD = re.compile(r"Failed to find available PD .*?context size estimate (\d+)")
_NO_BUILDER = re.compile(
    r"Operators of type `(?P<type>[^`]*)` are not supported by QNN EP\.\s*\S+ node `(?P<node>[^`]*)`"
)
_LEFT = re.compile(r"Unsupported nodes in QNN EP: \{(?P<list>.*)\}")
_NAME_AND_TYPE = re.compile(r"name: (?P<node>[^,{}]*), type: (?P<type>[^,{}\s]*)")
_BAD_DEVICE = re.compile(r"<E> .*: 14001|QNN_DEVICE_ERROR_INVALID_CONFIG")
_CACHE_FILE = "Failed to write context cache file"
_CODE = re.compile(r"Code: (\d+)")
_WANTED = re.compile(r"<E>|::ERROR:|\[[EF]:onnxruntime|backendValidateOpConfig|REASON : |Shared weights buffer")
_NOISE = re.compile(r"unexpected GraphHtpSettings option")
_PREFIX = re.compile(r"^\S+ \S+ \[[A-Z]:onnxruntime:[^\]]*\]\s*")

CODES = {
    1000: "not supported on this platform",
    1002: "a memory limit of the graph, or an operator that does not fit into VTCM",
    1100: "a general error; sessions of two architectures in one process give it",
    3110: "an operator is not supported in this form",
    5005: "the context could not be created from the binary",
    14001: "the device configuration is not valid: SoC or architecture",
}
"""Codes that were met, and what they meant then."""


@dataclass(frozen=True)
class Node:
    """A node of the ONNX graph: operator type, and the shape of its first input ((): not known)."""

    op_type: str
    shape: tuple[int, ...]


def is_wanted(line: str) -> bool:
    """Whether a log line is one that a translation may need."""
    return bool(_WANTED.search(line)) and not _NOISE.search(line)


def value_of(ended: Ended, doing: str, where: str, find: Callable[[str], Node | None] = lambda name: None) -> Any:
    """The result of a task.

    ``doing`` says in a phrase what was tried, ``where`` with which file; ``find`` gives the ONNX node of a name.

    Raises:
        QnnError: the task ended in another way.
    """
    if ended.status == "answered":
        return ended.value
    if ended.status == "refused":
        raise QnnError(**ended.value, log=ended.log)
    if ended.status == "failed":
        raise explain(ended.error, ended.log, doing, where, find)
    raise _stopped(ended, doing, where)


def explain(
    error: str,
    log: tuple[str, ...],
    doing: str,
    where: str,
    find: Callable[[str], Node | None] = lambda name: None,
) -> QnnError:
    """ONNX Runtime's error text, together with the log lines before it, as an error that says what to change."""
    text = "\n".join(log)
    too_large = _tiling(text, find) or _graph_memory(text) or _sum_of_contexts(text)
    phrases = (
        too_large
        or _unsupported(text, find)
        or _left_over(error, text, find)
        or _not_written(error)
        or _unknown(error, log, doing)
    )
    phrases["where"] = ", ".join(part for part in (where, phrases.get("where", "")) if part)
    return QnnError(**phrases, log=(*log, error), too_large=too_large is not None)


def _tiling(text: str, find: Callable[[str], Node | None]) -> dict[str, str] | None:
    """One operator above VTCM. Its ONNX node is named by lines that quote it; the largest piece is reported."""
    hits = list(_TILING.finditer(text))
    if not hits:
        return None
    worst = max(hits, key=lambda hit: (int(hit["needed"] or 0), bool(hit["node"])))
    names = sorted({hit["node"] for hit in hits if hit["node"]})
    nodes = ", ".join(_named(name, find(name)) for name in names[:3]) + (", …" if len(names) > 3 else "")
    needed = f"{int(worst['needed']):,} bytes in one piece" if worst["needed"] else "a piece that is larger"
    limit = f"at most the VTCM, {int(worst['limit']):,} bytes" if worst["limit"] else "pieces that fit into the VTCM"
    return {
        "what": "an operator cannot be cut into pieces that fit into VTCM",
        "where": nodes or f"QNN operator {worst['operator']}",
        "expected": limit,
        "found": f"{worst['operator']} needs {needed}",
        "fix": "give this operator a smaller tile, or try another optimisation level; avoid reshapes of whole feature "
        "maps between ranks 4 and 5",
    }


def _graph_memory(text: str) -> dict[str, str] | None:
    """The sum over one graph: inputs, outputs and what lies between count, not weights alone."""
    fix = "give the graph a smaller tile (fewer pixels or frames), or cut it into stages"
    if hit := _GRAPH_LIMIT.search(text):
        return {
            "what": "the graph needs more memory than one graph may have",
            "expected": f"at most {int(hit[2]):,} KB",
            "found": f"{int(hit[1]):,} KB estimated",
            "fix": fix,
        }
    if hit := _POOL.search(text):
        return {
            "what": "the graph's tensors in DRAM need more memory than one graph can address",
            "expected": "below 4 GiB",
            "found": f"{int(hit[1]):,} bytes",
            "fix": fix,
        }
    if hit := _SPILL.search(text):
        return {
            "what": "too much of the graph has to be kept in DRAM at once (spill-fill)",
            "expected": f"below {hit[1]} GB",
            "found": f"{hit[1]} GB or more",
            "fix": fix,
        }
    return None


def _sum_of_contexts(text: str) -> dict[str, str] | None:
    hit = _NO_PD.search(text)
    if not hit:
        return None
    return {
        "what": "the contexts that are loaded together need more memory than one process of the NPU has",
        "found": f"{int(hit[1]):,} bytes for the last of them",
        "fix": "free a context before the next is loaded, or cut the graph into smaller stages",
    }


def _unsupported(text: str, find: Callable[[str], Node | None]) -> dict[str, str] | None:
    hit = _UNSUPPORTED.search(text)
    if not hit:
        return None
    node, reason = find(hit["node"]), ""
    if rank := _RANK.search(text[: hit.start()]):
        reason = f"rank {rank[1]} is not supported"
    others = sorted({other["node"] for other in _UNSUPPORTED.finditer(text)} - {hit["node"]})
    more = f" (and {len(others)} more: {', '.join(others[:5])})" if others else ""
    return {
        "what": f"the HTP does not support the operator {node.op_type if node else hit['type']} in this form",
        "where": f"node {_named(hit['node'], node)}{more}",
        "found": f"QNN's {hit['type']}: error {hit['code']}" + (f", {reason}" if reason else ""),
        "fix": "write it with other operators, or reshape its input to rank 4 or less"
        if reason or (node and len(node.shape) > 4)
        else "write it with other operators, or give it another data type",
    }


def _left_over(error: str, text: str, find: Callable[[str], Node | None]) -> dict[str, str] | None:
    """Nodes that the execution provider left to the CPU without asking QNN about them."""
    if not _CPU.search(error):
        return None
    if _BAD_DEVICE.search(text):
        return {
            "what": "the library refused the options",
            "found": f"error 14001, {CODES[14001]}",
            "fix": "check soc and arch",
        }
    nodes = {hit["node"]: hit["type"] for hit in _NO_BUILDER.finditer(text)}
    for left in _LEFT.finditer(text):
        nodes |= {hit["node"]: hit["type"] for hit in _NAME_AND_TYPE.finditer(left["list"])}
    if not nodes:
        return {
            "what": "not every node can run on the HTP",
            "expected": "the whole graph in one partition",
            "found": "the library does not say which nodes it left",
            "fix": "quantise the inputs and outputs of every operator (Q and DQ around each)",
        }
    first, *others = nodes
    more = f" (and {len(others)} more: {', '.join(others[:5])})" if others else ""
    return {
        "what": f"the HTP does not have the operator {nodes[first]}",
        "where": f"node {_named(first, find(first))}{more}",
        "found": f"ONNX Runtime's QNN execution provider does not translate {nodes[first]}",
        "fix": "write it with other operators",
    }


def _not_written(error: str) -> dict[str, str] | None:
    if _CACHE_FILE not in error:
        return None
    return {
        "what": "the compiler could not write the binary",
        "found": error.splitlines()[0],
        "fix": "check the free space and the permissions of the output's folder",
    }


def _unknown(error: str, log: tuple[str, ...], doing: str) -> dict[str, str]:
    code = _CODE.search(error)
    meaning = CODES.get(int(code[1]), "") if code else ""
    said = [_PREFIX.sub("", line) for line in log if "<E>" in line or "ERROR:" in line][:3]
    return {
        "what": f"{doing} failed" + (f": {meaning}" if meaning else ""),
        "found": "; ".join([error.splitlines()[0] if error else "no text", *said]),
        "fix": "see the log for the toolchain's own lines",
    }


def _stopped(ended: Ended, doing: str, where: str) -> QnnError:
    """A process that was killed, crashed, or said nothing."""
    last = "; ".join(_PREFIX.sub("", line) for line in ended.tail[-2:])
    log = (*ended.log, *ended.tail)
    if ended.status == "time":
        return QnnError(
            f"{doing} took too long and was stopped",
            where=where,
            expected=f"at most {ended.limits.seconds:g} s",
            found=f"not done after {ended.seconds:.1f} s",
            fix="raise the time limit, use optimization 1, or give the graph a smaller tile",
            log=log,
            stopped="time",
        )
    if ended.status == "memory":
        return QnnError(
            f"{doing} took too much memory and was stopped",
            where=where,
            expected=f"at most {ended.limits.memory_bytes:,} bytes resident",
            found=f"{ended.peak_rss_bytes:,} bytes",
            fix="raise the memory limit, or give the graph a smaller tile",
            log=log,
            stopped="memory",
        )
    if ended.status == "signal" and ended.code == signal.SIGKILL:
        return QnnError(
            f"{doing} was killed from outside",
            where=where,
            found=f"SIGKILL after {ended.seconds:.1f} s, at {ended.peak_rss_bytes:,} bytes resident",
            fix="look into the kernel's log: most likely the machine ran out of memory",
            log=log,
        )
    if ended.status == "signal":
        name = signal.Signals(ended.code).name if ended.code in set(signal.Signals) else f"signal {ended.code}"
        shared = any("Shared weights buffer" in line for line in log)
        return QnnError(
            f"Qualcomm's library crashed while {doing}",
            where=where,
            found=f"{name}" + (f"; its last words: {last}" if last else ""),
            fix="binaries that share weights cannot be loaded on x86: use a phone"
            if shared
            else "check that the file is undamaged; if it is, this is a fault of the library",
            log=log,
        )
    return QnnError(
        f"{doing} ended without a result",
        where=where,
        found=f"exit status {ended.code}" + (f"; last words: {last}" if last else ""),
        fix="see the log",
        log=log,
    )


def _named(name: str, node: Node | None) -> str:
    if node is None:
        return f"'{name}'"
    shape = f" of rank {len(node.shape)} on {list(node.shape)}" if node.shape else ""
    return f"'{name}' ({node.op_type}{shape})"
