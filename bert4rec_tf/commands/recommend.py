"""Recommends items to one history, to known users, or to every user of files, from an exported model."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bert4rec_tf.config.data_names import Interactions, list_column_options
from bert4rec_tf.config.setting_fields import add_flag, collect_given_flags
from bert4rec_tf.data.reading import conversion
from bert4rec_tf.data.reading.feature_files import check_matches
from bert4rec_tf.export.layout import require_saved_model
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn
from bert4rec_tf.foundation.startup import Parser, import_tensorflow, parse_path
from bert4rec_tf.serving.titles import read_titles
from bert4rec_tf.serving.trust import TRUST

if TYPE_CHECKING:
    from bert4rec_tf.serving.client import Recommendations, SavedRecommender

FILTERS = ("min_user_actions", "min_item_actions", "k_core", "test_from")
COLUMNS = {name: field for name, field in list_column_options().items() if name not in FILTERS}


def make_parser() -> Parser:
    parser = Parser(prog="bert4rec recommend", description=__doc__, allow_abbrev=False)
    add_model(parser)
    parser.add_argument("--history", help="raw item ids, oldest first, separated by commas")
    parser.add_argument(
        "--user",
        help="raw user ids, separated by commas, whose histories the export holds; with --history the id of one user, "
        "for models with user embeddings",
    )
    parser.add_argument("--interactions", metavar="FILE", help="your own file or pattern with one action per row")
    for field in COLUMNS.values():
        add_flag(parser, field, default=None)
    parser.add_argument("--output", type=parse_path, help="file to write for --interactions; ends in .csv or .parquet")
    parser.add_argument("-k", type=int, help="number of items (default: set at export)")
    parser.add_argument(
        "--keep_seen",
        action=argparse.BooleanOptionalAction,
        help="also recommend items of the history (default: set at export)",
    )
    parser.add_argument("--exclude", default="", help="raw item ids to leave out, separated by commas")
    parser.add_argument("--candidates", default="", help="rank only these raw item ids, separated by commas")
    parser.add_argument(
        "--popularity_correction",
        type=float,
        help="0 or more: rank by score - this * log(count + 1), for less popular items (default: set at export)",
    )
    add_titles(parser)
    parser.add_argument(
        "--engine", choices=("local", "spark"), default="local", help="what --output is made with (docs/cluster.md)"
    )
    parser.add_argument("--master", help="with --engine=spark: spark://HOST:7077, local[2], ...")
    return parser


def add_model(parser: Parser) -> None:
    parser.add_argument(
        "--model", type=parse_path, required=True, help="folder of a SavedModel, or a work directory that has one"
    )
    parser.add_argument("--trust_model", action="store_true", help=TRUST)


def add_titles(parser: Parser) -> None:
    parser.add_argument(
        "--titles",
        type=parse_path,
        help="titles of the items: a CSV with a header, or MovieLens' movies.dat (default: titles in the model)",
    )


def main(arguments: list[str]) -> None:
    options = make_parser().parse_args(arguments)
    check_options(options)
    require_saved_model(options.model)
    titles = read_titles(options.titles) if options.titles else {}
    import_tensorflow()
    from bert4rec_tf.serving import batch
    from bert4rec_tf.serving.client import Choices, SavedRecommender, split_ids

    if options.output is not None:
        batch.check_target(options.output)
    id_lists = {name: tuple(split_ids(getattr(options, name))) for name in ("exclude", "candidates")}
    exclude_seen = None if options.keep_seen is None else not options.keep_seen
    choices = Choices(options.k, exclude_seen, popularity_correction=options.popularity_correction, **id_lists)
    model = SavedRecommender(options.model, options.trust_model)
    titles = resolve_titles(titles, model)
    model.warn_about_unknown(choices)
    if options.output is None:
        if options.history is not None:
            users, histories = [options.user or ""], [split_ids(options.history)]
            if model.needs_users and not options.user:
                warn("this model needs --user; without it, you get the most popular items")
        else:
            users = split_ids(options.user)
            if not users:
                raise UserError("--user must name users. Received: nothing")
            histories = [model.get_history(user) for user in users]
        answer = model.recommend(histories, users, choices)
        for unknown, history in zip(answer.unknown, histories):
            if unknown:
                warn(f"{unknown} of the {len(history)} ids in the history are unknown and were skipped")
        print(make_tables(answer, titles, [f"user {user}" for user in users]))
        return
    interactions = Interactions(options.interactions, **collect_given_flags(options, COLUMNS))
    sequences, report = conversion.convert(interactions, to_train=False)
    report.warn_of_doubts(sequences)
    print(report)
    cluster = None
    if options.engine == "spark":
        from bert4rec_tf.cluster.spark import Spark

        cluster = Spark(options.master)
    batch.recommend_file(model, sequences, options.output, choices, titles or None, cluster)
    batch.warn_about_unknown(model, sequences)
    print(f"{options.output}: recommendations to {sequences.num_users:,} users")


def resolve_titles(titles: Mapping[str, str], model: "SavedRecommender") -> Mapping[str, str]:
    """Returns the titles of --titles, raw id -> title; without them, those in the model.

    Raises UserError if none is of one of the model's items.
    """
    if titles:
        check_matches("titles", titles, model.items)
    return titles or model.titles


def check_options(options: argparse.Namespace) -> None:
    """Raises UserError for arguments that do not go together."""
    ids = [name for name in ("history", "user") if getattr(options, name) is not None]
    if bool(ids) == (options.interactions is not None) or bool(ids) == (options.output is not None):
        raise UserError("Give either --history or --user, or --interactions with --output")
    if options.engine == "spark" and ids:
        raise UserError("--engine=spark needs --interactions")
    if options.master and options.engine != "spark":
        raise UserError(f"--master needs --engine=spark. Received: engine={options.engine}")
    columns = collect_given_flags(options, COLUMNS)
    if columns and options.interactions is None:
        raise UserError(f"--{next(iter(columns))} needs --interactions=FILE")


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
        wide = max(len(item) for _, item, _, _ in lines)
        shown = [f"{rank:>4}  {item:<{wide}}  {score:>10}" for rank, item, score, _ in lines]
        if titles:
            shown = [f"{line}  {title}".rstrip() for line, (*_, title) in zip(shown, lines)]
        parts.append("\n".join([name] * (len(names) > 1) + shown))
    return "\n\n".join(parts)
