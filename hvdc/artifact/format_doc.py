"""The parts of docs/FORMAT.md that are facts of the code: tables of records, kinds, tile orders and codes.

The document has marks, ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; what lies between them is written by
``python -m hvdc.artifact.generate``.
"""

from __future__ import annotations

import re
from enum import IntEnum

from hvdc.artifact import answer_records, decoder_records, records
from hvdc.artifact.codes import MEANING, Code
from hvdc.artifact.record import Record
from layouts.order import ROW_MAJOR_ID, TILE_ORDERS, Mode, TileOrder
from layouts.regions import REGION_GRANULE_BYTES, TENSOR_ALIGNMENT_BYTES

_MARKS = re.compile(r"(<!-- begin (?P<name>[a-z-]+) -->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)


def filled(document: str) -> str:
    """The document with every marked part written anew. Raises KeyError for a mark that no part has."""
    parts = _parts()
    return _MARKS.sub(lambda m: f"{m[1]}{parts[m['name']]}\n{m[3]}", document)


def marks(document: str) -> set[str]:
    """Names of the marked parts of a document."""
    return {m["name"] for m in _MARKS.finditer(document)}


def _parts() -> dict[str, str]:
    return {
        "constants": _constants(),
        "tile-orders": "\n".join(
            [
                f"- **{ROW_MAJOR_ID}, `row-major`**: not tiled, the last index runs fastest",
                *map(_tile_order, TILE_ORDERS),
            ]
        ),
        "records": "\n\n".join(_record(record) for record in records.RECORDS),
        "answer-records": "\n\n".join(_record(record) for record in answer_records.RECORDS),
        "answer-kinds": "\n".join(_kinds(enum) for enum in answer_records.ENUMS),
        "kinds": "\n".join(_kinds(enum) for enum in records.ENUMS),
        "holds": _holds(),
        "codes": "\n".join(
            ["| code | name | meaning |", "|---|---|---|", *(f"| {int(c)} | `{c.name}` | {MEANING[c]} |" for c in Code)]
        ),
    }


def part_names() -> set[str]:
    """Names of the parts that this module writes."""
    return set(_parts())


def _constants() -> str:
    rows = {
        "magic": f"`{records.MAGIC.hex(' ')}`, which is `HVDCIDX` and a zero byte",
        "major, minor": f"{records.MAJOR}, {records.MINOR}",
        "known bits of `required_features`": (
            f"`{records.FEATURE_CALIBRATION:#x}`: calibrated; `{records.FEATURE_DECODER:#x}`: with a decoder"
        ),
        "NONE, in 32-bit index fields": f"`{records.NONE:#x}`",
        "alignment of a tensor in its file": f"{TENSOR_ALIGNMENT_BYTES} bytes",
        "granule of a data file's size, unless it is of kind `DECODER`": f"{REGION_GRANULE_BYTES} bytes",
        "dimensions of a tensor, at most": str(records.MAX_DIMS),
        "sections, at most": str(records.MAX_SECTIONS),
        "GEMM inputs, at most": str(records.MAX_GEMM_INPUTS),
        "graphs of a decoder, at most": str(decoder_records.MAX_DECODER_GRAPHS),
        "ports of all its graphs, at most": str(decoder_records.MAX_DECODER_PORTS),
        "path, name, linear, name in a binary, at most": f"{records.TEXT_LIMIT} bytes",
        "name of a graph, at most": f"{decoder_records.GRAPH_LIMIT} bytes",
        "index.bin, at most": f"{records.MAX_INDEX_BYTES} bytes",
        "canonical name": f"`{records.NAME_PATTERN}`",
        "canonical path": f"`{records.PATH_PATTERN}`",
        "name of a graph": f"`{decoder_records.GRAPH_PATTERN}`",
        "name in a binary": f"`{decoder_records.PRINTABLE_PATTERN}`",
    }
    return "\n".join(["| constant | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _record(record: Record) -> str:
    lines = [f"### {record.name}: {record.bytes} bytes", "", record.doc, ""]
    lines += ["| offset | field | type | meaning |", "|---|---|---|---|"]
    for field in record.fields:
        kind = f"{field.type}[{field.count}]" if field.count > 1 else field.type
        lines.append(f"| {record.offset(field.name)} | `{field.name}` | {kind} | {field.doc} |")
    return "\n".join(lines)


def _kinds(enum: type[IntEnum]) -> str:
    return f"- **{enum.__name__}**: " + ", ".join(f"{int(m)} `{m.name}`" for m in enum)


def _holds() -> str:
    return "\n".join(
        f"- `{kind.name}`: {', '.join(f'`{t.name}`' for t in held)}" for kind, held in records.FILE_HOLDS.items()
    )


def _index(variable: str, modes: tuple[Mode, ...]) -> list[str]:
    terms, below = [], 1
    for position, mode in reversed(list(enumerate(modes))):
        digit = variable if below == 1 else f"({variable} / {below})"
        digit = f"({digit} mod {mode.extent})" if position else digit
        terms.append(digit if mode.stride == 1 else f"{mode.stride}·{digit}")
        below *= mode.extent
    return terms


def _tile_order(order: TileOrder) -> str:
    terms = [*_index("row", order.rows), *_index("col", order.cols)]
    return (
        f"- **{order.id}, `{order.name}`**: {order.row_count} × {order.col_count} elements of {order.element_bytes} "
        f"byte(s), {order.tile_bytes} bytes; element `{' + '.join(reversed(terms))}`"
    )
