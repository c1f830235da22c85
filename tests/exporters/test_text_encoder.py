"""The text encoder as a stream of layers: transformers' own result, and a sentence for every input that will not do."""

from __future__ import annotations

import html
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from exporters.errors import CheckpointError
from exporters.text_encoder import clean_prompt, encode, open_text_encoder, tokenise

TEXTS = (
    "A cat walks on the grass, realistic",
    "Two anthropomorphic cats in comfy boxing gear fight on a spotlighted stage",
    "rain",
    "A cat walks on the grass, realistic",
)
WIDTH, LAYERS, VOCABULARY = 32, 3, 300


def make_tokenizer(folder: Path) -> None:
    """A unigram tokenizer of umT5's kind: pad 0, end 1, unknown 2, the end token after each prompt."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        [text for text in TEXTS for _ in range(3)],
        trainers.UnigramTrainer(
            vocab_size=120,
            special_tokens=["<pad>", "</s>", "<unk>"],
            unk_token="<unk>",  # noqa: S106
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))


def make_pipeline(folder: Path, *, dtype: torch.dtype = torch.float32, shards: bool = True, **config: object) -> Path:
    """A pipeline folder with a random umT5 encoder, as transformers saves it, and a tokenizer."""
    from transformers import UMT5Config, UMT5EncoderModel

    torch.manual_seed(0)
    arguments = {
        "vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": LAYERS, "num_heads": 4,
    } | config  # fmt: skip
    model = UMT5EncoderModel(UMT5Config(**arguments))
    with torch.no_grad():
        for weight in model.parameters():  # far from the initial values, under which attention would be uniform
            weight += 0.1 * torch.randn_like(weight)
    folder.mkdir()
    model.to(dtype).save_pretrained(folder / "text_encoder", max_shard_size="20KB" if shards else "1GB")
    make_tokenizer(folder / "tokenizer")
    return folder


def reference(pipeline: Path, texts: tuple[str, ...], text_tokens: int) -> torch.Tensor:
    """The pipeline's rule with transformers' whole model, padded to ``text_tokens``: [prompts, tokens, width]."""
    from tokenizers import Tokenizer
    from transformers import UMT5EncoderModel

    tokenizer = Tokenizer.from_file(str(pipeline / "tokenizer" / "tokenizer.json"))
    tokenizer.enable_truncation(text_tokens)
    tokenizer.enable_padding(length=text_tokens, pad_id=0, pad_token="<pad>")  # noqa: S106
    encoded = tokenizer.encode_batch(list(texts))
    ids = torch.tensor([e.ids for e in encoded])
    mask = torch.tensor([e.attention_mask for e in encoded])
    model = UMT5EncoderModel.from_pretrained(pipeline / "text_encoder").float().eval()
    with torch.no_grad():
        states = model(ids, mask).last_hidden_state
    return states * mask[..., None]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory) -> Path:
    return make_pipeline(tmp_path_factory.mktemp("umt5") / "pipeline")


@pytest.fixture
def own(pipeline: Path, tmp_path: Path) -> Path:
    """A copy of the pipeline with unsharded weights, to be damaged."""
    copy = tmp_path / "copy"
    shutil.copytree(pipeline, copy)
    tensors = weights(copy)
    for path in (copy / "text_encoder").glob("model*"):
        path.unlink()
    save_file(tensors, copy / "text_encoder" / "model.safetensors")
    return copy


def weights(pipeline: Path) -> dict[str, torch.Tensor]:
    return {k: v for path in (pipeline / "text_encoder").glob("*.safetensors") for k, v in load_file(path).items()}


def rewrite(pipeline: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, pipeline / "text_encoder" / "model.safetensors", {"format": "pt"})
    return pipeline


def embedded(path: Path, texts: tuple[str, ...], text_tokens: int, **options) -> np.ndarray:
    """[prompts, tokens, width] with zeros past each prompt's end."""
    with open_text_encoder(path) as encoder:
        tokens, _ = tokenise(encoder, texts, text_tokens=text_tokens, **options)
        out = np.zeros((len(texts), text_tokens, encoder.width), np.float32)
        for row, states in zip(out, encode(encoder, tokens), strict=True):
            row[: len(states)] = states
    return out


