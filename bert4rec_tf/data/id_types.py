"""Whether raw ids, which are texts, are those of numbers."""

from collections.abc import Iterable

import pyarrow as pa


def have_type(ids: Iterable[str], kind: str) -> bool:
    """Returns whether all ids are texts of numbers of a type, such as "int64", written as that type is."""
    texts, number = pa.array(ids, pa.string()), pa.type_for_alias(kind)
    try:
        return texts.cast(number).cast(pa.string()).equals(texts)
    except pa.ArrowException:
        return False
