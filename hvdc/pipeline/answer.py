"""What blocks of an artifact must give on a made-up input, computed by the numeric paths from the very bytes that ship.

A device that gives something else computes wrong numbers; `hvdc deploy` asks it (docs/DEPLOY.md). The blocks are
executed on few tokens, the first block of the first expert's first step and the last block of the last step, so that
two regions, both experts and the adapter are in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from hvdc.artifact.answer import MAKE_ANEW, Answers, Float32Array, Grid, Question, answer_bytes, read_answers
from hvdc.artifact.answer_records import MIDDLE, AnswerEngine
from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import Artifact
from hvdc.pipeline.sources import ArtifactSource
from hvdc.progress import Progress
from quant.gemms import gemm_inputs
from quant.paths.arithmetic import Arithmetic, At
from quant.paths.block import run_block, text_operands
from quant.paths.gpu import GpuArithmetic
from quant.paths.host import rope_rotations
from quant.paths.npu import NpuArithmetic
from quant.paths.weights import Weights
from quant.scales import Scales

FRAMES, ROWS, COLUMNS = 2, 4, 5
"""40 tokens: positions on all three axes, more than one tile of 32 rows, and padding in the last one."""

HIDDEN_SEED, TEXT_SEED = 20260729, 1361
HIDDEN_UNIT = 2.0**-9
"""Norms take the hidden state's magnitude out: −2 to 2."""

LIMITS = {AnswerEngine.NPU: 8e-4, AnswerEngine.GPU: 5e-3}
"""RMS of the difference ÷ RMS of what the block changes.

NPU, with sums in FP32 in an order of their own: some twenty roundings to FP16 then fall to the other side now and
then. On random weights of full size the portable executor is off by 3.1e-4 and 3.4e-4. GPU: its sums are exact, and its
kernels form quotients, exponentials and tanh to the last bit, so that usually no bit differs. An INT8 code that still
falls to the other side is worth 1e-5 in the median and 2e-2 in the worst of 50 draws of one unit of FP16 in the input:
in one of 50 a GPU that is right but for one last bit would be called wrong. Of the same blocks a weight with two rows
exchanged is off by 1.5e-3 and more on the NPU, 6.5e-3 and more on the GPU (``python -m benchmarks.answer`` prints all
of these).
"""


def questions_of(artifact: Artifact) -> tuple[Question, ...]:
    """Which blocks are executed, on which input."""
    manifest, scales = artifact.manifest, _scales_of(ArtifactSource(artifact))
    last = len(manifest.steps) - 1
    places = [(0, 0)]
    if manifest.steps[last].expert != manifest.steps[0].expert:
        places.append((last, manifest.geometry.layers - 1))
    engines = [AnswerEngine.NPU, *([AnswerEngine.GPU] if scales is not None else [])]
    found = []
    for step, block in places:
        units = (HIDDEN_UNIT, _text_unit(scales, step, block))
        found += [Question(e, step, block, HIDDEN_SEED, TEXT_SEED, *units, LIMITS[e]) for e in engines]
    return tuple(found)


def _scales_of(source: ArtifactSource) -> Scales | None:
    """None too where not every GEMM input has a scale: the GPU's engine refuses such an artifact."""
    scales = source.scales
    due = {each.name for each in gemm_inputs(source.shape)}
    return scales if scales is not None and due <= set(scales.inputs) else None


def _text_unit(scales: Scales | None, step: int, block: int) -> float:
    """So that no value of the text is clipped where it enters a GEMM of the GPU, and the range is used."""
    if scales is None:
        return HIDDEN_UNIT
    exponent = math.floor(math.log2(127.0 * scales.of(step, block, "attn2.text") / MIDDLE))
    return 2.0 ** min(max(exponent, -24), 4)


def answer_of(artifact: Artifact, progress: Progress) -> tuple[bytes | None, str]:
    """`stored_answer`, or None and why there is none: an artifact without one is as good a model."""
    try:
        return stored_answer(artifact, progress), ""
    except ArtifactError as error:
        if error.code != Code.DATA_NOT_FINITE:
            raise
        return None, f"no answer to try devices with was stored: {error.what}"


