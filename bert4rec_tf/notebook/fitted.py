"""A trained model in a notebook: recommendations, similar items and metrics, by the data's own ids."""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bert4rec_tf.config import presets
from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.config.model_settings import ITEM_FEATURES, USER_FEATURES, settings_for_features
from bert4rec_tf.config.run_record import SELECT, Run
from bert4rec_tf.config.time_budget import Budget
from bert4rec_tf.data.id_texts import to_text, to_texts
from bert4rec_tf.data.reading.feature_files import refuse_unused_new_items, with_features
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.evaluation.metrics import METRICS, name_metrics
from bert4rec_tf.export.functions import LOG_PROBABILITIES, POPULAR
from bert4rec_tf.export.layout import CONFIG, MODEL, SAVED_MODEL, TITLES, find_newest_version
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.foundation import files, stores
from bert4rec_tf.foundation.errors import UserError, speak_python, unknown_name_error
from bert4rec_tf.foundation.processes import claim_tensorflow
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.foundation.stores import LocalCopy, Url
from bert4rec_tf.foundation.warning import DataWarning, TrainingWarning, UnknownIdWarning, warn
from bert4rec_tf.models import MODELS
from bert4rec_tf.notebook.argument_names import check_names, list_arguments, refuse_unknown_names
from bert4rec_tf.notebook.measuring import measure_actions
from bert4rec_tf.notebook.showing import describe_model, plot_quality
from bert4rec_tf.notebook.user_tables import list_users
from bert4rec_tf.runs import exporting, updating
from bert4rec_tf.runs.experiment import open_experiment, run_mode
from bert4rec_tf.runs.folder import WorkDirectory
from bert4rec_tf.serving import batch
from bert4rec_tf.serving.client import Choices, SavedRecommender, warn_of_popular
from bert4rec_tf.serving.titles import format_titles

FIXED = {"data", "model", "preset", "holdout", "titles", "init_from", "minutes", "tune"}
"""What `continue_training` does not take, unlike `fit`."""

TRAINED_SHARE = 0.01
"""`continue_training` trains if new actions are this share of the known ones."""

CHOICES = {"exclude", "candidates", "exclude_seen", "popularity_correction"}
"""What `recommend_all` passes on."""

NOT_COPIED = ("prepared", ".lock", "*.partial")
"""What `save` does not copy from a work directory."""


