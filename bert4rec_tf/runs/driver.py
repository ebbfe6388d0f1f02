"""Does a whole run, or the part of it that a mode names, for the command line, `fit` and experiments."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec_tf.config.run_record import Run
from bert4rec_tf.config.time_budget import Budget
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.processes import claim_tensorflow
from bert4rec_tf.models import Recommender
from bert4rec_tf.runs import warm_start
from bert4rec_tf.runs.budget import describe_plan, plan_run
from bert4rec_tf.runs.pipeline import Experiment
from bert4rec_tf.runs.warm_start import StartWeights
from bert4rec_tf.runs.workdir import WorkDirectory
from bert4rec_tf.training import workers
from bert4rec_tf.training.workers import make_strategy


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        metrics: the content of `metrics.json`: settings, validation and test metrics, baselines.
        model: the model that was evaluated on the test items.
        sequences: the data, with the vocabulary of the model's ids.
        workdir: the folder of the run.
    """

    metrics: dict[str, Any]
    model: Recommender
    sequences: Sequences
    workdir: Path


def open_experiment(
    run: Run,
    sequences: Sequences | None = None,
    data_dir: Path | str | None = None,
    workdir: Path | str | None = None,
    prepared_dir: Path | str | None = None,
    init_from: Path | str | StartWeights | None = None,
    budget: Budget | None = None,
    **options: Any,
) -> Experiment:
    """Opens a run's work directory and loads its data, unless they are given.

    If several machines train together (`workers.join_team`), the chief opens and prepares first.

    Args:
        run: the settings.
        sequences: the data; None to load `interactions`, or else the run's data set.
        data_dir: the folder of downloaded and converted data.
        workdir: the run's folder; None for `runs/<dataset>-<model>-<digest>`.
        prepared_dir: the folder of training examples and candidates; None for `prepared` in the run's folder.
        init_from: trained weights to start from, or their path (`warm_start.read_start_weights`); None for a fresh
            start.
        budget: the time to plan the run for (`budget.plan_run`); None to train as the settings say.
        **options: `silent`, `execution`, `interactions` and `watch` of `Experiment`.

    Raises:
        UserError: if the data or the weights cannot be read, or the folder holds another run.
    """
    claim_tensorflow()
    if init_from is not None:
        run, options["start"] = warm_start.resolve_initial(run, init_from)
    if sequences is None:
        sequences = datasets.load(options.get("interactions") or run.dataset, data_dir)
    team = workers.current_team()
    path, prepared = (files.expand_path(path) if path else None for path in (workdir, prepared_dir))
    folder = WorkDirectory.from_run(run, path, prepared, budget.minutes if budget else None)
    if budget is not None:
        silent = options.get("silent", False)
        run, options["plan"], options["known_transitions"] = plan_run(run, sequences, budget, folder, silent)
        if not silent:
            print(describe_plan(run, budget), flush=True)
    folder.is_read_only = not team.is_chief
    team.agree({"data": sequences.fingerprint})
    with team.run_chief_first():
        experiment = Experiment(run, sequences, folder, **options)
        if team.count > 1:
            experiment.prepare()
    return experiment


def run_mode(experiment: Experiment, mode: str = "all") -> Result:
    """Prepares, trains and evaluates, or does the one of these that `mode` names.

    What is already prepared or trained is skipped. The result of `prepare` and `train` has no metrics, and neither has
    that of a machine which only helps to train.
    """
    metrics: dict[str, Any] = {}
    model: Any = None
    with experiment.workdir.lock():
        if mode in ("all", "train"):
            make_strategy(experiment.run.training.replicas)  # reports too few devices before a long preparation
        if mode in ("all", "prepare"):
            experiment.prepare()
        if mode in ("all", "train"):
            model = experiment.train()
        if experiment.team.is_chief and mode in ("all", "evaluate"):
            model = model or experiment.load_trained_model()
            metrics = experiment.evaluate(model)
    return Result(metrics, model, experiment.sequences, experiment.workdir.path)


def execute(run: Run, **options: Any) -> Result:
    """Prepares, trains and evaluates a run. Skips what is already prepared and trained.

    Sets the seeds of Python's, NumPy's and TensorFlow's global generators to the run's seed.

    `options`: as for `open_experiment`.
    """
    return run_mode(open_experiment(run, **options))
