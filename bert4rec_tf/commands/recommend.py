"""Recommends items to one history, or to every user of a file, from an exported model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn
from bert4rec_tf.foundation.startup import Parser, import_tensorflow, path_argument

if TYPE_CHECKING:
    from bert4rec_tf.serving.client import Choices, SavedRecommender


def make_parser() -> Parser:
    """Returns the parser of the arguments."""
    parser = Parser(prog="bert4rec recommend", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--model", type=path_argument, required=True, help="folder of a SavedModel (saved_model in a workdir)"
    )
    parser.add_argument("--history", help="raw item ids, oldest first, separated by commas")
    parser.add_argument("--user", default="", help="raw user id, for models with user embeddings")
    parser.add_argument(
        "--input", type=path_argument, help="CSV without a header: user id, then item ids, oldest first"
    )
    parser.add_argument("--output", type=path_argument, help="file to write for --input; ends in .csv or .parquet")
    parser.add_argument("-k", type=int, help="number of items (default: set at export)")
    parser.add_argument("--keep_seen", action="store_true", help="also recommend items of the history")
    parser.add_argument("--exclude", default="", help="raw item ids to leave out, separated by commas")
    parser.add_argument("--candidates", default="", help="rank only these raw item ids, separated by commas")
    parser.add_argument(
        "--popularity_correction",
        type=float,
        help="0 or more: rank by score - this * log(count + 1), for less popular items (default: set at export)",
    )
    parser.add_argument(
        "--titles", type=path_argument, help="titles of the items: a CSV with a header, or MovieLens' movies.dat"
    )
    return parser


def main(arguments: list[str]) -> None:
    """Runs the command."""
    options = make_parser().parse_args(arguments)
    if (options.history is None) == (options.input is None) or (options.input is None) != (options.output is None):
        raise UserError("Give either --history, or both --input and --output")
    import_tensorflow()
    from bert4rec_tf.serving import batch
    from bert4rec_tf.serving.client import Choices, SavedRecommender, split_ids
    from bert4rec_tf.serving.titles import read_titles

    if options.output is not None:
        batch.check_target(options.output)
    listed = {name: tuple(split_ids(getattr(options, name))) for name in ("exclude", "candidates")}
    choices = Choices(
        k=options.k,
        exclude_seen=not options.keep_seen,
        popularity_correction=options.popularity_correction,
        **listed,
    )
    titles = read_titles(options.titles) if options.titles else None
    model = SavedRecommender(options.model)
    if options.input is None:
        recommend_to(model, split_ids(options.history), options.user, choices, titles or {})
    else:
        users = batch.recommend_file(model, options.input, options.output, choices, titles)
        print(f"{options.output}: recommendations to {users:,} users")


def recommend_to(
    model: "SavedRecommender", history: list[str], user: str, choices: "Choices", titles: Mapping[str, str]
) -> None:
    """Prints the rank, the score and the title or id of each recommended item."""
    if model.has_user_embeddings and not user:
        warn("this model needs --user; without it, you get the most popular items")
    result = model.recommend([history], [user], choices)
    if result.unknown[0]:
        warn(f"{result.unknown[0]} of the {len(history)} ids in the history are unknown and were skipped")
    for rank, (item, score) in enumerate(zip(result.items[0], result.scores[0]), start=1):
        print(f"{rank:>4}  {score:>10.4f}  {titles.get(item, item)}")