def refused(path: Path, message: str, tokenizer: Path | None = None) -> CheckpointError:
    with pytest.raises(CheckpointError, match=message) as caught:
        open_text_encoder(path, tokenizer)
    assert caught.value.where
    assert caught.value.fix
    return caught.value


# --- the numbers -------------------------------------------------------------------------------------------------


def test_it_is_transformers_own_result_bit_by_bit(pipeline) -> None:
    for text in TEXTS:
        with open_text_encoder(pipeline) as encoder:
            tokens, _ = tokenise(encoder, (text,), text_tokens=80)
            states = encode(encoder, tokens)[0]
        assert np.array_equal(states, reference(pipeline, (text,), len(tokens[0]))[0])


@pytest.mark.parametrize("text_tokens", [80, 512])
def test_it_is_transformers_own_result_padded_to_any_length(pipeline, text_tokens) -> None:
    expected = reference(pipeline, TEXTS, text_tokens).numpy()
    assert expected.std() > 0.01
    assert len({tuple(row) for row in expected[0, :5].tolist()}) == 5, "attention and positions tell tokens apart"
    np.testing.assert_allclose(embedded(pipeline, TEXTS, text_tokens), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("dtype", "shards"), [(torch.bfloat16, True), (torch.float16, False), (torch.float32, False)])
def test_every_storage_is_computed_in_float32(tmp_path, dtype, shards) -> None:
    made = make_pipeline(tmp_path / "p", dtype=dtype, shards=shards)
    assert (made / "text_encoder" / "model.safetensors.index.json").is_file() == shards
    np.testing.assert_allclose(
        embedded(made / "text_encoder", TEXTS, 80), reference(made, TEXTS, 80).numpy(), atol=1e-5, rtol=0
    )


def test_every_layers_own_position_bias_counts(pipeline, own) -> None:
    before = embedded(pipeline, TEXTS[:1], 80)
    for i in range(LAYERS):
        tensors = weights(pipeline)
        tensors[f"encoder.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"] *= -1
        after = embedded(rewrite(own, tensors), TEXTS[:1], 80)
        assert np.abs(after - before).max() > 1e-3
        np.testing.assert_allclose(after, reference(own, TEXTS[:1], 80).numpy(), atol=1e-5, rtol=0)


def test_a_prompt_does_not_depend_on_its_neighbours(pipeline) -> None:
    together = embedded(pipeline, TEXTS, 80)
    for text, row in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(embedded(pipeline, (text,), 80)[0], row, atol=1e-5, rtol=0)


def test_more_prompts_than_a_batch_holds_come_back_in_order(pipeline, monkeypatch) -> None:
    monkeypatch.setattr("exporters.text_encoder._BATCH_TOKENS", 30)
    np.testing.assert_allclose(embedded(pipeline, TEXTS, 80), reference(pipeline, TEXTS, 80).numpy(), atol=1e-5, rtol=0)


def test_one_layer_is_in_memory_at_a_time(pipeline, monkeypatch) -> None:
    """When the weights of a layer are read, none of the layer before is left."""
    import weakref

    import exporters.text_encoder as module

    alive: list[weakref.ref] = []
    most = [0]
    make = module._one_layer

    def made(config):
        stack = make(config)
        alive.append(weakref.ref(stack))
        most[0] = max(most[0], sum(ref() is not None for ref in alive))
        return stack

    with open_text_encoder(pipeline) as encoder:
        tokens, _ = tokenise(encoder, TEXTS, text_tokens=80)
        monkeypatch.setattr(module, "_one_layer", made)
        done: list[int] = []
        encode(encoder, tokens, layer_done=done.append)
    assert done == list(range(LAYERS))
    assert (len(alive), most[0]) == (LAYERS, 1)


def test_only_the_embedding_rows_of_the_prompts_are_read(pipeline, own) -> None:
    tensors = weights(pipeline)
    with open_text_encoder(pipeline) as encoder:
        used = {t for ids in tokenise(encoder, TEXTS, text_tokens=80)[0] for t in ids} | {0}
    unused = [i for i in range(VOCABULARY) if i not in used]
    tensors["shared.weight"][unused] = float("nan")
    assert np.array_equal(embedded(rewrite(own, tensors), TEXTS, 80), embedded(pipeline, TEXTS, 80))


