"""Cuts sequences into windows and masks them for the Cloze task. Vectorised and seeded."""

from dataclasses import dataclass

import numpy as np

from bert4rec_tf.config.run_record import MaskingSettings, compute_window_stride
from bert4rec_tf.data.examples.rows import choose_index_type
from bert4rec_tf.data.sequences import Sequences, mask_token, number_within_groups, pad_rows


@dataclass(frozen=True, eq=False)
class Windows:
    """Parts of histories, at most N items long.

    Attributes:
        items: [actions] int32, the flat array of all histories.
        starts, lengths, users: [windows] int64, where each begins in `items`, how many items it has, and its user.
        num_prefixes: how many of them, at the end, are prefixes (`cut_prefixes`).
    """

    items: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    users: np.ndarray
    num_prefixes: int = 0

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_whole(self) -> int:
        """The number of windows before the prefixes."""
        return len(self) - self.num_prefixes

    def take(self, numbers: np.ndarray) -> "Windows":
        """Returns the windows of these numbers, int [k], whichever of them are prefixes."""
        return Windows(self.items, self.starts[numbers], self.lengths[numbers], self.users[numbers])

    def rows(self, windows: np.ndarray, width: int) -> np.ndarray:
        """Returns the items of windows, int64 [k], by their numbers: int32 [k, width], right-padded."""
        return pad_rows(self.items, self.starts[windows], self.lengths[windows], width)

    def make_tables(self) -> dict[str, np.ndarray]:
        """Returns what `gather_windows` reads."""
        return {
            "items": self.items,
            "users": self.users.astype(np.int32),
            "begins": self.starts.astype(choose_index_type(len(self.items))),
            "lengths": self.lengths.astype(np.int32),
        }


def cut_windows_and_prefixes(sequences: Sequences, max_length: int, settings: MaskingSettings) -> Windows:
    """Returns the windows to mask, and after them the prefixes if the settings ask for prefix examples."""
    if not settings.prefix_copies:
        return cut_windows(sequences, max_length, settings.window_step)
    prefixes = cut_prefixes(sequences, max_length)
    parts = [cut_windows(sequences, max_length, settings.window_step)] if settings.mask_copies else []
    starts, lengths, users = (
        np.concatenate([getattr(part, name) for part in (*parts, prefixes)]) for name in ("starts", "lengths", "users")
    )
    return Windows(sequences.items, starts, lengths, users, len(prefixes))


