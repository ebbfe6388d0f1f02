"""The machines of a training, as TF_CONFIG names them. Kubernetes' training operator and others set it."""

import json
import os
from dataclasses import dataclass
from typing import Any

from bert4rec_tf.foundation.errors import UserError

VARIABLE = "TF_CONFIG"
CHIEF, WORKER = "chief", "worker"


@dataclass(frozen=True)
class Machines:
    """The machines of a training, `count` in all. This one has number `index`; number 0 is the chief."""

    index: int
    count: int

    @classmethod
    def read(cls) -> "Machines | None":
        """Returns the machines of TF_CONFIG; None if it is not set or names at most one machine.

        Raises UserError if it cannot be understood, has several chiefs or other roles than "chief" and "worker", or its
        task is not one of its machines.
        """
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        try:
            content: Any = json.loads(text)
            jobs = content.get("cluster", {})
            if any(isinstance(addresses, str) for addresses in jobs.values()):
                raise TypeError("the addresses must be a list")
            sizes = {role: len(addresses) for role, addresses in jobs.items()}
            role, number = str(content.get("task", {}).get("type")), int(content.get("task", {}).get("index", -1))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(f"`{VARIABLE}` must be JSON with a cluster and a task. Received: {text}") from error
        count, chiefs = sum(sizes.values()), sizes.get(CHIEF, 0)
        if count <= 1:
            return None
        if not set(sizes) <= {CHIEF, WORKER} or chiefs > 1 or not 0 <= number < sizes.get(role, 0):
            raise UserError(
                f"`{VARIABLE}` must have workers, at most one chief, and a task that is one of them. Received: {text}"
            )
        return cls(number if role == CHIEF else chiefs + number, count)
