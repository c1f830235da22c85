"""Wan's text encoder, the encoder half of umT5-xxl, run one layer at a time.

In float32 the encoder takes 22.7 GB. Here only the embedding rows of the prompts are read, and the layers in turn: one
is in memory, all prompts pass through it, then the next takes its place. The mathematics are transformers' own modules.
What the diffusion transformer gets is the pipeline's rule: a prompt is cleaned, tokenised with its end token, encoded
under a mask that hides padding, and followed by zeros up to the fixed number of tokens.
"""

from __future__ import annotations

import html
import importlib.util
import math
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exporters.config import read_json
from exporters.errors import CheckpointError
from exporters.files import Store, open_store, shorten
from exporters.tensor import Float32Array, Tensor, check_finite

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

EMBEDDING, FINAL_NORM = "embed_tokens.weight", "final_layer_norm.weight"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_STORED = ("F32", "BF16", "F16")
_BATCH_TOKENS = 2048
"""Tokens that pass through a layer together, padding included: about 1 GiB of intermediate values at most."""

_DIFFUSERS = (
    "give the text_encoder folder of a diffusers pipeline, such as DCM_WAN/text_encoder or that of "
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers: config.json and model-0000N-of-0000M.safetensors with their index"
)
_OFFICIAL = "these are umT5's weights in the official Wan layout, which is not read"


@dataclass(frozen=True)
class TextEncoder:
    """An opened and checked encoder; a context manager. No weight has been read yet.

    ``tensors`` are under the names of transformers' ``UMT5Stack`` (``block.0.layer.0.SelfAttention.q.weight``);
    ``layer_names`` are those of one layer, without ``block.N.``.
    """

    folder: Path
    tokenizer_file: Path
    config: Any = field(repr=False)
    tensors: dict[str, Tensor] = field(repr=False)
    layer_names: tuple[str, ...] = field(repr=False)
    store: Store = field(repr=False)

    @property
    def layers(self) -> int:
        return int(self.config.num_layers)

    @property
    def width(self) -> int:
        """Values of one token's embedding."""
        return int(self.config.d_model)

    @property
    def layer_bytes(self) -> int:
        """Size of one layer's weights in float32."""
        return 4 * sum(math.prod(self.tensors[f"block.0.{name}"].shape) for name in self.layer_names)

    def __enter__(self) -> TextEncoder:
        return self

    def __exit__(self, *error: object) -> None:
        self.store.close()


# ---- opening ----


def open_text_encoder(path: Path, tokenizer: Path | None = None) -> TextEncoder:
    """Opens the encoder of a pipeline folder, or a ``text_encoder`` folder; checks every name, shape and dtype.

    ``tokenizer`` is a folder with ``tokenizer.json``, or that file; by default the folder ``tokenizer`` beside the
    encoder, or the encoder's own.

    Raises:
        CheckpointError: something is missing, unknown, damaged, or another model's; a layout that is not read.
    """
    folder = _encoder_folder(path)
    config = _config(folder)
    tokenizer_file = _tokenizer_file(folder, tokenizer)
    store = open_store(_weights(folder))
    try:
        template = {name: tuple(tensor.shape) for name, tensor in _one_layer(config).state_dict().items()}
        layer = tuple(name.removeprefix("block.0.") for name in template if name.startswith("block.0."))
        expected = {EMBEDDING: template[EMBEDDING], FINAL_NORM: template[FINAL_NORM]}
        for i in range(int(config.num_layers)):
            expected |= {f"block.{i}.{name}": template[f"block.0.{name}"] for name in layer}
        tensors = _matched(store, expected)
    except BaseException:
        store.close()
        raise
    return TextEncoder(folder, tokenizer_file, config, tensors, layer, store)


def _encoder_folder(path: Path) -> Path:
    if not path.exists():
        raise CheckpointError("there is no such folder", where=str(path), fix="check the path")
    if path.is_file():
        what = "the text encoder is read from a diffusers folder, not from a file such as the official {}"
        raise CheckpointError(what.format("models_t5_umt5-xxl-enc-bf16.pth"), where=str(path), fix=_DIFFUSERS)
    folder = path / "text_encoder" if (path / "text_encoder").is_dir() else path
    if not (folder / "config.json").is_file() or list(folder.glob("models_t5*.pth")):
        names = sorted(p.name for p in folder.iterdir())
        official = any(name.startswith("models_t5") for name in names)
        what = _OFFICIAL if official else "this folder holds no text encoder in the diffusers layout"
        found = shorten(names) or "an empty folder"
        raise CheckpointError(what, where=str(folder), expected="config.json of a UMT5", found=found, fix=_DIFFUSERS)
    return folder


