"""What every part of the manifest is made of: the strict model, and the types of its fields."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from hvdc.artifact import records

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=2**32)]
Size = Annotated[int, Field(ge=1, lt=2**32)]
Bytes = Annotated[int, Field(ge=0, lt=2**63)]
ParameterCount = Annotated[int, Field(ge=1, lt=2**63)]
TensorName = Annotated[str, Field(pattern=f"^{records.NAME_PATTERN}$", max_length=records.TEXT_LIMIT)]
FilePath = Annotated[str, Field(pattern=f"^{records.PATH_PATTERN}$", max_length=records.TEXT_LIMIT)]

Expert = Literal["semantic", "detail"]


class Model(BaseModel):
    """Strict and immutable: no coercion, no unknown keys, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
