"""What was measured of a decoder before anything is decided: ranges of its tensors, and where 8 bits disturb frames.

It takes minutes to an hour, and no setting changes it, so it is kept: another budget decides anew, from the same.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass

import numpy as np

from quant.decoder.graph import Key
from quant.decoder.ranges import Range, Ranges
from quant.decoder.sensitivity import Sensitivity

DAMAGED = (ValueError, KeyError, TypeError, zipfile.BadZipFile, EOFError)
"""What `Measured.from_bytes` raises for anything that `to_bytes` did not write."""


@dataclass(frozen=True)
class Measured:
    """What `exporters.decoder` graphs showed on calibration latents."""

    ranges: Ranges
    sensitivity: Sensitivity

    def to_bytes(self) -> bytes:
        """An ``.npz``: extremes float64 ``[tensors]``, and the outermost sampled values float32, one after another."""
        keys, held = list(self.ranges.ranges), list(self.ranges.ranges.values())
        facts = {
            "keys": [[key.variant, key.name] for key in keys],
            "latent_frames": self.ranges.latent_frames,
            "sampled": [one.sampled for one in held],
            "kept": [[len(one.lows), len(one.highs)] for one in held],
            "sensitivity": json.loads(self.sensitivity.to_json()),
        }
        out = io.BytesIO()
        np.savez(
            out,
            facts=np.frombuffer(json.dumps(facts).encode(), np.uint8),
            extremes=np.array([[one.low, one.high] for one in held], np.float64),
            outermost=np.concatenate([np.zeros(0, np.float32), *(p for one in held for p in (one.lows, one.highs))]),
        )
        return out.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Measured:
        """What `to_bytes` wrote. Raises one of `DAMAGED` for anything else."""
        with np.load(io.BytesIO(data), allow_pickle=False) as held:
            facts = json.loads(held["facts"].tobytes())
            extremes, outermost = held["extremes"], held["outermost"]
        ranges, at = {}, 0
        for (variant, name), sampled, (lows, highs), (low, high) in zip(
            facts["keys"], facts["sampled"], facts["kept"], extremes.tolist(), strict=True
        ):
            parts = outermost[at : at + lows], outermost[at + lows : at + lows + highs]
            ranges[Key(variant, name)] = Range(low, high, sampled, *parts)
            at += lows + highs
        if at != len(outermost):
            raise ValueError("values are left over")
        return Measured(Ranges(ranges, facts["latent_frames"]), Sensitivity.from_json(json.dumps(facts["sensitivity"])))
