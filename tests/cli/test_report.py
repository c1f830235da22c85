"""``hvdc report``: a page that appears whole, replaces nothing but reports, and is readable on a phone."""

from __future__ import annotations

import html as entities
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands import ROOT, hvdc
from tests.hollow import full_size_manifest, write_hollow

RATES = ROOT / "examples" / "rates" / "galaxy-s25-49-frames-b.toml"
WIDTHS = (320, 360, 768, 1280)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hollow(tmp_path_factory.mktemp("full") / "dcm.hvdc", full_size_manifest())


def test_a_page_is_written(artifact: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = hvdc("report", artifact, "--rates", RATES, "-o", page)
    assert done.status == 0, done.err
    assert done.out.startswith(str(page))
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_json_says_where_it_is_and_what_it_holds(artifact: Path, tmp_path: Path) -> None:
    facts = hvdc("report", artifact, "-o", tmp_path / "r.html", "--json").json()
    assert facts["output"] == str(tmp_path / "r.html")
    assert facts["bytes"] == (tmp_path / "r.html").stat().st_size
    assert facts["sections"] == ["Model", "Plan", "Memory", "Calibration", "Decoder", "Programs", "Files"]


def test_the_same_artifact_gives_the_same_page(artifact: Path, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        assert hvdc("report", artifact, "--rates", RATES, "-o", tmp_path / name).status == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_report_is_replaced_and_nothing_else(artifact: Path, tmp_path: Path) -> None:
    page, other = tmp_path / "r.html", tmp_path / "thesis.html"
    other.write_text("<!DOCTYPE html><p>years of work")
    for _ in range(2):
        assert hvdc("report", artifact, "-o", page).status == 0
    refused = hvdc("report", artifact, "-o", other)
    assert refused.status == 2
    assert "no report" in refused.err
    assert "years of work" in other.read_text()
    assert hvdc("report", artifact, "-o", other, "--force").status == 0
    assert "years of work" not in other.read_text()


def inside(artifact: Path, folder: Path) -> Path:
    return artifact / "report.html"


def nowhere(artifact: Path, folder: Path) -> Path:
    return folder / "none" / "report.html"


def a_folder(artifact: Path, folder: Path) -> Path:
    return folder


@pytest.mark.parametrize(
    ("place", "message"),
    [(inside, "inside the artifact"), (nowhere, "directory does not exist"), (a_folder, "is that of a directory")],
)
def test_places_for_no_report_are_refused(
    place: Callable[[Path, Path], Path], message: str, artifact: Path, tmp_path: Path
) -> None:
    done = hvdc("report", artifact, "-o", place(artifact, tmp_path))
    assert done.status == 2
    assert message in done.err
    assert list(tmp_path.iterdir()) == []


def test_bad_input_writes_nothing(artifact: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    assert hvdc("report", tmp_path / "none.hvdc", "-o", page).status == 4
    assert hvdc("report", artifact, "--rates", tmp_path / "none.toml", "-o", page).status == 2
    other = ROOT / "examples" / "rates" / "galaxy-s25-17-frames.toml"
    assert hvdc("report", artifact, "--rates", other, "-o", page).status == 2
    assert not page.exists()


def test_a_full_disk_leaves_the_report_that_was_there(
    artifact: Path, tmp_path: Path, mounted: Callable[..., Path]
) -> None:
    place = mounted(64 << 10)
    page = place / "r.html"
    page.write_text('<meta name="generator" content="hvdc 1"> an old one')
    (place / "filler").write_bytes(b"x" * (40 << 10))
    done = hvdc("report", artifact, "-o", page)
    assert done.status == 1
    assert "the disk is full" in done.err
    assert "an old one" in page.read_text()


# --- in a browser --------------------------------------------------------------------------------------------------

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no browser: apt-get install chromium")

HARNESS = """<!DOCTYPE html><meta charset="utf-8"><body><pre id="found"></pre><script>
const pages = {pages}, widths = {widths}, found = [];
function next(i) {{
  if (i === pages.length * widths.length) {{
    document.getElementById("found").textContent = JSON.stringify(found);
    return;
  }}
  const [name, html] = pages[Math.floor(i / widths.length)], width = widths[i % widths.length];
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${{width}}px;height:800px;border:0`;
  frame.onload = () => {{
    const inner = frame.contentDocument, root = inner.documentElement;
    for (const folded of inner.querySelectorAll("details")) folded.open = true;
    const out = [...inner.querySelectorAll("body *")].filter((e) => !e.closest(".scroll") &&
      !e.closest("svg") && e.getBoundingClientRect().right > width + 0.5).map((e) => e.tagName);
    found.push({{
      name, width, window: frame.contentWindow.innerWidth, page: root.scrollWidth, out,
      scripts: inner.scripts.length, images: inner.images.length,
      loads: frame.contentWindow.performance.getEntriesByType("resource").map((e) => e.name)
        .filter((n) => !n.startsWith("data:")),
      scrolled: [...inner.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth).length,
      text: parseFloat(frame.contentWindow.getComputedStyle(inner.querySelector("td")).fontSize),
      drawn: Math.min(...[...inner.querySelectorAll("svg text")].map((e) => e.getBoundingClientRect().height)),
      paper: frame.contentWindow.getComputedStyle(inner.body).backgroundColor,
      ink: frame.contentWindow.getComputedStyle(inner.body).color,
    }});
    frame.remove();
    next(i + 1);
  }};
  frame.srcdoc = html;
  document.body.append(frame);
}}
next(0);
</script>"""


def browsed(pages: dict[str, str], folder: Path, *options: str) -> list[dict[str, Any]]:
    """What a browser makes of pages, each in frames of `WIDTHS`."""
    texts = json.dumps(list(pages.items())).replace("</", "<\\/")
    (folder / "harness.html").write_text(HARNESS.format(pages=texts, widths=list(WIDTHS)), "utf-8")
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         f"--user-data-dir={folder / 'profile'}", "--hide-scrollbars", "--window-size=1400,1000",
         "--virtual-time-budget=20000",
         "--host-resolver-rules=MAP * ~NOTFOUND", *options, "--dump-dom", f"file://{folder / 'harness.html'}"],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert match is not None, done.stderr[-2000:]
    return json.loads(entities.unescape(match[1]))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def page(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "r.html"
    assert hvdc("report", artifact, "--rates", RATES, "-o", path).status == 0
    return path.read_text("utf-8")


@needs_chromium
def test_it_is_readable_on_a_phone_and_loads_nothing(page: str, tmp_path: Path) -> None:
    """No page is wider than its window: tables scroll within themselves, and nothing else sticks out."""
    long_name = page.replace("dcm.hvdc", "x" * 400 + ".hvdc")
    found = browsed({"report": page, "a long name": long_name}, tmp_path)
    assert len(found) == 2 * len(WIDTHS)
    for seen in found:
        assert seen["window"] == seen["page"] == seen["width"], seen
        assert seen["out"] == []
        assert seen["loads"] == []
        assert seen["scripts"] == 0
        assert seen["text"] >= 13
        assert seen["drawn"] >= 9, "height of what is written in figures, in pixels"
    phone = next(seen for seen in found if seen["width"] == 360)
    assert phone["scrolled"] > 3, "else this tests nothing"


@needs_chromium
def test_it_is_dark_where_people_prefer_that(page: str, tmp_path: Path) -> None:
    light, dark = (
        browsed({"report": page}, made(tmp_path / name), f"--blink-settings=preferredColorScheme={scheme}")[0]
        for name, scheme in (("light", 1), ("dark", 0))
    )
    assert luminance(light["paper"]) > 0.9 > 0.2 > luminance(light["ink"])
    assert luminance(dark["paper"]) < 0.1 < 0.7 < luminance(dark["ink"])


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def luminance(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / (3 * 255)


@needs_chromium
def test_a_browser_finds_no_script_in_hostile_names(artifact: Path, tmp_path: Path) -> None:
    name = '"><script>document.title="taken"<'
    hostile = tmp_path / f"{name.replace('/', '')}.hvdc"
    shutil.copytree(artifact, hostile, copy_function=os.link)
    done = hvdc("report", hostile, "-o", tmp_path / "r.html")
    assert done.status == 0, done.err
    (seen, *_) = browsed({"report": (tmp_path / "r.html").read_text("utf-8")}, tmp_path)
    assert (seen["scripts"], seen["images"]) == (0, 0)
