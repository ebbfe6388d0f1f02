"""Finds the items that are most similar to others, by the vectors of an exported model."""

from bert4rec_tf.commands.recommend import add_model, add_titles, make_tables, resolve_titles
from bert4rec_tf.export.layout import require_saved_model
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.startup import Parser, import_tensorflow
from bert4rec_tf.serving.titles import read_titles


def main(arguments: list[str]) -> None:
    parser = Parser(prog="bert4rec similar", description=__doc__, allow_abbrev=False)
    add_model(parser)
    parser.add_argument("--item", required=True, help="raw item ids, separated by commas")
    parser.add_argument("-k", type=int, help="number of items (default: set at export)")
    add_titles(parser)
    options = parser.parse_args(arguments)
    require_saved_model(options.model)
    titles = read_titles(options.titles) if options.titles else {}
    import_tensorflow()
    from bert4rec_tf.serving.client import SavedRecommender, split_ids

    items = split_ids(options.item)
    if not items:
        raise UserError("--item must name items of the model. Received: nothing")
    model = SavedRecommender(options.model, options.trust_model)
    titles = resolve_titles(titles, model)
    answer = model.similar(items, options.k)
    for item, unknown in zip(items, answer.unknown):
        if unknown:
            raise UserError(f"--item must name items of the model. Received: {item!r}")
    print(make_tables(answer, titles, [" ".join(filter(None, (item, titles.get(item)))) for item in items]))
