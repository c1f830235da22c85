"""How a decoder's tensors are to be quantised: measured on latents of the model's own trajectories.

Names of tensors do not depend on a tile's size, so all of it is measured on small crops and serves graphs of any tile.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exporters.decoder.checkpoint import DecoderCheckpoint, open_decoder
from exporters.decoder.graphs import first_graph, later_graph
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.decoder_measured import Measured
from hvdc.pipeline.latents_file import latents_sha256
from hvdc.pipeline.tensors import pieces, value_hash
from hvdc.progress import Progress
from quant.decoder.encodings import Encodings, choose_encodings
from quant.decoder.graph import VARIANTS, Graphs, structure
from quant.decoder.ports import float_ports
from quant.decoder.qdq import quantise
from quant.decoder.ranges import observe
from quant.decoder.sensitivity import Choice, choose_wide, measure
from quant.decoder.stream import decode
from quant.frames import psnr_db

Float32Array = npt.NDArray[np.float32]

CLIPS = 8
"""Clips that ranges are observed on, at most: the first ones."""
OBSERVED_SIDE, MEASURED_SIDE = 16, 4
"""Latent pixels of a crop, each way: for ranges, and for the many decodings of the sensitivity run. With 3, 4 and 6
the example's frames came out at 51.9 dB alike."""
MEASURED_CLIPS, MEASURED_FRAMES = 2, 2
OBSERVING_JOBS = 2
"""Clips at a time: each takes 2.4 GB at full size."""
JUDGED_CLIPS = 2
"""Held back to judge the result by, where there are three or more for each."""


