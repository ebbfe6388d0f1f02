"""Calls of several steps: what XLA compiles over fixed shapes trains as steps over the lengths of the rows do."""

import numpy as np
import pytest
import tensorflow as tf
from support.models import SEQUENCES, TRAINED, batches, make, make_optimizer, make_quiet, tensors
from support.profiles import slow_but
from support.trainings import Walks, curve_without_time, interrupted_during, new_model, scripted, train, weights

from bert4rec_tf.config.execution import ExecutionSettings
from bert4rec_tf.config.model_settings import samples_items
from bert4rec_tf.config.run_record import MaskingSettings, TrainingSettings
from bert4rec_tf.data.examples.joined import JoinedFeed
from bert4rec_tf.data.examples.kinds import make_examples
from bert4rec_tf.data.examples.rows import Feed
from bert4rec_tf.foundation import devices
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.nn import layouts, losses
from bert4rec_tf.training import calls, checkpoints
from bert4rec_tf.training.calls import ReadAhead, TrainingCalls
from bert4rec_tf.training.step import compute_gradients

MASKS = {
    "static shares": MaskingSettings(mask_proportion=0.4, max_predictions=4, mask_copies=2),
    "prefixes": MaskingSettings(prefix_copies=1, mask_copies=0),
}
SAMPLED = {"loss": "sampled_softmax", "shared_negatives": 5, "negative_sampling": "log_uniform"}
FEATURES = {"use_item_features": "add", "use_user_features": True}
VARIANTS = {
    **{name: (name, {}) for name in TRAINED},
    "bert4rec, prefixes": ("bert4rec", {"masking": "prefixes", "positions_from_last": True}),
    "bert4rec, evidence": ("bert4rec", {"evidence": "transitions"}),
    "bert4rec, features": ("bert4rec", FEATURES),
    "bert4rec, by rows": ("bert4rec", {**SAMPLED, "optimizer": "rowwise_adagrad"}),
    "bert4rec, adagrad": ("bert4rec", {"optimizer": "adagrad", "momentum": 0.2}),
    "sasrec, softmax": ("sasrec", {"loss": "cross_entropy"}),
    "sasrec, features": ("sasrec", {"loss": "cross_entropy", **FEATURES}),
    "sasrec, by rows": ("sasrec", {**SAMPLED, "optimizer": "rowwise_adagrad"}),
}


def make_feed(model, masking="static shares", size=16):
    if model.networks:
        sizes = {"bert4rec": size, "sasrec": size + 3}
        return JoinedFeed({name: make_feed(model.networks[name], masking, rows) for name, rows in sizes.items()})
    examples = make_examples(model, SEQUENCES, MASKS[masking])
    return Feed(examples, size, 1, samples_items(model.settings))


def make_calls(name, compile, steps_per_call=5, masking="static shares", quiet=True, **changes):
    """Returns a model and its calls; without dropout if `quiet`."""
    fields = {field: changes.pop(field) for field in list(changes) if hasattr(TrainingSettings, field)}
    settings = TrainingSettings(**{"steps": 40, "warmup_steps": 0, "learning_rate": 1e-3, **fields})
    model = (make_quiet if quiet else make)(name, **changes)
    optimizer = make_optimizer(settings, model)
    optimizer.build(model.trainable_variables)
    execution = ExecutionSettings(compile=compile, steps_per_call=steps_per_call)
    return model, TrainingCalls(model, optimizer, make_feed(model, masking), 0.5, execution)


def take(training, *counts):
    """Takes calls of these numbers of steps. Returns what all steps reported, one column each."""
    first, results = 0, []
    for count in counts:
        results.append(training.run(training.read(first, count), count))
        first += count
    return {name: np.concatenate([result[name] for result in results]) for name in calls.RESULTS}


def copy_weights(model):
    return [variable.numpy() for variable in model.trainable_variables]


