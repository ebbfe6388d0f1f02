"""Recommends items to one history, to known users, or to every user of files, from an exported model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from bert4rec_tf.commands.flags import parse_with_interactions
from bert4rec_tf.config.data_names import Interactions, list_column_options
from bert4rec_tf.config.setting_fields import Settings, setting
from bert4rec_tf.data.id_texts import normalize_id
from bert4rec_tf.data.reading.conversion import list_files
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.export.layout import require_saved_model
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.startup import import_tensorflow
from bert4rec_tf.foundation.stores import expand_path
from bert4rec_tf.serving.trust import TRUST

if TYPE_CHECKING:
    from bert4rec_tf.serving.client import Recommendations, SavedRecommender

ALL_USERS = "all"
FILTERS = ("min_user_actions", "min_item_actions", "k_core", "test_from")
INTERACTION_COLUMNS = {name: field for name, field in list_column_options().items() if name not in FILTERS}


@dataclass(frozen=True)
class ModelOptions(Settings):
    """The flags of the commands that ask an exported model."""

    model: str = field(metadata={"help": "folder of a SavedModel, or a work directory that has one"})
    trust_model: bool = setting(False, TRUST)
    titles: str | None = setting(
        None, "titles of the items: a CSV with a header, or MovieLens' movies.dat (default: titles in the model)"
    )
    k: int | None = setting(None, "number of items (default: set at export)")
    where: str | None = setting(
        None, "a condition that the items must meet, such as \"in_stock and category == 'toys'\""
    )
    attributes: str | None = setting(
        None, "for --where: CSV or Parquet with the items' ids and attributes (default: those in the model)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("titles", "attributes"):  # before TensorFlow's start, which takes seconds
            file = getattr(self, name)
            if file and not expand_path(file).exists():
                raise UserError(f"{file}: no such file. Received: --{name}={file}")

    @property
    def folder(self) -> Path:
        return expand_path(self.model)


@dataclass(frozen=True)
class RecommendOptions(ModelOptions):
    """Every field is a flag of the same name."""

    history: str | None = setting(None, "raw item ids, oldest first, separated by commas")
    user: str | None = setting(
        None,
        "raw user ids, separated by commas, whose histories the export holds; with --history the id of one user, for "
        "models with user embeddings",
    )
    users: str | None = setting(
        None, "file with one raw user id on each line, whose histories the export holds; or all, for all of its users"
    )
    interactions: str | None = setting(None, "your own file or pattern with one action per row")
    output: str | None = setting(None, "file to write for --users and --interactions; ends in .csv or .parquet")
    keep_seen: bool | None = setting(
        None, "also recommend items of the history; --nokeep_seen leaves them out (default: set at export)"
    )
    exclude: str = setting("", "raw item ids to leave out, separated by commas")
    candidates: str | None = setting(None, "rank only these raw item ids, separated by commas")
    popularity_correction: float | None = setting(
        None, "0 or more: rank by score - this * log(count + 1), for less popular items (default: set at export)"
    )
    engine: str = setting("local", "what --output is made with (docs/cluster.md)", choices=("local", "spark"))
    master: str | None = setting(None, "with --engine=spark: spark://HOST:7077, local[2], ...")

    def __post_init__(self) -> None:
        super().__post_init__()
        has_ids = self.history is not None or self.user is not None
        sources = has_ids + (self.interactions is not None) + (self.users is not None)
        if sources != 1 or has_ids == (self.output is not None):
            raise UserError("Give either --history or --user; or --users or --interactions, with --output")
        if self.engine == "spark" and self.interactions is None:
            raise UserError("--engine=spark needs --interactions")
        if self.master and self.engine != "spark":
            raise UserError(f"--master needs --engine=spark. Received: engine={self.engine}")


def main(arguments: list[str]) -> None:
    options, interactions = parse_with_interactions(__doc__ or "", arguments, RecommendOptions, INTERACTION_COLUMNS)
    require_saved_model(options.folder)
    import_tensorflow()
    from bert4rec_tf.serving import batch
    from bert4rec_tf.serving.client import Choices, SavedRecommender, split_ids, warn_of_popular

    output = None if options.output is None else expand_path(options.output)
    if output is not None:
        batch.check_target(output)
        _refuse_own_input(output, options, interactions)
    id_lists = {name: tuple(split_ids(getattr(options, name) or "")) for name in ("exclude", "candidates")}
    if options.candidates is not None and not id_lists["candidates"]:
        raise UserError("--candidates must name at least one item; leave it out for all. Received: none")
    exclude_seen = None if options.keep_seen is None else not options.keep_seen
    choices = Choices(options.k, exclude_seen, popularity_correction=options.popularity_correction, **id_lists)
    model = SavedRecommender(options.folder, options.trust_model)
    titles, _ = model.choose_titles(options.titles or None)
    choices = model.restrict(choices, options.where, options.attributes or None)
    if output is None:
        if options.history is not None:
            users, histories = split_ids(options.user or "") or [""], [split_ids(options.history)]
            if len(users) > 1:
                raise UserError(f"--user must name one user with --history. Received: --user={options.user}")
        else:
            users = split_ids(options.user or "")
            if not users:
                raise UserError("--user must name users. Received: nothing")
            histories = [model.get_history(user) for user in users]
        answer = model.recommend(histories, users, choices)
        if options.history is None:
            warn_of_popular(answer.list_popular(users), len(users))
        else:
            model.warn_about_history(histories[0], users[0], answer)
        print(make_tables(answer, titles, [f"user {user}" for user in users]))
        return
    if interactions is not None:
        sequences = inputs.load_any(interactions, to_train=False, known_columns=model.columns)[1]
        names = ", ".join(f"{role} {column['name']!r}" for role, column in sequences.columns.items())
        print(f"{options.interactions}: {names}", flush=True)
    elif options.users is not None:
        sequences = model.select_histories(read_users(options.users, model))
    cluster = None
    if options.engine == "spark":
        from bert4rec_tf.cluster.spark import Spark

        cluster = Spark(options.master)
    popular_users = batch.recommend_file(model, sequences, output, choices, titles or None, cluster)
    batch.warn_about_unknown(model, sequences)
    warn_of_popular(popular_users, sequences.num_users)
    print(f"{output}: recommendations to {sequences.num_users:,} users")


def read_users(source: str, model: "SavedRecommender") -> list[str]:
    """Returns the users that --users names. Raises UserError if its file cannot be read, or has none."""
    if source == ALL_USERS:
        return model.require_histories().users.tolist()
    path = expand_path(source)
    users = files.read_lines(path)
    if not users:
        raise UserError(f"{path}: must have a user's id on each line. Received: none")
    return list(dict.fromkeys(map(normalize_id, users)))


def _refuse_own_input(output: Path, options: RecommendOptions, interactions: Interactions | None) -> None:
    """Raises UserError if --output is a file that is read, or would be from now on."""
    names = [options.titles, options.attributes, None if options.users == ALL_USERS else options.users]
    paths: list[Path] = [expand_path(name) for name in names if name]
    if interactions is not None:
        paths += [*interactions.files, *list_files(interactions)]
    place = PurePath(_find_place(output))
    places = place, *(place.parents if place.suffix == ".parquet" else ())  # all such files of a folder are read
    if any(PurePath(source) in places or place.match(source) for source in map(_find_place, paths)):
        raise UserError(f"--output must be another file than those that are read. Received: {output}")


def _find_place(path: Path) -> str:
    return os.path.realpath(str(path).removeprefix("file://"))


def make_tables(answer: "Recommendations", titles: Mapping[str, str], names: Sequence[str]) -> str:
    """Returns a table for each row of an answer: rank, item, score and, if titles are known, title.

    If there are several tables, each has its name above it.
    """
    parts = []
    for name, items, scores in zip(names, answer.items, answer.scores, strict=True):
        lines = [("rank", "item", "score", "title")]
        lines += [
            (str(rank), item, f"{score:.4f}", titles.get(item, ""))
            for rank, (item, score) in enumerate(zip(items, scores), start=1)
        ]
        width = max(len(item) for _, item, _, _ in lines)
        rows = [f"{rank:>4}  {item:<{width}}  {score:>10}" for rank, item, score, _ in lines]
        if titles:
            rows = [f"{line}  {title}".rstrip() for line, (*_, title) in zip(rows, lines)]
        parts.append("\n".join([name] * (len(names) > 1) + rows))
    return "\n\n".join(parts)
