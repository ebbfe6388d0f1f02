"""The settings of `item_transitions`, and the grid from which they are chosen on the validation items."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bert4rec_tf.config.setting_fields import Settings, setting


def _declare_searched(help: str, **limits: Any) -> Any:
    return setting(None, f"{help} (default: chosen on the validation items)", **limits)


@dataclass(frozen=True)
class ItemTransitionsSettings(Settings):
    """The settings of `models.item_transitions.ItemTransitions`, whose docstring has the formula.

    One that is None is chosen on the validation items, from `GRID`.
    """

    window: int | None = _declare_searched("how many places apart two items are counted at most", at_least=1)
    distance_power: float | None = _declare_searched(
        "p of the weight decay^(d - 1) / d^p of two items d places apart", at_least=0
    )
    distance_decay: float | None = _declare_searched(
        "decay of the weight decay^(d - 1) / d^p of two items d places apart", above=0, at_most=1
    )
    backward: float | None = _declare_searched(
        "weight of an item that came before; one that came after has 1", at_least=0
    )
    smoothing: float | None = _declare_searched("tau: the larger, the less a few counts say", above=0)
    history_power: float | None = _declare_searched(
        "p of the weight decay^age / (age + 1)^p of a recent item of the history", at_least=0
    )
    history_decay: float | None = _declare_searched(
        "decay of the weight decay^age / (age + 1)^p of a recent item of the history", above=0, at_most=1
    )
    recent_items: int | None = _declare_searched("how many last items are recent; older ones count alike", at_least=1)
    recent_share: float | None = _declare_searched("the weight of all recent items together", at_least=0, at_most=1)
    popularity_weight: float | None = _declare_searched("lambda: weight of the logarithm of an item's popularity")
    max_history: int = setting(200, "how many of a history's last items are read", at_least=1, at_most=1_000)
    num_neighbors: int | None = setting(
        None, "how many neighbours of an item are kept (default: as memory allows)", at_least=1
    )

    def resolve(self) -> "CompleteSettings":
        """Returns these settings, with SHORT_START in place of each None."""
        return self.fill(SHORT_START)

    def fill(self, values: Mapping[str, Any]) -> "CompleteSettings":
        """Returns these settings, with `values` by name in place of each None."""
        return replace(self, **{name: value for name, value in values.items() if getattr(self, name) is None})


CompleteSettings = Any
"""`ItemTransitionsSettings` without a None, which their types cannot say."""


def _weigh_distances(power: float, decay: float) -> dict[str, float]:
    return {"distance_power": power, "distance_decay": decay}


def _weigh_ages(power: float, decay: float, recent_items: int = 1_000_000, recent_share: float = 1.0) -> dict[str, Any]:
    recency = {"recent_items": recent_items, "recent_share": recent_share}
    return {"history_power": power, "history_decay": decay, **recency}


TIES_BROKEN = 1e-4
"""A weight of popularity that only decides between items with the same evidence, such as none."""

LONG_HISTORIES = 50
"""From this mean length on, histories are long."""


def has_long_histories(num_users: int, num_actions: int) -> bool:
    """Returns whether users have LONG_HISTORIES actions or more on average."""
    return num_actions >= LONG_HISTORIES * num_users


LONG_START: dict[str, Any] = {
    "window": 20,
    **_weigh_distances(1.0, 1.0),
    "backward": 0.0,
    "smoothing": 500.0,
    **_weigh_ages(0.0, 0.6, 7, 0.8),
    "popularity_weight": TIES_BROKEN,
}
SHORT_START = {**LONG_START, "backward": 0.25, "smoothing": 5_000.0, **_weigh_ages(1.0, 1.0)}
"""Where the search begins for long and for short histories."""

RARE_FIRST = {"smoothing": 150.0, "popularity_weight": -0.4}
"""Where the search begins a second time: few counts say much, and popular items lose what they gain by many counts."""

GRID: dict[str, list[dict[str, Any]]] = {
    "smoothing": [{"smoothing": float(value)} for value in (5, 15, 50, 150, 500, 1_500, 5_000, 15_000, 50_000)],
    "ages": [
        *(_weigh_ages(0.0, decay) for decay in (0.4, 0.6, 0.75, 0.85)),
        *(_weigh_ages(power, 1.0) for power in (1.0, 1.5)),
        *(_weigh_ages(0.0, *tail) for tail in ((0.6, 7, 0.8), (0.7, 10, 0.8), (0.85, 10, 0.8), (0.85, 20, 0.8))),
    ],
    "distances": [
        *(_weigh_distances(power, 1.0) for power in (0.5, 1.0, 2.0)),
        *(_weigh_distances(0.0, decay) for decay in (0.5, 0.7, 0.85)),
    ],
    "backward": [{"backward": share} for share in (0.0, 0.1, 0.25, 0.5, 1.0)],
    "window": [{"window": places} for places in (5, 10, 20, 40)],
    "popularity": [
        {"popularity_weight": weight}
        for weight in (-0.8, -0.6, -0.5, -0.4, -0.3, -0.2, -0.1, -0.04, TIES_BROKEN, 0.04, 0.1, 0.2, 0.4)
    ],
}
"""The axes of the search for the settings of `item_transitions`, and their values.

They cover the published settings (Petrov et al., RecSys 2026) and what was best on parts of other data.
"""