@pytest.mark.long
@pytest.mark.parametrize("variant", slow_but(["bert4rec", "bpr_mf"], VARIANTS))
def test_both_layouts_train_alike(variant):
    name, changes = VARIANTS[variant]
    (by_length, plain), (fixed, compiled) = (make_calls(name, how, **changes) for how in ("off", "xla"))
    assert not plain.is_one_program and compiled.is_one_program
    first, expected = take(compiled, 1), take(plain, 1)
    assert first["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    for one, other in zip(copy_weights(fixed), copy_weights(by_length), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    rest, expected = (training.run(training.read(1, 5), 5) for training in (compiled, plain))
    for column in calls.RESULTS:
        np.testing.assert_allclose(rest[column], expected[column], rtol=1e-4, err_msg=column)


PROGRAMS = {
    f"{name}{', ' if extras else ''}{extras}": (name, settings)
    for name, more in (("bert4rec", {}), ("sasrec", {"loss": "cross_entropy"}))
    for extras, settings in {
        "": more,
        "evidence": {**more, "evidence": "transitions"},
        "features": {**more, **FEATURES},
        "bfloat16": {**more, "dtype": "mixed_bfloat16"},
    }.items()
}


@pytest.mark.parametrize("program", slow_but(["bert4rec", "sasrec, bfloat16"], PROGRAMS))
def test_a_call_is_one_program_that_never_waits_for_the_host(program):
    name, settings = PROGRAMS[program]
    _, training = make_calls(name, "xla", quiet=False, **settings)
    columns = {name: tf.constant(column) for name, column in training.feed.read(0, training.max_steps).items()}
    get_program = training._steps.experimental_get_compiler_ir(training._tables, columns, tf.constant(1))
    text = get_program(stage="hlo")
    assert "HloModule" in text and " while(" in text
    for word in ("infeed", "outfeed", " send(", " recv(", "custom_call_target"):
        assert word not in text, word


def test_steps_of_one_call_have_the_bits_of_several_calls():
    model, training = make_calls("sasrec", "xla", steps_per_call=12, quiet=False)
    variables = model.variables + training.optimizer.variables
    before = [variable.numpy() for variable in variables]
    found = []
    for counts in ((12,), (1,) * 12, (5, 7)):
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        found.append((take(training, *counts), [variable.numpy() for variable in variables]))
    assert len(found[0][0]["loss"]) == 12
    for results, values in found[1:]:
        np.testing.assert_equal(results, found[0][0])
        np.testing.assert_equal(values, found[0][1])


@pytest.mark.long
def test_a_compiled_training_resumes_to_the_bit(tmp_path):
    ndcg, compiled = (0.1, 0.2, 0.3, 0.4), {"compile": "xla", "steps_per_call": 4}
    models = [new_model(), new_model()]
    straight = train(tmp_path / "one", models[0], scripted(ndcg), execution=compiled)
    with pytest.raises(KeyboardInterrupt), interrupted_during(17):  # the call of the steps 15 to 18
        train(tmp_path / "other", validate=scripted(ndcg), execution=compiled)
    assert checkpoints.Series(tmp_path / "other").read_header()["state"]["step"] == 18
    resumed = train(tmp_path / "other", models[1], scripted(ndcg[1:]), execution=compiled)
    assert curve_without_time(resumed) == curve_without_time(straight)
    np.testing.assert_equal(weights(models[1]), weights(models[0]))


# The losses over fixed places


def softmax_by_hand(states, table, bias, targets):
    """The mean over the real targets of -log softmax, by NumPy in double precision."""
    logits = states.astype(float) @ table.astype(float).T + bias
    logits -= logits.max(axis=1, keepdims=True)
    values = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(targets)), targets]
    return values[targets > 0].sum() / (targets > 0).sum()


@pytest.mark.parametrize("chunk", [None, 3, 4])
def test_the_loss_over_fixed_places_is_that_of_the_targets_alone(chunk):
    rng = np.random.default_rng(1)
    states, table = rng.normal(size=(10, 4)).astype("f"), rng.normal(size=(7, 4)).astype("f")
    bias, targets = rng.normal(size=7).astype("f"), np.array([3, 0, 6, 1, 0, 2, 5, 0, 0, 4])
    mean = tf.constant((targets > 0) / (targets > 0).sum(), tf.float32)

    @tf.function(jit_compile=True, autograph=False)
    def compute(states, table, bias):
        with layouts.use_layout(layouts.FIXED), tf.GradientTape() as tape:
            tape.watch([states, table, bias])
            value = losses.table_cross_entropy(states, table, bias, tf.constant(targets), mean, chunk)
        return value, tape.gradient(value, [states, table, bias])

    value, gradients = compute(*map(tf.constant, (states, table, bias)))
    assert float(value) == pytest.approx(softmax_by_hand(states, table, bias, targets), rel=1e-5)
    assert not gradients[0].numpy()[targets == 0].any(), "a place without a target moves nothing"
    for index, part in enumerate((states, table, bias)):
        for place in np.ndindex(part.shape):
            around = []
            for change in (1e-3, -1e-3):
                parts = [states.astype(float), table.astype(float), bias.astype(float)]
                parts[index][place] += change
                around.append(softmax_by_hand(*parts, targets))
            assert gradients[index].numpy()[place] == pytest.approx((around[0] - around[1]) / 2e-3, abs=1e-4)