def _config(folder: Path) -> Any:
    """transformers' ``UMT5Config``."""
    path = folder / "config.json"
    content = read_json(path) or {}
    kind = content.get("model_type")
    if kind != "umt5":
        raise CheckpointError(
            f"this is {'a ' + kind.upper() if isinstance(kind, str) else 'another model'}, not the umT5 that Wan uses"
            + (": T5 has one position bias for all layers, umT5 one in each" if kind == "t5" else ""),
            where=str(path), expected="'model_type': 'umt5'", found=repr(kind), fix=_DIFFUSERS,
        )  # fmt: skip
    if content.get("quantization_config"):
        raise CheckpointError("this text encoder is quantised, which is not read", where=str(path), fix=_DIFFUSERS)
    from transformers import UMT5Config

    try:
        config = UMT5Config.from_dict(content)
        _one_layer(config)
        eos, layers = config.eos_token_id, config.num_layers
        if not isinstance(eos, int) or layers < 1:
            raise ValueError(f"eos_token_id {eos!r}, num_layers {layers!r}")
    except Exception as error:  # whatever its validation and its modules make of a wrong value
        what = f"this configuration makes no umT5: {' '.join(str(error).split())[:200]}"
        raise CheckpointError(what, where=str(path), fix=_DIFFUSERS) from error
    return config


def _one_layer(config: Any) -> Any:
    """transformers' ``UMT5Stack`` with one layer and without values (device ``meta``), in evaluation mode."""
    import torch
    from transformers import UMT5EncoderModel

    short = deepcopy(config)
    short.num_layers, short.is_decoder, short.use_cache = 1, False, False
    with torch.device("meta"):
        encoder: Any = UMT5EncoderModel(short).encoder
    return encoder.eval()


def _tokenizer_file(folder: Path, given: Path | None) -> Path:
    if given is not None and given.is_file():
        return given
    places = [given] if given is not None else [folder.parent / "tokenizer", folder]
    for place in places:
        if (place / "tokenizer.json").is_file():
            return place / "tokenizer.json"
    only_model = any((place / "spiece.model").is_file() for place in places)
    raise CheckpointError(
        "the tokenizer has no tokenizer.json, only spiece.model" if only_model else "there is no tokenizer",
        where=", ".join(str(place) for place in places),
        expected="tokenizer.json, as in the folder tokenizer of the pipeline or of google/umt5-xxl",
        fix="download it into the folder tokenizer beside text_encoder, or give --tokenizer DIR",
    )


def _weights(folder: Path) -> Path:
    """The index of the shards, or the one file."""
    for name in (INDEX, SINGLE):
        if (folder / name).is_file():
            return folder / name
    found = sorted(p for p in folder.iterdir() if p.name.endswith((".safetensors", ".safetensors.index.json")))
    indexes = [p for p in found if p.suffix == ".json"]
    chosen = indexes or found
    if len(chosen) != 1:
        raise CheckpointError(
            "this folder holds several sets of weights" if chosen else "this folder holds no safetensors weights",
            where=str(folder), expected=f"{INDEX} and its shards, or {SINGLE}",
            found=shorten([p.name for p in found or sorted(folder.iterdir())]), fix=_DIFFUSERS,
        )  # fmt: skip
    return chosen[0]


