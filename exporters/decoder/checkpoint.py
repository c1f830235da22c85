"""Opens Wan 2.1's VAE decoder, in diffusers' layout or the official one: every tensor checked, none dropped unsaid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exporters.decoder.config import FIX, VaeConfig, is_vae_config, official_statistics, vae_config
from exporters.decoder.geometry import FRAME_CHANNELS, DecoderGeometry, tensor_shapes
from exporters.decoder.names import OTHER_HALF, VaeLayout, canonical_names, detect_layout, strip, unknown_error
from exporters.decoder.weights import DecoderWeights
from exporters.errors import CheckpointError
from exporters.files import Store, open_store, shorten
from exporters.recognise import what_is
from exporters.scales import Ignored, apply_scales
from exporters.tensor import Tensor, check_finite

DIFFUSERS_FILES = ("diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model.safetensors")
OFFICIAL_FILE = "Wan2.1_VAE.pth"

_ENCODER_REASON = "the encoder's half of the autoencoder; only the decoder is exported"
_WAN_2_2 = re.compile(r"decoder\.(upsamples\.\d+\.upsamples\.|up_blocks\.\d+\.upsampler\.)")


@dataclass(frozen=True)
class DecoderCheckpoint:
    """An opened decoder; a context manager. Weights are read when a graph is filled.

    ``weights`` holds the tensors under diffusers' names and the statistics of the latents; ``statistics`` says where
    those are from. ``ignored`` are the tensors of the file that are not the decoder's.
    """

    path: Path
    geometry: DecoderGeometry
    weights: DecoderWeights
    layout: VaeLayout
    statistics: str
    ignored: tuple[Ignored, ...] = ()
    notes: tuple[str, ...] = ()
    store: Store | None = field(default=None, repr=False)

    def __enter__(self) -> DecoderCheckpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; later reads fail."""
        if self.store is not None:
            self.store.close()

    def lines(self) -> list[str]:
        """What was found, for a terminal or a log."""
        g = self.geometry
        names = {"wan": "official Wan names", "diffusers": "diffusers names"}
        container = f", {self.store.container}" if self.store else ""
        out = [
            f"layout: {names[self.layout]}{container}",
            f"decoder: {g.base_dim} x {list(g.dim_mult)} channels, {g.num_res_blocks + 1} residual blocks a stage, "
            f"{g.z_dim} latent channels, x {g.spatial_scale} in space, x {g.temporal_scale} in time",
            f"latents' mean and standard deviation: {self.statistics}",
            *(f"note: {note}" for note in self.notes),
        ]
        by_reason: dict[str, list[str]] = {}
        for ignored in self.ignored:
            by_reason.setdefault(ignored.reason, []).append(ignored.name)
        out += [f"ignored ({reason}): {len(keys)} tensors: {shorten(keys)}" for reason, keys in by_reason.items()]
        return out


def open_decoder(path: Path) -> DecoderCheckpoint:
    """Opens a file of weights, an ``AutoencoderKLWan`` folder, a pipeline's folder with such a folder ``vae``, or an
    official folder with ``Wan2.1_VAE.pth``. A config.json of an ``AutoencoderKLWan`` beside the weights is used;
    without one the geometry follows from the shapes, and the latents' statistics are those of Wan 2.1's release.

    Raises:
        CheckpointError: nothing there, another model, weights missing, unknown, of another shape or not finite; a
            configuration that doesn't fit.
    """
    file = _weights_file(path)
    config_path = file.parent / "config.json"
    config = vae_config(config_path) if is_vae_config(config_path) else None
    store = open_store(file)
    try:
        return _opened(path, store, config)
    except BaseException:
        store.close()
        raise


def _weights_file(path: Path) -> Path:
    if not path.exists():
        raise CheckpointError("there is no such file or folder", where=str(path), fix="check the path")
    if path.is_file():
        return path
    folder = path / "vae" if (path / "vae").is_dir() else path
    # The official folder's diffusion_pytorch_model.safetensors is the transformer.
    for name in (OFFICIAL_FILE, *DIFFUSERS_FILES):
        if (folder / name).is_file():
            return folder / name
    files = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".pth", ".pt", ".ckpt") and p.is_file())
    if len(files) == 1:
        return files[0]
    found = shorten([p.name for p in files or sorted(folder.iterdir())]) or "an empty folder"
    raise CheckpointError(
        "this folder holds several files of weights, and which one is the autoencoder is not known"
        if files
        else "this folder holds no autoencoder",
        where=str(folder),
        expected=f"one of {', '.join((*DIFFUSERS_FILES, OFFICIAL_FILE))}",
        found=found,
        fix="give the autoencoder's file" if files else FIX,
    )


def _opened(path: Path, store: Store, config: VaeConfig | None) -> DecoderCheckpoint:
    where = str(store.path)
    tensors, layout, ignored = _canonical(store, where)
    geometry = config.geometry if config else geometry_of(tensors, where)
    _check(tensors, geometry, where, str(config.source) if config else "the shapes of its other tensors")
    if config:
        mean, std, statistics = config.mean, config.std, str(config.source)
    else:
        mean, std = official_statistics(geometry.z_dim, where)
        statistics = "the constants of Wan 2.1's release (there is no config.json of an autoencoder)"
    for tensor in tensors.values():
        check_finite(tensor, tensor.read())
    ordered = {name: tensors[name] for name in tensor_shapes(geometry)}
    weights = DecoderWeights(ordered, mean, std)
    return DecoderCheckpoint(path, geometry, weights, layout, statistics, ignored, store.notes, store)


