"""Takes new actions into an exported model without training: its histories, its counts, new items and new users.

    bert4rec update --model=runs/own --interactions=today.csv
    bert4rec update --model=versions --interactions=today.csv

The model is replaced as a whole. In a folder of numbered versions, the newest one is updated, as a new version.
"""

from dataclasses import dataclass, field

from bert4rec_tf.commands.flags import list_fields, parse_command
from bert4rec_tf.commands.recommend import INTERACTION_COLUMNS
from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.config.setting_fields import Settings, setting
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.export.layout import MODEL, find_model_folder, require_saved_model
from bert4rec_tf.foundation import stores
from bert4rec_tf.foundation.startup import import_tensorflow
from bert4rec_tf.serving.trust import TRUST


@dataclass(frozen=True)
class UpdateOptions(Settings):
    """Every field is a flag of the same name."""

    model: str = field(
        metadata={"help": "folder of a SavedModel, a work directory that has one, or numbered folders of versions"}
    )
    interactions: str = field(metadata={"help": "file or pattern with the new actions, one per row"})
    trust_model: bool = setting(False, TRUST)
    output: str | None = setting(None, "folder to write (default: the model's own, or the next version)")
    item_features: str | None = setting(
        None, "CSV or Parquet with features of old and new items, which then join by these"
    )
    new_items: bool = setting(False, "also recommend items that occur only in --item_features")


def main(arguments: list[str]) -> None:
    flags = parse_command(__doc__ or "", arguments, {**list_fields(UpdateOptions), **INTERACTION_COLUMNS})
    columns = {name: flags.pop(name) for name in INTERACTION_COLUMNS if name in flags}
    options = UpdateOptions(**flags)
    folder = find_model_folder(stores.expand_path(options.model))
    target = folder
    numbers = [] if (folder / MODEL).exists() or not folder.is_dir() else stores.list_content(folder)
    versions = [int(path.name) for path in numbers if path.name.isdecimal() and (path / MODEL).exists()]
    if versions:
        folder, target = folder / str(max(versions)), folder / str(max(versions) + 1)
    require_saved_model(folder)
    import_tensorflow()
    from bert4rec_tf.runs.updating import update_export
    from bert4rec_tf.serving.client import SavedRecommender

    saved = SavedRecommender(folder, options.trust_model)
    data = Interactions(options.interactions, **columns) if columns else options.interactions
    new = inputs.load_any(data, to_train=False, known_columns=saved.columns)[1]
    target = target if options.output is None else stores.expand_path(options.output)
    print(f"{target}: {update_export(saved, new, target, options.item_features, options.new_items)}")