def cut_windows(sequences: Sequences, max_length: int, window_step: float) -> Windows:
    """Cuts histories into windows like the original program.

    A history of up to N items is one window. In a longer one, the last window ends at the end of the history, each
    further window starts int(window_step x N) items earlier (N items for a step of -1), and the first window starts at
    the first item. Histories with a single item are skipped: masking it leaves no context. The original fails
    there with an assertion.

    Raises UserError if the step is less than one item.
    """
    stride = compute_window_stride(window_step, max_length)
    users = np.flatnonzero(sequences.lengths >= 2)
    excess = np.maximum(sequences.lengths[users] - max_length, 0)
    num_windows = -(-excess // stride) + 1
    owner = np.repeat(np.arange(len(users)), num_windows)
    offsets = np.maximum(excess[owner] - (num_windows[owner] - 1 - number_within_groups(num_windows)) * stride, 0)
    lengths = np.minimum(sequences.lengths[users], max_length)[owner]
    return Windows(sequences.items, sequences.splits[users][owner] + offsets, lengths, users[owner])


def cut_last_windows(sequences: Sequences, max_length: int) -> Windows:
    """Returns the last N items of every history of two items or more."""
    users = np.flatnonzero(sequences.lengths >= 2)
    lengths = np.minimum(sequences.lengths[users], max_length)
    return Windows(sequences.items, sequences.splits[users + 1] - lengths, lengths, users)


def cut_prefixes(sequences: Sequences, max_length: int) -> Windows:
    """Cuts every history after each of its items but the first, and keeps the last N items of each part.

    With its last item masked, a prefix is the question that a served model answers: what comes after these items? A
    history of m items has m - 1 prefixes.
    """
    lengths = np.maximum(sequences.lengths - 1, 0)
    users = np.repeat(np.arange(len(lengths)), lengths)
    ends = number_within_groups(lengths) + 2
    lengths_in_window = np.minimum(ends, max_length)
    return Windows(sequences.items, sequences.splits[users] + ends - lengths_in_window, lengths_in_window, users)


def mask_rows(
    items: np.ndarray,
    lengths: np.ndarray,
    last_only: np.ndarray,
    settings: MaskingSettings,
    num_items: int,
    seed: list[int] | np.random.Generator,
) -> dict[str, np.ndarray]:
    """Masks windows.

    Args:
        items: int32 [rows, N], right-padded.
        lengths: int64 [rows], how many items each has.
        last_only: bool [rows], whether only the last item is masked.
        settings: how many positions are masked and what replaces their items.
        num_items: n; the mask token is n + 1.
        seed: decides the masks of these rows; or a generator, which draws them.

    Returns the masked `items`; `mask_positions`, int32 [rows, P], ascending; and `mask_targets`, int32 [rows, P], the
    original items there. Positions and targets are right-padded with 0.
    """
    rng, max_length = np.random.default_rng(seed), items.shape[1]
    num_masked = np.where(last_only, 1, count_predictions(lengths, settings))
    keys = rng.random(items.shape)
    keys[np.arange(max_length) >= lengths[:, None]] = 2.0
    keys[last_only, lengths[last_only] - 1] = -1.0
    positions, slots = _select_smallest(keys, num_masked, min(settings.max_predictions, max_length))
    rows = np.arange(len(items))[:, None]
    targets = np.where(slots, items[rows, positions], 0)
    replacements = np.full(targets.shape, mask_token(num_items), np.int32)
    if settings.mask_prob < 1:
        draw = rng.random(targets.shape)
        draw[last_only] = -1.0
        random_items = rng.integers(1, num_items + 1, targets.shape, np.int32)
        replacements = np.where(draw >= settings.mask_prob, targets, replacements)
        is_random = draw >= settings.mask_prob + (1 - settings.mask_prob) / 2
        replacements = np.where(is_random, random_items, replacements)
    masked_items = items.copy()
    row_index, slot_index = np.nonzero(slots)
    masked_items[row_index, positions[row_index, slot_index]] = replacements[row_index, slot_index]
    return {"items": masked_items, "mask_positions": positions, "mask_targets": targets.astype(np.int32)}


@dataclass(frozen=True, eq=False)
class ClozeExamples:
    """Windows to mask once, as numbered examples: every copy of all whole windows, then every copy of all prefixes.

    Without prefixes, there is one more copy of the windows, with only the last item masked.

    Attributes:
        windows: at most `max_length` (N) items long, of items up to `num_items` (n).
        masking: how often and how they are masked.
    """

    windows: Windows
    masking: MaskingSettings
    max_length: int
    num_items: int

    @property
    def num_copies(self) -> int:
        """Copies of each whole window."""
        return self.masking.mask_copies + (not self.windows.num_prefixes)

    @property
    def num_examples(self) -> int:
        return self.windows.num_whole * self.num_copies + self.windows.num_prefixes * self.masking.prefix_copies

    def find_windows(self, examples: np.ndarray) -> np.ndarray:
        """Returns the number of each example's window."""
        num_whole, num_prefixes = self.windows.num_whole, self.windows.num_prefixes
        offsets = examples - num_whole * self.num_copies
        return np.where(offsets < 0, examples % max(num_whole, 1), num_whole + offsets % max(num_prefixes, 1))

    def mask(self, examples: np.ndarray, seed: list[int] | np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the examples of these numbers: `users` and `lengths`, int64 [b], and what `mask_rows` returns.

        `seed`: as for `mask_rows`.
        """
        windows = self.find_windows(examples)
        last_only = examples >= self.windows.num_whole * self.masking.mask_copies
        items, lengths = self.windows.rows(windows, self.max_length), self.windows.lengths[windows]
        columns = mask_rows(items, lengths, last_only, self.masking, self.num_items, seed)
        return {"users": self.windows.users[windows], "lengths": lengths, **columns}


def count_predictions(lengths: np.ndarray, settings: MaskingSettings) -> np.ndarray:
    """Returns the number of masked items for these lengths: length x rho, rounded half up, in 1 .. max_predictions."""
    products = lengths * settings.mask_proportion
    counts = np.floor(products) + (products - np.floor(products) >= 0.5)
    return np.clip(counts.astype(np.int64), 1, settings.max_predictions)


def _select_smallest(keys: np.ndarray, counts: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the columns of each row's `counts` smallest keys, ascending, [rows, width], and which slots are used."""
    order = np.argpartition(keys, width - 1, axis=1)[:, :width] if width < keys.shape[1] else np.argsort(keys, axis=1)
    order = np.take_along_axis(order, np.argsort(np.take_along_axis(keys, order, axis=1), axis=1), axis=1)
    slots = np.arange(order.shape[1]) < counts[:, None]
    columns = np.sort(np.where(slots, order, keys.shape[1]), axis=1)
    return np.where(slots, columns, 0).astype(np.int32), slots
