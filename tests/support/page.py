"""The page in a headless Chromium: how it is open_page and asked, and models that it shows."""

import contextlib
import re
from urllib.parse import urlencode

import numpy as np
import pytest

from support.exports import COUNTS as ACTIONS
from support.exports import LOG_SHARES

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect

NASTY = '<img src=x onerror="document.title=1">'
TITLES = {"i1": "The Quiet River", "i2": "Électric Star", "i3": NASTY, "i4": "Star Garden", "a": "The Last Train"}


@contextlib.contextmanager
def open_page(browser, server, fragment="#empty", refused=0, replaced=0, loses_server=False, **options):
    """The page, without a history.

    Anything wrong in its console, or asked of another host, fails the test; but the server refuses so many requests, so
    many are for a version that was replaced, and a test that stops it sees the requests fail.
    """
    context = browser.new_context(**options)
    page = context.new_page()
    wrong, own = [], f"http://127.0.0.1:{server.port}/"
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(asked.url))
    page.goto(own + fragment)
    page.wait_for_selector("#recommendations .share:not(:empty)")
    yield page
    assert page.title() == "What comes next?"
    lost = "Failed to load resource: net::ERR_CONNECTION_REFUSED"
    assert (lost in wrong) == loses_server
    answers = ["400 (Bad Request)"] * refused + ["404 (Not Found)"] * replaced
    expected = [f"Failed to load resource: the server responded with a status of {answer}" for answer in answers]
    assert sorted(one for one in wrong if one != lost) == expected
    context.close()


def name(item):
    return TITLES.get(item, item)


def visit(page, *history):
    """Opens the address that holds a history."""
    page.goto(f"{page.url.split('#')[0]}#{urlencode([('item', item) for item in history])}")


def find(page, query):
    """Types a query and waits until what is found for it is shown."""
    page.fill("#query", query)
    expect(page.locator("#found")).to_have_attribute("aria-label", re.compile(f"found for {query}$"))


FILMS = {
    "m0": ("The Quiet River", "Drama"),
    "m7": ("Star Garden", "Comedy|Sci-Fi"),
    "m12": ("A Train at Night", "Drama|Thriller|Crime|Mystery|Film-Noir"),
}
FILM_IDS = [f"m{number}" for number in range(len(ACTIONS))]
STORED = {"ann": ["m0", "m12", "m7"], "bob": ["m7"]}
MEASURED = {"hr@10": 0.25, "ndcg@10": 0.125, "mrr": 0.0625}
CARD = {
    "data": {"name": "films", "users": 4321, "items": 30, "actions": 98765, "training_actions": 98765},
    "run": {"training": {"protocol": "all", "steps": 300}, "evaluation": {"num_negatives": 77}},
    "metrics": {"test": {"full": MEASURED, "popular": MEASURED}, "pop": {"full": {**MEASURED, "mrr": 0.01}}},
}


def film(item):
    return FILMS[item][0] if item in FILMS else item


def likeliest(films, history, k=10):
    """The k likeliest items that are not in the history, by the model itself."""
    known = [FILM_IDS.index(item) + 1 for item in history]
    scores = films.after(known) if known else LOG_SHARES
    return [FILM_IDS[row] for row in np.argsort(-scores, kind="stable") if FILM_IDS[row] not in history][:k]


def wait_for_films(page, films, history, answers_to=None):
    """Waits until the history and its recommendations are shown. `answers_to`: the items of it that the model knows."""
    expect(page.locator("#history .name")).to_have_text([film(item) for item in history])
    items = likeliest(films, history if answers_to is None else answers_to)
    for place, item in enumerate(items):
        found = page.locator("#recommendations .name").nth(place)
        expect(found).to_have_text(film(item))
    return items


PHONE = {"viewport": {"width": 360, "height": 640}, "has_touch": True}
