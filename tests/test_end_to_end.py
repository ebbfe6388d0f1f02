"""What the built-in data sets promise: the ordered one is learned, from the orderless one there is nothing to learn."""

from bert4rec_tf import presets
from bert4rec_tf.pipeline import execute


def test_the_default_run_reaches_four_fifths_of_the_generator_itself(tmp_path):
    metrics = execute(presets.make_run("synthetic"), workdir=tmp_path, silent=True).metrics
    assert metrics["test"]["ndcg@10"] >= 0.8 * metrics["ceiling"]["ndcg@10"]
    assert metrics["test"]["ndcg@10"] > 4 * metrics["pop"]["ndcg@10"] > metrics["random"]["ndcg@10"]


def test_nothing_is_learned_where_there_is_no_order(tmp_path):
    run = presets.make_run("synthetic-orderless", steps=600, warmup_steps=200, retrain=False)
    metrics = execute(run, workdir=tmp_path, silent=True).metrics
    assert metrics["test"]["ndcg@10"] < metrics["pop"]["ndcg@10"] + 0.01
    assert "ceiling" not in metrics
