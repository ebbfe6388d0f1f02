"""A small catalogue and what its prepared shards hold, for the tests of preparing, reading and masking."""

from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import tensorflow as tf
from scipy import stats

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples.cloze import ClozeExamples
from bert4rec_tf.data.examples.preparation import prepare_examples
from support.ranking_oracle import group_histories

MAX_LENGTH = 6
STATIC = MaskingSettings(mask_proportion=0.5, max_predictions=3, mask_copies=2, window_step=0.5)


def catalogue(num_users, longest=11, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, longest + 1, num_users)
    histories = np.split(rng.integers(0, 40, lengths.sum()), np.cumsum(lengths)[:-1])
    return group_histories(
        {f"user{user}": [f"item{item}" for item in history] for user, history in enumerate(histories)}
    )


SEQUENCES = catalogue(23)
NUM_ITEMS = SEQUENCES.num_items


def prepare(folder, **changes):
    """Prepares examples in shards of 17, and returns the shards."""
    return prepare_stored(folder, **changes).shards


def prepare_stored(folder, **changes):
    settings = {"sequences": SEQUENCES, "masking": STATIC, "max_length": MAX_LENGTH, "seed": 5, "shard_size": 17}
    return prepare_examples(**{**settings, **changes}, folder=folder)


def mask_windows(windows, chosen, settings, max_length, num_items, seed):
    """Masks the examples of these numbers, as they are masked for their shards."""
    masked = ClozeExamples(windows, settings, max_length, num_items).mask(chosen, seed)
    return SimpleNamespace(**masked, num_masked=np.count_nonzero(masked["mask_targets"], axis=1))


def predictions_by_hand(length, masking):
    """How many places of a window are masked: half a place is rounded up."""
    rounded = Decimal(length * masking.mask_proportion).quantize(Decimal(1), ROUND_HALF_UP)
    return min(masking.max_predictions, max(1, int(rounded)))


def check_all_pairs_are_equally_likely(positions, length):
    """Of examples with two masked places each."""
    drawn, pairs = Counter(map(tuple, positions[:, :2].tolist())), list(combinations(range(length), 2))
    assert set(drawn) <= set(pairs)
    assert stats.chisquare([drawn[pair] for pair in pairs]).pvalue > 1e-3


def check_half_of_the_rest_is_random(shown, targets, num_items, mask_prob):
    """Of the masked items that are not shown as the mask, half stay."""
    changed = (1 - mask_prob) / 2 * (1 - 1 / num_items)
    expected = {"mask": mask_prob, "changed": changed, "kept": 1 - mask_prob - changed}
    is_mask = shown == num_items + 1
    found = {"mask": is_mask.sum(), "changed": (~is_mask & (shown != targets)).sum(), "kept": (shown == targets).sum()}
    assert sum(found.values()) == targets.size
    for kind, share in expected.items():
        assert abs(found[kind] - targets.size * share) <= 5 * np.sqrt(targets.size * share * (1 - share)), kind


def stamps(folder):
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.rglob("*")}


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-5])


def remove(path):
    path.unlink()


def contents(shards):
    return {path.name: path.read_bytes() for path in shards.folder.iterdir()}


def records(shards):
    """Every example as a dictionary of lists, taken out of the blocks by plain Python."""
    return [row for name in shards.names for row in records_of(shards.folder / name)]


def records_of(path):
    return [row for record in tf.data.TFRecordDataset(str(path)) for row in rows_of(record.numpy())]


def rows_of(record):
    features = tf.train.Example.FromString(record).features.feature
    block = {name: list(feature.int64_list.value) for name, feature in features.items()}
    lengths = {name.removesuffix("_lengths"): block.pop(name) for name in list(block) if name.endswith("_lengths")}
    number = len(next(iter(lengths.values())))
    ends = {name: np.cumsum([0, *lengths.get(name, [1] * number)]).tolist() for name in block}
    return [{name: block[name][ends[name][row] : ends[name][row + 1]] for name in block} for row in range(number)]


def read_batches(feed, first_step, count):
    """The batches of some steps, as arrays."""
    columns = feed.read(first_step, count)
    steps = [{name: column[index] for name, column in columns.items()} for index in range(count)]
    return [{name: np.asarray(column) for name, column in feed.lay_out(feed.tables, step).items()} for step in steps]


def as_rows(batches):
    found = []
    for batch in batches:
        columns = {name: np.asarray(tensor).tolist() for name, tensor in batch.items()}
        found += [
            tuple(tuple(value) if isinstance(value, list) else value for value in row)
            for row in zip(*(columns[name] for name in sorted(columns)))
        ]
    return found
