"""How a decoder's tensors are to be quantised: measured on latents of the model's own trajectories.

Names of tensors do not depend on a tile's size, so all of it is measured on small crops and serves graphs of any tile.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exporters.decoder.checkpoint import DecoderCheckpoint, open_decoder
from exporters.decoder.graphs import first_graph, later_graph
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.progress import Progress
from hvdc.pipeline.tensors import pieces, value_hash
from quant.decoder.encodings import Encodings, choose_encodings
from quant.decoder.graph import Graphs, structure
from quant.decoder.ports import float_ports
from quant.decoder.qdq import quantise
from quant.decoder.ranges import observe
from quant.decoder.sensitivity import Choice, choose_wide, measure
from quant.decoder.stream import decode
from quant.frames import psnr_db

Float32Array = npt.NDArray[np.float32]

CLIPS = 8
"""Clips that ranges are observed on, at most: the first ones."""
OBSERVED_SIDE, MEASURED_SIDE = 16, 6
"""Latent pixels of a crop, each way: for ranges, and for the many decodings of the sensitivity run."""
MEASURED_CLIPS, MEASURED_FRAMES = 2, 2
MEASURING_JOBS = 8
"""Each takes about twice the decoder's float weights of memory."""
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


def choose(
    decoder: DecoderCheckpoint, latents: Float32Array, budget: float, progress: Progress, say: Callable[[str], None]
) -> Quantised:
    """``latents`` float32 ``[clips, z, T, rows, columns]``. Raises UsageError for clips of a single latent frame,
    DecoderQuantError for a value that is not finite."""
    require_moving(latents.shape[2])
    held_back = min(JUDGED_CLIPS, len(latents) // 4)
    seen = latents[: min(CLIPS, len(latents) - held_back)]
    graphs, crops = _graphs(decoder, seen.shape, OBSERVED_SIDE), _crops(seen, OBSERVED_SIDE)
    known = structure(graphs)
    progress.start("decoding for ranges", len(crops), len(crops), unit="clips")
    try:
        ranges = observe(graphs, _counted(crops, progress), known)
    finally:
        progress.finish()
    small = _crops(seen[:MEASURED_CLIPS, :, :MEASURED_FRAMES], MEASURED_SIDE)
    progress.start("measuring where 16 bits pay", len(known.groups), len(known.groups), unit="groups")
    try:
        sensitivity = measure(
            _graphs(decoder, seen.shape, MEASURED_SIDE), ranges, small,
            progress=lambda done, total: progress.advance(1),
            jobs=min(len(os.sched_getaffinity(0)), MEASURING_JOBS),
        )  # fmt: skip
    finally:
        progress.finish()
    choice = choose_wide(sensitivity, budget)
    for line in choice.lines():
        say(line)
    encodings = choose_encodings(known, ranges, choice.wide)
    found = quantise(graphs, encodings)
    behind = Graphs.of(*(tuple(float_ports(m) for m in found.models(v)) for v in ("first", "later")))
    judged = _crops(latents[len(latents) - held_back :], OBSERVED_SIDE) if held_back else crops[:JUDGED_CLIPS]
    psnr = psnr_db(np.concatenate(decode(behind, judged)), np.concatenate(decode(graphs, judged)))
    whose = "held back" if held_back else "that were calibrated with"
    say(f"INT8 frames are at {psnr:.1f} dB against float32, on {len(judged)} clips {whose}")
    probe = judged[-1][:, :2]
    return Quantised(encodings, choice, len(seen), latents_sha256(latents), float(psnr), bool(held_back), probe)


def require_moving(latent_frames: int) -> None:
    """Raises UsageError for a clip without a second latent frame, which is decoded otherwise than the first."""
    if latent_frames < 2:
        raise UsageError(
            "the decoder is calibrated on clips of two latent frames or more",
            found=f"{latent_frames}", fix="give latents of a longer clip: --latents",
        )  # fmt: skip


def _counted(crops: list[Float32Array], progress: Progress) -> Iterator[Float32Array]:
    for crop in crops:
        yield crop
        progress.advance(1)


def latents_sha256(latents: Float32Array) -> str:
    """Identity of latents."""
    digest = hashlib.sha256(json.dumps(latents.shape).encode())
    digest.update(np.ascontiguousarray(latents).data)
    return digest.hexdigest()


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
