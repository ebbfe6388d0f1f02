"""Why an item is recommended: the items of the history without which its score falls."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert4rec_tf.export.functions import LOG_PROBABILITIES
from bert4rec_tf.serving.ids import pad_ids

MOST_LEFT_OUT, MOST_REASONS = 50, 3
"""Of a history, so many of the last items may be reasons, and an item has so many at most."""

MOST_ROWS = MOST_LEFT_OUT + 2
"""A question has at most so many rows (`make_question`)."""

LEAST_FALL = 1e-4


def make_question(
    history: Sequence[str], candidates: Sequence[str], user: str | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns what to ask about recommended items: inputs of the signature `score`; and the items left out.

    Each row after the second leaves one of these out of the history. `user`: for a model that needs users, else None.
    """
    omissions = list(dict.fromkeys(reversed([item for item in history if item])))[:MOST_LEFT_OUT]
    rows = [history, [], *([item for item in history if item != omission] for omission in omissions)]
    inputs = {"histories": pad_ids(rows), "candidates": pad_ids([candidates])}
    if user is not None:
        inputs["users"] = pad_ids([[user] * len(rows)])[0]
    return inputs, omissions


def read_reasons(omissions: Sequence[str], scores: np.ndarray, kind: Any) -> list[dict[str, Any]]:
    """Returns each candidate's `reasons`, the items of the history that raise it and their shares, and its `lift`.

    A reason is an item without which the score falls. The shares of all of them sum to 1; the largest are returned.
    The lift, of models with probabilities, says how many times likelier the item is than without the history. An item
    that the history makes less likely has no reasons.

    Args:
        omissions: from `make_question`.
        scores: float32 [2 + left out, c], the answer.
        kind: `scores` of the model card.
    """
    scores_with_all, scores_of_no_history, scores_without_each = scores[0], scores[1], scores[2:]
    falls = scores_with_all - scores_without_each
    falls = np.where(falls > LEAST_FALL, falls, 0.0)
    answers = []
    for column, fall in enumerate(falls.T):
        gain = float(scores_with_all[column] - scores_of_no_history[column])
        answer: dict[str, Any] = {"reasons": []}
        if kind == LOG_PROBABILITIES:
            answer["lift"] = float(np.exp(min(gain, 80.0)))
        if fall.any() and (kind != LOG_PROBABILITIES or gain > 0):
            best = np.argsort(-fall, kind="stable")[:MOST_REASONS]
            shares = fall / fall.sum()
            answer["reasons"] = [
                {"item": omissions[row], "share": round(float(shares[row]), 4)} for row in best if fall[row]
            ]
        answers.append(answer)
    return answers
