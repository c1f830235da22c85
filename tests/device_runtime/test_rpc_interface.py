"""The interface between the phone's CPU and its DSP: one piece, and documented."""

from __future__ import annotations

from pathlib import Path

from tests.device_runtime.rpc import interface_of


def test_the_interface_is_of_one_piece(programs: dict[str, Path]) -> None:
    """Numbers without gaps from 2 on, records that need no padding."""
    methods = list(interface_of(programs["hvdc_dsp"]).methods.values())
    assert [method.number for method in methods] == list(range(2, 2 + len(methods)))
    for method in methods:
        for fields, size, first in (
            (method.fields_in, method.in_bytes, "abi"),
            (method.fields_out, method.out_bytes, "kind"),
        ):
            assert size % 8 == 0
            assert fields[0] == (first, 4)
            offset = 0
            for _, width in fields:
                assert offset % min(width, 8) == 0
                offset += width


def test_the_document_lists_every_method(programs: dict[str, Path]) -> None:
    """docs/HEXAGON.md: | number | method | in | out | buffers |, without the fields that all have or nobody reads."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "HEXAGON.md").read_text("utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    listed = {row[1].strip("`"): row for row in rows if len(row) == 5 and row[0].isdecimal()}

    def shown(names: list[str]) -> str:
        return ", ".join(name for name in names if name != "unused") or "–"

    for method in interface_of(programs["hvdc_dsp"]).methods.values():
        assert listed.pop(method.name) == [
            str(method.number),
            f"`{method.name}`",
            shown([name for name, _ in method.fields_in[1:]]),
            shown([name for name, _ in method.fields_out[1:]]),
            shown([b.name for b in method.given] + [f"→ {b.name}" for b in method.taken]),
        ]
    assert listed == {}