def answer_findings(artifact: Artifact, data: bytes, where: str, progress: Progress) -> list[ArtifactError]:
    """Each stored answer that is not what the weights give: the NPU's to the bit, the GPU's within its limit.

    ``data``: ``answer.bin``, which is malformed in one finding.
    """
    try:
        answers = read_answers(data, artifact.index, where)
    except ArtifactError as error:
        return [error]
    found = []
    progress.start("computing what blocks must give", len(answers.questions), len(answers.questions), unit="blocks")
    try:
        for i, (question, held) in enumerate(zip(answers.questions, answers.values, strict=True)):
            due = computed(artifact, answers.grid, question)
            share = relative(held, due, question.hidden(answers.grid))
            if share > (0.0 if question.engine == AnswerEngine.NPU else question.limit):
                found.append(
                    ArtifactError(
                        Code.DATA_ANSWER, where=f"{where}: answer {i}, {question.engine.name}, step {question.step}, "
                        f"block {question.block}", expected="what the weights give", fix=MAKE_ANEW,
                        found=f"off by {share:.2g} of what the block changes",
                    )
                )  # fmt: skip
            progress.advance(1)
    finally:
        progress.finish()
    return found


def relative(found: Float32Array, due: Float32Array, before: Float32Array) -> float:
    """RMS of ``found − due`` ÷ RMS of ``due − before``: 0 exactly if every bit is the same."""
    if found.tobytes() == due.tobytes():
        return 0.0
    off, change = (found.astype(np.float64) - due), (due.astype(np.float64) - before)
    return float(np.sqrt(np.square(off).mean() / np.square(change).mean()))


@torch.no_grad()
def stored_answer(artifact: Artifact, progress: Progress) -> bytes:
    """``answer.bin`` of an artifact. Raises ArtifactError where its weights give something that is not finite."""
    grid, questions = grid_of(artifact), questions_of(artifact)
    progress.start("computing what blocks must give", len(questions), len(questions), unit="blocks")
    try:
        values = tuple(_with_progress(artifact, grid, questions, progress))
    finally:
        progress.finish()
    return answer_bytes(Answers(grid, questions, values), artifact.index)


def grid_of(artifact: Artifact) -> Grid:
    """Sizes of an artifact's answers."""
    geometry = artifact.manifest.geometry
    return Grid(FRAMES, ROWS, COLUMNS, geometry.width, geometry.text_tokens)


def _with_progress(
    artifact: Artifact, grid: Grid, questions: tuple[Question, ...], progress: Progress
) -> Iterator[Float32Array]:
    for question in questions:
        yield computed(artifact, grid, question)
        progress.advance(1)
        progress.item_done(f"{question.engine.name.lower()} block {question.block}")


@torch.no_grad()
def computed(artifact: Artifact, grid: Grid, question: Question) -> Float32Array:
    """One answer: float32 ``[tokens][width]``. Raises ArtifactError."""
    source = ArtifactSource(artifact)
    weights = Weights(source)  # of this block alone: what it widens goes with it
    arithmetic = _arithmetic(question.engine, weights, source.scales)
    at = At(question.step, question.block, weights.steps[question.step].expert)
    text = text_operands(arithmetic, at, torch.from_numpy(question.text(grid)))
    rotations = rope_rotations(weights, (grid.frames, grid.rows, grid.columns))
    hidden = torch.from_numpy(question.hidden(grid)).to(arithmetic.residual_dtype)
    values: Float32Array = run_block(arithmetic, at, hidden, text, rotations).float().numpy()
    if not np.isfinite(values).all():
        raise ArtifactError(
            Code.DATA_NOT_FINITE, what=f"block {question.block} gives something that is not finite in the "
            f"{question.engine.name}'s arithmetic", where=str(artifact.path), expected="finite values",
            found=f"step {question.step}", fix="the weights are outside of what FP16 holds: hvdc evaluate says more",
        )  # fmt: skip
    return values


def _arithmetic(engine: AnswerEngine, weights: Weights, scales: Scales | None) -> Arithmetic:
    if engine == AnswerEngine.NPU:
        return NpuArithmetic(weights, exact=True)
    assert scales is not None  # noqa: S101 - who asks for the GPU's answer has them
    return GpuArithmetic(weights, scales)
