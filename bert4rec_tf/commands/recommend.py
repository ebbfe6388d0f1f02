"""Recommends items to one history, or to every user of a file, from an exported model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn
from bert4rec_tf.foundation.startup import Parser, import_tensorflow, path_argument

if TYPE_CHECKING:
    from bert4rec_tf.serving.client import Choices, SavedRecommender


def parser() -> Parser:
    """Returns the parser of the command line."""
    made = Parser(prog="bert4rec recommend", description=__doc__, allow_abbrev=False)
    made.add_argument(
        "--model", type=path_argument, required=True, help="folder of a SavedModel (saved_model in a workdir)"
    )
    made.add_argument("--history", help="raw item ids, oldest first, separated by commas")
    made.add_argument("--user", default="", help="raw user id, for models that know users")
    made.add_argument("--input", type=path_argument, help="CSV without a header: a user, then the items, oldest first")
    made.add_argument("--output", type=path_argument, help="file to write for --input; ends in .csv or .parquet")
    made.add_argument("-k", type=int, help="how many items (default: as many as the export says)")
    made.add_argument("--keep_seen", action="store_true", help="recommend items of the history too")
    made.add_argument("--exclude", default="", help="raw item ids to leave out, separated by commas")
    made.add_argument("--candidates", default="", help="raw item ids to rank alone, separated by commas")
    made.add_argument(
        "--titles", type=path_argument, help="CSV whose first line names the columns, `id` and `title` among them"
    )
    return made


def main(arguments: list[str]) -> None:
    """Does what the command line says."""
    named = parser().parse_args(arguments)
    if (named.history is None) == (named.input is None) or (named.input is None) != (named.output is None):
        raise UserError("Either --history, or --input and --output must be given")
    import_tensorflow()
    from bert4rec_tf.serving import batch
    from bert4rec_tf.serving.client import Choices, SavedRecommender, split_ids
    from bert4rec_tf.serving.titles import read_titles

    if named.output is not None:
        batch.check_target(named.output)
    listed = {name: tuple(split_ids(getattr(named, name))) for name in ("exclude", "candidates")}
    choices = Choices(k=named.k, exclude_seen=not named.keep_seen, **listed)
    titles = read_titles(named.titles) if named.titles else None
    model = SavedRecommender(named.model)
    if named.input is None:
        recommend_to(model, split_ids(named.history), named.user, choices, titles or {})
    else:
        users = batch.recommend_file(model, named.input, named.output, choices, titles)
        print(f"{named.output}: recommendations to {users:,} users")


def recommend_to(
    model: "SavedRecommender", history: list[str], user: str, choices: "Choices", titles: Mapping[str, str]
) -> None:
    """Prints rank, score and item, or its title, for each that is recommended to one history."""
    if model.has_user_embeddings and not user:
        warn("this model goes by users, and none is named with --user: these are the most popular items")
    found = model.recommend([history], [user], choices)
    if found.unknown[0]:
        warn(f"{found.unknown[0]} of the {len(history)} ids of the history are not known, and were passed over")
    for rank, (item, score) in enumerate(zip(found.items[0], found.scores[0]), start=1):
        print(f"{rank:>4}  {score:>10.4f}  {titles.get(item, item)}")
