"""What all sections of params.yaml are made of: the types of their values, and what a section refuses."""

import math
import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from stages.common.preflight.wording import NAME, nearest


def _is_name(value):
    if not value or set(value) - set("abcdefghijklmnopqrstuvwxyz0123456789-") or value.strip("-") != value:
        raise ValueError(f"{value!r} cannot be a name: {NAME}")
    return value


def one_of(*words):
    def check(value):
        if value not in words:
            raise ValueError(f"{value!r} is unknown: {nearest(value, words)}")
        return value

    return BeforeValidator(check)


def _is_version(value):
    """YAML reads an unquoted 1.20 as the number 1.2: a version has to be text."""
    if not isinstance(value, str) or not re.fullmatch(r"\d+\.\d+\.\d+", value):
        raise ValueError(f'{value!r} is not a version: write a full one in quotes, such as "1.20.1"')
    return value


def per_channel(*, above=-math.inf):
    """Check one number or a list of numbers; pydantic's own words for a union name its inner types."""

    def check(value):
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float) or not above < number < math.inf:
                kind = "number" if above == -math.inf else f"number greater than {above}"
                raise ValueError(f"{number!r} is not a {kind}: write one for all channels, or a list of one a channel")
        return value

    return BeforeValidator(check)


Name = Annotated[str, AfterValidator(_is_name)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]  # up to a day
Rounds = Annotated[int, Field(ge=2, le=1000)]
Version = Annotated[str, BeforeValidator(_is_version)]


class Section(BaseModel):
    """A mapping of params.yaml: no unknown key, no conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def refuse_unknown_keys(cls, value):
        if isinstance(value, dict):
            for key in value:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key", "{key}", {"key": str(key), "known": list(cls.model_fields)}
                    )
        return value


def _is_list(value):
    """pydantic's own error says what is missing; what is not a list at all is told apart, since `[]` is no way out."""
    if not isinstance(value, list):
        raise PydanticCustomError("filled_list_type", "{key}", {"key": "not a list"})
    return value


def filled_list(kind):
    """Return the type of a list of `kind` that may not be empty."""
    return Annotated[list[kind], Field(min_length=1), BeforeValidator(_is_list)]


def each_once(key, what):
    """Return a validator of a section that refuses a list, under `key`, that names `what` twice."""

    def check(self):
        values = getattr(self, key)
        if len(set(values)) < len(values):
            raise ValueError(f"`{key}` names {what} twice")
        return self

    return model_validator(mode="after")(check)
