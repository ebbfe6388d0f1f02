"""The trainings of a run: which there are, what each trains on, and its trained model."""

from bert4rec_tf.config.run_record import ALL, RETRAIN, TRAININGS, Run
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.models import MODELS, Recommender
from bert4rec_tf.models.construction import make_model
from bert4rec_tf.runs.workdir import WorkDirectory
from bert4rec_tf.training import trainer


def list_phases(run: Run) -> list[str]:
    """Returns a run's trainings in order, as its protocol says.

    A model that only counts has nothing to select before a `retrain`.
    """
    trainings = TRAININGS[run.training.protocol]
    if MODELS[run.model].examples is None and RETRAIN in trainings:
        return [RETRAIN]
    return list(trainings)


def find_measured_phase(run: Run) -> str:
    """Returns the training whose model is measured: the last one that holds out the test items."""
    return [phase for phase in list_phases(run) if phase != ALL][-1]


def load_trained(run: Run, num_items: int, num_users: int, workdir: WorkDirectory, phase: str) -> Recommender:
    """Returns the model of the finished training `phase`. Raises UserError if it has not finished."""
    model = make_model(run, num_items, num_users, features=workdir.read_features())
    if model.evidence is not None:
        model.evidence.build((workdir.read_num_pairs(phase),))
    trainer.load_weights(model, workdir.phase_folder(phase))
    return model


def select_training_data(split: LeaveOneOut, phase: str) -> Sequences:
    """Returns what a training trains on."""
    return split.sequences if phase == ALL else split.training(with_validation=phase == RETRAIN)
