"""Write every generated file: ``python -m hvdc.artifact.generate``. A test fails when one of them is stale."""

from __future__ import annotations

import json
from pathlib import Path

from hvdc.artifact.c_header import answer_header, codes_header, records_header, stream_header
from hvdc.artifact.format_doc import filled
from hvdc.artifact.manifest import json_schema
from layouts.c_header import tile_header

ROOT = Path(__file__).resolve().parents[2]


def generated() -> dict[Path, str]:
    """Path in the source tree -> text."""
    document = ROOT / "docs" / "FORMAT.md"
    include = ROOT / "device_runtime" / "core" / "include" / "hvdc"
    return {
        include / "tiles.h": tile_header(),
        include / "records.h": records_header(),
        include / "codes.h": codes_header(),
        include / "stream_records.h": stream_header(),
        include / "answer_records.h": answer_header(),
        ROOT / "hvdc" / "artifact" / "manifest.schema.json": json.dumps(json_schema(), indent=2) + "\n",
        document: filled(document.read_text("utf-8")),
    }


def main() -> None:
    """Write the files that changed."""
    for path, text in generated().items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
