"""Whether raw ids, which are texts, are those of numbers."""

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.foundation.warning import DataWarning, warn


def have_type(ids: Iterable[str], kind: str) -> bool:
    """Returns whether all ids are texts of numbers of a type, such as "int64", written as that type is."""
    texts, number = pa.array(ids, pa.string()), pa.type_for_alias(kind)
    try:
        return texts.cast(number).cast(pa.string()).equals(texts)
    except pa.ArrowException:
        return False


def find_type(ids: Iterable[str], kind: str) -> str | None:
    """Returns `kind` if all ids have this type, else a type of 64 bits that all have; None if they have none."""
    return next((type_name for type_name in (kind, "int64", "uint64") if have_type(ids, type_name)), None)


def drop_wrong_types(sequences: Sequences) -> dict[str, dict[str, str]]:
    """Returns `Sequences.columns`, with a wider type, or none, where some ids come from elsewhere and need it."""
    columns = {role: dict(column) for role, column in sequences.columns.items()}
    for role, ids in (("user", sequences.users), ("item", sequences.vocabulary.items)):
        if (kind := columns.get(role, {}).pop("type", None)) and (wider_type := find_type(ids, kind)):
            columns[role]["type"] = wider_type
    return columns


def match_types(data: Sequences, new_data: Sequences) -> Sequences:
    """Returns new actions in which ids such as 50.0 are 50 where all known ones are integers.

    pandas writes integers so if their column has gaps. Several users or items may then have one id.
    """
    columns = drop_wrong_types(data)
    users, items = (
        pc.replace_substring_regex(pa.array(ids, pa.string()), r"^(-?[0-9]+)\.0$", r"\1").to_numpy(zero_copy_only=False)
        if "type" in columns.get(role, {})
        else ids
        for role, ids in (("user", new_data.users), ("item", new_data.vocabulary.items))
    )
    return replace(new_data, users=users, vocabulary=Vocabulary(items, new_data.vocabulary.counts))


def warn_of_strangers(data: Sequences, new_data: Sequences) -> None:
    """Warns if none of several new items is known, and no new user: their ids may be written in another way."""
    pairs = (data.users, new_data.users), (data.vocabulary.items, new_data.vocabulary.items)
    if new_data.num_items > 1 and not any(set(new_ids) & set(known_ids) for known_ids, new_ids in pairs):
        (user, item), (new_user, new_item) = ((ids[0] for ids in columns) for columns in zip(*pairs))
        warn(
            f"none of the {new_data.num_users:,} users and {new_data.num_items:,} items of the new actions is known. "
            f"Are the ids written as before? Before: {user!r}, {item!r}; now: {new_user!r}, {new_item!r}",
            DataWarning,
        )


def warn_of_new_types(data: Sequences, new_data: Sequences) -> None:
    """Warns if the known ids are integers and new ones are not, so that all ids are texts from now on."""
    columns = drop_wrong_types(data)
    ids_by_role = {"user": (data.users, new_data.users), "item": (data.vocabulary.items, new_data.vocabulary.items)}
    for role, (known_ids, new_ids) in ids_by_role.items():
        kind = columns.get(role, {}).get("type")
        if kind is not None and find_type([*known_ids, *new_ids], kind) is None:
            known_type = find_type(known_ids, "int64") or kind
            odd_id = next(raw_id for raw_id in new_ids if not have_type([raw_id], known_type))
            warn(
                f"the {role}s' ids were all of {kind}, and some new ones, such as {odd_id!r}, are not: all are texts "
                "from now on",
                DataWarning,
            )
