"""What the built-in data tell of every model: who learns an order, who a taste, and who invents neither."""

import functools

import pytest

from bert4rec_tf.config import presets
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.models import MODELS
from bert4rec_tf.runs.experiment import execute

PERSONAL = ("bpr_mf", "ncf")
SEQUENTIAL = tuple(name for name in MODELS if name not in ("pop", "auto", *PERSONAL))


@pytest.fixture(scope="module")
def on_the_test_item(tmp_path_factory):
    """Trains a model by its preset, with single settings changed, and returns its metrics on the test item."""

    def measured(dataset, model, sequences=None, **settings):
        run = presets.make_run(dataset, model, protocol="select", **settings)
        workdir = tmp_path_factory.mktemp(model)
        return execute(run, sequences or datasets.load(dataset), workdir=workdir, silent=True).metrics["test"]

    return measured


@pytest.fixture(scope="module")
def ndcg(on_the_test_item):
    """Returns the NDCG@10 of a model's preset, trained once for every model and data set."""
    return functools.cache(lambda dataset, model: on_the_test_item(dataset, model)["popular"]["ndcg@10"])


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
