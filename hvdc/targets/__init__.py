"""Target descriptions: what a phone's SoC can do, each value with its source.

One TOML file per SoC lies beside this module.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hvdc.errors import UsageError


class Limit(BaseModel):
    """A number of bytes taken from a device, and who says so."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    value: Annotated[int, Field(gt=0)]
    source: Annotated[str, Field(min_length=10)]


class TargetDescription(BaseModel):
    """One SoC. All limits are in bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
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
    try:
        return TargetDescription.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise UsageError(f"the description of target {name!r} is not valid", found=str(error)) from error