@dataclass(frozen=True)
class Quantised:
    """What measuring gave. ``psnr_db``: INT8 frames against float32; ``unseen``: of clips that were held back.
    ``probe`` float32 ``[z, 2, rows, columns]``: the beginning of a judged clip, to run on other machines."""

    encodings: Encodings
    choice: Choice
    clips: int
    latents_sha256: str
    psnr_db: float
    unseen: bool
    probe: Float32Array

    def to_json(self) -> str:
        """As text: encodings and probe for an artifact, and what the manifest says of them."""
        plain = asdict(self.choice)
        facts = {
            "encodings": json.loads(self.encodings.to_json()), "probe": _packed(self.probe), "choice": plain,
            "clips": self.clips, "latents_sha256": self.latents_sha256, "psnr_db": self.psnr_db, "unseen": self.unseen,
        }  # fmt: skip
        return json.dumps(facts, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Quantised:
        """What `to_json` wrote. Raises ValueError, KeyError or TypeError for anything else."""
        held = json.loads(text)
        plain = held["choice"]
        return Quantised(
            Encodings.from_json(json.dumps(held["encodings"])),
            Choice(tuple(plain["wide"]), plain["share"], plain["narrow_db"], plain["chosen_db"]),
            held["clips"],
            held["latents_sha256"],
            held["psnr_db"],
            held["unseen"],
            _unpacked(held["probe"]),
        )


def _packed(values: Float32Array) -> dict[str, object]:
    data = base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode("ascii")
    return {"shape": list(values.shape), "float32": data}


def _unpacked(held: dict[str, Any]) -> Float32Array:
    return np.frombuffer(base64.b64decode(held["float32"]), "<f4").reshape(held["shape"]).copy()


def measure_decoder(decoder: DecoderCheckpoint, latents: Float32Array, progress: Progress) -> Measured:
    """``latents`` float32 ``[clips, z, T, rows, columns]``. Raises UsageError for clips of a single latent frame,
    DecoderQuantError for a value that is not finite."""
    require_moving(latents.shape[2])
    seen, _ = _parted(latents)
    graphs, crops = _graphs(decoder, seen.shape, OBSERVED_SIDE), _crops(seen, OBSERVED_SIDE)
    known = structure(graphs)
    cores = len(os.sched_getaffinity(0))

    def report(done: int, total: int) -> None:
        progress.advance(1)

    progress.start("decoding for ranges", len(crops), len(crops), unit="clips")
    try:
        ranges = observe(graphs, crops, known, jobs=min(cores, OBSERVING_JOBS), progress=report)
    finally:
        progress.finish()
    small = _crops(seen[:MEASURED_CLIPS, :, :MEASURED_FRAMES], MEASURED_SIDE)
    progress.start("measuring where 16 bits pay", len(known.groups), len(known.groups), unit="groups")
    try:
        sensitivity = measure(
            _graphs(decoder, seen.shape, MEASURED_SIDE), ranges, small, progress=report, jobs=cores
        )  # fmt: skip
    finally:
        progress.finish()
    return Measured(ranges, sensitivity)


def choose(
    decoder: DecoderCheckpoint,
    latents: Float32Array,
    measured: Measured,
    budget: float,
    say: Callable[[str], None],
) -> Quantised:
    """Encodings under a ``budget``, from what `measure_decoder` found of the same latents; judged on clips of them."""
    seen, held_back = _parted(latents)
    graphs = _graphs(decoder, seen.shape, OBSERVED_SIDE)
    choice = choose_wide(measured.sensitivity, budget)
    for line in choice.lines():
        say(line)
    encodings = choose_encodings(structure(graphs), measured.ranges, choice.wide)
    found = quantise(graphs, encodings)
    behind = Graphs.of(*(tuple(float_ports(m) for m in found.models(v)) for v in VARIANTS))
    unseen = len(held_back) > 0
    judged = _crops(held_back if unseen else seen[:JUDGED_CLIPS], OBSERVED_SIDE)
    psnr = psnr_db(np.concatenate(decode(behind, judged)), np.concatenate(decode(graphs, judged)))
    whose = "held back" if unseen else "that were calibrated with"
    say(f"INT8 frames are at {psnr:.1f} dB against float32, on {len(judged)} clips {whose}")
    return Quantised(
        encodings, choice, len(seen), latents_sha256(latents), float(psnr), unseen, probe=judged[-1][:, :2]
    )


def _parted(latents: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Clips that are looked at, and those that are held back to judge the result by."""
    held_back = min(JUDGED_CLIPS, len(latents) // 4)
    return latents[: min(CLIPS, len(latents) - held_back)], latents[len(latents) - held_back :]


def require_moving(latent_frames: int) -> None:
    """Raises UsageError for a clip without a second latent frame, which is decoded otherwise than the first."""
    if latent_frames < 2:
        raise UsageError(
            "the decoder is calibrated on clips of two latent frames or more",
            found=f"{latent_frames}", fix="give latents of a longer clip: --latents",
        )  # fmt: skip


def vae_sha256(decoder: DecoderCheckpoint) -> str:
    """Identity of a decoder's float weights, whatever form their file has, and of the latents' statistics."""
    digest = hashlib.sha256(json.dumps([decoder.weights.mean, decoder.weights.std]).encode())
    for name, tensor in decoder.weights.tensors.items():
        value = value_hash(tensor, pieces(tensor), lambda done: None)
        digest.update(f"{name} {'x'.join(map(str, tensor.shape))} {value}\n".encode())
    return digest.hexdigest()


def open_same(vae: Path, sha256: str) -> DecoderCheckpoint:
    """The decoder of ``vae``, whose `vae_sha256` an artifact knows. Raises CheckpointError; HvdcError for another."""
    decoder = open_decoder(vae)
    try:
        found = vae_sha256(decoder)
        if found != sha256:
            raise HvdcError(
                "this is not the autoencoder that the artifact was compiled with", where=str(vae),
                expected=sha256, found=found, fix="give the one that it was compiled with",
            )  # fmt: skip
    except BaseException:
        decoder.close()
        raise
    return decoder


def _graphs(decoder: DecoderCheckpoint, shape: tuple[int, ...], side: int) -> Graphs:
    rows, columns = min(shape[3], side), min(shape[4], side)
    return Graphs.of(first_graph(decoder, rows, columns).model(), later_graph(decoder, rows, columns).model())


def _crops(latents: Float32Array, side: int) -> list[Float32Array]:
    """One crop of each clip: the middle, then the corners, so that edges are seen too."""
    height, width = latents.shape[3:]
    rows, columns = min(height, side), min(width, side)
    out = []
    for i, clip in enumerate(latents):
        top, left = height - rows, width - columns
        y, x = [(top // 2, left // 2), (0, 0), (top, left), (0, left), (top, 0)][i % 5]
        out.append(np.ascontiguousarray(clip[:, :, y : y + rows, x : x + columns]))
    return out
