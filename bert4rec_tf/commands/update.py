"""Takes new actions into an exported model without training: its histories, its counts, new items and new users.

    bert4rec update --model=runs/own --interactions=today.csv
    bert4rec update --model=versions --interactions=today.csv

The model is replaced as a whole. In a folder of numbered versions, the newest one is updated, as a new version.
"""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from bert4rec_tf.commands.flags import parse_with_interactions
from bert4rec_tf.commands.recommend import INTERACTION_COLUMNS
from bert4rec_tf.config.setting_fields import Settings, setting
from bert4rec_tf.data.reading.feature_files import refuse_unused_new_items
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.export.layout import MODEL, find_model_folder, find_newest_version, require_saved_model
from bert4rec_tf.foundation import files, stores
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


def find_newest(path: Path) -> tuple[Path, Path]:
    """Returns the folder of the SavedModel to update, and the folder to write. Raises UserError if there is none."""
    folder = find_model_folder(path)
    version = find_newest_version(folder)
    if version is None:
        require_saved_model(folder)
        return folder, folder
    return folder / str(version), folder / str(version + 1)


def main(arguments: list[str]) -> None:
    options, interactions = parse_with_interactions(__doc__ or "", arguments, UpdateOptions, INTERACTION_COLUMNS)
    path = stores.expand_path(options.model)
    find_newest(path)
    in_place = options.output is None and isinstance(path, Path)
    is_moved = in_place and (path / MODEL).exists() and files.can_be_renamed(path.resolve())
    home = path.parent if is_moved else path
    import_tensorflow()
    from bert4rec_tf.runs.updating import join_more, update_export
    from bert4rec_tf.serving.client import SavedRecommender

    refuse_unused_new_items(options.new_items, options.item_features)
    # Two updates in place would both begin with the same model.
    with files.FolderLock(home).lock() if in_place else contextlib.nullcontext():
        folder, target = find_newest(path)
        saved = SavedRecommender(folder, options.trust_model)
        new_data = inputs.load_any(interactions, to_train=False, known_columns=saved.columns)[1]
        if not new_data.num_actions:
            print(f"{options.interactions}: no rows; nothing changed")
            return
        data = join_more(saved, new_data)
        has_only_known = data.num_actions == saved.require_histories().num_actions
        if has_only_known and options.item_features is None and options.output is None:
            print(f"{options.interactions}: no new actions; nothing changed")
            return
        target = target if options.output is None else stores.expand_path(options.output)
        print(f"{target}: {update_export(saved, data, target, options.item_features, options.new_items)}")
