"""Refuses keyword arguments that a function does not take, and names what takes them."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, ParamSpec, TypeVar

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.config.run_record import list_settings
from bert4rec_tf.foundation.errors import UserError, find_nearest, unknown_name_error

COLUMN_FLAGS = ("user_column", "item_column", "time_column")
OPTIONS_OF_DATA = {field.name for field in dataclasses.fields(Interactions)} - {"path", *COLUMN_FLAGS}

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def list_arguments(function: Callable[..., Any]) -> set[str]:
    return {*inspect.signature(function).parameters} - {"self", "settings", "options"}


def check_names(names: Iterable[str], arguments: Collection[str], function: str = "fit") -> None:
    """Raises UserError for a name that is no setting, but like one of the `arguments` or an option of the data."""
    for name in set(names) - list_settings().keys():
        _refuse_option_of_data(name, function)
        suggestion = find_nearest(name, [*list_settings(), *arguments])
        if suggestion in arguments:
            raise UserError(f"Unknown argument: {name!r}. Did you mean {suggestion!r}?")


def refuse_unknown_names(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a function without settings, so that an unknown keyword argument raises UserError."""
    arguments = list_arguments(function)

    @functools.wraps(function)
    def call(*values: Parameters.args, **options: Parameters.kwargs) -> Result:
        for name in sorted(options.keys() - arguments):
            _refuse_option_of_data(name, function.__name__)
            raise unknown_name_error("argument", name, arguments)
        return function(*values, **options)

    return call


def _refuse_option_of_data(name: str, function: str) -> None:
    if name in COLUMN_FLAGS:
        raise UserError(f'`user`, `item` and `time` name the columns, as in `{function}(data, user="customer")`')
    if name in OPTIONS_OF_DATA:
        reader = "b4r.interactions" if function == "fit" else "b4r.interactions(..., to_train=False)"
        raise UserError(f"Unknown argument: {name!r}. `{reader}` takes it, and `{function}` takes its result")
