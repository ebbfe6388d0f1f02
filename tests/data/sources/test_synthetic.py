"""The built-in data sets: what can be learned from the Markov catalogue, and what cannot from its orderless twin."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.data.sources.synthetic import MarkovCatalogue, OrderlessCatalogue
from bert4rec_tf.evaluation.candidates import draw_popular
from bert4rec_tf.evaluation.metrics import POPULAR, compute_metrics
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.ranking_task import RankingTask

CATALOGUES = {"markov": MarkovCatalogue(), "orderless": OrderlessCatalogue()}


class Measured:
    """A catalogue's data, and the metrics of any table of scores for all users and items on the paper's candidates."""

    def __init__(self, catalogue):
        self.catalogue = catalogue
        self.sequences = catalogue.make_sequences()
        self.split = LeaveOneOut(self.sequences)
        negatives = draw_popular(self.sequences, self.split.users, 100, seed=0)
        self.task = RankingTask.from_split(self.split, "test", {POPULAR: negatives})
        self.numbers = np.array([int(item.removeprefix("item")) for item in self.sequences.vocabulary.items])

    def last_items(self):
        """The items before the held-out ones, as columns."""
        histories = self.task.histories
        return histories.items[histories.splits[1:] - 1] - 1

    def metrics(self, scores):
        def score(batch, candidates):
            return tf.gather(tf.gather(scores, batch["users"]), tf.maximum(candidates - 1, 0), batch_dims=1)

        return compute_metrics(Ranker(score).rank(self.task)[POPULAR])

    def popularity(self):
        counts = self.split.training(with_validation=True).count_items()[1:]
        return np.broadcast_to(counts / counts.sum(), (self.sequences.num_users, len(counts)))

    def learned_transitions(self):
        """How often each item followed the last one in training, with a share of popularity."""
        training = self.split.training(with_validation=True)
        counts = np.zeros((training.num_items, training.num_items))
        for user in range(training.num_users):
            np.add.at(counts, (training[user][:-1] - 1, training[user][1:] - 1), 1)
        return counts[self.last_items()] + 10 * self.popularity()


@pytest.fixture(scope="module")
def markov():
    return Measured(CATALOGUES["markov"])


@pytest.fixture(scope="module")
def orderless():
    return Measured(CATALOGUES["orderless"])


@pytest.fixture(params=CATALOGUES)
def either(request):
    return request.getfixturevalue(request.param)


def test_everything_is_a_function_of_the_seed(either):
    assert replace(either.catalogue).make_sequences().fingerprint == either.sequences.fingerprint
    assert replace(either.catalogue, seed=1).make_sequences().fingerprint != either.sequences.fingerprint


def test_no_user_has_an_item_twice(either):
    for user in range(either.sequences.num_users):
        assert len(np.unique(either.sequences[user])) == len(either.sequences[user])


def test_order_matters(markov):
    own = markov.catalogue.compute_scores(markov.sequences, markov.task.histories)
    taste = markov.catalogue.draw_tastes()[markov.catalogue.draw_communities()][:, markov.numbers]
    ordered, unordered = markov.metrics(own)["ndcg@10"], markov.metrics(taste)["ndcg@10"]
    assert ordered > 0.5
    assert ordered > 2.5 * unordered


@pytest.mark.parametrize("user", [0, 17, -1])
def test_scores_are_the_transitions_out_of_the_last_item(markov, user):
    catalogue, histories = markov.catalogue, markov.task.histories
    user %= histories.num_users
    last = markov.sequences.vocabulary.decode(histories[user][-1:])[0]
    row = catalogue.draw_transitions()[catalogue.draw_communities()[user], int(last.removeprefix("item"))]
    scores = catalogue.compute_scores(markov.sequences, histories)[user]
    assert len(scores) == markov.sequences.num_items
    for column, item in enumerate(markov.sequences.vocabulary.items):
        assert scores[column] == row[int(item.removeprefix("item"))]


def test_learned_transitions_beat_popularity_by_far_where_there_is_order(markov):
    learned, popular = markov.metrics(markov.learned_transitions()), markov.metrics(markov.popularity())
    assert learned["ndcg@10"] > 3 * popular["ndcg@10"]


def test_learned_transitions_do_not_beat_popularity_where_there_is_no_order(orderless):
    learned, popular = orderless.metrics(orderless.learned_transitions()), orderless.metrics(orderless.popularity())
    assert learned["ndcg@10"] < popular["ndcg@10"] + 0.01
    assert learned["hr@10"] < popular["hr@10"] + 0.015