@dataclass(eq=False, repr=False)
class FittedModel:
    """A trained model, as `fit` and `open` return it. Items and users are named by the ids of the data.

    Ids may be passed as integers or as texts. They are returned as integers if those of a table, a Parquet or a CSV
    file were, and else as texts.

    Attributes:
        saved: the SavedModel that computes everything.
        workdir: the work directory of its training; None for a SavedModel alone.
        titles: raw id, as a text -> title; empty if no titles are known.
        trials: what `fit(tune=)` tried, the best first: the settings, and `ndcg@10` on the validation items; None if
            nothing was searched, and of an opened model.
    """

    saved: SavedRecommender
    workdir: Path | None = None
    titles: Mapping[str, str] = field(default_factory=dict)
    trials: pd.DataFrame | None = None
    _scratch: Any = None  # the folders last as long as the model

    @speak_python()
    def recommend(
        self,
        user: Any = None,
        history: Iterable[Any] | None = None,
        k: int = 10,
        exclude: Iterable[Any] = (),
        candidates: Iterable[Any] | None = None,
        exclude_seen: bool | None = None,
        popularity_correction: float | None = None,
        users: Any = None,
        where: str | None = None,
        attributes: Any = None,
        explain: bool = False,
    ) -> pd.DataFrame:
        """Recommends to one user of the data, or after any history; or to `users`, as `recommend_all` does.

        Args:
            user: the user to recommend to; an unknown one gets what is popular (`recommend_all`), after a warning. With
                a `history`, only models with user embeddings need it.
            history: items, oldest first, in place of the user's own. Unknown ones are skipped with a warning.
            k: number of items.
            exclude: items to leave out.
            candidates: the items to rank, at least one; None for all.
            exclude_seen: whether to leave out the items of the history; None for the model's default, which is
                False if many of the data's next actions are items that the user had before.
            popularity_correction: 0 or more: rank by score - this * log(count + 1); None for the model's default.
            users: several users, in place of `user`.
            where: a condition that the items must meet: `in_stock and price < 20` (`serving.rules.Attributes`).
            attributes: a file or a table with the items' ids and attributes; None for `fit`'s `item_features`.
            explain: whether to add the columns `reasons`, the items of the history that raise the item with their
                shares, and, of models with probabilities, `lift`: how many times likelier it is than without a history.

        Returns:
            Columns `rank` (from 1), `item`, `score`, and `title` if titles are known. As many rows as k, if there are.

        Raises:
            UserError: if neither a user nor a history is given; or for `users` beside these.
        """
        options: dict[str, Any] = {
            "exclude": exclude,
            "candidates": candidates,
            "exclude_seen": exclude_seen,
            "popularity_correction": popularity_correction,
        }
        if users is not None:
            if user is not None or history is not None or explain:
                raise UserError("`users` cannot be given with `user`, `history` or `explain`, which are for one user")
            return self.recommend_all(users, k=k, where=where, attributes=attributes, **options)
        if user is None and history is None:
            raise UserError("`recommend` needs a `user` or a `history`. Received: neither")
        if pd.api.types.is_list_like(user):
            raise UserError(
                f"`user` must be one id; `recommend_all(users)` takes several. Received: a {type(user).__name__}"
            )
        user_id = "" if user is None else to_text("user", user, self.saved.knows_user)
        items = self.saved.get_history(user_id) if history is None else self._texts("history", history)
        choices = self._read_choices(k, where, attributes, **options)
        answer = self.saved.recommend([items], [user_id], choices)
        if history is None and not items:
            warn_of_popular(answer.list_popular([user_id]), 1)
        else:
            self.saved.warn_about_history(items, user_id, answer)
        table = self._table(answer.items[0], answer.scores[0])
        if not explain:
            return table
        answers = self.saved.explain(items, user_id, answer.items[0])
        for reason in (reason for answer in answers for reason in answer["reasons"]):
            (reason["item"],) = self._restore_ids("item", [reason["item"]])
        names = ("reasons", "lift") if self.saved.card.get("scores") == LOG_PROBABILITIES else ("reasons",)
        return table.assign(**{name: [answer[name] for answer in answers] for name in names})

    @speak_python()
    def recommend_all(
        self,
        users: Any = None,
        k: int = 10,
        silent: bool = False,
        histories: Sequence[Iterable[Any]] | None = None,
        where: str | None = None,
        attributes: Any = None,
        **options: Any,
    ) -> pd.DataFrame:
        """Recommends to many users or histories at once: to unknown users and empty histories what is popular.

        That is counted in all actions, and as much in the newest tenth, if their times are known. One line counts these
        users.

        Args:
            users: the users to recommend to, or a table with a column of them; None for all. With `histories`, only
                models with user embeddings need them.
            k: number of items for each.
            silent: whether to hide the progress.
            histories: items, oldest first, for each user in place of the user's own.
            where, attributes: as for `recommend`.
            **options: `exclude`, `candidates`, `exclude_seen` and `popularity_correction`, as for `recommend`.

        Returns:
            Columns `user` (without `users`, the place in `histories`, from 0), `rank`, `item`, `score`, `basis`
            ("history" or "popular"), and `title` if titles are known.
        """
        user_ids = None if users is None else list_users(users, self.saved)
        if histories is not None:
            rows = self._name_rows(histories, user_ids)
        else:
            sequences = self.saved.require_histories() if user_ids is None else self.saved.select_histories(user_ids)
            rows = batch.list_rows(sequences, 0, sequences.num_users)
        if unknown_names := options.keys() - CHOICES:
            raise unknown_name_error("argument", min(unknown_names), sorted(CHOICES))
        choices = self._read_choices(k, where, attributes, **options)
        progress = Progress("recommending", -(-len(rows) // batch.BATCH_USERS), 0, batch.BATCH_USERS, silent=silent)
        has_users = histories is None or user_ids is not None
        columns = batch.recommend_rows(self.saved, rows, choices, self.titles, progress, has_users)
        progress.close()
        table = pd.DataFrame({**columns, "item": self.saved.restore_ids("item", list(columns["item"]))})
        got_popular = (table["rank"] == 1) & (table["basis"] == POPULAR)
        if rows and self.saved.needs_users and not has_users:
            warn("the model needs to know the users; without `users`, all get what is popular", UnknownIdWarning)
        else:
            warn_of_popular(table["user"][got_popular].tolist(), len(rows))
        if not has_users:
            table["user"] = table["user"].astype(int)
        else:
            with contextlib.suppress(UserError):  # an unknown user may have another type than those of the data
                table["user"] = self.saved.restore_ids("user", table["user"])
        return table if self.titles else table.drop(columns="title")

    def _name_rows(self, histories: Sequence[Iterable[Any]], users: Sequence[str] | None) -> list[batch.Row]:
        """Returns histories with their users, or their places. Raises UserError for more or fewer users."""
        is_nested = pd.api.types.is_list_like(histories) and not isinstance(histories, (Mapping, set, pd.DataFrame))
        rows = list(histories) if is_nested else []
        if not is_nested or not all(map(pd.api.types.is_list_like, rows)):
            raise UserError(f"`histories` must be a list of lists of items. Received: histories={histories!r}")
        texts = [self._texts("histories", history) for history in rows]
        if users is not None and len(users) != len(texts):
            raise UserError(f"`users` must be as many as `histories`, {len(texts)}. Received: {len(users)}")
        return list(zip(map(str, range(len(texts))) if users is None else users, texts))

    @speak_python()
    def similar(self, item: Any, k: int = 10, where: str | None = None, attributes: Any = None) -> pd.DataFrame:
        """Returns the most similar items, in the columns of `recommend`; for a list of items, after `similar_to`.

        Similarity is the cosine of the items' vectors; for item_transitions, the strength of the pair.
        `where`, `attributes`: as for `recommend`.

        Raises:
            UserError: if an item is unknown, or the model cannot compare items (POP).
        """
        is_list = pd.api.types.is_list_like(item)
        queries = self._texts("item", item) if is_list else [to_text("item", item, self.saved.knows_item)]
        answer = self.saved.similar(queries, k, where, attributes)
        for query, is_unknown in zip(queries, answer.unknown):
            if is_unknown:
                raise UserError(f"`item` must be an item of the data. Received: item={query}")
        parts = [self._table(*pair) for pair in zip(answer.items, answer.scores)]
        if not is_list:
            return parts[0]
        names = self.saved.restore_ids("item", queries)
        for part, name in zip(parts, names):
            part.insert(0, "similar_to", name)
        empty_table = self._table([], np.empty(0)).assign(similar_to=[])
        return pd.concat(parts, ignore_index=True) if parts else empty_table[["similar_to", *empty_table.columns[:-1]]]

    @property
    def items(self) -> list[Any]:
        """The items, the most popular first. Row i of `item_vectors` belongs to `items[i]`."""
        return self._restore_ids("item", list(self.saved.items))

    @property
    def users(self) -> list[Any]:
        """The users whose histories the model holds. Raises UserError if it holds none."""
        return self._restore_ids("user", self.saved.require_histories().users.tolist())

    @cached_property
    def item_vectors(self) -> np.ndarray:
        """The vectors of all items, float32 [n, d]. Raises UserError for a model that only counts."""
        return self.saved.item_vectors(list(self.saved.items))

    @speak_python()
    def user_vectors(self, histories: Sequence[Iterable[Any]], users: Iterable[Any] | None = None) -> np.ndarray:
        """Returns the vectors of users with these histories, float32 [b, d]: zeros where nothing is known.

        `users`: for models with user embeddings, which need them. Unknown items are skipped with a warning.
        """
        ids = None if users is None else to_texts("users", users, self.saved.knows_user)
        rows = self._name_rows(histories, ids)
        if self.saved.needs_users:
            if ids is None:
                raise UserError("`users` must be given: the model needs to know the users. Received: users=None")
            strangers = list(itertools.compress(ids, ~self.saved.users.contains_each(ids)))
            if strangers:
                warn(
                    f"{len(strangers):,} of the {len(ids):,} users are unknown, and their vectors are zeros (such as "
                    f"{strangers[0]!r})",
                    UnknownIdWarning,
                )
        self.saved.warn_of_unknown_items([item for _, history in rows for item in history], "items in the histories")
        return self.saved.encode([history for _, history in rows], [user for user, _ in rows])

    @speak_python()
    @refuse_unknown_names
    def evaluate(
        self,
        test: Any,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        k: int | Iterable[int] | None = None,
        per_user: bool = False,
        distances: bool = False,
    ) -> pd.DataFrame:
        """Measures the model on actions that it was not trained on.

        Each row of the test data is one case: the model ranks its item, given the user's whole history. The items of
        the user's other rows are not candidates, except where the user had them before and seen items are ranked too
        (`any`). Rows with an unknown user or item are left out with a warning.

        Args:
            test: as the data of `fit`.
            user, item, time: the columns; by default those of the data that the model was trained on, if the test data
                have them, and else as for `fit`.
            k: cut-offs, for HR, NDCG, MAP, precision and recall; None for HR and NDCG as `fit` measures them.
            per_user: whether to return the metrics of each case in place of their means.
            distances: whether to also measure the diversity and the serendipity of the best ten
                (`evaluation.metrics.DISTANCES`). Near items are those that co-occur in the known histories.

        Returns:
            A row for each metric, and a column for each protocol (`evaluation.metrics`). With `per_user`, a row for
            each case: the user, the item, its `rank` (from 1) among all items that the model may recommend, and the
            metrics.

        Raises:
            UserError: if no row has a known user and item, the model holds no histories, or lacks such columns; or for
                a cut-off below 1.
        """
        names = METRICS if k is None else name_metrics(k)
        claim_tensorflow()
        histories, columns = updating.read_all_histories(self.saved), self.saved.columns
        if cut := updating.find_cut(self.saved):
            warn(f"{cut}, so that items seen before these are ranked too", DataWarning)
        actions = inputs.load_any(test, user, item, time, to_train=False, needs_order=False, known_columns=columns)[1]
        return measure_actions(self.saved, histories, actions, names, per_user, distances)

    @speak_python()
    def continue_training(
        self,
        more: Any,
        test_from: str | float | None = None,
        train: bool | None = None,
        *,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        item_features: Any = None,
        user_features: Any = None,
        new_items: bool = False,
        workdir: Path | str | None = None,
        callbacks: Sequence[Callable[[dict[str, float]], None]] = (),
        silent: bool = False,
        **settings: Any,
    ) -> "FittedModel":
        """Returns a new model, trained on the old and the new actions, starting from the weights of this one.

        Rows of items and users are matched by raw ids. Each user's last actions are held out again. The best weights of
        `select` have not seen them, so training starts from these. Without `select`, it starts from weights that may
        have been trained on the last actions of users without new ones. With `test_from`, the new actions from then on
        are held out. The weights cannot have seen these, but may have seen the validation item, the action before them.
        A model that only counts is counted again. Few new actions are counted and not trained on (`update`), unless
        training is asked for: by `train`, or by any setting or option.

        Args:
            more: new actions, as the data of `fit`. Known ones among them count once, and all are ordered by time. If
                the known ones have no times, the new ones follow, and all count (`overlaps.join_actions`).
            test_from: as for `fit`, but for the new actions alone. That of `fit` does not apply.
            train: whether to train; None if there are settings or options (columns and `silent` are none), or new
                actions are TRAINED_SHARE of the known ones.
            user, item, time: the columns, as for `evaluate`.
            item_features, user_features, new_items, workdir, callbacks, silent: as for `fit`.
            **settings: as for `fit`. Those that are not named are those of this model.

        Raises:
            UserError: if the model has no work directory: a SavedModel's weights cannot be trained on; or the new times
                have another unit than the known ones.
        """
        if not isinstance(train, bool | None):
            raise UserError(f"`train` must be None, True or False. Received: train={train!r}")
        if names := settings.keys() & FIXED:
            raise UserError(f"`{min(names)}` cannot be given to `continue_training`, which keeps that of this model")
        check_names(settings, list_arguments(FittedModel.continue_training), "continue_training")
        check_callbacks(callbacks)
        sources = {ITEM_FEATURES: item_features, USER_FEATURES: user_features}
        new_features = {name: source for name, source in sources.items() if source is not None}
        is_given = {"test_from": test_from is not None, "workdir": workdir is not None, "new_items": new_items}
        is_given["callbacks"] = bool(callbacks)
        reasons = {*settings, *new_features, *(name for name in is_given if is_given[name])}
        if train is False and reasons:
            raise UserError(f"`{min(reasons)}` needs a training. Received: train=False")
        run = self._change_run(settings, new_features) if train or reasons else None  # before the data are read
        known_columns = self.saved.columns
        new = inputs.load_any(more, user, item, time, test_from, to_train=False, known_columns=known_columns)[1]
        data = updating.join_more(self.saved, new)
        if train is None:
            num_known = self.saved.require_histories().num_actions
            num_new = data.num_actions - num_known
            train = bool(reasons) or num_new >= TRAINED_SHARE * num_known
            if not train and num_new:
                warn(
                    f"{num_new:,} new actions are few, and so counted but not trained on; train=True trains",
                    TrainingWarning,
                )
        if not train:
            return self._update(data)
        run, origin = run or self._change_run(settings, new_features), self._require_workdir()
        features = origin.read_features()
        features |= {name: new.features[name] for name in features if name in new.features} | new_features
        data = with_features(data, **features, new_items=new_items, silent=silent)
        attributes = self.saved.attributes and self.saved.attributes.frame.reset_index()
        select_folder, start_weights = origin.path / SELECT, None
        if MODELS[run.model].examples is not None:
            start_weights = select_folder if select_folder.exists() else origin.path
        attributes = new_features.get(ITEM_FEATURES, attributes)
        return train_and_open(
            run, data, None, self.titles, start_weights, workdir, callbacks, silent, item_features=attributes
        )

    def _change_run(self, settings: Mapping[str, Any], new_features: Mapping[str, Any]) -> Run:
        """Returns the run of this model with some settings changed. Raises UserError for a wrong one."""
        run = self._require_workdir().read_config().run
        settings_for_features(run.model, new_features.keys() - {ITEM_FEATURES})  # refuses those that nothing reads
        return presets.change_run(run, inputs.FRAME, **settings)

    def _require_workdir(self) -> WorkDirectory:
        if self.workdir is None:
            raise UserError("`continue_training` needs the work directory of the training: open that")
        return WorkDirectory(self.workdir)

    @speak_python()
    @refuse_unknown_names
    def update(
        self,
        more: Any,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        item_features: Any = None,
        new_items: bool = False,
        path: Path | str | None = None,
    ) -> "FittedModel":
        """Returns a new model that also knows new actions, without training (`updating.update_export`).

        Histories and counts take them in as a new count of all actions by the same settings would, to the bit. New
        items and users join. Network and settings stay: `continue_training` trains it, and `fit` chooses how to count
        anew. Takes seconds for 10^5 rows.

        Args:
            more: new actions, as for `continue_training`. Filters and events of the known ones do not apply to them;
                `b4r.interactions(rows, event_column=, events=, to_train=False)` selects events again.
            user, item, time: the columns, as for `evaluate`.
            item_features: as for `fit`: of old and new items. A new item starts near items that share values.
            new_items: whether items that occur only in `item_features` are recommended too.
            path: a new folder for the SavedModel; by default a temporary one, deleted with the model.

        Raises:
            UserError: if there are no rows, or the model does not hold all histories.
        """
        refuse_unused_new_items(new_items, item_features)
        if path is not None and stores.expand_path(path).exists():
            raise UserError(f"`path` must be a new folder. Received: path={path}")
        new = inputs.load_any(more, user, item, time, to_train=False, known_columns=self.saved.columns)[1]
        return self._update(updating.join_more(self.saved, new), item_features, new_items, path)

    def _update(
        self, data: Sequences, item_features: Any = None, new_items: bool = False, path: Any = None
    ) -> "FittedModel":
        scratch = files.ScratchFolder()
        folder = scratch.path / SAVED_MODEL if path is None else stores.expand_path(path)
        titles = format_titles(self.titles) if self.titles != self.saved.titles else None
        updating.update_export(self.saved, data, folder, item_features, new_items, titles)
        return replace(self, saved=SavedRecommender(folder, is_trusted=True), _scratch=(self._scratch, scratch))

    def save(self, path: Path | str) -> Path:
        """Copies the model to a new folder, which `open` and `bert4rec serve --model=` read. Returns the folder."""
        target = stores.expand_path(path)
        if target.exists():
            raise UserError(f"`path` must be a new folder. Received: path={target}")
        self.saved.locate(Path(MODEL))  # refuses a model that was replaced
        with stores.write_folder(target, CONFIG if self.workdir else MODEL) as temp_folder:
            origin = LocalCopy(self.workdir or self.saved.local_folder)
            shutil.copytree(origin.folder, temp_folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
            if self._is_updated:
                shutil.rmtree(temp_folder / SAVED_MODEL)
                shutil.copytree(self.saved.local_folder, temp_folder / SAVED_MODEL)
            if self.titles != self.saved.titles:  # they were given to `open`
                model_folder = temp_folder / SAVED_MODEL if self.workdir else temp_folder
                for file in [model_folder / TITLES, *([temp_folder / TITLES.name] if self.workdir else [])]:
                    files.write_text(file, format_titles(self.titles))
        return target

    @property
    def metrics(self) -> dict[str, Any]:
        """What the training measured: `metrics.json`, or what the model card has of it; empty if there is neither."""
        metrics = WorkDirectory(self.workdir).read_metrics() if self.workdir else None
        return metrics or self.saved.card.get("metrics") or {}

    def plot(self) -> Any:
        """Returns a matplotlib figure of the training curve, and of NDCG@10 among all items that it recommends.

        NDCG@10 is shown by the length of the history and by how often training saw the target, beside counting.

        Raises UserError without matplotlib, and if the model has no work directory.
        """
        if self.workdir is None:
            raise UserError("`plot` needs the work directory of the training: open that")
        return plot_quality(WorkDirectory(self.workdir), self.saved.card)

    def __repr__(self) -> str:
        place = self.saved.folder if self._is_updated else self.workdir or self.saved.folder
        lines = describe_model(self.saved.card, self.metrics, self.trials)
        return "\n".join([*lines, f"  in {place}" + ", updated" * self._is_updated])

    @property
    def _is_updated(self) -> bool:
        """Whether the SavedModel is no longer that of the work directory."""
        return self.workdir is not None and self.saved.local_folder.parent != self.workdir

    def _read_choices(
        self,
        k: int,
        where: str | None,
        attributes: Any,
        exclude: Iterable[Any] = (),
        candidates: Iterable[Any] | None = None,
        **options: Any,
    ) -> Choices:
        """Returns what to choose from. Raises UserError for no candidates at all: a filter may have left none."""
        candidate_ids = [] if candidates is None else self._texts("candidates", candidates)
        if candidates is not None and not candidate_ids:
            raise UserError("`candidates` must have at least one item; leave it out for all. Received: none")
        choices = Choices(k, exclude=self._texts("exclude", exclude), candidates=candidate_ids, **options)
        return self.saved.restrict(choices, where, attributes)

    def _texts(self, name: str, ids: Iterable[Any]) -> list[str]:
        return to_texts(name, ids, self.saved.knows_item)

    def _restore_ids(self, role: str, texts: list[str]) -> list[Any]:
        """Returns ids as `SavedRecommender.restore_ids`, as texts or Python's integers."""
        return pd.Series(self.saved.restore_ids(role, texts)).tolist()

    def _table(self, items: list[str], scores: np.ndarray) -> pd.DataFrame:
        ids = self.saved.restore_ids("item", items)
        table = pd.DataFrame({"rank": range(1, len(items) + 1), "item": ids, "score": scores})
        return table.assign(title=[self.titles.get(item, "") for item in items]) if self.titles else table


def check_callbacks(callbacks: Any) -> None:
    """Raises UserError if `callbacks` are no list of functions."""
    if not pd.api.types.is_list_like(callbacks) or not all(map(callable, callbacks)):
        raise UserError(f"`callbacks` must be functions. Received: callbacks={callbacks!r}")


def train_and_open(
    run: Run,
    sequences: Sequences,
    interactions: Interactions | None,
    titles: Mapping[str, str],
    init_from: Any = None,
    workdir: Path | str | None = None,
    callbacks: Sequence[Callable[[dict[str, float]], None]] = (),
    silent: bool = False,
    budget: Budget | None = None,
    item_features: Any = None,
) -> FittedModel:
    """Trains and measures a run, exports it with all histories, and returns the model.

    `interactions`: the user's own files, if the data came from some. `titles`: raw id -> title. `budget`: the time to
    plan for. `item_features` are kept as attributes for rules. The other arguments are as for `fitting.fit`.
    """
    scratch = None
    if workdir is None:
        scratch = files.ScratchFolder()
        workdir = scratch.path / run.dataset

    def watch(row: dict[str, float]) -> None:
        for callback in callbacks:
            callback(dict(row))

    options: dict[str, Any] = {"interactions": interactions, "silent": silent, "watch": watch}
    experiment = open_experiment(run, sequences, workdir=workdir, init_from=init_from, budget=budget, **options)
    with experiment.workdir.lock():
        exporting.check_export(experiment.workdir.export, experiment.workdir)
        run_mode(experiment)
        if titles:
            files.write_text(experiment.workdir.titles, format_titles(titles))
        exporting.keep_attributes(experiment.workdir, item_features, sequences.columns)
        exporting.export(experiment.workdir, options=ExportOptions(histories=sequences))
    path = experiment.workdir.path.absolute()  # so that the model outlives `os.chdir`
    saved = SavedRecommender(WorkDirectory(path).export, is_trusted=True)  # made here, perhaps by the user's own model
    return FittedModel(saved, path, saved.titles, _scratch=scratch)


@speak_python()
def open(path: Path | str, titles: Any = None, trust_model: bool = False) -> FittedModel:
    """Opens a trained model: a work directory, or an exported SavedModel.

    Args:
        path: the folder.
        titles: as for `fit`.
        trust_model: whether to load a model whose graph could do more than compute, such as write files.

    Raises:
        UserError: if it is neither, the work directory has no exported model yet, or the model cannot be trusted.
    """
    folder = stores.expand_path(path)
    stores.finish_replacement(folder)
    is_model = (folder / MODEL).exists()
    if not is_model and not (folder / CONFIG).exists():
        version = find_newest_version(folder)
        received = f"path={folder}" if version is None else f"a folder of versions; open {folder / str(version)}"
        raise UserError(f"`path` must be a work directory or a SavedModel. Received: {received}")
    if not isinstance(folder, Url):
        folder = folder.absolute()
    saved = SavedRecommender(folder, trust_model)
    title_by_id, _ = saved.choose_titles(titles)
    return FittedModel(saved, None if is_model or isinstance(folder, Url) else folder, title_by_id)
