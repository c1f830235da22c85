"""The configuration of a compilation: what `--config FILE.toml`, `--set key=value` and options fill in.

Everything here decides bytes of the artifact and is recorded in its manifest; nothing here names a file or a machine.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hvdc.errors import UsageError
from hvdc.targets import TargetDescription, load_target

CalibrationMode = Literal["global", "per-step", "percentile", "mse"]
"""See docs/CLI.md, "Scale modes"."""

DecoderBackend = Literal["qnn", "aihub", "onnx"]
"""Who compiles a decoder's graphs: this machine's QNN compiler, Qualcomm AI Hub, or nobody."""

SCALE_MODES: tuple[CalibrationMode, ...] = get_args(CalibrationMode)

FRAMES_MAX = 1025
"""Of a video: a minute at 16 a second. A longer one is a slip of the keyboard."""


class CompileConfig(BaseModel):
    """All settings with their defaults; None means "as the checkpoint or DCM's own code says".

    Strict: unknown keys and wrong types are refused. A manifest records the effective values, with every None that
    could be resolved filled in.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    frames: Annotated[int, Field(ge=1, le=FRAMES_MAX, description="frames of the video, 4 n + 1")] = 49
    height: Annotated[int, Field(ge=16, le=4096, description="rows of the video in pixels, a multiple of 16")] = 480
    width: Annotated[int, Field(ge=16, le=4096, description="columns of the video in pixels, a multiple of 16")] = 832
    timesteps: Annotated[
        tuple[float, ...] | None,
        Field(min_length=1, max_length=1000, description="denoising timesteps, descending; else DCM's six"),
    ] = None
    expert_boundary: Annotated[
        int | None,
        Field(ge=0, le=1000, description="the detail expert takes steps with int(t) <= this; else DCM's 978"),
    ] = None
    scale_mode: Annotated[CalibrationMode, Field(description="how activation scales follow from a calibration")] = (
        "per-step"
    )
    percentile: Annotated[
        float | None, Field(gt=0, le=100, description="what scale mode percentile keeps within range; else 99.9")
    ] = None
    smooth: Annotated[
        float | None, Field(ge=0, le=1, description="move this share of the activations' outliers into the weights")
    ] = None
    target: Annotated[str, Field(pattern=r"^[a-z0-9_-]+$", description="target description")] = "sm8750"
    target_description: Annotated[
        TargetDescription | None, Field(description="a description of one's own, as `hvdc probe` writes, for `target`")
    ] = None
    rank: Annotated[
        int | None, Field(ge=1, le=4096, description="rank of the split, for a merged detail checkpoint only")
    ] = None
    lora_alpha: Annotated[float | None, Field(gt=0, description="alpha of the adapter, where its files hold none")] = (
        None
    )
    max_left_out_energy: Annotated[
        float | None,
        Field(ge=0, le=1, description="largest share of ‖ΔW‖² that the split of a merged checkpoint may leave out"),
    ] = None
    heads: Annotated[
        int | None, Field(ge=1, description="attention heads, where no config tells; else width / 128")
    ] = None
    text_tokens: Annotated[
        int | None, Field(ge=1, description="tokens of a prompt, where no config tells; else 512")
    ] = None

    decoder_backend: Annotated[
        DecoderBackend, Field(description="who compiles the VAE's decoder: qnn (this machine), aihub, or onnx (nobody)")
    ] = "qnn"
    decoder_tile: Annotated[
        str,
        Field(pattern=r"^(auto|[1-9][0-9]{0,3}x[1-9][0-9]{0,3})$", description="latent pixels of a tile, ROWSxCOLUMNS"),
    ] = "auto"
    decoder_budget: Annotated[
        float, Field(ge=0, le=1, description="activation bytes that 16 bits may add to the decoder's, as a share")
    ] = 0.25
    decoder_vtcm_mb: Annotated[
        int | None, Field(ge=1, description="VTCM in MiB that the decoder may plan with; else all that the target has")
    ] = None
    decoder_share_weights: Annotated[
        bool, Field(description="put all of the decoder's graphs into one binary, which stores equal weights once")
    ] = True
    decoder_emulate: Annotated[
        bool, Field(description="run the decoder on the x86 emulator of the NPU before it goes into the artifact")
    ] = False
    aihub_profile: Annotated[
        bool, Field(description="with backend aihub: run the decoder's binary on a hosted phone, and say so")
    ] = False
    decoder_optimization: Annotated[
        int, Field(ge=1, le=3, description="optimisation level of the QNN compiler: 1 is fast, 3 is for a release")
    ] = 3

    def described_target(self) -> TargetDescription:
        """The description that holds. Raises UsageError: there is none of this name."""
        return load_target(self.target) if self.target_description is None else self.target_description


