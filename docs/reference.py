"""Writes the pages that are made from the code: `python docs/reference.py`.

api.md has the docstrings of the public names, all-settings.md every setting. `tests/test_docs_reference.py` compares
them with the code.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bert4rec_tf as b4r
from bert4rec_tf.config.execution import ExecutionSettings
from bert4rec_tf.config.model_settings import MODEL_SETTINGS
from bert4rec_tf.config.run_record import EvaluationSettings, MaskingSettings, TrainingSettings
from bert4rec_tf.config.setting_fields import describe_setting

FOLDER = Path(__file__).parent
NAMES = [
    *(
        "fit",
        "compare",
        "cross_validate",
        "open",
        "FittedModel",
        "interactions",
        "Interactions",
        "with_features",
        "load",
        "Sequences",
    ),
    *(
        "Vocabulary",
        "make_run",
        "Run",
        "execute",
        "open_experiment",
        "BERT4Rec",
        "register",
        "Recommender",
        "UserError",
    ),
    *(
        "Bert4RecWarning",
        "DataWarning",
        "DataNote",
        "UnknownIdWarning",
        "FileWarning",
        "TrainingWarning",
        "ServingWarning",
    ),
]
MADE = "*Made from the code by `python docs/reference.py`. Change the docstrings, not this page.*"


def format_docstring(text: str) -> str:
    """Returns a docstring of Google's style as Markdown: a list for each section, examples as code."""
    parts: list[str] = []
    is_list = False
    for line in inspect.cleandoc(text).splitlines():
        content, indent = line.strip(), len(line) - len(line.lstrip())
        if re.fullmatch(r"(Args|Attributes|Examples?|Raises|Returns|Yields):", line):
            parts.append(f"\n**{line[:-1]}**\n\n")
            is_list = line not in ("Returns:", "Yields:")
        elif indent == 4 and content.startswith((">>>", "...")):
            parts.append(f"\n    {content}" if content.startswith("...") else f"\n\n    {content}")
        elif indent == 4 and is_list:
            parts.append("\n- " + re.sub(r"^([\w*, ]+):", r"`\1`:", content))
        else:
            parts.append(f" {content}" if content else "\n\n")
    text = "\n".join(line.rstrip() if line.startswith("    ") else line.strip() for line in "".join(parts).splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).replace("`**`", "`**").strip()


def format_signature(name: str, thing: Any) -> str:
    """Returns a call as code: one line, or one line for each argument. Types lose their modules."""
    signature = re.sub(r"<factory>", "...", re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(inspect.signature(thing))))
    signature = signature.replace("'", '"')
    if len(name + signature) > 110:
        inner, _, result = signature[1:].rpartition(")")
        arguments = re.split(r", (?=[\w*]+(?:[:,]|$))", inner)
        signature = "(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")" + result
    return f"```text\n{name}{signature}\n```"


def describe(name: str, thing: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    if not isinstance(thing, property) and not (inspect.isclass(thing) and issubclass(thing, Exception)):
        yield format_signature(name.split(".")[-1], thing)
    if inspect.getdoc(thing):
        yield format_docstring(inspect.getdoc(thing) or "")


def make_api_page() -> str:
    parts = [
        "# Python API",
        "What each public name takes, returns and raises. All are `b4r.NAME` after `import bert4rec_tf as b4r`. For "
        "Keras, [`b4r.layers`, `b4r.losses`, `b4r.metrics` and `b4r.datasets`](keras.md) are modules.",
        MADE,
    ]
    for name in NAMES:
        thing = getattr(b4r, name)
        parts += describe(name, thing, 2)
        members = vars(thing).items() if name in ("FittedModel", "Vocabulary") else ()
        for member, value in members:
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                parts += describe(f"{name}.{member}", value, 3)
    return "\n\n".join(parts) + "\n"


def format_rows(settings: type, leave_out: frozenset[str] = frozenset()) -> str:
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for field in dataclasses.fields(settings):
        if field.name not in leave_out:
            default = "" if field.default is None else str(field.default).lower()
            limits = {key: value for key, value in field.metadata["limits"].items() if key != "choices"}
            bounds = "".join(f"; {key.replace('_', ' ')} {value}" for key, value in limits.items())
            rows.append(f"| `{field.name}` | {default} | {describe_setting(field).replace('|', ' ')}{bounds} |")
    return "\n".join(rows)


def make_settings_page() -> str:
    parts = [
        "# All settings",
        "Every setting is a flag (`--steps=2000`; a switch: `--use_positions`, `--nouse_positions`) and an argument "
        "(`b4r.fit(data, steps=2000)`). A preset gives most of them another value than the default here. [The thirty "
        "that matter](settings.md) are on a page of their own.",
        MADE,
    ]
    shared = {"Training": TrainingSettings, "Masks (bert4rec)": MaskingSettings, "Measurement": EvaluationSettings}
    for title, settings in (shared | {"Speed, which changes no result": ExecutionSettings}).items():
        parts += [f"## {title}", format_rows(settings)]
    for model, settings in MODEL_SETTINGS.items():
        has_fields = bool(dataclasses.fields(settings))
        parts += [f"## Model {model}", format_rows(settings) if has_fields else "No settings."]
    return "\n\n".join(parts) + "\n"


PAGES = {"api.md": make_api_page, "all-settings.md": make_settings_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
