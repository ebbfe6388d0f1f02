"""The content of a SavedModel: TensorFlow functions that take raw ids and return raw ids and scores."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.popularity_option import MAX_PENALTY
from bert4rec_tf.data.sequences import PAD
from bert4rec_tf.export.functions import FUNCTIONS, HISTORY, INPUTS, POPULAR, find_inputs
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Tensor
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.nn import top_items
from bert4rec_tf.nn.evidence import PAIRS, choose_sum
from bert4rec_tf.nn.top_items import HIDDEN, Blocks, find_best

BLOCK_SCORES, FEWEST_ROWS, MOST_ROWS = 1 << 22, 1 << 10, 1 << 16
"""A block of products has about BLOCK_SCORES scores, few enough for the cache, of FEWEST_ROWS to MOST_ROWS items."""

_LINE = tf.lookup.TextFileIndex.WHOLE_LINE
_NUMBER = tf.lookup.TextFileIndex.LINE_NUMBER


class EncodedRequest(NamedTuple):
    """The users of a request, encoded.

    Attributes:
        vectors: float32 [b, d], zeros for cold users.
        is_cold: bool [b], users that get the most popular items: those whose history tells the model nothing
            (`Recommender.find_cold`); if the model needs to know the user, unknown users.
        seen_items: int32 [b, s], the items of the histories, padded with 0.
        num_unknown: int32 [b], how many raw ids of each history are unknown.
    """

    vectors: Tensor
    is_cold: Tensor
    seen_items: Tensor
    num_unknown: Tensor


class Service(tf.Module):
    """The exported object. Its functions (`export.functions`) are its attributes.

    Args:
        model: a trained model.
        items: file of raw ids, line i for item i.
        log_shares: float32 [n], the items' scores for cold users.
        log_counts: float32 [n], log(count + 1) of every item, for the popularity correction.
        defaults: the default values of the inputs `k`, at most n, `exclude_seen` and `popularity_correction`.
        users: file of raw ids, line u + 1 for user u; None if the model has no user embeddings.
    """

    def __init__(
        self,
        model: Recommender,
        items: Path,
        log_shares: np.ndarray,
        log_counts: np.ndarray,
        defaults: Mapping[str, int | bool | float],
        users: Path | None,
    ) -> None:
        super().__init__()
        # Only the variables: a Keras model as an attribute would be exported with all its layers.
        self._user_vectors, self._score_vectors = model.user_vectors, self._prepare_pair_table(model)
        self._find_cold = model.find_cold
        self._score_products: Callable[[], Any] = model.score_products
        self._has_products = model.score_products() is not None
        self._item_vectors, self._similarities = model.item_vectors, model.similarities
        self._scores_are_logits, self._scores_unknown_users = model.scores_are_logits, model.scores_unknown_users
        self._weights = [weight.value for weight in model.weights]
        # Row 0 is no item.
        self._log_shares = tf.Variable(np.append(HIDDEN, log_shares), dtype=tf.float32, name="log_shares")
        self._log_counts = tf.Variable(np.append(0, log_counts), dtype=tf.float32, name="log_counts")
        self._num_items = len(log_shares)
        asset = tf.saved_model.Asset(str(items))
        self._numbers = _make_line_table(asset)
        names = tf.lookup.TextFileInitializer(asset, tf.int64, _NUMBER, tf.string, _LINE)
        self._names = tf.lookup.StaticHashTable(names, default_value="")
        self._users: Any = _make_line_table(tf.saved_model.Asset(str(users))) if users else None
        # Traced once; the signatures call them.
        self._encode = tf_function(self._encode_request, input_signature=find_inputs("encode", model.needs_users))
        self._all_scores, self._candidate_scores = _share_trace(self._score_all), _share_trace(self._score_candidates)
        no_items = tf.zeros([1, 0], tf.string)
        constants = {name: tf.constant(value, INPUTS[name].dtype) for name, value in defaults.items()}
        optional = {**constants, "exclude": no_items, "candidates": no_items}
        answers: dict[str, Callable[..., Any]] = {
            "serving_default": lambda **users: self.recommend(**users, **optional),
            "recommend": self._answer_recommend,
            "score": self._answer_score,
            "encode": self._answer_encode,
        }
        if self._has_products or model.similarities([1]) is not None:
            answers["similar"] = self._answer_similar
        if self._has_products or model.item_vectors() is not None:
            answers["item_vectors"] = self._answer_item_vectors
        for name, answer in answers.items():
            inputs = find_inputs(name, model.needs_users)
            setattr(self, name, _make_function(answer, inputs, {} if name == "score" else optional))
        # The states of generators that some layers of Keras read without training too.
        graphs = [function.get_concrete_function() for function in self.functions.values()]
        handles = {id(value) for graph in graphs for value in graph.captured_inputs}
        handles -= {id(weight.handle) for weight in self._weights}
        self._states = [variable.value for variable in model.variables if id(variable.value.handle) in handles]

    def _prepare_pair_table(self, model: Recommender) -> Callable[..., Tensor]:
        """Returns `score_vectors` of a model. It sums evidence by `pair_table`, if that holds `make_pair_table()`.

        The table is empty in the export, because it is large, and only pays for many histories.
        """
        evidence, width = model.evidence, model.num_items + 1
        if evidence is None or choose_sum(model.num_items) == PAIRS:
            return model.score_vectors
        self.pair_table = tf.Variable(tf.zeros([0, 0]), trainable=False, shape=[None, None], name="pair_table")
        self.make_pair_table = tf_function(
            lambda: evidence.sum_pairs(tf.range(width)[:, None], tf.ones([width, 1])), input_signature=[]
        )

        def score_vectors(*values: Tensor) -> Tensor:
            with evidence.read_table(self.pair_table):
                return model.score_vectors(*values)

        return score_vectors

    @property
    def functions(self) -> dict[str, Any]:
        """Name -> function, for those of FUNCTIONS that the model has."""
        return {name: getattr(self, name) for name in FUNCTIONS if hasattr(self, name)}

    def _encode_request(self, histories: Tensor, users: Tensor | None = None) -> EncodedRequest:
        """Encodes raw histories, string [b, any], and raw users, string [b], if the model has user embeddings."""
        numbers = self._encode_ids(histories)
        known_items = tf.ragged.boolean_mask(numbers, numbers != PAD)
        lengths = tf.cast(known_items.row_lengths(), tf.int32)
        rows, is_stranger = tf.zeros_like(lengths), None
        if users is not None:
            message = "`users` must have as many rows as `histories`"
            with tf.control_dependencies([tf.debugging.assert_equal(tf.size(users), tf.size(lengths), message)]):
                rows = tf.cast(self._users.lookup(users), tf.int32)
            if not self._scores_unknown_users:
                rows, is_stranger = tf.maximum(rows, 0), rows < 0
        # One column more than the longest row, because some models cannot read a width of 0.
        items = tf.pad(known_items.to_tensor(PAD), [[0, 0], [0, 1]])
        vectors = self._user_vectors({"users": rows, "items": items, "lengths": lengths})
        is_cold = self._find_cold(lengths, vectors) if is_stranger is None else is_stranger
        num_unknown = tf.math.count_nonzero((numbers == PAD) & (histories != ""), axis=1, dtype=tf.int32)
        return EncodedRequest(tf.where(is_cold[:, None], tf.zeros_like(vectors), vectors), is_cold, items, num_unknown)

    def _encode_ids(self, raw_ids: Tensor) -> tf.Tensor:
        """Returns the item numbers of raw ids, int32 of the same shape; 0 for unknown ids."""
        return tf.cast(self._numbers.lookup(raw_ids), tf.int32) + 1

    def _answer_encode(self, **users: Tensor) -> dict[str, Tensor]:
        """Returns the `vectors`, float32 [b, d], and each history's number of `unknown` ids, int32 [b].

        Here and below, `users` are raw `histories`, string [b, any], and raw `users`, string [b], if the model has user
        embeddings.
        """
        request = self._encode(**users)
        return {"vectors": tf.cast(request.vectors, tf.float32), "unknown": request.num_unknown}

    def _answer_recommend(
        self,
        k: Tensor,
        exclude_seen: Tensor,
        exclude: Tensor,
        candidates: Tensor,
        popularity_correction: Tensor,
        **users: Tensor,
    ) -> dict[str, Tensor]:
        """Returns the best `items`, string [b, k], their `scores`, float32 [b, k], and `unknown`, as `_answer_encode`.

        The `basis` of a row, string [b], is POPULAR for cold users, else HISTORY.

        Args:
            k: [] int32, at least 1.
            exclude_seen: [] bool, whether to leave out the items of the histories.
            exclude: string [b or 1, any], further items to leave out.
            candidates: string [b or 1, any], the items to rank; all items for a row without candidates.
            popularity_correction: [] float32, at least 0 and finite; scores are lowered by this x log(count + 1).
        """
        request = self._encode(**users)
        number = tf.shape(request.vectors)[0]
        exclude, candidates = _check_rows("exclude", exclude, number), _check_rows("candidates", candidates, number)
        find_excluded, find_candidates = self._make_row_lookup(exclude), self._make_row_lookup(candidates)
        seen_items = tf.where(exclude_seen, request.seen_items, PAD)
        k, correct = self._limit_k(k), self._make_correction(popularity_correction)

        def find_hidden(rows: Tensor) -> tf.Tensor:
            return tf.concat([tf.gather(seen_items, rows), find_excluded(rows)], axis=1)

        def rank_all_items(rows: Tensor) -> tuple[Tensor, Tensor]:
            return self._rank_all(request, rows, find_hidden(rows), correct, k)

        def rank_candidates(rows: Tensor) -> tuple[Tensor, Tensor]:
            items = top_items.drop_repeated(find_candidates(rows))
            scores = correct(self._score_items(request, rows, items), top_items.gather_rows(self._log_counts, items))
            scores = tf.where(top_items.is_contained(items, find_hidden(rows)), HIDDEN, scores)
            return top_items.select_top(scores, items, k)

        has_candidates = tf.broadcast_to(tf.reduce_any(candidates != "", axis=1), [number])
        parts = [tf.cast(tf.where(mask)[:, 0], tf.int32) for mask in (~has_candidates, has_candidates)]
        widths = [self._scores_per_row, self._elements_per_row(request, candidates)]
        pairs = [
            top_items.map_row_blocks(function, rows, width, (tf.int32, tf.float32))
            for function, rows, width in zip((rank_all_items, rank_candidates), parts, widths)
        ]
        items, scores = (tf.dynamic_stitch(parts, pair) for pair in zip(*pairs))
        basis = tf.where(request.is_cold, POPULAR, HISTORY)
        return {"items": self._decode_items(items), "scores": scores, "unknown": request.num_unknown, "basis": basis}

    def _answer_score(self, candidates: Tensor, **users: Tensor) -> dict[str, Tensor]:
        """Returns the `scores` of raw candidates, string [b or 1, c]: float32 [b, c], HIDDEN for unknown ids."""
        request = self._encode(**users)
        number = tf.shape(request.vectors)[0]
        find_candidates = self._make_row_lookup(_check_rows("candidates", candidates, number))
        width = self._elements_per_row(request, candidates)
        (scores,) = top_items.map_row_blocks(
            lambda rows: (self._score_items(request, rows, find_candidates(rows)),),
            tf.range(number),
            width,
            (tf.float32,),
        )
        return {"scores": scores, "unknown": request.num_unknown}

    def _answer_similar(self, items: Tensor, k: Tensor) -> dict[str, Tensor]:
        """Returns the most similar `items` to raw items, string [b]: string [b, k], and the `scores`, float32 [b, k].

        An item is not similar to itself. The rows of unknown ids are empty.
        """
        numbers, k = self._encode_ids(items), self._limit_k(k)

        def find_similar(rows: Tensor) -> tuple[Tensor, Tensor]:
            queries = tf.gather(numbers, rows)[:, None]
            matches, scores, _ = find_best(self._compare_in_blocks(queries[:, 0]), k, queries)
            return tf.where(queries == PAD, PAD, matches), tf.where(queries == PAD, HIDDEN, scores)

        dtypes = (tf.int32, tf.float32)
        matches, scores = top_items.map_row_blocks(
            find_similar, tf.range(tf.size(numbers)), self._scores_per_row, dtypes
        )
        return {"items": self._decode_items(matches), "scores": scores, "unknown": tf.cast(numbers == PAD, tf.int32)}

    def _answer_item_vectors(self, items: Tensor) -> dict[str, Tensor]:
        """Returns the `vectors` of raw items, string [b]: float32 [b, d], zeros for unknown ids."""
        numbers = self._encode_ids(items)
        if self._has_products:
            vectors = tf.gather(self._score_products()[0], numbers)
        else:
            vectors = tf.gather(tf.cast(self._item_vectors(), tf.float32), tf.maximum(numbers - 1, 0))
        vectors = tf.where(numbers[:, None] == PAD, 0.0, vectors)
        return {"vectors": vectors, "unknown": tf.cast(numbers == PAD, tf.int32)}

    def _limit_k(self, k: Tensor) -> Tensor:
        with tf.control_dependencies([tf.debugging.Assert(k > 0, ["`k` must be at least 1. Received:", k])]):
            return tf.minimum(k, self._num_items)

    def _decode_items(self, items: Tensor) -> Tensor:
        return self._names.lookup(tf.cast(items, tf.int64) - 1)

    def _make_correction(self, strength: Tensor) -> Callable[..., Tensor]:
        """Returns a function that lowers scores, float32 [r, c], by `strength` x log(count + 1), [r, c] or [c]."""
        message = "`popularity_correction` must be at least 0 and finite. Received:"
        is_valid = tf.math.is_finite(strength) & (strength >= 0)
        with tf.control_dependencies([tf.debugging.Assert(is_valid, [message, strength])]):
            strength = tf.identity(strength)

        def correct(scores: Tensor, log_counts: Tensor) -> tf.Tensor:
            def penalize_popular() -> tf.Tensor:
                return scores - tf.minimum(strength * log_counts, MAX_PENALTY)

            return tf.cond(strength > 0, penalize_popular, lambda: scores)

        return correct

    def _make_row_lookup(self, raw_ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Returns a function: row numbers, int32 [r] -> the item numbers in these rows of `raw_ids`, int32 [r, any].

        `raw_ids`: raw ids, string [b or 1, any]. A single row counts for every row of the request.
        """
        items = self._encode_ids(raw_ids)
        return lambda rows: tf.gather(items, tf.minimum(rows, tf.shape(items)[0] - 1))

    @property
    def _scores_per_row(self) -> int:
        """How many scores per row are computed at once if all items are ranked."""
        return min(FEWEST_ROWS, self._num_items) if self._has_products else self._num_items

    def _elements_per_row(self, request: EncodedRequest, candidates: Tensor) -> Tensor:
        """Returns how many elements per row scoring the candidates needs, int32 []."""
        rows_of_table = tf.shape(candidates)[1] * tf.shape(request.vectors)[1]
        return tf.maximum(rows_of_table, self._scores_per_row) if self._scores_are_logits else rows_of_table

    def _rank_all(
        self, request: EncodedRequest, rows: Tensor, hidden_items: Tensor, correct: Callable[..., Tensor], k: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the best of all items, int32 [r, k], and their scores. `hidden_items`: int32 [r, any], left out."""
        vectors, is_cold = tf.gather(request.vectors, rows), tf.gather(request.is_cold, rows)[:, None]
        has_cold = tf.reduce_any(is_cold)

        def adjust(block: top_items.Block) -> Tensor:
            places = block.first, block.begin, block.end
            shares = top_items.hide_passed(self._log_shares[block.begin : block.end], *places)
            scores = tf.cond(has_cold, lambda: tf.where(is_cold, shares, block.scores), lambda: block.scores)
            return correct(scores, self._log_counts[block.begin : block.end])

        items, scores, normalisers = find_best(
            self._score_in_blocks(vectors), k, hidden_items, adjust, self._scores_are_logits
        )
        return items, scores - tf.where(is_cold, 0.0, normalisers)

    def _compute_normalisers(self, vectors: Tensor) -> tf.Tensor:
        """Returns log-normalisers, float32 [r, 1], 0 if scores are no logits."""
        number = tf.shape(vectors)[0]
        if not self._scores_are_logits:
            return tf.zeros([number, 1])
        no_items = tf.zeros([number, 0], tf.int32)
        return find_best(self._score_in_blocks(vectors), tf.constant(0), no_items, is_logits=True)[2]

    def _score_in_blocks(self, vectors: Tensor) -> Blocks:
        """Returns the scores of all items for vectors, float32 [r, d]."""
        if not self._has_products:
            return Blocks.from_scores(self._all_scores(vectors))
        return self._multiply_in_blocks(vectors)

    def _score_all(self, vectors: Tensor) -> tf.Tensor:
        """Returns the scores of all items for vectors, float32 [r, n]."""
        return tf.cast(self._score_vectors(vectors), tf.float32)

    def _compare_in_blocks(self, items: Tensor) -> Blocks:
        """Returns how similar all items are to `items`, int32 [r]."""
        if not self._has_products:
            return Blocks.from_scores(self._similarities(tf.maximum(items, 1)))
        vectors = tf.math.l2_normalize(tf.gather(self._score_products()[0], items), axis=1)
        return self._multiply_in_blocks(vectors, is_cosine=True)

    def _multiply_in_blocks(self, vectors: Tensor, is_cosine: bool = False) -> Blocks:
        height = tf.clip_by_value(BLOCK_SCORES // tf.maximum(tf.shape(vectors)[0], 1), FEWEST_ROWS, MOST_ROWS)
        height = tf.minimum(height, self._num_items + 1)
        return Blocks.from_products(self._score_products(), vectors, self._num_items, height, is_cosine)

    def _score_items(self, request: EncodedRequest, rows: Tensor, items: Tensor) -> tf.Tensor:
        """Returns the scores of `items`, int32 [r, c]: float32 [r, c], HIDDEN for item 0."""
        return self._candidate_scores(tf.gather(request.vectors, rows), tf.gather(request.is_cold, rows), items)

    def _score_candidates(self, vectors: Tensor, is_cold: Tensor, items: Tensor) -> tf.Tensor:
        """Returns what `_score_items` does for vectors, float32 [r, d], of users; `is_cold`, bool [r]."""
        scores = tf.cast(self._score_vectors(vectors, items), tf.float32) - self._compute_normalisers(vectors)
        scores = tf.where(is_cold[:, None], top_items.gather_rows(self._log_shares, items), scores)
        return tf.where(items == PAD, HIDDEN, scores)


def _make_function(answer: Callable, inputs: Sequence[tf.TensorSpec], defaults: Mapping[str, Tensor]) -> Callable:
    """Returns a graph of `answer`. It takes the inputs in order or by name; those in `defaults` may be left out."""

    def answer_in_order(*values):
        return answer(**{spec.name: value for spec, value in zip(inputs, values)})

    function: Any = answer_in_order
    kind, no_default = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    parameters = [inspect.Parameter(spec.name, kind, default=defaults.get(spec.name, no_default)) for spec in inputs]
    function.__signature__ = inspect.Signature(parameters)  # TensorFlow reads names and defaults here
    return tf_function(function, input_signature=inputs)


def _share_trace(function: Callable) -> Callable:
    """Returns a graph of `function` that is traced once. As an attribute it is none of the exported functions."""
    graph = tf_function(function)
    return lambda *values: graph(*values)


def _check_rows(name: str, rows: Tensor, number: Tensor) -> tf.Tensor:
    """Returns `rows`, string [any, any], after checking that it has one row or `number` rows."""
    height = tf.shape(rows)[0]
    message = f"`{name}` must have 1 row, or as many as `histories`. Rows received:"
    with tf.control_dependencies([tf.debugging.Assert((height == 1) | (height == number), [message, height])]):
        return tf.identity(rows)


def _make_line_table(asset: tf.saved_model.Asset) -> tf.lookup.StaticHashTable:
    lines = tf.lookup.TextFileInitializer(asset, tf.string, _LINE, tf.int64, _NUMBER)
    return tf.lookup.StaticHashTable(lines, default_value=-1)
