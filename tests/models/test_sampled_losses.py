"""BERT4Rec and SASRec trained on a sample of the items: values by hand, gradients, parts of batches."""

import math

import numpy as np
import pytest
import tensorflow as tf
from support import trainings
from support.models import (
    NUM_ITEMS,
    SEQUENCES,
    batches,
    check_gradients,
    check_parts,
    make,
    make_quiet,
    make_step,
    read_endlessly,
    tensors,
)

from bert4rec_tf.config.run_record import MaskingSettings, TrainingSettings
from bert4rec_tf.data.examples.kinds import make_examples
from bert4rec_tf.data.examples.rows import Feed
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.nn import sampling
from bert4rec_tf.training.optimizer import make_optimizer
from bert4rec_tf.training.step import compute_gradients

NAMES = ("bert4rec", "sasrec")
every_name = pytest.mark.parametrize("name", NAMES)
SAMPLE = {"loss": "sampled_softmax", "shared_negatives": 24, "negative_sampling": "log_uniform"}


def drawn(model, size=16, first=0):
    """Batches with their draws."""
    masking = MaskingSettings(mask_proportion=0.4, max_predictions=4, mask_copies=2)
    examples = make_examples(model, SEQUENCES, masking)
    return map(tensors, read_endlessly(Feed(examples, size, 5, has_sample=True), first))


def states_and_targets(model, batch):
    """What is scored, [t, d], and the targets [t], by loops over the rows."""
    found = []
    is_bert = hasattr(model, "head")
    hidden = model.encode(batch["items"]) if is_bert else model.states(batch["items"])
    for row in range(len(batch["items"])):
        if is_bert:
            slots = zip(batch["mask_positions"][row].numpy(), batch["mask_targets"][row].numpy())
        else:
            slots = enumerate(batch["targets"][row].numpy())
        found += [(hidden[row, place], target) for place, target in slots if target]
    states = tf.stack([state for state, _ in found])
    return (model.head.transform(states) if is_bert else states).numpy(), [int(target) for _, target in found]


@every_name
def test_the_loss_is_the_mean_over_targets_that_share_one_sample(name):
    model = make_quiet(name, **SAMPLE)
    batch = next(drawn(model))
    check_parts(model, batch)
    check_gradients(model, batch, [model.own_items, *([model.head.bias] if name == "bert4rec" else [])])
    seeds = batch["draw"].numpy()
    assert seeds.shape == (16, 2) and (seeds == seeds[0]).all()
    sample = sampling.draw_shared_items(seeds[0], 24, NUM_ITEMS, "log_uniform")[0].numpy()
    table = np.asarray(model.item_table())
    bias = np.asarray(model.head.bias) if name == "bert4rec" else np.zeros(len(table))
    states, targets = states_and_targets(model, batch)
    values = []
    for state, target in zip(states, targets, strict=True):
        own = float(state @ table[target] + bias[target])
        others = [(item, float(state @ table[item] + bias[item])) for item in sample if item != target]
        shares = {item: math.log((item + 1) / item) / math.log(NUM_ITEMS + 1) for item, _ in others}
        values.append(math.log(math.exp(own) + sum(math.exp(s) / (24 * shares[i]) for i, s in others)) - own)
    assert float(model.training_loss(batch)) == pytest.approx(np.mean(values), rel=1e-4)


@every_name
def test_a_step_changes_only_the_rows_that_it_reads(name):
    model = make(name, **{**SAMPLE, "shared_negatives": 3})
    settings = TrainingSettings(steps=9, warmup_steps=0, optimizer="rowwise_adagrad")
    optimizer = make_optimizer(settings, model)
    optimizer.build(model.trainable_variables)
    tables = {"items", "item_embeddings", *(["output_bias"] if name == "bert4rec" else [])}
    assert {path.split("/")[-1] for path in optimizer.tables} <= tables | {"bias"} and optimizer.tables
    before, batch = np.asarray(model.own_items), next(drawn(model, 2))
    with trainings.small_and_quick():
        make_step(model, optimizer, settings.clip_norm)(batch)
    read = {*sampling.draw_shared_items(batch["draw"][0], 3, NUM_ITEMS, "log_uniform")[0].numpy().tolist()}
    columns = ("items", "mask_targets") if name == "bert4rec" else ("items", "targets")
    read |= {row for column in columns for row in batch[column].numpy().ravel().tolist()}
    changed = np.flatnonzero((np.asarray(model.own_items) != before).any(axis=1))
    assert len(changed) and set(changed) <= read and len(read) < NUM_ITEMS


def test_rows_cannot_be_updated_alone_where_a_step_reads_the_whole_table():
    model = make("sasrec", loss="cross_entropy")
    settings = TrainingSettings(steps=9, warmup_steps=0, optimizer="rowwise_adagrad")
    tables = make_optimizer(settings, model).tables
    with pytest.raises(UserError, match="`optimizer` must be adam or adagrad where a step reads a whole table, here"):
        compute_gradients(model, tensors(next(batches(model))), tables=tables)


def test_each_step_draws_anew_and_a_later_start_draws_the_same():
    model = make("sasrec", **SAMPLE)
    seeds = [next_batch["draw"].numpy()[0].tolist() for next_batch, _ in zip(drawn(model), range(4))]
    assert len({tuple(seed) for seed in seeds}) == 4
    assert next(drawn(model, first=2))["draw"].numpy()[0].tolist() == seeds[2]


def test_only_a_softmax_gives_log_probabilities():
    assert make("bert4rec").scores_are_logits and make("bert4rec", loss="sampled_softmax").scores_are_logits
    assert make("sasrec", loss="sampled_softmax").scores_are_logits
    assert make("sasrec", loss="cross_entropy").scores_are_logits and not make("sasrec").scores_are_logits
