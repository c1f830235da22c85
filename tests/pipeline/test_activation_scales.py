"""Activation scales on their way into an artifact: what is written, refused, resumed, compared."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvdc.artifact import records
from hvdc.artifact.calibration import Clip, GemmInput
from hvdc.artifact.codes import Code
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.validate import validate_deep
from hvdc.errors import UsageError
from hvdc.pipeline.activation_scales import ActivationScales, stored_scales
from hvdc.pipeline.against import compare, open_source
from hvdc.pipeline.build import build
from hvdc.pipeline.compare import diff
from hvdc.pipeline.prepare import Request, fingerprint, prepare
from hvdc.progress import Silent
from tests.artifacts import edit_tensor, put_float
from tests.fixtures.make import CONFIG, FOLDER, SITE, compile_fixture, fixture_scales

SOURCE = FOLDER / "1.1" / "source.safetensors"
SCALES = fixture_scales()
TABLE = records.ACTIVATION_SCALES_NAME


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("scales") / "calibrated.hvdc"
    compile_fixture(SOURCE, output, activations=SCALES)
    return output


@pytest.fixture(scope="module")
def unsmoothed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("scales") / "unsmoothed.hvdc"
    compile_fixture(SOURCE, output, activations=replace(SCALES, smoothing_strength=None, smoothing={}))
    return output


@pytest.fixture(scope="module")
def uncalibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("scales") / "uncalibrated.hvdc"
    compile_fixture(SOURCE, output)
    return output


def test_what_is_given_is_what_is_stored(calibrated: Path) -> None:
    with open_artifact(calibrated) as artifact:
        assert validate_deep(artifact) == []
        np.testing.assert_array_equal(artifact.tensor(TABLE), SCALES.table)
        held = stored_scales(artifact)
        assert held is not None
        assert held.sha256() == SCALES.sha256()
        entry = artifact.manifest.calibration
        assert entry == SCALES.entry(artifact.manifest.video)
        assert entry is not None
        assert entry.other_geometry, "the fixture was run at 32 columns and is for 48"
        assert artifact.manifest.totals.calibration_bytes == SCALES.table.nbytes + SCALES.smoothing[SITE].nbytes


def test_all_other_files_are_those_of_the_uncalibrated_artifact(unsmoothed: Path, uncalibrated: Path) -> None:
    with open_artifact(unsmoothed) as a, open_artifact(uncalibrated) as b:
        assert a.manifest.files[:-1] == b.manifest.files
        assert a.manifest.files[-1].path == "calibration/scales.bin"
        assert b.manifest.calibration is None
        assert stored_scales(b) is None


def changed(**fields: Any) -> ActivationScales:
    return replace(SCALES, **fields)


def with_value(place: tuple[int, int, int], value: float) -> ActivationScales:
    table = SCALES.table.copy()
    table[place] = value
    return changed(table=table)


INPUT = GemmInput(name="attn1.input", per="step", experts=("semantic", "detail"))
REFUSED = {
    "a step less": (changed(table=SCALES.table[1:]), "(6, 2, 3): steps, blocks, GEMM inputs"),
    "a block more": (changed(table=SCALES.table.repeat(2, axis=1)), "(6, 2, 3)"),
    "doubles": (changed(table=SCALES.table.astype(np.float64)), "float32"),
    "a scale of zero": (with_value((1, 0, 0), 0), "step 1, block 0, attn1.input"),
    "NaN": (with_value((5, 1, 2), np.nan), "step 5, block 1, attn1.to_q.lora_hidden"),
    "a subnormal scale": (with_value((5, 1, 2), 1e-39), "positive, normal, finite"),
    "an adapter in a semantic step": (with_value((0, 0, 2), 1), "does not exist in this step"),
    "a text that changes": (with_value((4, 0, 1), 1), "as in step 3"),
    "a name twice": (changed(inputs=(INPUT, INPUT, INPUT)), "each name once"),
    "no inputs": (changed(inputs=(), table=SCALES.table[:, :, :0]), "1 to 256"),
    "experts out of order": (
        changed(inputs=(*SCALES.inputs[:2], INPUT.model_copy(update={"name": "x", "experts": ("detail", "semantic")}))),
        "in order",
    ),
    "a percentile without its mode": (changed(mode="mse"), "a number with mode"),
    "smoothing without a strength": (changed(smoothing_strength=None), "a strength with factors"),
    "a strength without smoothing": (changed(smoothing={}), "a strength with factors"),
    "factors of another model": (changed(smoothing={SITE: np.ones((3, 64), np.float32)}), "2 blocks"),
    "a factor of zero": (changed(smoothing={SITE: np.zeros((2, 64), np.float32)}), f"{SITE} [0, 0]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_scales_that_do_not_fit_are_refused_before_any_work(case: str, tmp_path: Path) -> None:
    scales, words = REFUSED[case]
    with pytest.raises(UsageError, match="do not fit") as caught:
        compile_fixture(SOURCE, tmp_path / "out.hvdc", activations=scales)
    assert words in str(caught.value)
    assert "calibrate again" in caught.value.fix
    assert not list(tmp_path.iterdir())


OTHERS = {
    "nothing": None,
    "a value": with_value((0, 0, 0), 9),
    "a seed": changed(seeds=(0, 2)),
    "statistics": changed(statistics_sha256="6" * 64),
    "the clip": changed(video=Clip(frames=5, height=16, width=32)),
    "a factor": changed(smoothing={SITE: np.ones((2, 64), np.float32)}),
    "a site": changed(smoothing={"ffn.input": SCALES.smoothing[SITE]}),
    "a name": changed(inputs=(INPUT.model_copy(update={"name": "x"}), *SCALES.inputs[1:])),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_build_of_other_scales_is_not_resumed(other: str, tmp_path: Path) -> None:
    def of(scales: ActivationScales | None) -> str:
        prepared = prepare(Request(SOURCE, tmp_path / "out.hvdc", config=CONFIG, activations=scales))
        with prepared.checkpoint:
            return fingerprint(prepared)

    assert of(SCALES) == of(fixture_scales())
    assert of(SCALES) != of(OTHERS[other])


def test_what_was_finished_is_resumed_with_the_same_scales(calibrated: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.hvdc"

    class Stop(Silent):
        def item_done(self, label: str) -> None:
            if label == "calibration/scales.bin":
                raise KeyboardInterrupt

    prepared = prepare(Request(SOURCE, output, config=CONFIG, activations=SCALES))
    with prepared.checkpoint, pytest.raises(KeyboardInterrupt):
        build(prepared, Stop())
    prepared = prepare(Request(SOURCE, output, config=CONFIG, activations=SCALES, resume=True))
    with prepared.checkpoint:
        assert build(prepared, Silent()).resumed_files
    with open_artifact(output) as a, open_artifact(calibrated) as b:
        assert a.manifest == b.manifest


def test_differences_of_calibrations_are_told(calibrated: Path, uncalibrated: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.hvdc"
    compile_fixture(SOURCE, other, activations=replace(with_value((0, 0, 0), 9), statistics_sha256="6" * 64, prompts=4))
    with open_artifact(calibrated) as a, open_artifact(other) as b, open_artifact(uncalibrated) as none:
        found = diff(a, b)
        assert found.structure == [
            f"calibration.statistics_sha256: {'5' * 64} → {'6' * 64}",
            "calibration.prompts: 3 → 4",
        ]
        assert found.files == ["calibration/scales.bin"]
        assert [(t.name, t.changed) for t in found.tensors] == [(TABLE, 1)]
        structure = diff(none, a).structure
        assert "calibration: only in B" in structure
        assert "files.calibration/scales.bin: only in B" in structure
        assert "calibration: only in A" in diff(a, none).structure


def test_inputs_in_another_order_are_told(calibrated: Path, tmp_path: Path) -> None:
    order = [2, 0, 1]
    turned = changed(table=SCALES.table[:, :, order], inputs=tuple(SCALES.inputs[i] for i in order))
    compile_fixture(SOURCE, tmp_path / "turned.hvdc", activations=turned)
    with open_artifact(calibrated) as a, open_artifact(tmp_path / "turned.hvdc") as b:
        assert diff(a, b).structure == ["calibration.inputs: in another order"]


def test_against_its_checkpoint_scales_are_not_compared(unsmoothed: Path, uncalibrated: Path) -> None:
    for path, measured in ((unsmoothed, (TABLE,)), (uncalibrated, ())):
        with open_artifact(path) as artifact, open_source(SOURCE, None, artifact.manifest, lora_alpha=None) as source:
            comparison = compare(artifact, source, Silent())
        assert comparison.findings == ()
        assert comparison.measured == measured
        assert comparison.results


def test_against_its_checkpoint_unusable_scales_are_found(calibrated: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.hvdc"
    shutil.copytree(calibrated, copy)
    edit_tensor(copy, TABLE, put_float(0, -1))
    with open_artifact(copy) as artifact, open_source(SOURCE, None, artifact.manifest, lora_alpha=None) as source:
        (finding,) = compare(artifact, source, Silent()).findings
    assert finding.code is Code.DATA_CALIBRATION
    assert finding.where.endswith(f"{TABLE} [0, 0, 0]")
