"""The folder of one run: its files, and which run they belong to."""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bert4rec_tf.config.model_settings import MODEL_SETTINGS
from bert4rec_tf.config.presets import shorten_warmup
from bert4rec_tf.config.run_record import TRAININGS, Run
from bert4rec_tf.config.time_budget import PLANNED, Budget
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.evaluation.metrics import NDCG
from bert4rec_tf.export.layout import ATTRIBUTES, CONFIG, SAVED_MODEL, TITLES
from bert4rec_tf.foundation import files, npz, stores
from bert4rec_tf.foundation.errors import UserError, format_error
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.foundation.npz import CorruptFileError
from bert4rec_tf.foundation.warning import TrainingWarning, warn

Part = TypeVar("Part", "RawIds", Features)

CONFIG_FORMAT = 5
"""The version of the layout. Incompatible changes increase it."""

TRAINING_NAMES = {*itertools.chain(*TRAININGS.values())}
"""The names of the folders of trainings."""

COUNTED, COUNTED_ANY, HISTORY_LENGTHS, TARGET_COUNTS = "counted", "counted_any", "lengths", "target_counts"
"""Arrays of the ranks' file, int [users]: the target's rank by item_transitions under FULL and, if measured, ANY, the
length of the history, and how often training saw the target."""

IN_USE = "another process is using this folder; wait for it, or name another --workdir"
ELSEWHERE = "name another --workdir"

FOLLOWING = ("evaluate_every", "masked_batch_size", "warmup_steps")
"""Settings that follow from others, as almost all do from the model."""


class UnknownClassError(UserError):
    """A run's model has a class that is not imported."""


def refuse_unknown_class(folder: Any, model: Any) -> None:
    """Raises UnknownClassError for the name of a model that is not known. `folder`: where it stands."""
    if isinstance(model, str) and model not in MODEL_SETTINGS:
        raise UnknownClassError(f"{folder}: its model is {model}, of your own; import its class in Python first")