@pytest.mark.parametrize("spelling", ["bare", "both tables", "pipeline prefix"])
def test_names_that_other_programs_write(pipeline, own, spelling) -> None:
    tensors = weights(pipeline)
    if spelling == "bare":
        tensors = {k.removeprefix("encoder."): v for k, v in tensors.items()}
        tensors["embed_tokens.weight"] = tensors.pop("shared.weight")
    elif spelling == "both tables":
        tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
    else:
        tensors = {f"text_encoder.{k}": v for k, v in tensors.items()}
        tensors["shared.weight"] = tensors.pop("text_encoder.shared.weight")
    assert np.array_equal(embedded(rewrite(own, tensors), TEXTS, 80), embedded(pipeline, TEXTS, 80))


# --- tokens ------------------------------------------------------------------------------------------------------

DIRTY = [
    "  a  cat\t walks ", "Tom &amp;amp; Jerry &lt;3", "a\u00a0cat\u3000in\u2028Rome", "caf\u00e9 \u4e2d\u6587",
    "a\x1cb", "\x1ca \x1f", "“quoted” ﬁsh", "&nbsp;x&nbsp;",
]  # fmt: skip


@pytest.mark.parametrize("text", DIRTY)
def test_cleaning_is_the_pipelines(text) -> None:
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean

    assert clean_prompt(text) == prompt_clean(text)


@settings(max_examples=200)
@given(st.text(max_size=30))
def test_cleaning_is_the_pipelines_for_any_text(text) -> None:
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean

    assert clean_prompt(text) == prompt_clean(text)


def test_ftfy_takes_part_where_it_is_installed(tmp_path, monkeypatch) -> None:
    (tmp_path / "ftfy.py").write_text("def fix_text(text): return text.replace('“', '\"')\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    if importlib.util.find_spec("ftfy").origin.startswith(str(tmp_path)):
        assert clean_prompt("“x &amp; y") == html.unescape('"x &amp; y')


def test_a_prompt_that_is_too_long_is_named_or_cut(pipeline) -> None:
    with open_text_encoder(pipeline) as encoder:
        whole, cut = tokenise(encoder, TEXTS, text_tokens=80)
        assert cut == []
        longest = max(map(len, whole))
        with pytest.raises(CheckpointError) as caught:
            tokenise(encoder, TEXTS, text_tokens=longest - 1, source="list.txt")
        assert "list.txt, line 2" in caught.value.where
        assert caught.value.found == f"{longest} tokens"
        shorter, cut = tokenise(encoder, TEXTS, text_tokens=longest - 1, truncate=True)
    assert cut == [1]
    assert shorter[1] == (*whole[1][: longest - 2], 1), "the end token stays"
    np.testing.assert_allclose(
        embedded(pipeline, TEXTS, longest - 1, truncate=True),
        reference(pipeline, TEXTS, longest - 1),
        atol=1e-5,
        rtol=0,
    )


def test_a_prompt_of_which_nothing_is_left(pipeline) -> None:
    with open_text_encoder(pipeline) as encoder, pytest.raises(CheckpointError, match="nothing is left") as caught:
        tokenise(encoder, ("cat", "&nbsp;"), text_tokens=80)
    assert "line 2" in caught.value.where


def test_settings_of_its_last_use_in_the_tokenizers_file_do_not_matter(pipeline, own) -> None:
    from tokenizers import Tokenizer

    path = own / "tokenizer" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=90)
    tokenizer.save(str(path))
    with open_text_encoder(pipeline) as one, open_text_encoder(own) as other:
        assert tokenise(one, TEXTS, text_tokens=80) == tokenise(other, TEXTS, text_tokens=80)


def test_another_models_tokenizer_is_refused(own) -> None:
    path = own / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    content["post_processor"] = None  # no end token
    path.write_text(json.dumps(content), "utf-8")
    with open_text_encoder(own) as encoder, pytest.raises(CheckpointError, match="not the tokenizer of this"):
        tokenise(encoder, TEXTS, text_tokens=80)
    path.write_text("{}", "utf-8")
    with open_text_encoder(own) as encoder, pytest.raises(CheckpointError, match="tokenizer cannot be read"):
        tokenise(encoder, TEXTS, text_tokens=80)


# --- folders -----------------------------------------------------------------------------------------------------


