"""The search among items, against plain Python."""

import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st
from support.profiles import examples

from bert4rec_tf.serving.http.catalogue import BLOCK, MAX_WORDS, Catalogue


def words_of(text):
    plain = "".join(
        letter for letter in unicodedata.normalize("NFKD", text).casefold() if not "\u0300" <= letter <= "\u036f"
    )
    return "".join(letter if letter.isalnum() or letter == "_" else " " for letter in plain).split()


def expected(items, titles, query, limit):
    """Exact id, then words at the beginning of words, then words anywhere; each in the items' order."""
    words = list(dict.fromkeys(words_of(query)))[:MAX_WORDS]
    ranked = [item for item in items if item == query.strip()]
    lines = {item: words_of(f"{item} {titles.get(item, '')}") for item in items}
    if words:
        ranked += [item for item in items if all(any(w.startswith(word) for w in lines[item]) for word in words)]
        ranked += [item for item in items if all(any(word in w for w in lines[item]) for word in words)]
    elif not query.strip():
        ranked = list(items)
    return list(dict.fromkeys(ranked))[:limit]


letters = st.text(st.sampled_from("abcABÄéßÉ 1-_,🎬日\u0301\u2028"), max_size=6)
names = st.text(st.sampled_from("abcÄß1-🎬日"), min_size=1, max_size=4)


@settings(max_examples=examples(200))
@given(st.lists(names, unique=True, max_size=12), st.lists(letters, max_size=12), letters, st.integers(1, 5))
def test_finds_what_plain_python_finds(items, found_titles, query, limit):
    titles = dict(zip(items, found_titles))
    assert Catalogue(items, titles).search(query, limit) == expected(items, titles, query, limit)


def test_search_finds_items_in_the_second_block():
    items = [f"a{number}" for number in range(BLOCK + 10)]
    catalogue = Catalogue([*items, "a last"], {})
    assert catalogue.search("last a", 2) == ["a last"]
    assert catalogue.search("a1 a1", 1) == ["a1"]


def test_long_words_are_distinct_and_words_after_the_eighth_do_not_count():
    items = ["counterstrike", "counterstrikes", "counterstroke", "b c d e f g h i j", "b c d e f g h i"]
    catalogue = Catalogue(items, {})
    for query in ("counterstr", "counterstri", "counterstrikes", "counterstrikesx", "b b c d e f g h i zzz"):
        assert catalogue.search(query, 9) == expected(items, {}, query, 9)
    assert catalogue.search("j i h g f e d c b b", 9) == ["b c d e f g h i j"]
    assert len(catalogue.search("b b c d e f g h i zzz", 9)) == 2
