"""What the built-in data tell of every model: who learns an order, who a taste, and who invents neither."""

import functools

import pytest

from bert4rec_tf import presets
from bert4rec_tf.data.synthetic import MarkovCatalogue
from bert4rec_tf.models import MODELS
from bert4rec_tf.pipeline import execute

PERSONAL = ("bpr_mf", "ncf")
SEQUENTIAL = tuple(name for name in MODELS if name not in ("pop", *PERSONAL))

STEPS = {"fpmc": 150, "gru4rec": 150, "gru4rec_plus": 100, "caser": 400, "sasrec": 400, "bert4rec": 400}
"""Steps that show on a small chain who reads an order; the presets' are for the built-in one."""


@pytest.fixture(scope="module")
def chain():
    return MarkovCatalogue(num_users=1_500, num_items=60, num_communities=1, successors=2).sequences()


@pytest.mark.parametrize("model", SEQUENTIAL)
def test_a_sequential_model_soon_beats_those_without_order_on_a_small_chain(chain, model, tmp_path):
    def ndcg(name, **settings):
        run = presets.make_run("synthetic", name, retrain=False, **settings)
        result = execute(run, sequences=chain, workdir=tmp_path / name, silent=True)
        return result.metrics["test"]["full"]["ndcg@10"]

    def steps(number):
        return {"steps": number, "evaluate_every": number}

    warm_up = {"warmup_steps": 100} if model == "bert4rec" else {}
    without_order = max(ndcg("pop"), ndcg("bpr_mf", **steps(150)))
    assert ndcg(model, **steps(STEPS[model]), **warm_up) > 1.3 * without_order


@pytest.fixture(scope="module")
def ndcg(tmp_path_factory):
    """Trains a model by its preset and returns its NDCG@10 on the test item, once for every model and data set."""

    @functools.cache
    def measured(dataset, model):
        run = presets.make_run(dataset, model, retrain=False)
        metrics = execute(run, workdir=tmp_path_factory.mktemp(model), silent=True).metrics
        return metrics["test"]["popular"]["ndcg@10"]

    return measured


@pytest.mark.slow
@pytest.mark.parametrize("model", PERSONAL)
def test_a_model_of_tastes_beats_popularity_where_users_form_communities(ndcg, model):
    assert ndcg("synthetic", model) > 1.5 * ndcg("synthetic", "pop")


@pytest.mark.slow
@pytest.mark.parametrize("model", SEQUENTIAL)
def test_a_sequential_model_clearly_beats_those_without_order_on_a_markov_chain(ndcg, model):
    assert ndcg("synthetic", model) > 2 * max(ndcg("synthetic", other) for other in ("pop", *PERSONAL))


@pytest.mark.slow
@pytest.mark.parametrize("model", SEQUENTIAL)
def test_a_sequential_model_finds_no_order_where_there_is_none(ndcg, model):
    best = max(ndcg("synthetic-orderless", other) for other in ("pop", *PERSONAL))
    assert ndcg("synthetic-orderless", model) < 1.1 * best
