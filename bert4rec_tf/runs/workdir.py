"""The folder of one run: its files, and which run they belong to."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.config.run_record import Run, compute_digest
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.data.sequences import Sequences, Vocabulary, compute_fingerprint
from bert4rec_tf.evaluation.metrics import NDCG
from bert4rec_tf.export.layout import CONFIG, SAVED_MODEL, TITLES
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.foundation.npz import CorruptFileError
from bert4rec_tf.foundation.progress import warn

FORMAT = 4
"""The version of the layout. Incompatible changes increase it."""

BUSY = "another process is using this folder; wait for it, or name another --workdir"
ELSEWHERE = "name another --workdir"
BAD_FEATURES = "does not fit the checkpoints; delete it, and run with --{}=FILE to have it written again"


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

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "RawIds":
        """Returns what `arrays` was made of. Raises KeyError or ValueError for anything else."""
        vocabulary = Vocabulary(Lines(arrays["items"].tobytes() + b"\n"), arrays["counts"])
        return cls(vocabulary, arrays["training_counts"], npz.decode_lines(arrays["users"]))


class WorkDirectory:
    """The folder of one run. Refuses any other run.

    Attributes:
        path: the folder. Each training has a folder in it, named SELECT, RETRAIN or ALL (`config.run_record`).
        prepared: the folder of training examples and candidates; many runs can share it.
        config, metrics, ranks, export: the settings, the results, the ranks of the test items, the exported model.
        vocabulary: the raw ids and counts (`RawIds`).
        transitions: how transitions are counted.
        titles: of the items, if `fit` was given some.
        is_read_only: whether this machine only reads, because another one holds the lock and writes.
    """

    is_read_only: bool = False

    def __init__(self, path: Path, prepared: Path | None = None) -> None:
        self.path = path = files.expand_local_path(path, "workdir")
        self.prepared = files.expand_local_path(prepared or path / "prepared", "prepared_dir")
        self.config, self.metrics, self.ranks = path / CONFIG, path / "metrics.json", path / "ranks-test.npz"
        self.vocabulary, self.transitions = path / "vocabulary.npz", path / "transitions.json"
        self.titles, self.export = path / TITLES.name, path / SAVED_MODEL
        self._lock = files.FolderLock(path, busy=BUSY)

    @classmethod
    def from_run(
        cls, run: Run, path: Path | None = None, prepared: Path | None = None, minutes: float | None = None
    ) -> "WorkDirectory":
        """Returns the folder at `path`, else `runs/<dataset>-<model>-<digest>`. `minutes`: of a run to be planned."""
        planned = "" if minutes is None else f"-{minutes:g}min"
        return cls(path or Path("runs") / f"{run.dataset}-{run.model}-{run.digest}{planned}", prepared)

    def features_path(self, name: str) -> Path:
        """Returns the file of the features `name`, in the order of the vocabulary or the users (`data.features`)."""
        return self.path / f"{name}.npz"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder for this process. The lock is reentrant.

        Raises UserError if another process has the lock, or the folder holds something else or cannot be written.
        """
        self._refuse_foreign()
        if self.is_read_only:
            yield
            return
        with self._lock.lock() as first:
            if first:
                for folder in (path for path in self.path.iterdir() if path.is_dir() and path != self.prepared):
                    files.remove_partials(folder)
            yield

    def _refuse_foreign(self) -> None:
        if self.config.exists():
            self.read_config()
        elif self.path.exists() and (
            not self.path.is_dir()
            or any(not files.is_leftover(path) for path in self.path.iterdir() if path != self.prepared)
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

        Warns if the environment (`describe_environment`) has changed. `records`: further entries of `config.json`, if
        not None: `initial` of a warm start, the `plan` of a budget, the user's own `interactions`, and for a later
        export `repeats` and `columns`.

        Raises UserError if the folder holds another run, other data or something else, or cannot be written.
        """
        if self.prepared.resolve() == self.path.resolve():
            raise UserError(
                f"`prepared_dir` must be another folder than `workdir`. Received: prepared_dir={self.prepared}"
            )
        self._refuse_foreign()
        if self.prepared.parent != self.path:
            files.make_folder(self.prepared)
        with self.lock():
            if self.config.exists():
                self._check(run, sequences, environment)
            else:
                content = {
                    "format": FORMAT,
                    "run": run.to_dict(),
                    "digest": run.digest,
                    "data_fingerprint": sequences.fingerprint,
                    "num_users": sequences.num_users,
                    "users_fingerprint": sequences.users_fingerprint,
                    "vocabulary_fingerprint": sequences.vocabulary.fingerprint,
                    "environment": environment,
                }
                content |= {name: record for name, record in records.items() if record is not None}
                if sequences.features:
                    content["features"] = compute_feature_fingerprints(sequences)
                files.write_json(self.config, content)
            self._write_ids(ids)
            for name, features in sequences.features.items():
                if not self.features_path(name).exists():
                    npz.write(self.features_path(name), features.to_arrays())
            self.read_features()

    def check_run(self, run: Run) -> dict[str, Any]:
        """Returns `config.json`. Raises UserError if it belongs to another run."""
        content = self.read_config()
        if content["digest"] != run.digest:
            changed = _describe_first_difference(content["run"], run.to_dict())
            raise UserError(f"{self.path}: holds another run ({changed}); name another --workdir or change it back")
        return content

    def check_data(self, sequences: Sequences) -> None:
        """Raises UserError if the run was made from other data."""
        content = self.read_config()
        if content["data_fingerprint"] != sequences.fingerprint:
            name = content["run"]["dataset"]
            raise UserError(f"{self.path}: was made from other data than {name!r} has now; {ELSEWHERE}")

    def _check(self, run: Run, sequences: Sequences, environment: dict[str, Any]) -> None:
        content = self.check_run(run)
        recorded, current = content.get("features", {}), compute_feature_fingerprints(sequences)
        for name in sorted({*recorded, *current}):
            if recorded.get(name) != current.get(name):
                difference = "was made with other features" if name in recorded else "was made without features"
                raise UserError(f"{self.path}: {difference} than --{name} has now; {ELSEWHERE}")
        self.check_data(sequences)
        if content["environment"] != environment:
            changed = _describe_first_difference(content["environment"], environment)
            warn(
                f"{self.path}: was started in another environment ({changed}); the last bits of its results may differ"
            )

    def _write_ids(self, ids: RawIds) -> None:
        """Writes the ids, or checks those that were written. Raises UserError if they differ."""
        if not self.vocabulary.exists():
            npz.write(self.vocabulary, ids.arrays())
        written = self.read_ids().arrays()
        if not all(np.array_equal(written[name], array) for name, array in ids.arrays().items()):
            raise self._bad_vocabulary(f"{self.vocabulary}: does not fit the data")

    def read_config(self) -> dict[str, Any]:
        """Returns `config.json`. Raises UserError if it is missing, invalid or of another version."""
        try:
            content = json.loads(self.config.read_text(encoding="utf-8"))
            version = content["format"]
            if version == FORMAT:
                _check_record(content)
        except OSError as error:
            raise UserError(f"{self.path}: no work directory ({self.config.name}: {error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.config}: not the configuration of a run ({error}); {ELSEWHERE}") from error
        if version != FORMAT:
            raise UserError(
                f"{self.path}: was made by another version of this program (format {version}; this one has {FORMAT}); "
                f"{ELSEWHERE}"
            )
        return content

    def read_metrics(self) -> dict[str, Any] | None:
        """Returns `metrics.json`; None before the evaluation. Raises UserError if it is damaged or of another run."""
        try:
            content = json.loads(self.metrics.read_text(encoding="utf-8"))
            digest = content["digest"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.metrics}: cannot be read ({error}); run with --mode=evaluate") from error
        if digest != self.read_config()["digest"]:
            raise UserError(f"{self.metrics}: is of another run; run with --mode=evaluate")
        return content

    def read_ids(self) -> RawIds:
        """Returns the raw ids and counts of the run. Raises UserError if they are missing or have changed."""
        try:
            ids = RawIds.from_arrays(npz.read(self.vocabulary))
        except CorruptFileError as error:
            raise self._bad_vocabulary(str(error)) from error
        except (KeyError, ValueError) as error:
            raise self._bad_vocabulary(f"{self.vocabulary}: cannot be read ({error})") from error
        config = self.read_config()
        same_items = ids.vocabulary.fingerprint == config["vocabulary_fingerprint"]
        same_users = not ids.users or compute_fingerprint(list(ids.users)) == config["users_fingerprint"]
        lengths = {len(ids.vocabulary.counts), len(ids.training_counts)}
        if not (same_items and same_users and lengths == {ids.vocabulary.num_items}):
            raise self._bad_vocabulary(f"{self.vocabulary}: does not fit the checkpoints")
        return ids

    def _bad_vocabulary(self, why: str) -> UserError:
        return UserError(f"{why}; delete it, and run with --mode=evaluate to have it written again")

    def read_features(self) -> dict[str, Features]:
        """Returns the features of the run by name. Raises UserError if they are missing or have changed."""
        features = {}
        for name, fingerprint in self.read_config().get("features", {}).items():
            try:
                features[name] = Features.from_arrays(npz.read(self.features_path(name)))
            except (UserError, ValueError) as error:
                raise UserError(f"{self.features_path(name)}: {BAD_FEATURES.format(name)} ({error})") from error
            if features[name].fingerprint != fingerprint:
                raise UserError(f"{self.features_path(name)}: {BAD_FEATURES.format(name)}")
        return features

    def write_transitions(self, record: dict[str, Any]) -> None:
        """Writes how transitions are counted, and how many pairs of items each training has counted."""
        if not self.is_read_only:
            files.write_json(self.transitions, record)

    def read_transitions(self) -> dict[str, Any]:
        """Returns what `write_transitions` wrote; empty before that. Raises UserError if it is damaged."""
        try:
            record = json.loads(self.transitions.read_text(encoding="utf-8"))
            settings = ItemTransitionsSettings(**record["settings"]).record()
            return {**record, "settings": settings, NDCG: float(record[NDCG]), "pairs": dict(record["pairs"])}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.transitions}: cannot be read ({error}); delete {self.path} to train again"
            ) from error

    def read_num_pairs(self, phase: str) -> int:
        """Returns how many pairs of items a training has counted. Raises UserError if it has not started."""
        record = self.read_transitions()
        if phase not in record.get("pairs", {}):
            raise UserError(f"{self.path / phase}: no finished training; run with --mode=train first")
        return record["pairs"][phase]


def _check_record(content: dict[str, Any]) -> None:
    """Raises UserError, KeyError or TypeError if `config.json` lacks something or was changed."""
    Run.from_dict(content["run"])
    content["data_fingerprint"], content["vocabulary_fingerprint"], content["users_fingerprint"]
    content["num_users"], {**content["environment"], **content.get("features", {})}
    interactions_from_config(content)
    content["repeats"]["validation"] + 0.0
    initial = content.get("initial", {"path": "", "leak": ""})
    initial["path"], initial["leak"]
    if content["digest"] != compute_digest(content["run"]):
        raise UserError("the settings were changed since the run started")


def compute_feature_fingerprints(sequences: Sequences) -> dict[str, str]:
    return {name: features.fingerprint for name, features in sequences.features.items()}


def interactions_from_config(config: dict[str, Any]) -> Interactions | None:
    """Returns the user's own files of a run; None for a data set."""
    return Interactions(**config["interactions"]) if "interactions" in config else None


def _describe_first_difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    for name in sorted({*old, *new}):
        value, other = old.get(name), new.get(name)
        if isinstance(value, dict) and isinstance(other, dict) and value != other:
            return _describe_first_difference(value, other)
        if value != other:
            return f"there {name}={value}, now {name}={other}"
    return "with other settings"
