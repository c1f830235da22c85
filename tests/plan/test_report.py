"""A report: nothing from outside, nothing unescaped, nothing left out."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdc.artifact.manifest import Manifest
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.runtime import Build, Runtime, RuntimeFile
from hvdc.errors import UsageError
from hvdc.plan.rates import RateTable, load_rates
from hvdc.plan.report import Lines, render, report_page
from hvdc.plan.report_charts import Bar, Curve, Strip, bars, curves, embedded, strips
from hvdc.plan.report_model import programs
from hvdc.plan.report_parts import Mark, Page, Picture, Section, Table
from hvdc.plan.report_text import gib, many, printable
from tests import artifacts
from tests.artifacts import Spec
from tests.commands import ROOT
from tests.hollow import full_size_manifest, write_hollow

TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "span", "nav", "a", "main",
    "section", "ul", "li", "b", "dl", "div", "dt", "dd", "figure", "figcaption", "details", "summary", "table", "thead",
    "tbody", "tr", "th", "td", "footer", "img", "svg", "text", "rect", "line", "polyline", "circle",
}  # fmt: skip
LINES = Lines("per-step scales", "none", "1.2.3")
HOSTILE = '"><script>alert(1)</script><img src=https://example.org/x onerror=alert(2)>{{ 7 * 7 }}\u202e&amp;'


class Seen(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.style = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.style += data
        else:
            self.text += data


def assert_harmless(page: str) -> Seen:
    """Tags of ours only, no script in any form, and no address but within the page."""
    seen = Seen(page)
    assert seen.tags <= TAGS
    for tag, name, value in seen.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("style", "action", "srcset"), (tag, name)
        if name in ("src", "href"):
            assert value.startswith(("#", "data:image/svg+xml;base64,")), (tag, value)
    assert "url(" not in seen.style
    assert "@import" not in seen.style
    return seen


@pytest.fixture(scope="module")
def full_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hollow(tmp_path_factory.mktemp("full") / "dcm.hvdc", full_size_manifest())


@pytest.fixture(scope="module")
def rates() -> RateTable:
    return load_rates(ROOT / "examples" / "rates" / "galaxy-s25-49-frames-b.toml")


def small(root: Path, edit: dict[str, object] | None = None) -> Path:
    """With a decoder and scales, for a target that there is; ``edit``: what its manifest says instead."""
    made, data = artifacts.make(Spec(decoder="qnn", calibrated=True))
    manifest = made.model_copy(update={"target": full_size_manifest().target, **(edit or {})})
    for path, content in data.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    artifacts.write_manifest(root, manifest)
    return root


def html(path: Path, rates: RateTable | None = None, **more: object) -> str:
    with open_artifact(path) as artifact:
        return render(report_page(artifact, LINES, rates, **more))  # type: ignore[arg-type]


def manifest_of(path: Path) -> Manifest:
    return artifacts.read_manifest(path)


def test_the_full_size_model_with_its_plan(full_size: Path, rates: RateTable) -> None:
    seen = assert_harmless(html(full_size, rates))
    for text in ("dcm.hvdc", "51 of 180", "677.0 s", "1.39", "1.47", "2.83", "3.71", "5.25", "178.24", "semantic",
                 "detail", "hetero-tensor", "fits in every mode", "galaxy-s25-49-frames-b", "measured nothing",
                 "regions/block-029.bin", manifest_of(full_size).model_sha256):  # fmt: skip
        assert text in seen.text, text


def test_without_rates_it_says_how_to_give_them(full_size: Path) -> None:
    text = assert_harmless(html(full_size)).text
    assert "--rates" in text
    assert "from the artifact alone" in text


def test_rates_that_only_balance_are_shown(full_size: Path) -> None:
    rates = load_rates(ROOT / "examples" / "rates" / "galaxy-s25-49-frames-a.toml")
    assert "52 of 180" in assert_harmless(html(full_size, rates)).text


def test_shared_linears_are_shown_where_they_were_measured(full_size: Path, rates: RateTable) -> None:
    gemm = [
        {"name": "g", "engine": engine, "tokens": 20_280, "in_features": k, "out_features": n, "seconds": seconds,
         "source": "measured today"}
        for k, n in ((1536, 1536), (1536, 8960), (8960, 1536))
        for engine, seconds in (("gpu", 0.3), ("npu", 0.2))
    ]  # fmt: skip
    exchange = {"sync_s": {"value": 1e-3, "source": "measured today"}, "source": "measured today"}
    values = rates.model_dump(exclude_none=True) | {"gemm": gemm, "exchange": exchange}
    text = assert_harmless(html(full_size, RateTable.model_validate(values))).text
    assert "ffn.net.0.proj" in text
    assert re.search(r"--mode hetero-tensor --gpu-share 0\.\d+", text)


def test_rates_of_another_clip_length_are_refused(tmp_path: Path, rates: RateTable) -> None:
    with pytest.raises(UsageError, match="another model or clip length"):
        html(small(tmp_path / "a.hvdc"), rates)


def test_calibration_decoder_and_checks_are_shown(tmp_path: Path) -> None:
    path = small(tmp_path / "a.hvdc")
    decoder = manifest_of(path).decoder
    assert decoder is not None
    seen = assert_harmless(html(path))
    for graph in decoder.graphs:
        assert graph.name in seen.text
    assert "attn1.input" in seen.text
    assert f"{decoder.tiles.rows} × {decoder.tiles.columns} latent pixels" in seen.text
    assert "run on a phone" in seen.text
    assert "no" in seen.text


def test_a_phones_check_is_said_only_if_the_manifest_has_it(tmp_path: Path) -> None:
    made, _ = artifacts.make(Spec(decoder="qnn"))
    assert made.decoder is not None
    binaries = tuple(b.model_copy(update={"checks": ("metadata", "emulator")}) for b in made.decoder.binaries)
    from hvdc.plan.report_model import decoder

    section = decoder(made.model_copy(update={"decoder": made.decoder.model_copy(update={"binaries": binaries})}), "x")
    (table,) = [t for t in section.tables if t.title.startswith("Binaries")]
    marks = [[cell.text for cell in row if isinstance(cell, Mark)] for row in table.rows]
    assert marks == [["yes", "yes", "no"]] * len(binaries)


def test_an_artifact_with_nothing_but_weights(tmp_path: Path) -> None:
    made, data = artifacts.make(Spec(rank=0))
    root = tmp_path / "a.hvdc"
    for path, content in data.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    artifacts.write_manifest(root, made.model_copy(update={"target": full_size_manifest().target}))
    text = assert_harmless(html(root)).text
    assert "uncalibrated" in text
    assert "carries no programs" in text


def test_programs_are_shown_with_their_compiler_and_damage_is_named(tmp_path: Path) -> None:
    file = RuntimeFile(name="hvdc_runner", bytes=2_000_000, sha256="a" * 64)
    runtime = Runtime(
        hvdc="1.0", sources_sha256="b" * 64, sources=file,
        builds=(Build(target="android-arm64", machine="aarch64", compiler="clang 22", programs=(file,)),),
    )  # fmt: skip
    text = render(page(programs(runtime, [])))
    for expected in ("hvdc_runner", "android-arm64", "clang 22", "as listed", "no record of a run"):
        assert expected in text
    hostile = runtime.model_copy(
        update={"hvdc": HOSTILE, "builds": (runtime.builds[0].model_copy(update={"compiler": HOSTILE}),)}
    )
    assert_harmless(render(page(programs(hostile, [HOSTILE]))))


def test_damaged_programs_are_said(tmp_path: Path) -> None:
    root = small(tmp_path / "a.hvdc")
    assert "carries no programs" in html(root)
    (root / "runtime").mkdir()
    (root / "runtime" / "runtime.json").write_text("{}")
    assert "list is damaged" in html(root)
    data = b"not what the list says"
    files = {name: {"name": name, "bytes": len(data), "sha256": "0" * 64} for name in ("sources.tar", "x-hvdc_runner")}
    (root / "runtime" / "runtime.json").write_text(
        Runtime.model_validate(
            {"hvdc": "1", "sources_sha256": "0" * 64, "sources": files["sources.tar"], "builds": (
                {"target": "host", "machine": "x86_64", "compiler": "cc", "programs": (files["x-hvdc_runner"],)},
            )}
        ).model_dump_json()
    )  # fmt: skip
    for name in files:
        (root / "runtime" / name).write_bytes(data)
    text = html(root)
    assert "x-hvdc_runner" in text
    assert "2 faults" in text


def test_a_clip_that_does_not_fit_is_said_at_the_top(tmp_path: Path) -> None:
    path = write_hollow(tmp_path / "long.hvdc", full_size_manifest(1025))
    text = html(path)
    assert "does not fit: the GPU&#39;s largest buffer" in text
    assert "too much" in text


def page(*sections: Section, title: str = "t") -> Page:
    return Page(title, "s", sections, "o", "1", ("b",))


def test_hostile_names_in_a_manifest_stay_text(tmp_path: Path) -> None:
    phone = full_size_manifest().target.model_copy(update={"soc": HOSTILE, "hexagon_arch": HOSTILE})
    path = small(tmp_path / "<i>x.hvdc", {"target": phone, "tools": {HOSTILE: HOSTILE, "hvdc": "1"}})
    out = html(path)
    seen = assert_harmless(out)
    assert "<script" not in out
    assert "alert(1)" in seen.text, "it is shown, as text"
    assert "{{ 7 * 7 }}" in seen.text, "no template of its own"
    assert "\u202e" not in out, "nor can it turn the text around it"
    assert "<i>x.hvdc" in seen.text


def test_so_do_those_of_a_rate_table(full_size: Path, rates: RateTable) -> None:
    hostile = rates.model_copy(update={"name": HOSTILE, "device": HOSTILE, "thermal": HOSTILE})
    seen = assert_harmless(html(full_size, hostile))
    assert seen.text.count("alert(1)") >= 3


TEXTS = st.text(max_size=30)


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_any_text_anywhere_is_shown_and_never_markup(a: str, b: str, c: str, d: str) -> None:
    section = Section(
        a, b, ((c, d),), ((a, b),),
        (Picture(c, strips(a, [Strip(b, [("gpu", 1, c)])])),
         Picture(d, bars(a, [Bar(b, [("gpu", c, 1.0)], d)], [("npu", a)]))),
        (Table(a, (b, f">{c}", f"~{d}"), [(a, Mark(b, True), c)], note=d), Table(a, (b,), [(c,)], folded=True)),
        (d,),
    )  # fmt: skip
    made = Page(a, b, (section,), c, d, (a,))
    out = render(made)
    seen = assert_harmless(out)
    squeezed = "".join(seen.text.split())
    for text in (a, b, c, d):
        assert "".join(printable(text).split()) in squeezed


def test_pictures_of_others_are_images_whose_scripts_cannot_run(full_size: Path) -> None:
    svg = '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    out = html(full_size, pictures=[("Gantt", svg)])
    seen = assert_harmless(out)
    assert "Gantt" in seen.text
    assert "<script" not in out
    images = [value for tag, name, value in seen.attributes if (tag, name) == ("img", "src")]
    assert len(images) == 1
    assert str(embedded(svg)) in out


def test_sections_can_be_reached_and_ids_are_unique(full_size: Path, rates: RateTable) -> None:
    seen = Seen(html(full_size, rates))
    ids = [value for _, name, value in seen.attributes if name == "id"]
    links = [value[1:] for tag, name, value in seen.attributes if (tag, name) == ("a", "href")]
    assert sorted(ids) == sorted(set(ids)) == sorted(links)


def test_the_curve_marks_the_chosen_cut() -> None:
    svg = str(curves("t", [Curve("gpu", "GPU", [0, 1, 2]), Curve("npu", "NPU", [2, 1, 0])], 1, "cut 1", "cut"))
    assert svg.count("<polyline") == 2
    assert "cut 1" in svg
    assert svg.count("<circle") == 1
    assert str(curves("t", [], 0, "", "")).count("<polyline") == 0, "nothing to draw is no failure"


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 1 << 30, 123_456_789_012])
def test_sizes_are_said_in_units_that_fit(size: int) -> None:
    number, unit = gib(size).split()
    assert abs(float(number) * {"GiB": 1 << 30, "MiB": 1 << 20}[unit] - size) <= 0.005 * (1 << 30)


def test_counts() -> None:
    assert [many(n, "seed") for n in (0, 1, 2, 1000)] == ["0 seeds", "1 seed", "2 seeds", "1,000 seeds"]
    assert replace(page(), title="x").title == "x"
