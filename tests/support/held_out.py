"""Data in versions that differ in held-out items alone, and small runs of them (`runs/test_leaks.py`)."""

import dataclasses

import numpy as np

from bert4rec_tf.config import presets
from bert4rec_tf.config.data_names import OWN
from bert4rec_tf.config.model_settings import AUTO, list_used_features
from bert4rec_tf.config.run_record import FIXED_STEPS
from bert4rec_tf.models import MODELS
from bert4rec_tf.runs.experiment import open_experiment
from support.features import both
from support.ranking_oracle import make_sequences

# The data. Items 1 to COMMON are what users share; each user has two further items, which nobody else meets.

COMMON, USERS = 20, 24
ITEMS = COMMON + 2 * USERS
RNG = np.random.default_rng(7)
SHARES = 1 / np.arange(1, COMMON + 1)
ORDERS = [(RNG.choice(COMMON, COMMON, replace=False, p=SHARES / SHARES.sum()) + 1).tolist() for _ in range(USERS)]
TRAINING = [order[: 2 + user % 7] for user, order in enumerate(ORDERS)]
"""Each user's items before the validation item, oldest first."""

VALIDATION, TEST = [order[8] for order in ORDERS], [order[9] for order in ORDERS]
"""Items that are new to their user and known to others."""

OWN_VALIDATION, OWN_TEST = (list(range(first, first + USERS)) for first in (COMMON + 1, COMMON + 1 + USERS))
SEEN, OTHER_SEEN = [items[0] for items in TRAINING], [items[1] for items in TRAINING]
"""Items that their user has met before, so that they change neither a user's candidates nor unseen items."""

SHORT = [[1, 2], [3, 4], [5], []]
"""Users who are not measured, with all their items before the held-out ones."""

LATER_OF_SHORT = [[], [], OWN_TEST[:2], OWN_TEST[2:4]]


def hold_out_last(validation, test):
    """Returns data of which each user's last two actions are held out."""
    return make_sequences([*join_columns(TRAINING, validation, test), *SHORT], ITEMS)


def hold_out_by_time(validation, test):
    """Returns data with a cut after the validation items, and one to three actions after it."""
    later = [[item] * (1 + user % 3) for user, item in enumerate(test)]
    later = [*later, *LATER_OF_SHORT]
    sequences = make_sequences(join_columns([*join_columns(TRAINING, validation), *SHORT], later), ITEMS)
    return dataclasses.replace(sequences, num_later=np.array(list(map(len, later))))


def join_columns(*columns):
    """Returns one list for each user, of the items or lists of items in all columns."""
    return [
        [item for part in row for item in (part if isinstance(part, list) else [part])]
        for row in zip(*columns, strict=True)
    ]


# The runs.


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with a preset of a data set, and settings in place of the preset's.

    `is_long`: whether the preset is that of own data with long histories.
    """

    model: str
    preset: str = "fast"
    dataset: str = "beauty"
    settings: tuple = ()
    is_long: bool = False

    def __str__(self):
        settings = [f"{name}={value}" for name, value in self.settings] + ["long"] * self.is_long
        return "-".join([self.model, self.preset, self.dataset, *settings])

    @property
    def is_trained(self):
        return MODELS[self.model].examples is not None


SMALL = {
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "num_heads": 1,
    "num_layers": 1,
    "max_length": 10,
    "horizontal_filters": 2,
    "extra_negatives": 4,
    "shared_negatives": 8,
    "batch_size": 256,
    "warmup_steps": 0,
    "steps": 1,
    "evaluate_every": 1,
    "num_negatives": ITEMS,
}
"""So one step reads all examples, and its gradients are kept with the optimizer."""

MOST_COPIES = 2


class Long:
    """The size of data with long histories."""

    num_users, num_actions = 1_000, 90_000


def make_run(case, **settings):
    preset, size = (case.dataset, case.model, case.preset), Long if case.is_long else None
    known = presets.make_run(*preset, size=size, **dict(case.settings)).flatten()
    is_sampled = known.get("loss") == "sampled_softmax"
    small = {
        name: value for name, value in SMALL.items() if name in known and (is_sampled or name != "shared_negatives")
    }
    if known.get("mask_copies", 0) > MOST_COPIES:
        small["mask_copies"] = MOST_COPIES
    named = {**small, **dict(case.settings), **settings}
    if named.get("protocol") == FIXED_STEPS:
        named.pop("selection_metric", None)  # which it would refuse
    return presets.make_run(*preset, size=size, **named)


def open_run(folder, case, sequences, **settings):
    run = make_run(case, **settings)
    used = list_used_features(run.architecture)
    if used:
        features = both(sequences.vocabulary.items.tolist(), sequences.users.tolist())
        sequences = dataclasses.replace(sequences, features={name: features[name] for name in used})
    return open_experiment(run, sequences, folder, silent=True)


def train(folder, case, sequences, **settings):
    """Trains in a new folder and returns the folder."""
    experiment = open_run(folder, case, sequences, **settings)
    experiment.prepare()
    experiment.train()
    return folder


OWN_DATA = f"{OWN}shop"
EVIDENCE = Case("sasrec", settings=(("evidence", "transitions"), ("selection_metric", "full")))


def give_mix(case):
    """Returns settings with which nothing is chosen on the validation items for the evidence beside a network."""
    run = make_run(case, protocol="select")
    mix = {"evidence_gain": 2.0, "evidence_popularity": -0.2} if run.uses_evidence else {}
    return mix | ({"network_share": 0.5} if mix and "network_share" in run.flatten() else {})


CASES = [
    *(Case(model) for model in MODELS if model != AUTO),
    Case(AUTO, dataset=OWN_DATA),
    Case("bert4rec", "best", OWN_DATA),
    Case("sasrec", "best"),
    Case("bpr_mf", settings=(("negatives", "popular"),)),
    Case("bert4rec", settings=(("masking", "dynamic"), ("use_item_features", "add"))),
    EVIDENCE,
]


QUICK = [name for name, kind in MODELS.items() if name == "bpr_mf" or kind.examples is None]
"""The models that only count, and a small one that is trained."""

BEFORE = {"validation": TRAINING, "test": join_columns(TRAINING, VALIDATION)}
"""Each user's items before the held-out one."""
