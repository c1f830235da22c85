"""``make reproduce``: docs/REPRODUCTION.md and its pictures. Seconds on one core; nothing is measured or downloaded."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.reproduction.report import FOLDER, NAME, draw, text
from hvdc.figures import prepare_folder
from hvdc.files import replace_file


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.reproduction", description=(__doc__ or "").split(":", 1)[1]
    )
    parser.add_argument("--into", type=Path, default=Path("docs"), help="The folder of the document.  [default: docs]")
    into: Path = parser.parse_args().into
    prepare_folder(into / FOLDER)
    draw(into / FOLDER)
    replace_file(into / NAME, text().encode())


if __name__ == "__main__":
    main()
