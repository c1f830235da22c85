"""Copies of artifacts whose decoder is another than their manifest says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdc.artifact.decoder import Decoder, Graph
from tests.artifacts import read_manifest, write_manifest

Edit = Callable[[Decoder], Decoder]


def edited(artifact: Path, root: Path, edit: Edit) -> Path:
    """A copy whose manifest, and index, say something else."""
    shutil.copytree(artifact, root)
    manifest = read_manifest(root)
    assert manifest.decoder is not None
    write_manifest(root, manifest.model_copy(update={"decoder": edit(manifest.decoder)}))
    return root


def flipped(artifact: Path, root: Path, path: str) -> Path:
    """A copy with another bit in the middle of a file."""
    shutil.copytree(artifact, root)
    data = bytearray((root / path).read_bytes())
    data[len(data) // 2] ^= 1
    (root / path).write_bytes(data)
    return root


def _graphs(entry: Decoder, change: Callable[[Graph], Graph]) -> Decoder:
    return entry.model_copy(update={"graphs": tuple(map(change, entry.graphs))})


def another_scale(entry: Decoder) -> Decoder:
    """Of the latent, in both variants."""

    def change(graph: Graph) -> Graph:
        port, *others = graph.inputs
        return graph.model_copy(update={"inputs": (port.model_copy(update={"scale": 2 * port.scale}), *others)})

    return _graphs(entry, change)


def exchanged_caches(entry: Decoder) -> Decoder:
    """The first cache and the last go by each other's name, wherever they are read or written."""
    later = entry.variant("later")[0]
    a, b = later.inputs[1].name, later.inputs[-1].name
    names = {a: b, b: a, f"next_{a}": f"next_{b}", f"next_{b}": f"next_{a}"}

    def change(graph: Graph) -> Graph:
        def renamed(ports: Any) -> Any:
            return tuple(p.model_copy(update={"name": names.get(p.name, p.name)}) for p in ports)

        return graph.model_copy(update={"inputs": renamed(graph.inputs), "outputs": renamed(graph.outputs)})

    return _graphs(entry, change)


def caches_in_another_order(entry: Decoder) -> Decoder:
    def change(graph: Graph) -> Graph:
        latent, *caches = graph.inputs
        return graph.model_copy(update={"inputs": (latent, *reversed(caches))})

    return _graphs(entry, change)