def _canonical(store: Store, where: str) -> tuple[dict[str, Tensor], VaeLayout, tuple[Ignored, ...]]:
    """The decoder's tensors under canonical names, the layout they came in, and what else is in the file."""
    raw, markers = apply_scales(store.tensors, where)
    ignored = [*markers, *(Ignored(name, why) for name, why in store.not_tensors.items())]
    stripped: dict[str, Tensor] = {}
    for key, tensor in raw.items():
        rest = strip(key)
        if rest in stripped:
            raise _two_keys(rest, stripped[rest], tensor, where)
        stripped[rest] = tensor
    layout = detect_layout(stripped, where)
    if layout is None:
        raise _foreign(list(raw), where)
    names = canonical_names(stripped, layout)
    tensors: dict[str, Tensor] = {}
    unknown: list[str] = []
    for key, tensor in stripped.items():
        if key in names:
            tensors[names[key]] = tensor.renamed(names[key])
        elif key.startswith(OTHER_HALF[layout]):
            ignored.append(Ignored(tensor.name, _ENCODER_REASON))
        else:
            unknown.append(tensor.name)
    _refuse_wan_2_2(stripped, tensors, where)
    if unknown:
        raise unknown_error(unknown, where)
    return tensors, layout, tuple(ignored)


def _two_keys(name: str, one: Tensor, other: Tensor, where: str) -> CheckpointError:
    return CheckpointError(
        f"two keys of this file mean the same tensor, {name!r}",
        where=where,
        found=f"{one.name!r} and {other.name!r}",
        fix="keep one copy of the autoencoder in the file",
    )


def _foreign(keys: list[str], where: str) -> CheckpointError:
    expected = "tensors such as 'decoder.conv_in.weight' (diffusers) or 'decoder.conv1.weight' (official Wan)"
    if not keys:
        return CheckpointError("this file holds no tensors", where=where, expected=expected, found="none", fix=FIX)
    what = {"transformer": "a Wan transformer", "adapter": "an adapter (LoRA)"}.get(what_is(keys), what_is(keys))
    found = f"{len(keys):,} tensors: {shorten(keys[:4])}"
    return CheckpointError(
        f"this file holds {what}, not the decoder of Wan's autoencoder",
        where=where,
        expected=expected,
        found=found,
        fix=FIX,
    )


def _refuse_wan_2_2(stripped: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: str) -> None:
    key = next((k for k in stripped if _WAN_2_2.match(k)), "")
    out = tensors.get("decoder.conv_out.weight")
    if out is not None and out.shape[:1] == (4 * FRAME_CHANNELS,):
        key = key or out.name
    if key:
        raise CheckpointError(
            "this is Wan 2.2's autoencoder, which works otherwise",
            where=where,
            expected="the autoencoder of Wan 2.1 (the 14B models of Wan 2.2 use it too)",
            found=repr(key),
            fix=FIX,
        )


def geometry_of(tensors: Mapping[str, Tensor], where: str) -> DecoderGeometry:
    """The geometry that canonical tensors have by their names and shapes.

    Raises:
        CheckpointError: no decoder has such names or shapes.
    """

    def out_and_in(name: str) -> tuple[int, int]:
        tensor = tensors.get(name)
        if tensor is None:
            raise _missing([name], where)
        if len(tensor.shape) != 5:
            raise _wrong_shape(tensor, "five axes: a convolution over time and space", where)
        return tensor.shape[0], tensor.shape[1]

    _, z_dim = out_and_in("decoder.conv_in.weight")
    _, base = out_and_in("decoder.conv_out.weight")
    blocks = _count(tensors, r"decoder\.up_blocks\.(\d+)\.")
    resnets = _count(tensors, r"decoder\.up_blocks\.0\.resnets\.(\d+)\.")
    widths = [out_and_in(f"decoder.up_blocks.{i}.resnets.0.conv1.weight")[0] for i in range(blocks)]
    flags = tuple(f"decoder.up_blocks.{i}.upsamplers.0.time_conv.weight" in tensors for i in range(blocks - 1))
    multiples = tuple(width // base if base else 0 for width in reversed(widths))
    try:
        geometry = DecoderGeometry(base, z_dim, multiples, resnets - 1, flags)
        if list(geometry.widths) != widths:
            raise ValueError(f"up blocks of {widths} channels are not whole multiples of the last one's, {base}")
    except ValueError as error:
        raise CheckpointError(
            f"the shapes of this file make no decoder: {error}",
            where=where,
            expected="Wan 2.1's decoder, or a smaller one of its structure",
            fix=FIX,
        ) from error
    return geometry


def _count(tensors: Mapping[str, Tensor], pattern: str) -> int:
    return 1 + max((int(m[1]) for name in tensors if (m := re.match(pattern, name))), default=-1)


def _check(tensors: Mapping[str, Tensor], geometry: DecoderGeometry, where: str, source: str) -> None:
    expected = tensor_shapes(geometry)
    unknown = [tensor.origin for name, tensor in tensors.items() if name not in expected]
    if unknown:
        raise unknown_error(unknown, where)
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise _missing(missing, where)
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise _wrong_shape(tensors[name], f"{list(shape)}, by {source}", where)


def _missing(names: list[str], where: str) -> CheckpointError:
    return CheckpointError(
        f"{len(names)} tensors of the decoder are missing",
        where=where,
        expected="every tensor of Wan 2.1's decoder",
        found=f"missing {shorten(names)}",
        fix=FIX,
    )


def _wrong_shape(tensor: Tensor, expected: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"the tensor {tensor.name!r} has another shape than the decoder needs",
        where=tensor.origin or where,
        expected=expected,
        found=str(list(tensor.shape)),
        fix=FIX,
    )