def test_the_tokenizer_may_be_elsewhere(pipeline, own, tmp_path) -> None:
    place = (own / "tokenizer").rename(tmp_path / "elsewhere")
    refused(own, "there is no tokenizer")
    for given_ in (place, place / "tokenizer.json"):
        with open_text_encoder(own, given_) as encoder:
            assert encoder.tokenizer_file == place / "tokenizer.json"
    (own / "tokenizer").mkdir()
    (own / "tokenizer" / "spiece.model").write_bytes(b"x")
    refused(own, r"only spiece\.model")


def test_the_official_file_is_refused_with_the_folder_that_is_read(tmp_path, own) -> None:
    file = tmp_path / "models_t5_umt5-xxl-enc-bf16.pth"
    torch.save({"token_embedding.weight": torch.zeros(3, 4)}, file)
    for path in (file, tmp_path):
        assert "text_encoder" in refused(path, "official").fix
    rewrite(own, {"token_embedding.weight": torch.zeros(3, 4), "blocks.0.norm1.weight": torch.zeros(4)})
    assert "text_encoder" in refused(own, "official Wan layout").fix


def test_folders_that_hold_no_encoder(tmp_path, own) -> None:
    refused(tmp_path / "absent", "no such folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no text encoder")
    (own / "text_encoder" / "model.safetensors").rename(own / "text_encoder" / "a.safetensors")
    with open_text_encoder(own):
        pass
    shutil.copy(own / "text_encoder" / "a.safetensors", own / "text_encoder" / "b.safetensors")
    refused(own, "several sets of weights")
    for name in "ab":
        (own / "text_encoder" / f"{name}.safetensors").unlink()
    refused(own, "no safetensors weights")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "t5"}, "this is a T5, not the umT5.*one position bias"),
        ({"model_type": None}, "another model"),
        ({"d_model": "wide"}, "makes no umT5"),
        ({"num_layers": 0}, "makes no umT5"),
        ({"dense_act_fn": "nonsense"}, "makes no umT5"),
        ({"quantization_config": {"bits": 8}}, "quantised"),
        ({"d_ff": 56}, "another shape than config.json says"),
    ],
)
def test_configurations_that_are_refused(own, change, message) -> None:
    path = own / "text_encoder" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | change), "utf-8")
    refused(own, message)


def test_unused_and_missing_weights_are_named(pipeline, own) -> None:
    name = "encoder.block.1.layer.0.SelfAttention.q.weight"
    tensors = weights(pipeline)
    del tensors[name]
    assert name in refused(rewrite(own, tensors), "1 of the .* weights of this text encoder are missing").found
    tensors = weights(pipeline)
    del tensors["shared.weight"]
    assert "shared.weight" in refused(rewrite(own, tensors), "missing").found
    tensors = weights(pipeline) | {"decoder.block.0.x": torch.zeros(2), "encoder.block.3.layer.1.y": torch.zeros(2)}
    error = refused(rewrite(own, tensors), "2 tensors are no part of this text encoder")
    assert "decoder.block.0.x" in error.found
    assert "encoder.block.3.layer.1.y" in error.found
    tensors = weights(pipeline) | {name.removeprefix("encoder."): weights(pipeline)[name]}
    refused(rewrite(own, tensors), "1 tensors are no part")


def test_two_different_tables_are_refused(pipeline, own) -> None:
    tensors = weights(pipeline)
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"] + 1
    refused(rewrite(own, tensors), "there twice, with different values")


def test_quantised_and_damaged_weights_are_named(pipeline, own) -> None:
    name = "encoder.block.2.layer.1.DenseReluDense.wo.weight"
    tensors = weights(pipeline)
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    assert name in refused(rewrite(own, tensors), "the encoder was quantised").where
    tensors = weights(pipeline)
    tensors[name][3, 4] = float("inf")
    with pytest.raises(CheckpointError, match=r"holds inf at \[3, 4\]"):
        embedded(rewrite(own, tensors), TEXTS, 80)


def test_a_missing_shard_is_named(pipeline, tmp_path) -> None:
    shutil.copytree(pipeline, tmp_path / "copy")
    shard = min((tmp_path / "copy" / "text_encoder").glob("*-00002-of-*"))
    shard.unlink()
    assert shard.name in refused(tmp_path / "copy", "shards that the index names are not there").found