def load_config(path: Path | None, settings: tuple[str, ...], options: dict[str, Any]) -> CompileConfig:
    """Join a TOML file, ``key=value`` settings and command-line options; later ones win. Raises UsageError."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values.update(tomllib.loads(path.read_text("utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError("the configuration file cannot be read", where=str(path), found=str(error)) from error
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                "a setting is not of the form key=value",
                where=f"--set {setting}",
                fix="write --set key=value",
            )
        try:
            values[key.strip()] = tomllib.loads(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text
    values.update({key: value for key, value in options.items() if value is not None})
    if options.get("target") is not None:  # with its description, or without that of a configuration
        values["target_description"] = options.get("target_description")
    for (
        key,
        value,
    ) in values.items():  # TOML has lists and whole numbers where the model has tuples and floats
        if key in ("timesteps",) and isinstance(value, (list, tuple)):
            values[key] = tuple(float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in value)
        elif (
            key in ("lora_alpha", "max_left_out_energy", "percentile", "smooth", "decoder_budget")
            and isinstance(value, int)
            and not isinstance(value, bool)
        ):
            values[key] = float(value)
    try:
        config = CompileConfig.model_validate(values)
    except ValidationError as error:
        raise _as_usage_error(error) from error
    _check_video(config)
    return _with_name(config, given="target" in values)


def _as_usage_error(error: ValidationError) -> UsageError:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(CompileConfig.model_fields)
        return UsageError(f"there is no setting {key!r}", expected=f"one of {known}", fix="check the spelling")
    if key == "timesteps":
        fix = "write a list: --set 'timesteps=[1000, 950]'"
        return UsageError("the timesteps are not a list of numbers", found=repr(first.get("input")), fix=fix)
    field = CompileConfig.model_fields.get(str(first["loc"][0])) if first["loc"] else None
    return UsageError(
        f"the setting {key!r} is not valid: {first['msg']}",
        expected=field.description or "" if field else "",
        found=repr(first.get("input")),
    )


def _with_name(config: CompileConfig, *, given: bool) -> CompileConfig:
    """A description's name is the target's. Raises UsageError for another one."""
    own = config.target_description
    if own is None or own.name == config.target:
        return config
    if given:
        raise UsageError(
            "two targets are named",
            where="target and target_description",
            found=f"{config.target} and {own.name}",
            fix="give one of them",
        )
    return config.model_copy(update={"target": own.name})


def _check_video(config: CompileConfig) -> None:
    """The VAE halves time twice after the first frame and space three times; the patch halves space once more."""
    if config.frames % 4 != 1:
        below = config.frames - (config.frames - 1) % 4
        raise UsageError(
            "the number of frames is not possible for this VAE",
            where="frames",
            expected="4 n + 1",
            found=str(config.frames),
            fix=f"use {below} or {below + 4}",
        )
    for name in ("height", "width"):
        value = getattr(config, name)
        if value % 16:
            raise UsageError(
                f"the video's {name} is not possible",
                where=name,
                expected="a multiple of 16",
                found=str(value),
                fix=f"use {value // 16 * 16} or {value // 16 * 16 + 16}",
            )
