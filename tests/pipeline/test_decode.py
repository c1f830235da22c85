"""Latents to frames: what diffusers' pipeline would do, and refusal of whatever is not Wan's autoencoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from exporters.errors import CheckpointError
from hvdc.pipeline.decode import SINGLE, Decoder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vae(tmp_path_factory: pytest.TempPathFactory):
    """A small random autoencoder, and the folder that diffusers saves it in."""
    from diffusers import AutoencoderKLWan

    torch.manual_seed(0)
    model = AutoencoderKLWan(
        base_dim=8, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    folder = tmp_path_factory.mktemp("pipeline") / "vae"
    model.eval().save_pretrained(folder)
    return model, folder


@pytest.fixture
def copy(vae, tmp_path: Path) -> Path:
    return Path(shutil.copytree(vae[1], tmp_path / "vae"))


def edit(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def latent(frames: int, rows: int, columns: int) -> torch.Tensor:
    return torch.randn(16, frames, rows, columns, generator=torch.Generator().manual_seed(1))


def by_diffusers(model, x: torch.Tensor) -> np.ndarray:
    """WanPipeline's last lines, untiled."""
    from diffusers.video_processor import VideoProcessor

    mean, std = (torch.tensor(v).view(1, 16, 1, 1, 1) for v in (model.config.latents_mean, model.config.latents_std))
    with torch.no_grad():
        video = model.decode(x[None] / (1.0 / std) + mean, return_dict=False)[0]
    return VideoProcessor(vae_scale_factor=8).postprocess_video(video, output_type="np")[0]


def test_frames_are_those_of_diffusers_pipeline(vae) -> None:
    model, folder = vae
    x = latent(3, 4, 6)
    frames = Decoder(folder, CPU).decode(x)
    assert frames.dtype == np.float32
    assert frames.shape == (9, 32, 48, 3)
    assert frames.min() >= 0
    assert frames.max() <= 1
    assert frames.std() > 0
    np.testing.assert_allclose(frames, by_diffusers(model, x), atol=2e-6)


def test_one_latent_frame_is_one_frame_and_the_pipelines_folder_will_do(vae) -> None:
    assert Decoder(vae[1].parent, CPU).decode(latent(1, 2, 2)).shape == (1, 16, 16, 3)


def test_large_clips_are_tiled_evenly(vae, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder(vae[1], CPU)
    monkeypatch.setattr("hvdc.pipeline.decode.LARGEST_TILE_PX", 128)
    seen = []
    decoder._model.decoder.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape[-2:])))
    x = latent(1, 12, 40)
    frames = decoder.decode(x)
    assert frames.shape == (1, 96, 320, 3)
    assert seen == [(12, 22), (12, 22), (12, 12)]  # not 24, 24 and 8
    plain = by_diffusers(vae[0], x)
    assert np.abs(frames - plain).mean() < 0.1 * plain.std()  # alike, though attention saw less
    seen.clear()
    assert decoder.decode(x[:, :, :, :16]).shape == (1, 96, 128, 3)
    assert seen == [(12, 16)]


@pytest.mark.parametrize(
    "bad", [latent(1, 2, 2)[:8], latent(1, 2, 2).double(), latent(1, 2, 2)[0], latent(1, 2, 2)[:, :0]]
)
def test_what_is_no_latent_is_refused(vae, bad: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="a latent is"):
        Decoder(vae[1], CPU).decode(bad)


def test_shards_and_other_dtypes_are_read(vae, copy: Path) -> None:
    state = {k: v.to(torch.bfloat16) for k, v in load_file(copy / SINGLE).items()}
    (copy / SINGLE).unlink()
    names = sorted(state)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, keys in files.items():
        save_file({k: state[k] for k in keys}, copy / file)
    index = {"metadata": {}, "weight_map": {k: file for file, keys in files.items() for k in keys}}
    (copy / f"{SINGLE}.index.json").write_text(json.dumps(index))
    frames = Decoder(copy, CPU).decode(latent(1, 2, 2))
    np.testing.assert_allclose(frames, Decoder(vae[1], CPU).decode(latent(1, 2, 2)), atol=0.05)


def refusal(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        Decoder(path, CPU)
    return caught.value


def test_places_without_an_autoencoder(tmp_path: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "none").what
    assert "no autoencoder" in refusal(tmp_path).what
    file = tmp_path / "Wan2.1_VAE.pth"
    file.touch()
    assert "not from a file" in refusal(file).what


def test_another_model(copy: Path) -> None:
    edit(copy, _class_name="AutoencoderKL")
    assert refusal(copy).found == "'AutoencoderKL'"


def test_a_setting_that_diffusers_does_not_know(copy: Path) -> None:
    edit(copy, causal_padding="reflect")
    assert refusal(copy).found == "'causal_padding'"


@pytest.mark.parametrize("std", [[1.0] * 15, [1.0] * 15 + [0.0], [1.0] * 15 + ["1"], None])
def test_statistics_of_latents_that_cannot_be_used(copy: Path, std: object) -> None:
    edit(copy, latents_std=std)
    assert refusal(copy).what == "latents_std cannot be used"


def test_latents_of_another_model(copy: Path) -> None:
    edit(copy, z_dim=48)
    error = refusal(copy)
    assert (error.expected, error.found) == ("'z_dim': 16", "48")


def test_weights_missing_left_over_or_of_another_shape(copy: Path) -> None:
    state = load_file(copy / SINGLE)

    def saved(**changes: torch.Tensor | None) -> CheckpointError:
        changed = {k: v for k, v in (state | changes).items() if v is not None}
        save_file(changed, copy / SINGLE)
        return refusal(copy)

    name = "decoder.conv_out.weight"
    assert name in saved(**{name: None}).found
    assert saved(**{"extra.weight": torch.zeros(1)}).found == "'extra.weight'"
    assert name in saved(**{name: state[name][:2].contiguous()}).what
    assert "nan" in saved(**{name: torch.full_like(state[name], torch.nan)}).found
    edit(copy, base_dim=16)
    assert "another shape" in saved().what
    (copy / SINGLE).write_bytes((copy / SINGLE).read_bytes()[:-5])
    assert "cut off" in refusal(copy).what
    (copy / SINGLE).unlink()
    assert "no safetensors" in refusal(copy).what


def test_settings_that_make_no_model(copy: Path) -> None:
    edit(copy, dim_mult="wide")
    assert "no autoencoder can be made" in refusal(copy).what
