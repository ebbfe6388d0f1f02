"""A checkpoint of the authors' program, and what belongs to it."""

import json

from support.paths import GOLDEN

CHECKPOINT = GOLDEN / "tf1_checkpoint" / "model.ckpt-0"
CONFIG = json.loads((GOLDEN / "original_tf1.json").read_text())["config"]
TOKENS = [f"item_{number}" for number in range(1, 58)] + ["[pad]", "[MASK]", "[NO_USE]"]
