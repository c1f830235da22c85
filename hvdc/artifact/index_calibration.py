"""The checks of a calibrated artifact's own sections of ``index.bin``, in the order of docs/FORMAT.md."""

from __future__ import annotations

import numpy as np

from hvdc.artifact import records
from hvdc.artifact.codes import Code
from hvdc.artifact.index_tables import NAME, Index, is_text, refuse, string_at
from hvdc.artifact.records import CalibrationMode, DType, Expert, ScalePer, TensorKind
from layouts.order import ROW_MAJOR_ID


def check_calibration(index: Index) -> None:
    """Raises ArtifactError; nothing to check if the artifact is uncalibrated."""
    if index.calibration is not None:
        _check_record(index, index.calibration)
        _check_inputs(index)
        _check_tensors(index, index.calibration)


def _check_record(index: Index, c: np.void) -> None:
    """The record agrees with the section of inputs, with its own mode, and with the geometry's video."""
    sizes = ("frames", "height", "video_width")
    at_own = all(c[size] == index.geometry[size] for size in sizes)
    is_other = bool(int(c["flags"]) & records.CALIBRATION_OTHER_GEOMETRY)
    percentile = float(c["percentile"])
    has_percentile = 0 < percentile <= 100 if int(c["mode"]) == CalibrationMode.PERCENTILE else percentile == 0
    if (
        not 1 <= int(c["inputs"]) <= records.MAX_GEMM_INPUTS
        or int(c["inputs"]) != len(index.inputs)
        or int(c["mode"]) not in list(CalibrationMode)
        or not has_percentile
        or not all(c[size] > 0 for size in sizes)
        or is_other == at_own
    ):
        found = f"{c['inputs']} inputs, mode {c['mode']}, percentile {percentile}, flags {c['flags']}"
        refuse(Code.INDEX_CALIBRATION, "calibration", f"{len(index.inputs)} inputs, fields that fit together", found)


def _check_inputs(index: Index) -> None:
    known = (1 << int(index.geometry["experts"])) - 1
    names = []
    for i, item in enumerate(index.inputs):
        place = f"GEMM input {i}"
        name = string_at(index, item["name"], place)
        if not is_text(name, NAME):
            refuse(Code.INDEX_STRING, place, "a canonical name", name)
        per, experts = int(item["per"]), int(item["experts"])
        if per not in list(ScalePer) or not experts or experts & ~known:
            refuse(Code.INDEX_CALIBRATION, place, "a known per, experts of the model", f"per {per}, {experts:#x}")
        if name in names:
            refuse(Code.INDEX_CALIBRATION, place, "each name once", name)
        names.append(name)


def _check_tensors(index: Index, c: np.void) -> None:
    """The table has the shape that its index says; all other tensors of the kind are smoothing factors."""
    g, table = index.geometry, int(c["table"])
    ids = [i for i, t in enumerate(index.tensors) if int(t["kind"]) == TensorKind.CALIBRATION]
    shape = [int(g["steps"]), int(g["layers"]), int(c["inputs"])]
    if table not in ids:
        refuse(Code.INDEX_CALIBRATION, "calibration", "a table of kind CALIBRATION", f"tensor {table}")
    if len(ids) - 1 != int(c["smoothed_sites"]):
        refuse(Code.INDEX_CALIBRATION, "calibration", f"{c['smoothed_sites']} smoothed sites", len(ids) - 1)
    for i in ids:
        t, name = index.tensors[i], index.text(int(index.tensors[i]["name"]))
        dims = [int(v) for v in t["shape"]][: int(t["dims"])]
        if i == table:
            good = name == records.ACTIVATION_SCALES_NAME and dims == shape
        else:
            good = name.startswith(records.SMOOTHING_PREFIX) and len(dims) == 2 and dims[0] == shape[1]
        if (
            not good
            or int(t["dtype"]) != DType.FLOAT32
            or int(t["tile_order"]) != ROW_MAJOR_ID
            or int(t["expert"]) != Expert.SHARED
            or t["shape"].tolist() != t["padded"].tolist()
        ):
            due = f"FP32 {shape}" if i == table else f"smoothing factors of {shape[1]} blocks"
            refuse(Code.INDEX_CALIBRATION, f"tensor {i}", due, f"{name} {dims}")
