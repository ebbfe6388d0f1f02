"""The built-in data sets: what can be learned from the Markov catalogue, and what cannot from its orderless twin."""

from dataclasses import replace

import numpy as np
import pytest

from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.data.sources.synthetic import MarkovCatalogue, OrderlessCatalogue
from bert4rec_tf.evaluation.candidates import draw_popular
from bert4rec_tf.evaluation.metrics import POPULAR, compute_metrics, compute_random_metrics
from bert4rec_tf.evaluation.ranker import RankingTask, rank_targets

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
        candidates = np.concatenate([self.task.targets[:, None], self.task.negatives[POPULAR]], axis=1)
        return compute_metrics(
            rank_targets(np.take_along_axis(scores, np.maximum(candidates - 1, 0), axis=1), candidates)
        )

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


def test_nobody_meets_an_item_twice(either):
    for user in range(either.sequences.num_users):
        assert len(np.unique(either.sequences[user])) == len(either.sequences[user])


def test_nobody_meets_an_item_twice_where_histories_hold_nearly_all_items():
    sequences = MarkovCatalogue(num_users=50, num_items=28, shortest=28, longest=28).make_sequences()
    assert (np.sort(sequences.items.reshape(50, 28), axis=1) == np.arange(1, 29)).all()


def test_all_lengths_in_the_range_occur(either):
    catalogue = either.catalogue
    assert set(either.sequences.lengths.tolist()) == set(range(catalogue.shortest, catalogue.longest + 1))
    assert either.sequences.num_users == catalogue.num_users


def test_popularity_is_long_tailed(either):
    counts = np.sort(either.sequences.vocabulary.counts)
    size = len(counts)
    gini = 2 * (np.arange(1, size + 1) * counts).sum() / (size * counts.sum()) - (size + 1) / size
    assert counts[-size // 10 :].sum() / counts.sum() > 0.25
    assert 0.4 < gini < 0.9


def test_tastes_and_transitions_are_probabilities():
    tastes, table = CATALOGUES["markov"].draw_tastes(), CATALOGUES["markov"].draw_transitions()
    communities, items = CATALOGUES["markov"].num_communities, CATALOGUES["markov"].num_items
    assert tastes.shape == (communities, items) and table.shape == (communities, items, items)
    assert tastes.min() > 0 and table.min() > 0
    np.testing.assert_allclose(tastes.sum(axis=-1), 1)
    np.testing.assert_allclose(table.sum(axis=-1), 1)


def test_every_item_has_its_few_successors():
    catalogue = CATALOGUES["markov"]
    extra = catalogue.draw_transitions() - (1 - catalogue.order) * catalogue.draw_tastes()[:, None, :]
    extra = np.sort(extra, axis=-1)[..., ::-1]
    weights = 0.5 ** np.arange(catalogue.successors)
    expected = np.broadcast_to(catalogue.order * weights / weights.sum(), extra[..., : catalogue.successors].shape)
    np.testing.assert_allclose(extra[..., : catalogue.successors], expected, atol=1e-12)
    np.testing.assert_allclose(extra[..., catalogue.successors :], 0, atol=1e-12)


def test_users_are_spread_over_communities():
    catalogue = CATALOGUES["markov"]
    sizes = np.bincount(catalogue.draw_communities(), minlength=catalogue.num_communities)
    assert len(sizes) == catalogue.num_communities
    assert sizes.min() > 0.8 * catalogue.num_users / catalogue.num_communities


def test_communities_differ_in_tastes_and_in_what_follows_an_item():
    tastes, table = CATALOGUES["markov"].draw_tastes(), CATALOGUES["markov"].draw_transitions()
    for one in range(len(tastes)):
        for other in range(one):
            assert np.abs(tastes[one] - tastes[other]).sum() / 2 > 0.25
            assert (np.abs(table[one] - table[other]).sum(axis=-1) / 2).mean() > 0.6


def test_histories_follow_the_transitions_of_their_own_community():
    catalogue = MarkovCatalogue(num_users=500)
    likely = catalogue.draw_transitions() > 0.05
    shares = np.zeros((2, 500))
    for user, (community, history) in enumerate(
        zip(catalogue.draw_communities(), catalogue.draw_histories(), strict=True)
    ):
        for row, table in enumerate((likely[community], likely[(community + 1) % catalogue.num_communities])):
            shares[row, user] = table[history[:-1], history[1:]].mean()
    own, others = shares.mean(axis=1)
    assert own > 0.5 and others < 0.2


def test_order_matters(markov):
    own = markov.catalogue.compute_scores(markov.sequences, markov.task.histories)
    taste = markov.catalogue.draw_tastes()[markov.catalogue.draw_communities()][:, markov.numbers]
    ordered, unordered = markov.metrics(own)["ndcg@10"], markov.metrics(taste)["ndcg@10"]
    assert ordered > 0.5
    assert ordered > 2.5 * unordered


def test_the_community_matters(markov):
    own = markov.catalogue.compute_scores(markov.sequences, markov.task.histories)
    mean = markov.catalogue.draw_transitions().mean(axis=0)[:, markov.numbers]
    averaged = mean[markov.numbers[markov.last_items()]]
    right, blurred = markov.metrics(own), markov.metrics(averaged)
    assert right["ndcg@10"] > blurred["ndcg@10"] + 0.1
    assert right["hr@1"] > 2 * blurred["hr@1"]


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


def test_scores_leave_out_items_that_never_occurred():
    catalogue = MarkovCatalogue(num_users=5)
    sequences = catalogue.make_sequences()
    assert sequences.num_items < catalogue.num_items
    assert catalogue.compute_scores(sequences, sequences).shape == (5, sequences.num_items)


def test_scores_for_histories_without_the_held_out_item_start_from_the_item_before(markov):
    catalogue = markov.catalogue
    test, validation = (markov.split.histories(part) for part in ("test", "validation"))
    assert (
        catalogue.compute_scores(markov.sequences, test) != catalogue.compute_scores(markov.sequences, validation)
    ).any()


def test_popularity_alone_is_far_from_what_order_gives(markov):
    popular = markov.metrics(markov.popularity())
    own = markov.metrics(markov.catalogue.compute_scores(markov.sequences, markov.task.histories))
    assert popular["ndcg@10"] < own["ndcg@10"] / 4
    assert popular["hr@10"] < 2.5 * compute_random_metrics(markov.task.count_candidates(POPULAR))["hr@10"]


def test_learned_transitions_beat_popularity_by_far_where_there_is_order(markov):
    learned, popular = markov.metrics(markov.learned_transitions()), markov.metrics(markov.popularity())
    assert learned["ndcg@10"] > 3 * popular["ndcg@10"]


def test_learned_transitions_do_not_beat_popularity_where_there_is_no_order(orderless):
    learned, popular = orderless.metrics(orderless.learned_transitions()), orderless.metrics(orderless.popularity())
    assert learned["ndcg@10"] < popular["ndcg@10"] + 0.01
    assert learned["hr@10"] < popular["hr@10"] + 0.015


def test_a_chain_that_has_run_dry_goes_on_by_taste():
    catalogue = MarkovCatalogue(num_users=500, order=1.0)
    assert all(len(set(history.tolist())) == len(history) for history in catalogue.draw_histories())


def test_the_generator_scores_the_users_that_are_left():
    catalogue = MarkovCatalogue(num_users=60, shortest=1)
    sequences = catalogue.make_sequences()
    assert sequences.num_left_out > 0
    assert catalogue.compute_scores(sequences, sequences).shape == (sequences.num_users, sequences.num_items)
