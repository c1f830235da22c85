"""Target descriptions: what a phone's SoC can do, each value with its source.

One TOML file per SoC lies beside this module; `hvdc probe` measures and writes others, which `read_target` reads.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hvdc.errors import UsageError


class Limit(BaseModel):
    """A number of bytes taken from a device, and who says so."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    value: Annotated[int, Field(gt=0)]
    source: Annotated[str, Field(min_length=10)]


class Count(BaseModel):
    """A number of things, and who says so."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    value: Annotated[int, Field(gt=0)]
    source: Annotated[str, Field(min_length=10)]


class Choice(BaseModel):
    """Which of several ways works, and who says so."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    value: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=10)]


class Choices(BaseModel):
    """Which of several work, and who says so."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    value: Annotated[tuple[str, ...], Field(strict=False)]
    source: Annotated[str, Field(min_length=10)]


class TargetDescription(BaseModel):
    """One SoC. All limits are in bytes. What is None is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9_-]+$")]
    soc: str
    soc_model: int
    """QNN's number of the SoC."""
    hexagon_arch: Annotated[str, Field(pattern="^v[0-9]+$")]
    gpu: str
    region_cap_bytes: Limit
    """Largest shared buffer that the NPU and the GPU both map."""
    mapping_budget_bytes: Limit
    """Bytes that one NPU session can map at once."""
    graph_limit_bytes: Limit
    """Largest estimated allocation of one QNN graph."""
    context_limit_bytes: Limit
    """Largest sum of the estimated allocations of QNN contexts that are loaded together."""
    opencl_buffer_bytes: Limit
    vtcm_bytes: Limit
    usable_memory_bytes: Limit
    gpu_import: Choice | None = None
    """How the GPU imports memory that the NPU maps too: a name of ``hvdc_gpu_import_name``, of a kind of memory."""
    dot_forms: Choices | None = None
    """Forms of the GPU's dot product of four INT8 values that compile and are right: names of ``hvdc_gpu_dot_name``."""
    mapping_count: Count | None = None
    """Regions that both engines map at once."""

    @property
    def arch(self) -> int:
        """The Hexagon architecture as QNN counts: 79 is V79."""
        return int(self.hexagon_arch.removeprefix("v"))

    def limits(self) -> dict[str, Limit]:
        """The limits by name, in the order of the description."""
        return {name: value for name in type(self).model_fields if isinstance(value := getattr(self, name), Limit)}


def target_names() -> list[str]:
    """Names that `--target` accepts."""
    return sorted(f.name.removesuffix(".toml") for f in resources.files(__name__).iterdir() if f.name.endswith(".toml"))


def load_target(name: str) -> TargetDescription:
    """The description of a target. Raises UsageError for an unknown one."""
    if name not in target_names():
        raise UsageError(f"there is no target {name!r}", expected=f"one of {', '.join(target_names())}")
    text = resources.files(__name__).joinpath(f"{name}.toml").read_text("utf-8")
    return _described(text, f"target {name}")


def target_of_soc(soc: str) -> TargetDescription | None:
    """The description of a device that calls its SoC so (``SM8750``); None: there is none of it."""
    return load_target(soc.lower()) if soc.lower() in target_names() else None


def read_target(path: Path) -> TargetDescription:
    """A description in a file of the user's. Raises UsageError: it cannot be read, or is not valid."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "the target description cannot be read", where=str(path),
            found=getattr(error, "strerror", "") or str(error),
            fix=f"give the file that `hvdc probe -o` wrote, or one of {', '.join(target_names())}",
        ) from error  # fmt: skip
    return _described(text, str(path))


def target_of(word: str) -> TargetDescription:
    """A target's name, or the file of a description: what `--target` takes. Raises UsageError."""
    if word in target_names():
        return load_target(word)
    if word.endswith(".toml") or "/" in word:
        return read_target(Path(word))
    raise UsageError(
        f"there is no target {word!r}",
        expected=f"one of {', '.join(target_names())}, or a file by `hvdc probe`: FILE.toml",
    )


def with_description(options: dict[str, Any]) -> dict[str, Any]:
    """Options whose ``target`` may be a file: then with the description in it. Raises UsageError."""
    word = options.get("target")
    if word is None:
        return options
    found = target_of(word)
    return options | {"target": found.name, "target_description": None if word in target_names() else found}


def _described(text: str, where: str) -> TargetDescription:
    try:
        return TargetDescription.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError("the target description is no TOML", where=where, found=str(error)) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        what = f"{key!r} of the target description is not valid: {first['msg']}"
        raise UsageError(what, where=where, found=repr(first.get("input"))[:120]) from error
