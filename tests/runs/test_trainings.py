"""How long a training after the selection is."""

import pytest

from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.runs.trainings import FINAL_RATE, compute_final_share, make_final_settings

SETTINGS = {"steps": 100, "warmup_steps": 20, "learning_rate": 0.01}


@pytest.mark.parametrize(
    ("changes", "share", "expected"),
    [
        ({}, 1.0, {"stop_after": 60}),
        ({"scale_final_steps": True}, 1.5, {"steps": 150, "stop_after": 90}),
        (
            {"final_share": 0.5, "scale_final_steps": True, "stop_after": 80},
            0.5,
            {"steps": 30, "warmup_steps": 3, "learning_rate": FINAL_RATE * 0.01, "stop_after": 0},
        ),
    ],
)
def test_a_final_training_starts_anew_for_as_long_or_continues_for_a_share(changes, share, expected):
    training = TrainingSettings(**SETTINGS, **changes)
    assert compute_final_share(training, growth=1.5) == share
    final = make_final_settings(training, 60, share)
    assert {name: getattr(final, name) for name in SETTINGS} == SETTINGS | {
        name: value for name, value in expected.items() if name in SETTINGS
    }
    assert final.stop_after == expected["stop_after"]


def test_a_final_share_lowers_the_rate_of_rows_too():
    training = TrainingSettings(**SETTINGS, final_share=0.5, row_learning_rate=0.2)
    assert make_final_settings(training, 60, 0.5).row_learning_rate == FINAL_RATE * 0.2


def test_a_final_training_takes_at_least_one_step():
    training = TrainingSettings(**SETTINGS, final_share=0.05)
    assert make_final_settings(training, 3, 0.05).steps == 1
