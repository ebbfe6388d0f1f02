"""The paper's numbers."""

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def read_paper() -> dict[str, Any]:
    """Returns the published numbers: `table1[dataset]`, `table2[dataset][model][metric]` and the like."""
    return json.loads(resources.files("bert4rec_tf.config").joinpath("paper.json").read_text())
