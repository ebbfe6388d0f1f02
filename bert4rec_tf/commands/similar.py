"""Finds the items that are most similar to others, by the vectors of an exported model."""

from dataclasses import dataclass

from bert4rec_tf.commands.flags import list_fields, parse_command
from bert4rec_tf.commands.recommend import ModelOptions, make_tables
from bert4rec_tf.config.setting_fields import setting
from bert4rec_tf.export.layout import require_saved_model
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.startup import import_tensorflow


@dataclass(frozen=True)
class SimilarOptions(ModelOptions):
    """Every field is a flag of the same name."""

    item: str = setting("", "raw item ids, separated by commas")


def main(arguments: list[str]) -> None:
    options = SimilarOptions(**parse_command(__doc__ or "", arguments, list_fields(SimilarOptions)))
    require_saved_model(options.folder)
    import_tensorflow()
    from bert4rec_tf.serving.client import SavedRecommender, split_ids

    items = split_ids(options.item)
    if not items:
        raise UserError("--item must name items of the model. Received: nothing")
    model = SavedRecommender(options.folder, options.trust_model)
    titles, _ = model.choose_titles(options.titles or None)
    answer = model.similar(items, options.k, options.where, options.attributes or None)
    for item, is_unknown in zip(items, answer.unknown):
        if is_unknown:
            raise UserError(f"--item must name items of the model. Received: {item!r}")
    print(make_tables(answer, titles, [" ".join(filter(None, (item, titles.get(item)))) for item in items]))
