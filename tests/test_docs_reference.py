"""The pages that docs/reference.py makes from the code are up to date, and have what a reader looks for."""

import importlib.util
import re

import pytest
from support.paths import ROOT

from bert4rec_tf.config.model_settings import MODEL_SETTINGS
from bert4rec_tf.config.run_record import list_settings

SPEC = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_reference_is_that_of_the_code(name):
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == reference.PAGES[name](), "run python docs/reference.py"


def test_the_reference_has_every_setting_and_model():
    text = (ROOT / "docs" / "all-settings.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) >= list_settings().keys()
    assert re.findall(r"^## Model (\w+)", text, re.MULTILINE) == list(MODEL_SETTINGS)


def test_docstrings_become_lists_and_code():
    docstring = """Adds.

    Examples:
        >>> add(1)

    Args:
        one, two: numbers, which
            may be large.

    Returns:
        The sum of
        both.
    """
    expected = "Adds.\n\n**Examples**\n\n    >>> add(1)\n\n**Args**\n\n- `one, two`: numbers, which may be large.\n\n"
    assert reference.format_docstring(docstring) == expected + "**Returns**\n\n The sum of both.".replace("\n ", "\n")
