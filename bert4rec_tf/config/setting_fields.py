"""Settings: frozen dataclasses whose fields carry their meaning and their range. Every field is also a flag."""

import dataclasses
import inspect
import math
import numbers
import operator
import typing
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert4rec_tf.foundation.errors import UserError, unknown_name_error, wrong_type_error


def setting(
    default: Any,
    help: str,
    *,
    may_change: bool = False,
    only_with: Mapping[str, tuple[Any, ...]] | None = None,
    is_later: bool = False,
    **limits: Any,
) -> Any:
    """Declares a field.

    Args:
        default: its value if none is given.
        help: what it means.
        may_change: whether a warm start may change it: it decides neither the shape nor the meaning of a weight.
        only_with: another setting and the values of that with which this one has an effect; None if it always has one.
        is_later: whether it is younger than published results: their records do not have it.
        **limits: any of `at_least`, `above`, `at_most`, `below` and `choices`.
    """
    metadata = {
        "help": help,
        "limits": limits,
        "may_change": may_change,
        "only_with": only_with or {},
        "is_later": is_later,
    }
    return dataclasses.field(default=default, metadata=metadata)


def change_default(settings: type["Settings"], name: str, default: Any) -> Any:
    """Declares the field `name` of other settings again, with another default."""
    field = next(field for field in dataclasses.fields(settings) if field.name == name)
    return dataclasses.field(default=default, metadata=field.metadata)


_LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "at_least": (operator.ge, "at least {}"),
    "above": (operator.gt, "above {}"),
    "at_most": (operator.le, "at most {}"),
    "below": (operator.lt, "below {}"),
    "choices": (lambda value, choices: value in choices, "one of {}"),
}


def convert_value(value: Any) -> Any:
    """Returns a number, truth or text of another kind, such as NumPy's, as Python's, and anything else as it is."""
    value = value.item() if isinstance(value, (np.bool_, np.str_)) else value
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else value


def get_field_type(field: dataclasses.Field) -> Any:
    """Returns the type of a field's values, without the `None` of an optional one."""
    return next(kind for kind in (typing.get_args(field.type) or (field.type,)) if kind is not type(None))


def check_value(field: dataclasses.Field, value: Any) -> Any:
    """Returns the value of a field, of another type such as NumPy's, as the field's own.

    Raises UserError if it has the wrong type or breaks the declared limits.
    """
    kind, limits = get_field_type(field), field.metadata["limits"]
    if value is None and type(None) in typing.get_args(field.type):
        return None
    value = convert_value(value)
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 2**1000 else math.inf
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise wrong_type_error(field.name, kind.__name__, value)
    if not all(_LIMITS[limit][0](value, bound) for limit, bound in limits.items()):
        bounds = " and ".join(_LIMITS[limit][1].format(bound) for limit, bound in limits.items())
        raise UserError(f"`{field.name}` must be {bounds}. Received: {field.name}={value}")
    return value


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base class. Raises UserError if a field that `setting` declares has a wrong value (`check_value`)."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if "limits" in field.metadata:
                object.__setattr__(self, field.name, check_value(field, getattr(self, field.name)))

    def record(self) -> dict[str, Any]:
        """Returns the fields in JSON's types; those that `setting` calls later only if they are not at their default.

        So settings without them have the same record in every version.
        """
        later_fields = [field for field in dataclasses.fields(self) if field.metadata.get("is_later")]
        default_names = {field.name for field in later_fields if getattr(self, field.name) == field.default}
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in default_names}


def check_declaration(kind: type[Settings]) -> None:
    """Raises UserError for a class with a field that `setting` does not declare, or of a type that no flag has."""
    hints = typing.get_type_hints(kind)  # types, where `from __future__ import annotations` leaves texts
    undecorated = [base for base in kind.__mro__ if "__dataclass_fields__" not in vars(base)]
    names = [name for base in undecorated for name in inspect.get_annotations(base)]
    plain_names = [name for name in names if typing.ClassVar not in (hints[name], typing.get_origin(hints[name]))]
    for field in dataclasses.fields(kind):
        field.type = hints[field.name]
        if "limits" not in field.metadata or get_field_type(field) not in (int, float, bool, str):
            plain_names.append(field.name)
    if plain_names:
        name = plain_names[0]
        raise UserError(
            f"`{name}` of {kind.__name__} must be declared as `{name}: int = b4r.setting(default, help)`, or with "
            "float, bool or str, in a class with @dataclass(frozen=True). "
            f"Received: {name}: {getattr(hints[name], '__name__', hints[name])}"
        )
    kind()  # refuses a default that is out of its range


def resolve_settings(kind: type[Settings], settings: Settings | None, fields: dict[str, Any]) -> Settings:
    """Returns the given settings, or those made from single fields. Raises UserError if both are given."""
    if settings is None:
        names = [field.name for field in dataclasses.fields(kind)]
        for name in fields:
            if name not in names:
                raise unknown_name_error(f"field of {kind.__name__}", name, names)
        return kind(**fields)
    if type(settings) is not kind:
        raise UserError(f"`settings` must be {kind.__name__}. Received: settings={settings!r}")
    if fields:
        raise UserError(f"`{next(iter(fields))}` must be given in `settings` or by its name. Received: both")
    return settings


def describe_setting(field: dataclasses.Field) -> str:
    """Returns the help of a setting, with its choices unless the help names them."""
    text, choices = field.metadata["help"], field.metadata.get("limits", {}).get("choices", ())
    return text if all(choice in text for choice in choices) else f"{text}: {', '.join(choices)}"