@pytest.mark.parametrize("name", ["bert4rec", "sasrec", "gru4rec_plus"])
def test_more_padding_and_unused_slots_change_no_loss_over_fixed_places(name):
    model = make_quiet(name)
    batch = tensors(next(batches(model)))
    wide = {
        column: tf.pad(part, [[0, 0], [0, 3], *[[0, 0]] * (part.shape.rank - 2)])
        if column in ("items", "targets", "negatives", "mask_positions", "mask_targets")
        else part
        for column, part in batch.items()
    }
    if name == "bert4rec":
        wide["items"] = batch["items"]  # already of max_length
    with layouts.use_layout(layouts.FIXED):
        (loss, gradients), (expected, others) = (compute_gradients(model, part) for part in (wide, batch))
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    for one, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_batch_of_little_work_is_one_group_and_a_large_one_has_a_group_for_each_cut(monkeypatch):
    batch = {"items": tf.constant([[1, 2, 0, 0], [3, 0, 0, 0], [4, 5, 6, 0], [7, 0, 0, 0]]), "extra": tf.zeros([4])}
    (group,) = layouts.split_rows(batch, [1 / 2], hidden_dim=8)
    assert group["items"].numpy().tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6], [7, 0, 0]] and "extra" not in group
    monkeypatch.setattr(layouts, "MIN_WORK", 0)
    groups = [group["items"].numpy().tolist() for group in layouts.split_rows(batch, [1 / 2], hidden_dim=8)]
    assert groups == [[[3], [7]], [[1, 2, 0], [4, 5, 6]]]


# Where the batches come from


@pytest.mark.parametrize(("compile", "gpu", "expected"), [("auto", False, "by_length"), ("auto", True, "fixed")])
def test_the_layout_follows_the_device_unless_it_is_asked_for(monkeypatch, compile, gpu, expected):
    monkeypatch.setattr(devices, "has_accelerator", lambda: gpu)
    assert calls.choose_layout(ExecutionSettings()) == expected
    assert calls.choose_layout(ExecutionSettings(compile="xla")) == "fixed"
    assert calls.choose_layout(ExecutionSettings(compile="off")) == "by_length"


def test_too_little_memory_is_one_line_that_names_the_batch_size(monkeypatch):
    _, training = make_calls("bpr_mf", "off")

    def exhaust(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor\nmore")

    monkeypatch.setattr(training, "_step", exhaust)
    with pytest.raises(
        UserError, match=r"does not fit into memory: a smaller --batch_size needs less \(OOM when .*\)$"
    ):
        training.run(training.read(0, 1), 1)


def test_a_full_disk_of_compiled_programs_is_not_called_memory(monkeypatch):
    _, training = make_calls("bpr_mf", "off")

    def exhaust(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "Graph execution error:\nx.tmp; No space left on device")

    monkeypatch.setattr(training, "_step", exhaust)
    with pytest.raises(UserError, match=r"^A disk is full: x\.tmp; No space left on device$"):
        training.run(training.read(0, 1), 1)


def test_what_is_read_ahead_is_what_is_taken_next_and_errors_reach_the_reader():
    asked = []

    def read(first, count):
        asked.append((first, count))
        if first > 9:
            raise UserError("gone")
        return {"steps": np.arange(first, first + count)}

    reader = ReadAhead(read)
    assert reader.read(0, 2, 3)["steps"].tolist() == [0, 1]
    assert reader.read(2, 3, 5)["steps"].tolist() == [2, 3, 4]
    assert reader.read(5, 1, 0)["steps"].tolist() == [5], "fewer than foreseen"
    assert asked == [(0, 2), (2, 3), (5, 5), (5, 1)]
    reader.read(6, 4, 4)
    with pytest.raises(UserError, match="gone"):
        reader.read(10, 4, 4)
    reader.close()


@pytest.mark.long
def test_walks_train_in_both_layouts(tmp_path):
    states = [train(tmp_path / how, feed=Walks(), execution={"compile": how}) for how in ("off", "xla")]
    for one, other in zip(*(state.curve for state in states), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


@pytest.mark.parametrize("kind", [tf.errors.ResourceExhaustedError, tf.errors.InternalError])
def test_too_little_memory_for_the_examples_is_one_line_that_says_what_makes_fewer(monkeypatch, kind):
    def exhaust(*_):
        raise kind(None, None, "Dst tensor is not initialized\nmore")

    monkeypatch.setattr(calls.tf, "constant", exhaust)
    with pytest.raises(UserError, match=r"examples do not fit into .*memory: a smaller --mask_copies.*initialized\)$"):
        make_calls("bpr_mf", "off")
