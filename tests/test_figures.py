"""Pictures on disk: whole or not at all, the same bytes again, and without traces of where and when they were made."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hvdc import figures
from hvdc.errors import HvdcError, UsageError
from hvdc.figures import house_style, new_figure, prepare_folder, save


def line() -> Any:
    with house_style():
        figure = new_figure(3, 2)
        figure.subplots().plot([1, 2], label="a & b")
    return figure


def test_the_same_figure_is_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.test_figures import line; from hvdc.figures import save; "
        "save(line(), Path(sys.argv[1]), 'a', about='a line')"
    )
    first, second = tmp_path / "1", tmp_path / "2"
    for folder, seed in ((first, "1"), (second, "2")):
        folder.mkdir()
        environment = {"PYTHONHASHSEED": seed, "HOME": str(folder), "PATH": "/usr/bin:/bin", "TZ": f"UTC+{seed}"}
        subprocess.run([sys.executable, "-c", script, str(folder)], check=True, env=environment, cwd=Path.cwd())
    for name in ("a.svg", "a.png"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_both_files_say_what_they_show_and_nothing_of_the_machine(tmp_path: Path) -> None:
    svg, png = save(line(), tmp_path, "a", about="a line")
    assert (svg, png) == (tmp_path / "a.svg", tmp_path / "a.png")
    text = svg.read_text("utf-8")
    ElementTree.fromstring(text)  # noqa: S314  our own
    assert "a line" in text
    assert re.search(r"font[^\"]*'DejaVu Sans'[^\"]*, sans-serif", text), "a phone has another font without serifs"
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"Description\x00a line" in png.read_bytes()
    for content in (svg.read_bytes(), png.read_bytes()):
        assert b"dc:date" not in content
        assert b"matplotlib.org" not in content


def test_a_users_settings_have_no_effect_and_are_left_alone(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    (tmp_path / "plain").mkdir()
    (tmp_path / "loud").mkdir()
    plain = save(line(), tmp_path / "plain", "a", about="")
    with matplotlib.rc_context({"font.size": 30.0, "svg.fonttype": "path", "axes.facecolor": "red"}):
        loud = save(line(), tmp_path / "loud", "a", about="")
        assert matplotlib.rcParams["font.size"] == 30.0
    assert [p.read_bytes() for p in plain] == [p.read_bytes() for p in loud]


def test_a_picture_that_cannot_be_drawn_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = [p.read_bytes() for p in save(line(), tmp_path, "a", about="")]
    figure = new_figure(3, 2)

    def fails(*_: object, format: str, **__: object) -> None:  # noqa: A002  matplotlib's name
        if format == "png":
            raise MemoryError

    monkeypatch.setattr(figure, "savefig", fails)
    with pytest.raises(MemoryError):
        save(figure, tmp_path, "a", about="")
    assert [(tmp_path / f"a.{x}").read_bytes() for x in ("svg", "png")] == old
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_is_made_and_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        prepare_folder(tmp_path / "file")


def test_without_matplotlib_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draws in (figures.require_matplotlib, lambda: prepare_folder(tmp_path / "new"), lambda: new_figure(1, 1)):
        with pytest.raises(HvdcError) as caught:
            draws()
        assert caught.value.fix == "pip install 'hvdc[plot]'"
    assert list(tmp_path.iterdir()) == [], "the folder is not made for nothing"
