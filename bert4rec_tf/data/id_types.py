"""Whether raw ids, which are texts, are those of numbers."""

from collections.abc import Iterable

import pyarrow as pa

from bert4rec_tf.data.sequences import Sequences


def have_type(ids: Iterable[str], kind: str) -> bool:
    """Returns whether all ids are texts of numbers of a type, such as "int64", written as that type is."""
    texts, number = pa.array(ids, pa.string()), pa.type_for_alias(kind)
    try:
        return texts.cast(number).cast(pa.string()).equals(texts)
    except pa.ArrowException:
        return False


def drop_wrong_types(sequences: Sequences) -> dict[str, dict[str, str]]:
    """Returns `Sequences.columns`, without a type that not all ids have, because some come from elsewhere."""
    columns = {role: dict(column) for role, column in sequences.columns.items()}
    for role, ids in (("user", sequences.users), ("item", sequences.vocabulary.items)):
        if (kind := columns.get(role, {}).get("type")) is not None and not have_type(ids, kind):
            del columns[role]["type"]
    return columns
