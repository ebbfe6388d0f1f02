"""Sequences to training examples: windows and the Cloze task, vectorised and seeded."""

from dataclasses import dataclass

import numpy as np

from bert4rec_tf.config.run import MaskingSettings, window_stride
from bert4rec_tf.data.sequences import Sequences, take_rows


@dataclass(frozen=True, eq=False)
class Windows:
    """Stretches of histories, at most N items long.

    Attributes:
        items: [actions] int32, the flat array that they are cut from.
        starts: [windows] int64, where each begins in it.
        lengths: [windows] int64.
        users: [windows] int64, whose each is.
    """

    items: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    users: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, chosen: np.ndarray, width: int) -> np.ndarray:
        """Returns the items of the chosen windows, int32 [chosen, width], right-padded."""
        return take_rows(self.items, self.starts[chosen], self.lengths[chosen], width)


def cut_windows(sequences: Sequences, max_length: int, window_step: float) -> Windows:
    """Cuts histories into windows as the original does.

    A history of up to N items is one window. A longer one gives windows of N items that end at its end and then
    int(window_step x N) earlier each (-1: N earlier), and its first N items. Histories of a single item are passed
    over: masking it would leave no context (the original stops with an assertion).

    Args:
        sequences: what to train on.
        max_length: N.
        window_step: share of N.

    Raises:
        UserError: where the step is less than one item.
    """
    stride = window_stride(window_step, max_length)
    users = np.flatnonzero(sequences.lengths >= 2)
    beyond = np.maximum(sequences.lengths[users] - max_length, 0)
    per_user = -(-beyond // stride) + 1
    owner = np.repeat(np.arange(len(users)), per_user)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(per_user) - per_user, per_user)
    offsets = np.maximum(beyond[owner] - (per_user[owner] - 1 - place) * stride, 0)
    lengths = np.minimum(sequences.lengths[users], max_length)[owner]
    return Windows(sequences.items, sequences.splits[users][owner] + offsets, lengths, users[owner])


@dataclass(frozen=True, eq=False)
class ClozeExamples:
    """Masked windows, one row each.

    Attributes:
        users: [rows] int64.
        items: [rows, N] int32, masked and right-padded.
        lengths: [rows] int64, how many of `items` are real.
        mask_positions: [rows, P] int32, the positions to predict, ascending, 0 where there are fewer than P.
        mask_targets: [rows, P] int32, the items that stood there, 0 where there are fewer.
        num_masked: [rows] int64.
    """

    users: np.ndarray
    items: np.ndarray
    lengths: np.ndarray
    mask_positions: np.ndarray
    mask_targets: np.ndarray
    num_masked: np.ndarray


def mask_windows(
    windows: Windows, chosen: np.ndarray, settings: MaskingSettings, max_length: int, num_items: int, seed: list[int]
) -> ClozeExamples:
    """Makes examples from windows, `settings.mask_copies` random ones and one with its last item masked of each.

    Args:
        windows: where they come from.
        chosen: [rows] int64 example numbers; number e is copy e // len(windows) of window e % len(windows), and the
            copy numbered `mask_copies` is the one whose last item is masked.
        settings: how many positions are masked and what is shown there.
        max_length: N, the width of the rows.
        num_items: n; the mask token is n + 1.
        seed: decides the masks of these rows.
    """
    rng = np.random.default_rng(seed)
    window = chosen % len(windows)
    items, lengths = windows.rows(window, max_length), windows.lengths[window]
    last_only = chosen // len(windows) == settings.mask_copies
    num_masked = np.where(last_only, 1, num_predictions(lengths, settings))
    keys = rng.random(items.shape)
    keys[np.arange(max_length) >= lengths[:, None]] = 2.0
    keys[last_only, lengths[last_only] - 1] = -1.0
    positions, slots = _smallest(keys, num_masked, min(settings.max_predictions, max_length))
    rows = np.arange(len(chosen))[:, None]
    targets = np.where(slots, items[rows, positions], 0)
    shown = np.full(targets.shape, num_items + 1, np.int32)
    if settings.mask_prob < 1:
        draw = rng.random(targets.shape)
        kept = draw >= settings.mask_prob
        replaced = draw >= settings.mask_prob + (1 - settings.mask_prob) / 2
        shown = np.where(kept & ~last_only[:, None], targets, shown)
        random_items = rng.integers(1, num_items + 1, targets.shape, np.int32)
        shown = np.where(replaced & ~last_only[:, None], random_items, shown)
    masked = items.copy()
    row_index, slot_index = np.nonzero(slots)
    masked[row_index, positions[row_index, slot_index]] = shown[row_index, slot_index]
    return ClozeExamples(windows.users[window], masked, lengths, positions, targets.astype(np.int32), num_masked)


def num_predictions(lengths: np.ndarray, settings: MaskingSettings) -> np.ndarray:
    """Returns how many items of windows of these lengths are predicted: round(length x rho), halves away from zero."""
    exact = lengths * settings.mask_proportion
    rounded = np.floor(exact) + (exact - np.floor(exact) >= 0.5)
    return np.clip(rounded.astype(np.int64), 1, settings.max_predictions)


def _smallest(keys: np.ndarray, counts: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the columns of each row's `counts` smallest keys, ascending, [rows, width], and which slots are used."""
    order = np.argpartition(keys, width - 1, axis=1)[:, :width] if width < keys.shape[1] else np.argsort(keys, axis=1)
    order = np.take_along_axis(order, np.argsort(np.take_along_axis(keys, order, axis=1), axis=1), axis=1)
    slots = np.arange(order.shape[1]) < counts[:, None]
    columns = np.sort(np.where(slots, order, keys.shape[1]), axis=1)
    return np.where(slots, columns, 0).astype(np.int32), slots
