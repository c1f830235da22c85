"""docs/FORMAT.md says what Python and C do."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hvdc.artifact import records
from hvdc.artifact.codes import Code
from hvdc.artifact.format_doc import filled, marks, part_names
from hvdc.artifact.generate import ROOT
from hvdc.artifact.record import Record
from layouts.grid import TileGrid
from layouts.order import HMX_INT8_K4, TILE_ORDERS, TileOrder

DOCUMENT = (ROOT / "docs" / "FORMAT.md").read_text("utf-8")
INCLUDE = ROOT / "device_runtime" / "core" / "include" / "hvdc"
C_TYPES = {"uint8_t": "u8", "uint16_t": "u16", "uint32_t": "u32", "uint64_t": "u64", "float": "f32", "double": "f64"}


def test_every_generated_part_is_in_the_document_and_fresh() -> None:
    """Run ``python -m hvdc.artifact.generate`` when this fails."""
    assert marks(DOCUMENT) == part_names()
    assert filled(DOCUMENT) == DOCUMENT


@pytest.mark.parametrize("record", records.RECORDS, ids=lambda record: record.name)
def test_a_table_has_the_fields_of_the_c_struct(record: Record) -> None:
    header = (INCLUDE / "records.h").read_text("utf-8")
    struct = re.search(rf"typedef struct {record.name} {{(.*?)}} {record.name};", header, re.DOTALL)
    assert struct is not None
    in_c = [
        (name, C_TYPES[c_type] + (count or ""))
        for c_type, name, count in re.findall(r"^    (\w+) (\w+)(\[\d+\])?;", struct[1], re.MULTILINE)
    ]
    offsets = dict(re.findall(rf"offsetof\({record.name}, (\w+)\) == (\d+)", header))
    table = DOCUMENT.split(f"### {record.name}: {record.bytes} bytes\n")[1].split("\n#")[0].split("<!--")[0]
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| ([\w\[\]]+) \|", table, re.MULTILINE)
    assert [(name, kind) for _, name, kind in rows] == in_c
    assert {name: offset for offset, name, _ in rows} == offsets


def test_codes_are_those_of_the_c_enum() -> None:
    header = (INCLUDE / "codes.h").read_text("utf-8")
    in_c = {name: int(number) for name, number in re.findall(r"HVDC_E_(\w+) = (\d+),", header)}
    in_document = {name: int(number) for number, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", DOCUMENT, re.MULTILINE)}
    in_document = {name: number for name, number in in_document.items() if name in Code.__members__}
    assert in_c == in_document == {code.name: int(code) for code in Code}


def test_the_order_of_checks_names_every_code_of_a_reader() -> None:
    order = DOCUMENT.split("## Order of checks")[1].split("## Codes")[0]
    assert {name for name in re.findall(r"`([A-Z0-9_]+)`", order) if name in Code.__members__} == {
        code.name for code in Code if code is not Code.OK
    }


@pytest.mark.parametrize("order", TILE_ORDERS, ids=lambda order: order.name)
def test_a_formula_of_the_document_is_the_tile_order(order: TileOrder) -> None:
    line = next(line for line in DOCUMENT.splitlines() if line.startswith(f"- **{order.id}, `{order.name}`**"))
    formula = line.rsplit("`", 2)[1].replace("·", "*").replace("/", "//").replace("mod", "%")
    row, col = np.indices((order.row_count, order.col_count))
    assert re.fullmatch(r"[rowcl0-9 +*/%()]+", formula)
    offsets = eval(formula, {"row": row, "col": col})  # noqa: S307 - the characters are checked above
    np.testing.assert_array_equal(offsets, order.offsets())


def test_the_formula_for_a_byte_of_a_weight() -> None:
    text = re.search(r"`(\(\(n / 32\).*?)` of the tensor", DOCUMENT, re.DOTALL)
    assert text is not None
    formula = text[1].replace("·", "*").replace("/", "//").replace("mod", "%").replace("K_tiles", "t")
    assert re.fullmatch(r"[nkt0-9 +*/%()]+", formula)
    grid = TileGrid(HMX_INT8_K4, 70, 100)
    for n, k in ((0, 0), (0, 99), (69, 0), (33, 67), (69, 99), (31, 32)):
        byte = eval(formula, {"n": n, "k": k, "t": grid.k_tiles})  # noqa: S307 - the characters are checked above
        assert byte == grid.byte_offset(n, k)
