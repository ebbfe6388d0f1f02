"""One preset, and the sentences that several of them share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bert4rec_tf.config.data_names import OWN

NOT_MEASURED = "Not measured yet."


@dataclass(frozen=True)
class Preset:
    """Settings for one model on one data set, with what is known about them.

    Attributes:
        dataset: name of the data set without its source; OWN for a user's own data.
        expect: the quality to expect, and how that is known.
        takes: how long it took, and on what; a run shows its own time after a few steps.
        settings: as `Run.make` takes them; the others have their defaults.
        search: settings in place of these when a fixed number of steps is selected again: under another protocol and,
            unless this is empty, for another architecture.
        rule: (number of users, number of actions) -> settings, if the size of the data decides them (`own`).
    """

    name: str
    dataset: str
    model: str
    expect: str
    takes: str
    settings: Mapping[str, Any]
    search: Mapping[str, Any] = field(default_factory=dict)
    rule: Callable[[int, int], dict[str, Any]] | None = None

    @property
    def command(self) -> str:
        data = "--interactions=FILE" if self.dataset == OWN else f"--dataset={self.dataset}"
        return f"python -m bert4rec_tf.run {data} --model={self.model} --preset={self.name}"