@dataclass(frozen=True, eq=False)
class RawIds:
    """The raw ids of a run, and how often each item occurs.

    Attributes:
        vocabulary: the items and their counts in all data.
        training_counts: how often each item occurs in what the final model is trained on, int64 [n].
        users: the raw user ids if the model has user embeddings, else empty.
    """

    vocabulary: Vocabulary
    training_counts: np.ndarray
    users: Sequence[str] = ()

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "items": npz.encode_lines(self.vocabulary.items),
            "counts": self.vocabulary.counts,
            "training_counts": self.training_counts,
            "users": npz.encode_lines(self.users),
        }

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the ids and counts, in their order."""
        return npz.compute_fingerprint(self.arrays())

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "RawIds":
        """Returns what `arrays` was made of. Raises KeyError or ValueError for anything else."""
        vocabulary = Vocabulary(Lines(arrays["items"].tobytes() + b"\n"), arrays["counts"])
        return cls(vocabulary, arrays["training_counts"], npz.decode_lines(arrays["users"]))


@dataclass(frozen=True)
class RunConfig:
    """The content of `config.json`: what a run started with. Entries that are None are left out.

    Attributes:
        run: the settings.
        data_fingerprint, ids_fingerprint: of the data (`Sequences.fingerprint`) and the ids (`RawIds.fingerprint`).
        num_users: number of users in the data.
        environment: from `describe_environment`.
        repeats: the share of the "validation" targets that are in their user's history.
        features: kind of features -> their fingerprint.
        actions_fingerprint: of the data without their features; None if they have none.
        columns: the columns of the data, for a later export.
        initial: the record of a warm start.
        interactions: the user's own files, as `Interactions.to_dict` has them.
        plan: the record of a budget: before the plan `minutes` and `named` (`Budget.record`), after it `minutes` and
            `max_seconds` of the first training.
    """

    run: Run
    data_fingerprint: str
    ids_fingerprint: str
    num_users: int
    environment: dict[str, Any]
    repeats: dict[str, float]
    features: dict[str, str] | None = None
    actions_fingerprint: str | None = None
    columns: dict[str, Any] | None = None
    initial: dict[str, Any] | None = None
    interactions: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        record = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        entries = {name: value for name, value in record.items() if value is not None}
        return {**entries, "format": CONFIG_FORMAT, "digest": self.run.digest, "run": self.run.to_dict()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "RunConfig":
        """Rebuilds what `to_dict` returned. Raises KeyError, TypeError or ValueError for anything else."""
        entries = dict(content)
        if (version := entries.pop("format")) != CONFIG_FORMAT:
            raise ValueError(f"made by another version of this program: format {version}; this one has {CONFIG_FORMAT}")
        digest, entries["run"] = entries.pop("digest"), Run.from_dict(entries["run"])
        if digest != entries["run"].digest:
            raise ValueError("the settings were changed since the run started")
        return cls(**entries)


class WorkDirectory:
    """The folder of one run. Refuses any other run.

    Attributes:
        path: the folder. Each training has a folder in it, named SELECT, RETRAIN or ALL (`config.run_record`).
        prepared: the folder of training examples and candidates; many runs can share it.
        config, metrics, ranks, export: the settings, the results, the ranks of the test items, the exported model.
        vocabulary: the raw ids and counts (`RawIds`).
        transitions: how transitions are counted.
        titles, attributes: of the items, if some were given.
        is_read_only: whether this machine only reads, because another one holds the lock and writes.
    """

    is_read_only: bool = False

    def __init__(self, path: Path | str, prepared: Path | str | None = None) -> None:
        self.path = path = stores.expand_local_path(path, "workdir")
        self.prepared = stores.expand_local_path(prepared or path / "prepared", "prepared_dir")
        self.config, self.metrics, self.ranks = path / CONFIG, path / "metrics.json", path / "ranks-test.npz"
        self.vocabulary, self.transitions = path / "vocabulary.npz", path / "transitions.json"
        self.titles, self.attributes = path / TITLES.name, path / ATTRIBUTES.name
        self.export = path / SAVED_MODEL
        self._lock = files.FolderLock(path, busy_message=IN_USE)

    @classmethod
    def from_run(
        cls,
        run: Run,
        path: Path | str | None = None,
        prepared: Path | str | None = None,
        budget: Budget | None = None,
    ) -> "WorkDirectory":
        """Returns the folder at `path`, else `runs/<dataset>-<model>-<digest>`. `budget`: of a run to be planned."""
        if path is not None and not str(path):
            raise UserError("`workdir` must name a folder. Received: an empty name")
        suffix = "" if budget is None else f"-{budget.minutes:g}min"
        return cls(path or Path("runs") / f"{run.dataset}-{run.model}-{run.digest}{suffix}", prepared)

    def features_path(self, name: str) -> Path:
        """Returns the file of the features `name`, with rows in the order of the vocabulary or users."""
        return self.path / f"{name}.npz"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder for this process. The lock is reentrant.

        Raises UserError if another process has the lock, or the folder holds something else or cannot be written.
        """
        self.refuse_foreign()
        if self.is_read_only:
            yield
            return
        with self._lock.lock() as first:
            if first:
                for folder in (path for path in self.path.iterdir() if path.is_dir() and path != self.prepared):
                    files.remove_partials(folder)
            yield

    def refuse_foreign(self) -> None:
        """Raises UserError if the folder holds something else than a run, or a run that this version cannot read."""
        if self.config.exists():
            self.read_config()
        elif self.path.exists() and (
            not self.path.is_dir() or any(path != self.prepared for path in files.list_content(self.path))
        ):
            raise UserError(f"{self.path}: is not a work directory of this program, and not empty; {ELSEWHERE}")

    def initialize(
        self,
        run: Run,
        sequences: Sequences,
        ids: RawIds,
        environment: dict[str, Any],
        **records: dict[str, Any] | None,
    ) -> None:
        """Writes the run into a new folder, or checks that the folder belongs to the run and its data.

        Warns if the environment (`describe_environment`) has changed. `records`: further entries of `RunConfig`; a
        budget takes the place of one that nothing was planned for.

        Raises UserError if the folder holds another run, other data or something else, or cannot be written.
        """
        self._check_prepared()
        self.refuse_foreign()
        if self.prepared.parent != self.path:
            files.make_folder(self.prepared)
        with self.lock():
            if self.config.exists():
                self._check(run, sequences, environment)
                if self.can_be_planned():
                    self.write_plan(run, records.get("plan"))
            else:
                features = {name: values.fingerprint for name, values in sequences.features.items()} or None
                fingerprints = sequences.fingerprint, ids.fingerprint
                options: dict[str, Any] = {**records, "features": features}
                if features is not None:
                    options["actions_fingerprint"] = dataclasses.replace(sequences, features={}).fingerprint
                config = RunConfig(run, *fingerprints, sequences.num_users, environment, **options)
                files.write_json(self.config, config.to_dict())
            if not self.vocabulary.exists():
                npz.write(self.vocabulary, ids.arrays())
            self.read_ids()
            for name, features in sequences.features.items():
                if not self.features_path(name).exists():
                    npz.write(self.features_path(name), features.to_arrays())
            self.read_features()

    def _check_prepared(self) -> None:
        """Raises UserError if the folder of examples is that of a run or a training, which may be deleted to repeat."""
        folder = self.prepared.resolve()
        is_training = folder.name in TRAINING_NAMES and (
            folder.parent == self.path.resolve() or (folder.parent / CONFIG).exists()
        )
        if is_training or folder == self.path.resolve() or (folder / CONFIG).exists():
            raise UserError(
                "`prepared_dir` must be another folder than those of runs and trainings. "
                f"Received: prepared_dir={self.prepared}"
            )

    def check_run(self, run: Run) -> None:
        """Raises UserError if the folder holds another run."""
        config = self.read_config()
        if config.run.digest != run.digest:
            difference = _describe_first_difference(config.run.to_dict(), run.to_dict())
            plan = f", planned with --minutes={config.plan['minutes']:g}" if config.plan else ""
            raise UserError(
                f"{self.path}: holds another run ({difference}){plan}; name another --workdir or change it back"
            )

    def check_data(self, sequences: Sequences) -> None:
        """Raises UserError if the run was made from other data."""
        config = self.read_config()
        if config.data_fingerprint != sequences.fingerprint:
            name = config.run.dataset
            raise UserError(f"{self.path}: was made from other data than {name!r} has now; {ELSEWHERE}")

    def _check(self, run: Run, sequences: Sequences, environment: dict[str, Any]) -> None:
        self.check_run(run)
        config = self.read_config()
        record, features = config.features or {}, {name: f.fingerprint for name, f in sequences.features.items()}
        for name in sorted({*record, *features}):
            if record.get(name) != features.get(name):
                difference = "was made with other features" if name in record else "was made without features"
                raise UserError(f"{self.path}: {difference} than --{name} has now; {ELSEWHERE}")
        self.check_data(sequences)
        if config.environment != environment:
            change = _describe_first_difference(config.environment, environment)
            warn(
                f"{self.path}: was started in another environment ({change}); the last bits of its results may differ",
                TrainingWarning,
            )

    def read_config(self) -> RunConfig:
        """Returns what the run started with.

        Raises UserError if this version cannot read it, or its model's class is the user's own and not imported.
        """
        try:
            content = json.loads(self.config.read_text(encoding="utf-8"))
            if content["format"] == CONFIG_FORMAT:
                refuse_unknown_class(self.path, content["run"]["model"])
            return RunConfig.from_dict(content)
        except UnknownClassError:
            raise
        except OSError as error:
            raise UserError(f"{self.path}: no work directory ({self.config.name}: {error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.config}: not a run that this version can read ({format_error(error)}); {ELSEWHERE}"
            ) from error

    def read_metrics(self) -> dict[str, Any] | None:
        """Returns `metrics.json`; None before the evaluation. Raises UserError if it is damaged or of another run."""
        if not self.metrics.exists():
            return None
        content = files.read_json(self.metrics)
        try:
            digest = self.read_config().run.digest
        except UnknownClassError:  # metrics need no class
            digest = files.read_json(self.config)["digest"]
        if not isinstance(content, dict) or content.get("digest") != digest:
            raise UserError(f"{self.metrics}: is not of this run; run with --mode=evaluate")
        return content

    def read_ids(self) -> RawIds:
        """Returns the raw ids and counts of the run. Raises UserError if they are missing or have changed."""
        advice = "delete it, and run with --mode=evaluate to have it written again"
        return self._read(self.vocabulary, RawIds.from_arrays, self.read_config().ids_fingerprint, advice)

    def count_items(self) -> int:
        """Returns the number of items, without the checks of `read_ids`. Raises CorruptFileError if it is not there."""
        return len(npz.read(self.vocabulary, ["counts"])["counts"])

    def read_features(self) -> dict[str, Features]:
        """Returns the features of the run by name. Raises UserError if they are missing or have changed."""
        advice = "delete it, and run with --{}=FILE to have it written again"
        return {
            name: self._read(self.features_path(name), Features.from_arrays, fingerprint, advice.format(name))
            for name, fingerprint in (self.read_config().features or {}).items()
        }

    def _read(self, path: Path, make: Callable[[dict[str, np.ndarray]], Part], fingerprint: str, advice: str) -> Part:
        """Returns what a file's arrays make. Raises UserError unless it has the fingerprint."""
        try:
            part = make(npz.read(path))
            if part.fingerprint != fingerprint:
                raise ValueError("it does not fit the checkpoints")
            return part
        except CorruptFileError as error:
            raise UserError(f"{error}; {advice}") from error
        except (KeyError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error}); {advice}") from error

    def read_planned(self, run: Run, budget: Budget | None) -> Run:
        """Returns the run with the planned settings, if the folder has a plan for this budget.

        What the user named stays, so that another value is another run; a long warm-up is shortened as in the plan.

        Raises UserError if the folder has a plan for another budget, or a training without a plan.
        """
        if budget is None or self.can_be_planned():
            return run
        config = self.read_config()
        plan, settings = config.plan or {}, config.run.flatten()
        if plan.get("minutes") != budget.minutes:
            minutes = f"{plan['minutes']:g}" if plan else "left out"
            raise UserError(f"`minutes` must be {minutes}, as in {self.path}. Received: minutes={budget.minutes:g}")
        changes = {name: settings[name] for name in PLANNED if name in settings and name not in budget.named_settings}
        if "warmup_steps" in budget.named_settings:
            changes["warmup_steps"] = shorten_warmup(
                run.training.warmup_steps, run.training.steps, config.run.training.steps
            )
        return run.change(**changes)

    def can_be_planned(self) -> bool:
        """Returns whether no plan was made, and no training has begun without one."""
        plan = self._read_plan()
        if plan is not None:
            return "max_seconds" not in plan
        return not any((self.path / name).exists() for name in TRAINING_NAMES)

    def read_unplanned_budget(self) -> Budget | None:
        """Returns the budget whose plan was refused, or stopped before it was made; None if there is none."""
        plan = self._read_plan()
        return None if plan is None or "max_seconds" in plan else Budget(plan["minutes"], plan["named"])

    def _read_plan(self) -> dict[str, Any] | None:
        return self.read_config().plan if self.config.exists() else None

    def write_plan(self, run: Run, plan: dict[str, Any] | None) -> None:
        """Puts the planned run and the record of its plan in place of those before."""
        config = self.read_config()
        if (config.run.digest, config.plan) != (run.digest, plan):
            files.write_json(self.config, dataclasses.replace(config, run=run, plan=plan).to_dict())

    def write_transitions(self, record: dict[str, Any]) -> None:
        """Writes how transitions are counted."""
        if not self.is_read_only:
            files.write_json(self.transitions, record)

    def read_transitions(self) -> dict[str, Any]:
        """Returns what `write_transitions` wrote; empty before that. Raises UserError if it is damaged."""
        try:
            record = json.loads(self.transitions.read_text(encoding="utf-8"))
            settings = ItemTransitionsSettings(**record["settings"]).record()
            return {**record, "settings": settings, NDCG: float(record[NDCG])}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.transitions}: cannot be read ({error}); delete {self.path} to train again"
            ) from error


def _describe_first_difference(old_values: dict[str, Any], new_values: dict[str, Any]) -> str:
    for name in sorted({*old_values, *new_values}, key=lambda name: (name != "model", name in FOLLOWING, name)):
        value, new_value = old_values.get(name), new_values.get(name)
        if isinstance(value, dict) and isinstance(new_value, dict) and value != new_value:
            return _describe_first_difference(value, new_value)
        if value != new_value:
            return f"there {name}={value}, now {name}={new_value}"
    return "with other settings"
