"""The settings of BERT4Rec and SASRec for data of any size."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec_tf.config import presets
from bert4rec_tf.config.model_settings import AUTO


@given(st.integers(2, 10**8), st.floats(2, 2_000), st.sampled_from(["bert4rec", "sasrec", AUTO]))
def test_every_size_has_settings_that_make_a_run(users, mean_length, model):
    size = SimpleNamespace(num_users=users, num_actions=int(users * mean_length))
    run = presets.make_run("own-shop", model, "fast" if model == AUTO else "best", size=size)
    assert (run.architecture.initial_vectors, run.architecture.evidence) == ("cooccurrence", "transitions")
    assert run.uses_evidence and run.training.selection_metric == "full"
    training = run.training
    assert 1_000 <= training.steps <= 10_000 and training.warmup_steps < training.steps
    assert training.steps <= 8 * training.evaluate_every and training.patience == 3
    assert 20 <= run.architecture.max_length <= 200


def test_data_without_a_user_to_train_on_have_settings_too():
    """Users with one action are no examples; that there are none is said when the run is opened."""
    size = SimpleNamespace(num_users=0, num_actions=0)
    assert presets.make_run("own-shop", AUTO, size=size).architecture.max_length == 20


@pytest.mark.parametrize(
    ("users", "actions", "expected"),
    [
        (
            1_429,
            10_261,
            {
                "prefix_copies": 1,
                "mask_copies": 0,
                "max_length": 20,
                "batch_size": 32,
                "hidden_dim": 64,
                "dropout": 0.2,
            },
        ),
        (610, 100_836, {"prefix_copies": 0, "mask_copies": 10, "max_length": 200, "batch_size": 32}),
        (14_000, 126_824, {"prefix_copies": 1, "hidden_dim": 128, "epsilon": 1e-4, "dropout": 0.5, "batch_size": 512}),
        (40_226, 353_962, {"prefix_copies": 1, "hidden_dim": 128, "epsilon": 1e-4, "dropout": 0.5, "batch_size": 512}),
        (200_000, 2_000_000, {"prefix_copies": 1, "max_length": 20, "batch_size": 512, "hidden_dim": 128}),
        (6_040, 999_611, {"prefix_copies": 0, "hidden_dim": 128, "epsilon": 1e-6, "dropout": 0.2, "batch_size": 32}),
    ],
)
def test_short_histories_become_prefixes_and_long_ones_are_masked(users, actions, expected):
    flat = presets.make_run("own-shop", size=SimpleNamespace(num_users=users, num_actions=actions)).flatten()
    assert {name: flat[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("users", "actions", "expected"),
    [(1_429, 10_261, False), (610, 100_836, False), (14_000, 126_824, True), (40_226, 353_962, True)],
)
def test_bert4rec_alone_counts_positions_from_the_last_item_of_short_histories_unless_they_are_few(
    users, actions, expected
):
    size = SimpleNamespace(num_users=users, num_actions=actions)
    alone, side_by_side = (presets.make_run("own-shop", model, size=size) for model in ("bert4rec", AUTO))
    assert alone.architecture.positions_from_last is expected
    assert not side_by_side.architecture.positions_from_last


@pytest.mark.parametrize(("actions", "passes"), [(299_999, 8), (300_000, 4)])
def test_customers_with_two_actions_take_no_training_from_the_others(actions, passes):
    """100,000 x 2 and 10,000 x 10 actions: each has something to predict, so a pass has 110,000 examples or more."""
    run = presets.make_run("own-shop", size=SimpleNamespace(num_users=110_000, num_actions=actions))
    assert run.training.steps * run.training.batch_size >= passes * 110_000 - run.training.batch_size


def test_a_setting_of_the_user_s_goes_first():
    size = SimpleNamespace(num_users=1_000, num_actions=9_000)
    run = presets.make_run("own-shop", size=size, max_length=33, steps=50)
    assert (run.architecture.max_length, run.training.steps, run.training.warmup_steps) == (33, 50, 5)