def _matched(store: Store, expected: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The expected tensors by `UMT5Stack`'s names; every other name, shape or dtype is an error."""
    if any(name.startswith(("token_embedding.", "blocks.")) for name in store.tensors):
        raise CheckpointError(_OFFICIAL, where=str(store.path), found=shorten(sorted(store.tensors)), fix=_DIFFUSERS)
    found: dict[str, Tensor] = {}
    unused: list[str] = []
    for key in sorted(store.tensors, key=lambda key: not key.startswith("shared.")):
        tensor, name = store.tensors[key], key.removeprefix("text_encoder.").removeprefix("encoder.")
        name = EMBEDDING if name == "shared.weight" else name
        if name not in expected or (name in found and name != EMBEDDING):
            unused.append(key)
        elif name in found:
            _same_table(found[name], tensor)
        else:
            found[name] = tensor
    if unused:
        whole = any(key.startswith("decoder.") for key in unused)
        raise CheckpointError(
            f"{len(unused)} tensors are no part of this text encoder",
            where=str(store.path), found=shorten(sorted(unused)), expected="the encoder of umT5 and nothing else",
            fix="save its encoder alone (UMT5EncoderModel); " + _DIFFUSERS if whole else _DIFFUSERS,
        )  # fmt: skip
    if missing := ["shared.weight" if n == EMBEDDING else f"encoder.{n}" for n in expected if n not in found]:
        raise CheckpointError(
            f"{len(missing)} of the {len(expected)} weights of this text encoder are missing",
            where=str(store.path), found="missing " + shorten(missing), fix=_DIFFUSERS,
        )  # fmt: skip
    for name, tensor in found.items():
        if tensor.shape != expected[name]:
            raise CheckpointError(
                f"the weight {tensor.name!r} has another shape than config.json says",
                where=tensor.origin, expected=str(expected[name]), found=str(tensor.shape), fix=_DIFFUSERS,
            )  # fmt: skip
        if tensor.stored_dtype not in _STORED:
            raise CheckpointError(
                f"the weight {tensor.name!r} is stored in a dtype that is not read: the encoder was quantised",
                where=tensor.origin, expected=", ".join(_STORED), found=tensor.stored_dtype, fix=_DIFFUSERS,
            )  # fmt: skip
    return found


def _same_table(one: Tensor, other: Tensor) -> None:
    """Some files hold the embedding table twice, under both of its names."""
    count, step = one.shape[0], 4096
    spans = [(i, min(i + step, count)) for i in range(0, count, step)]
    if one.shape != other.shape or not all(np.array_equal(one.rows(*span), other.rows(*span)) for span in spans):
        what = f"the embedding table is there twice, with different values: {one.name!r} and {other.name!r}"
        raise CheckpointError(what, where=f"{one.origin}, {other.origin}", fix=_DIFFUSERS)


# ---- tokens ----


def ftfy_is_there() -> bool:
    """Is the library installed with which the pipeline repairs a prompt's text?"""
    return importlib.util.find_spec("ftfy") is not None


def clean_prompt(text: str) -> str:
    """diffusers' ``WanPipeline`` cleaning: ftfy's repair where installed, HTML entities twice, white space to one."""
    if ftfy_is_there():
        import ftfy  # type: ignore[import-not-found,unused-ignore]

        text = ftfy.fix_text(text)
    text = html.unescape(html.unescape(text)).strip()
    return re.sub(r"[^\S\x1c-\x1f]+", " ", text).strip()  # the pipeline's regex library leaves U+001C to U+001F


def tokenise(
    encoder: TextEncoder, prompts: Sequence[str], *, text_tokens: int, truncate: bool = False, source: str = "prompts"
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Token ids of each cleaned prompt (1 to ``text_tokens``, the end token included), and which prompts were cut.

    The ids are those of ``tokenizer.json`` itself: transformers from version 5 on rebuilds a T5's tokenizer by rules of
    its own, which lack umT5's bytes for unknown characters.

    Raises:
        CheckpointError: not this model's tokenizer; a prompt of more than ``text_tokens`` tokens, unless ``truncate``
            cuts it before its end token; one of which cleaning leaves nothing. Names it as a line of ``source``.
    """
    tokenizer = _tokenizer(encoder)
    ids: list[tuple[int, ...]] = []
    cut: list[int] = []
    for i, prompt in enumerate(prompts):
        where = f"{source}, line {i + 1}: {prompt[:60]!r}"
        cleaned = clean_prompt(prompt)
        if not cleaned:
            raise CheckpointError("of a prompt nothing is left after cleaning", where=where, fix="remove the line")
        tokens = tuple(tokenizer.encode(cleaned).ids)
        if len(tokens) > text_tokens:
            if not truncate:
                raise CheckpointError(
                    "a prompt is longer than the model's text input",
                    where=where, expected=f"at most {text_tokens:,} tokens, the end token included",
                    found=f"{len(tokens):,} tokens",
                    fix="shorten the prompt; --truncate cuts it as the pipeline does, which may change its meaning",
                )  # fmt: skip
            tokens = (*tokens[: text_tokens - 1], tokens[-1])
            cut.append(i)
        ids.append(tokens)
    return ids, cut


def _tokenizer(encoder: TextEncoder) -> Tokenizer:
    from tokenizers import Tokenizer

    where, eos = str(encoder.tokenizer_file), encoder.config.eos_token_id
    try:
        tokenizer = Tokenizer.from_file(where)
    except Exception as error:  # the library raises plain Exception
        what = f"the tokenizer cannot be read: {error}"
        raise CheckpointError(what, where=where, fix="download tokenizer.json again") from error
    tokenizer.no_padding()  # a file may carry the settings of its last use
    tokenizer.no_truncation()
    size, last = tokenizer.get_vocab_size(), tokenizer.encode("a").ids[-1:]
    if size > encoder.config.vocab_size or last != [eos]:
        raise CheckpointError(
            "this is not the tokenizer of this text encoder",
            where=where, expected=f"at most {encoder.config.vocab_size:,} tokens, and {eos} at the end of a prompt",
            found=f"{size:,} tokens, and {last} at the end",
            fix="give the folder tokenizer of the same pipeline: --tokenizer DIR",
        )  # fmt: skip
    return tokenizer


# ---- encoding ----


def encode(
    encoder: TextEncoder, tokens: Sequence[Sequence[int]], *, layer_done: Callable[[int], None] | None = None
) -> list[Float32Array]:
    """The last hidden states of each prompt: float32 [its tokens, width], without what stands for padding.

    Computes in float32. A prompt is padded to the longest of its batch only, under a mask: masked tokens have weight
    zero, and positions are relative, so that the result is that of padding to any length, up to rounding.
    ``layer_done(i)`` is called after each layer.

    Raises:
        CheckpointError: a weight is not finite; reading failed.
        ValueError: a prompt without tokens.
    """
    import torch

    if not all(tokens):
        raise ValueError("a prompt has no tokens")
    batches = _batches(tokens)
    with torch.inference_mode():
        hidden, masks = _embedded(encoder, tokens, batches)
        for i in range(encoder.layers):
            layer = _one_layer(encoder.config)
            weights = {name: _weight(encoder, f"block.{i}.{name}") for name in encoder.layer_names}
            layer.block[0].load_state_dict(weights, assign=True)
            if i + 1 < encoder.layers:
                layer.final_layer_norm = torch.nn.Identity()
            else:
                layer.final_layer_norm.load_state_dict({"weight": _weight(encoder, FINAL_NORM)}, assign=True)
            del weights
            for at, mask in enumerate(masks):
                hidden[at] = layer(inputs_embeds=hidden[at], attention_mask=mask).last_hidden_state
            del layer  # before the next is read
            if layer_done is not None:
                layer_done(i)
    out: dict[int, Float32Array] = {}
    for batch, states in zip(batches, hidden, strict=True):
        for row, prompt in enumerate(batch):
            out[prompt] = states[row, : len(tokens[prompt])].numpy()
    return [out[i] for i in range(len(tokens))]


def _batches(tokens: Sequence[Sequence[int]]) -> list[list[int]]:
    """Indices of prompts, alike in length, at most `_BATCH_TOKENS` with padding (or one prompt) in each batch."""
    batches: list[list[int]] = []
    for i in sorted(range(len(tokens)), key=lambda i: -len(tokens[i])):  # the first of a batch is its longest
        if batches and len(tokens[batches[-1][0]]) * (len(batches[-1]) + 1) <= _BATCH_TOKENS:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def _embedded(
    encoder: TextEncoder, tokens: Sequence[Sequence[int]], batches: list[list[int]]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Embedding rows [prompts, tokens, width] float32 and masks [prompts, tokens] int64 of each batch."""
    import torch

    table, pad = encoder.tensors[EMBEDDING], encoder.config.pad_token_id or 0
    rows = {i: check_finite(table, table.rows(i, i + 1), i)[0] for i in {pad, *(t for ids in tokens for t in ids)}}
    hidden: list[torch.Tensor] = []
    masks: list[torch.Tensor] = []
    for batch in batches:
        longest = len(tokens[batch[0]])
        padded = [[*tokens[i], *[pad] * (longest - len(tokens[i]))] for i in batch]
        hidden.append(torch.from_numpy(np.stack([np.stack([rows[t] for t in ids]) for ids in padded])))
        masks.append(torch.tensor([[int(at < len(tokens[i])) for at in range(longest)] for i in batch]))
    return hidden, masks


def _weight(encoder: TextEncoder, name: str) -> torch.Tensor:
    import torch

    tensor = encoder.tensors[name]
    return torch.from_numpy(check_finite(tensor, tensor.read()))
