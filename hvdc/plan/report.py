"""One self-contained HTML page about an artifact: no script, no font, no file from outside.

Everything that is not this project's own text is escaped when the page is rendered. Figures that another tool drew can
be added (``pictures``): they become images within the page.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import jinja2
from markupsafe import Markup

from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import Artifact
from hvdc.artifact.runtime import read_runtime, runtime_findings
from hvdc.plan import report_model, report_plans
from hvdc.plan.cut_plan import CutRequest, plan_cut
from hvdc.plan.fitting import fit_to_manifest
from hvdc.plan.gemm_table import measured_gemms
from hvdc.plan.gemms import BlockSizes
from hvdc.plan.memory_plan import plan_memory
from hvdc.plan.rates import RateTable
from hvdc.plan.report_charts import embedded
from hvdc.plan.report_parts import Mark, Page, Picture, Section
from hvdc.plan.report_text import printable
from hvdc.plan.tensor_plan import plan_tensor


@dataclass(frozen=True)
class Lines:
    """What commands say about activations and the decoder, in a sentence each; and which hvdc writes the page."""

    activations: str
    decoder: str
    version: str


def report_page(
    artifact: Artifact, lines: Lines, rates: RateTable | None = None, pictures: Sequence[tuple[str, str]] = ()
) -> Page:
    """The report. ``pictures``: title and SVG of figures to add. Reads the programs that the artifact carries, to
    compare their SHA-256.

    Raises UsageError for rates of another model or clip length and for an unknown target, ArtifactError.
    """
    manifest = artifact.manifest
    memory = plan_memory(manifest)
    sections = [
        report_model.overview(manifest, lines.activations, lines.decoder),
        report_plans.no_plan() if rates is None else _plan(artifact, rates),
        report_plans.memory(memory),
        report_model.calibration(artifact, lines.activations),
        report_model.decoder(manifest, lines.decoder),
        _programs(artifact),
        report_model.files(manifest),
    ]
    if pictures:
        drawn = [Picture(title, embedded(svg)) for title, svg in pictures]
        sections.insert(3, Section("Pictures", pictures=drawn))
    v = manifest.video
    draft = ["draft format"] if manifest.format.draft else []
    made_from = "the artifact alone" if rates is None else f"the artifact and the rate table {rates.name}"
    return Page(
        title=artifact.path.resolve().name,
        subtitle=f"{v.frames} frames of {v.width} × {v.height} on {manifest.target.soc}: "
        f"{report_plans.fits_line(memory)}",
        sections=sections,
        origin=f"Written by hvdc {lines.version} from {made_from}. Memory is counted, and times follow from rates: "
        "this page measured nothing.",
        version=lines.version,
        badges=[*draft, manifest.target.name, "calibrated" if manifest.calibration is not None else "uncalibrated"],
    )


def _plan(artifact: Artifact, rates: RateTable) -> Section:
    model = fit_to_manifest(rates, artifact.manifest)
    shared = None
    if rates.gemm and rates.exchange is not None:
        shared = plan_tensor(measured_gemms(rates), BlockSizes.of(artifact.manifest))
    return report_plans.plan(plan_cut(rates, CutRequest(), model), shared)


def _programs(artifact: Artifact) -> Section:
    faults = [str(fault) for fault in runtime_findings(artifact.path)]
    try:
        runtime = read_runtime(artifact.path)
    except ArtifactError:  # it is among the faults
        runtime = None
    return report_model.programs(runtime, faults)


def render(page: Page) -> str:
    """The page as HTML."""
    return _template().render(page=page)


@functools.cache
def _template() -> jinja2.Template:
    folder = resources.files("hvdc.plan").joinpath("templates")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
        keep_trailing_newline=True,
    )
    environment.tests["mark"] = lambda cell: isinstance(cell, Mark)
    environment.globals["style"] = Markup(folder.joinpath("report.css").read_text("utf-8"))  # noqa: S704 - ours
    return environment.get_template("report.html.j2")
