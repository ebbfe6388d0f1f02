"""The flags of all commands: made from the fields of dataclasses, and read by absl."""

import dataclasses
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from absl import flags

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.config.setting_fields import Settings, describe_setting, get_field_type
from bert4rec_tf.foundation.errors import UserError, wrong_type_error

Fields = Mapping[str, dataclasses.Field]
"""Name of a flag -> the field that it sets."""

Options = TypeVar("Options", bound=Settings)

DEFINE: dict[Any, Callable[..., Any]] = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_boolean,
    str: flags.DEFINE_string,
}
NUMBERS = ("int", "float", "bool")
LISTS = {"history", "user", "item", "exclude", "candidates", "events", "interactions", "columns", "k"}
"""Flags that take several values in one text, so they may be given only once: a second one would replace the first."""

HELP = {"--help", "-h", "-help"}


def list_fields(kind: Any) -> dict[str, dataclasses.Field]:
    """Returns the fields of a dataclass by name."""
    return {field.name: field for field in dataclasses.fields(kind)}


def define_flags(values: flags.FlagValues, fields: Fields, texts: Mapping[str, str] | None = None) -> None:
    """Defines a flag for each field. `texts`: name -> its help, in place of the field's own."""
    for name, field in fields.items():
        text = (texts or {}).get(name) or describe_flag(field)
        DEFINE[get_field_type(field)](name, None, text, flag_values=values)


def describe_flag(field: dataclasses.Field) -> str:
    """Returns the help of a field, with its default."""
    has_default = field.default not in (None, "", False, dataclasses.MISSING)
    return describe_setting(field) + (f" (default: {field.default})" if has_default else "")


def read_flags(values: flags.FlagValues, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns name -> value for the given flags, and the words that are no flags. Raises UserError for a mistake."""
    try:
        words = values(["", *(re.sub("^--no-", "--no", argument) for argument in arguments)])[1:]
    except (flags.Error, ValueError) as error:
        match = re.match(r"flag --(\w+)=(.*?): ", str(error), re.DOTALL)
        if isinstance(error, flags.IllegalFlagValueError) and match and values[match[1]].flag_type() in NUMBERS:
            raise wrong_type_error(match[1], values[match[1]].flag_type(), match[2]) from error
        raise UserError(str(error)) from error
    given_names = [name for name in values if values[name].present]
    for name in LISTS & set(given_names):
        if values[name].present > 1 and values[name].flag_type() == "string":
            raise UserError(f"--{name} must be given once ({values[name].help})")
    return {name: values[name].value for name in given_names}, words


def parse_command(
    title: str, arguments: Sequence[str], fields: Fields, words: Sequence[str] = (), num_required: int | None = None
) -> dict[str, Any]:
    """Returns name -> value for the flags and words of a command that are given, after --help has ended it.

    Args:
        title: of the help.
        fields: a flag is required if its field has no default.
        words: names of what is given without a flag.
        num_required: how many of the words must be given; None for all.

    Raises UserError for a mistake.
    """
    if HELP & set(arguments):
        print(
            "\n".join(
                [title.strip(), "", *words, *list_helps({name: describe_flag(field) for name, field in fields.items()})]
            )
        )
        sys.exit(0)
    values = flags.FlagValues()
    values.set_gnu_getopt()
    define_flags(values, fields)
    values_by_name, positionals = read_flags(values, arguments)
    if len(positionals) > len(words):
        limit = f", and at most {len(words)} names do not" if words else ""
        raise UserError(f"Flags start with --{limit}. Received: {positionals[len(words)]!r}")
    for name in words[len(positionals) : num_required]:
        raise UserError(f"{name.upper()} is required")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in values_by_name:
            raise UserError(f"--{name} is required")
    return {**values_by_name, **dict(zip(words, positionals))}


def parse_with_interactions(
    title: str, arguments: Sequence[str], kind: type[Options], columns: Fields
) -> tuple[Options, Interactions | None]:
    """Returns the options of a command of some kind, and the files of --interactions; None without this flag.

    `columns`: the flags that say how to read them. Raises UserError for one of them alone.
    """
    values = parse_command(title, arguments, {**list_fields(kind), **columns})
    given_columns = {name: values.pop(name) for name in columns if name in values}
    return kind(**values), make_interactions(values.get("interactions"), given_columns)


def make_interactions(path: str | None, columns: Mapping[str, Any]) -> Interactions | None:
    """Returns the user's files; None for none. Raises UserError if only `columns` are given, how to read them."""
    if path is None and columns:
        raise UserError(f"--{next(iter(columns))} needs --interactions=FILE")
    return None if path is None else Interactions(path, **columns)


def list_helps(texts: Mapping[str, str]) -> list[str]:
    """Returns lines with a flag and its help each. `texts`: name -> help."""
    lines = []
    for name, text in texts.items():
        text = text.replace("(default: ", "(default:\xa0")  # not broken here
        lines += textwrap.wrap(text, 100, initial_indent=f"  --{name:<20} ", subsequent_indent=" " * 25)
    return [line.replace("\xa0", " ") for line in lines]
