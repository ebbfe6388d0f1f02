"""`--tune`: searches a model's grid on the validation item (`notebook.tuning`). The test item is never measured."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec_tf.config import presets
from bert4rec_tf.config.model_settings import PAPERS_MODEL
from bert4rec_tf.config.run_record import SELECT_AND_RETRAIN, Run
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation.environment import set_threads
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.notebook import tuning
from experiments.plan import SELECT_ONLY, Plan
from experiments.tables import PROPORTIONS, WIDTHS, Variant, compute_max_predictions

L2 = (1.0, 0.1, 0.01, 0.001, 0.0001)
DROPOUT = {"dropout": tuple(tenths / 10 for tenths in range(10))}
GRU = {**DROPOUT, "learning_rate": (0.01, 0.02, 0.05, 0.1, 0.2), "momentum": (0.0, 0.1, 0.2, 0.3)}
MAX_LOSS = {"loss": ("bpr_max", "top1_max"), "regularization": (0.0, 0.5, 1.0), "alpha": (0.0, 0.25, 0.5, 0.75, 1.0)}
CASER = {"l2": (*L2, 1e-6), "markov_order": tuple(range(1, 10)), "num_targets": (1, 2, 3)}
CLOZE = {"weight_decay": L2, "attention_dropout": DROPOUT["dropout"], "mask_proportion": PROPORTIONS}

SPACES: dict[str, dict[str, tuple[Any, ...]]] = {
    "bpr_mf": {"hidden_dim": WIDTHS, "l2": L2},
    "ncf": {"hidden_dim": WIDTHS, "l2": L2, "train_negatives": tuple(range(1, 11))},
    "fpmc": {"hidden_dim": WIDTHS, "l2": L2},
    "gru4rec": {"hidden_dim": WIDTHS, **GRU},
    "gru4rec_plus": {"hidden_dim": WIDTHS, **GRU, **MAX_LOSS},
    "caser": {"hidden_dim": WIDTHS, **DROPOUT, **CASER},
    "sasrec": {"hidden_dim": WIDTHS, **DROPOUT, "weight_decay": (*L2, 0.0), "num_layers": (1, 2, 3)},
    "bert4rec": {"hidden_dim": WIDTHS, **DROPOUT, **CLOZE},
}
"""Model -> setting -> its values: the paper's grid (section 4.3), and the settings that the model's own paper and
program vary. The paper's l2 is `weight_decay` if the optimizer applies it; Adagrad has none. POP and item_transitions
are missing, because they have no training steps."""

QUICK_DISTANCE = 5
"""Steps between measurements in a quick search. Trials are pruned at measurements."""

SEARCH_ONLY = (*SELECT_ONLY, "evaluate_every")
"""Settings of the search's trainings that are not part of its result."""
SHORTENED = ("steps", "warmup_steps")
"""Settings that a budget scales."""


@dataclass(frozen=True)
class Search:
    """A model on a data set. `plan` gives the preset, the budget, `quick`, and the seed, its first one."""

    model: str
    dataset: str
    plan: Plan

    def run(self, trials: int, folder: Path, data_dir: Path | None = None) -> list[Any]:
        """Searches until `folder` has this many trials, and returns them. `data_dir` has the data files."""
        space = {name: list(values) for name, values in SPACES[self.model].items()}
        sequences = datasets.load(self.dataset, data_dir)
        return tuning.run_trials(self.make_run, self.make_run({}), space, sequences, trials, folder)

    def make_run(self, values: dict[str, Any]) -> Run:
        """Returns the run of a point, which trains once, with the validation item held out. {} is the preset's."""
        quick_changes = {"evaluate_every": QUICK_DISTANCE} if self.plan.quick else {}
        variant = Variant("tuned", self.model, changes={**SELECT_ONLY, **quick_changes})
        default_run = self.plan.make_run(self.dataset, variant, self.plan.seeds[0])
        if not values:
            return default_run
        settings = {**default_run.flatten(), **values}
        if self.model == PAPERS_MODEL:
            settings["max_predictions"] = compute_max_predictions(settings["mask_proportion"], settings["max_length"])
            del settings["num_heads"], settings["intermediate_dim"]  # both follow the width
        return Run.make(self.dataset, self.model, default_run.seed, **settings)

    def format_command(self, trials: Sequence[Any]) -> str:
        """Returns the command of the run that was measured best, but with the preset's protocol and number of steps.

        If the preset's number of steps was selected for its own settings, it is selected again. Raises UserError if no
        trial was trained to its end.
        """
        best = tuning.find_best_trial(trials)
        preset = presets.find_preset(
            self.plan.preset if self.model == PAPERS_MODEL else "fast", self.dataset, self.model
        )
        values = self.make_run(best.params).flatten()
        names = (*best.params, "max_predictions") if self.model == PAPERS_MODEL else best.params
        changes = {name: values[name] for name in names}
        if preset.search:
            changes["protocol"] = SELECT_AND_RETRAIN
        usual = presets.make_run(self.dataset, self.model, preset.name, self.plan.seeds[0], **changes).flatten()
        left_out = {*SEARCH_ONLY, *(SHORTENED if self.plan.budget != 1 else ())}
        changes |= {name: value for name, value in values.items() if name not in left_out and value != usual.get(name)}
        share = "" if self.plan.budget == 1 else f", with {100 * self.plan.budget:.3g} % of the steps"
        quality = f"NDCG@10 {best.value:.4f} on the validation item (best of {len(trials)} trials{share})"
        flags = " ".join(f"--{name}={value}" for name, value in changes.items())
        return f"# {quality}:\n{preset.command} {flags}"


def main(
    models: Sequence[str], plan: Plan, folder: Path, trials: int, data_dir: Path | None, threads: int | None
) -> int:
    """Searches for each model on each data set and prints the best settings. Returns 1 if one completes no trial."""
    if threads is not None:
        set_threads(threads)
    status = 0
    for dataset, model in itertools.product(plan.datasets, models):
        print(f"Searching settings of {model} on {dataset}", flush=True)
        search = Search(model, dataset, plan)
        results = search.run(trials, folder / f"{dataset}-{model}", data_dir)
        try:
            print(search.format_command(results), flush=True)
        except UserError as error:
            print(f"{model} on {dataset}: {error}", flush=True)
            status = 1
    return status
