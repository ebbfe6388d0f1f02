"""The page in a headless Chromium: a person's way through it, by mouse and by keyboard."""

import contextlib
import re
import shutil
from types import SimpleNamespace
from urllib.parse import urlencode

import numpy as np
import pytest
from support.exports import COUNTS as ACTIONS
from support.exports import LOG_SHARES, Fixed, transformer
from support.exports import log_probabilities as by_encoder
from support.http_server import ITEMS, NUMBER, Server, best, export, log_probabilities

from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export import saved_model
from bert4rec_tf.export.histories import Histories
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
NASTY = '<img src=x onerror="document.title=1">'
TITLES = {"i1": "The Quiet River", "i2": "Électric Star", "i3": NASTY, "i4": "Star Garden", "a": "The Last Train"}


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    export(folder / "model")
    lines = "".join('{},"{}"\n'.format(item, title.replace('"', '""')) for item, title in TITLES.items())
    (folder / "titles.csv").write_text(f"id,title\n{lines}", encoding="utf-8")
    settings = ServerSettings(model=str(folder / "model"), titles=str(folder / "titles.csv"))
    with Server(open_versions(settings), max_history=5) as running:
        yield running


@contextlib.contextmanager
def opened(browser, server, fragment="#empty", refused=0, loses_server=False, **options):
    """The page, without a history.

    Anything wrong in its console, or asked of another host, fails the test; but the server refuses so many requests,
    and a test that stops it sees the requests fail.
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
    assert [one for one in wrong if one != lost] == [
        "Failed to load resource: the server responded with a status of 400 (Bad Request)"
    ] * (refused)
    context.close()


@pytest.fixture
def page(browser, server, request):
    with opened(browser, server, **getattr(request, "param", {})) as page:
        yield page


def name(item):
    return TITLES.get(item, item)


def visit(page, *history):
    """Opens the address that holds a history."""
    page.goto(f"{page.url.split('#')[0]}#{urlencode([('item', item) for item in history])}")


def wait_for_recommendations(page, history, k=10, keep_seen=False):
    """Waits until what the oracle gives is shown, and checks the probabilities."""
    items, scores, _ = best(history, k=k, keep_seen=keep_seen)
    names = page.locator("#recommendations .name")
    sync_api.expect(names).to_have_count(len(items))
    for place, item in enumerate(items):
        sync_api.expect(names.nth(place)).to_have_text(name(item))
    shown = page.locator("#recommendations .share").all_text_contents()
    expected = [2.718281828**score * 100 for score in scores]
    assert [float(one.split("%")[0]) for one in shown] == pytest.approx(expected, rel=6e-3)
    return items


def find(page, query):
    """Types a query and waits until what is found for it is shown."""
    page.fill("#query", query)
    sync_api.expect(page.locator("#found")).to_have_attribute("aria-label", re.compile(f"found for {query}$"))


def history_of(page):
    return page.locator("#history .item .name").all_text_contents()


def test_find_add_reorder_remove_and_extend_by_click(page):
    wait_for_recommendations(page, [])
    assert page.locator("#model").text_content() == f"version 1, {len(ITEMS)} items"
    assert page.locator("#card").text_content() == "Neighbours, trained on letters"
    find(page, "ELEC star")
    page.locator("#found [role=option]").get_by_text("Électric Star").click()
    items = wait_for_recommendations(page, ["i2"])
    page.get_by_label(f"Add: {name(items[1])}").click()
    items = ["i2", items[1]]
    wait_for_recommendations(page, items)
    assert history_of(page) == ["Électric Star", name(items[1])]
    page.get_by_label("Earlier").nth(1).click()
    wait_for_recommendations(page, items[::-1])
    page.get_by_label(f"Remove: {name(items[1])}").click()
    wait_for_recommendations(page, ["i2"])
    page.reload()
    wait_for_recommendations(page, ["i2"])
    page.get_by_role("button", name="Clear").click()
    wait_for_recommendations(page, [])
    page.reload()
    wait_for_recommendations(page, [])


def test_the_reader_chooses_the_number_of_items_and_whether_to_include_the_history(page):
    visit(page, "i1", "i4")
    wait_for_recommendations(page, ["i1", "i4"])
    page.get_by_label("include history").check()
    assert "i4" in wait_for_recommendations(page, ["i1", "i4"], keep_seen=True)
    page.get_by_label("Show").select_option("20")
    wait_for_recommendations(page, ["i1", "i4"], 20, keep_seen=True)
    page.get_by_label("include history").uncheck()
    wait_for_recommendations(page, ["i1", "i4"], 20)


def test_each_recommendation_shows_the_items_whose_removal_lowers_its_score_most(page):
    visit(page, "i1", "i9", "i4")
    history = ["i1", "i9", "i4"]
    items = wait_for_recommendations(page, history)
    expected = []
    for item in items:
        score = [log_probabilities([one for one in history if one != left], 1)[NUMBER[item]] for left in history]
        whole = log_probabilities(history, 1)[NUMBER[item]]
        falls = sorted(((whole - one, left) for one, left in zip(score, history, strict=True)), reverse=True)
        reasons = [name(left) for fall, left in falls if fall > 1e-4][:2]
        expected.append("because of " + " and ".join(reasons) if reasons else "")
    assert "because of Star Garden" in expected
    sync_api.expect(page.locator(".why")).to_have_text([one for one in expected if one])
    page.get_by_role("button", name="Clear").click()
    wait_for_recommendations(page, [])
    sync_api.expect(page.locator(".why")).to_have_count(0)


def test_all_of_it_by_keyboard(page):
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.type("quiet")
    page.keyboard.press("Enter")
    wait_for_recommendations(page, ["i1"])
    find(page, "star")
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    wait_for_recommendations(page, ["i1", "i4"])
    page.get_by_label("Earlier: Star Garden").focus()
    page.keyboard.press("Enter")
    wait_for_recommendations(page, ["i4", "i1"])
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Remove: Star Garden"
    page.keyboard.press("Space")
    wait_for_recommendations(page, ["i1"])
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Remove: The Quiet River"


def test_markup_in_titles_and_ids_is_only_text(page):
    for query in ("onerror", "onclick"):
        find(page, query)
        page.locator("#found [role=option]").click()
    wait_for_recommendations(page, ["i3", ITEMS[5]])
    assert history_of(page) == [NASTY, ITEMS[5]]
    assert page.locator("img").count() == 0 and page.locator("#history b").count() == 0


def test_every_control_has_a_name_and_a_state_that_is_read_out(page):
    find(page, "star")
    assert page.locator("#found").get_attribute("aria-label") == "2 found for star"
    sync_api.expect(page.locator("#found-count")).to_have_text("2 found")
    page.locator("#found [role=option]").first.click()
    sync_api.expect(page.locator("#state")).to_have_text("Électric Star added")
    assert page.locator("#state").get_attribute("aria-live") == "polite"
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, select")].filter((one) => one.checkVisibility()
        && !one.textContent.trim() && !one.labels?.length && !one.getAttribute("aria-label")).length"""
    )
    assert unnamed == 0
    find(page, "nothing like it")
    sync_api.expect(page.locator("#found-count")).to_have_text("Nothing found.")
    sync_api.expect(page.locator("#found")).to_be_hidden()


def test_a_history_that_is_full_and_a_list_without_anything_are_reported(page):
    for number in range(6):
        sync_api.expect(page.locator("#history li")).to_have_count(min(number, 5))
        page.get_by_label(re.compile("^Add: ")).first.click()
    sync_api.expect(page.locator("#state")).to_have_text("A history has at most 5 items.")
    assert page.locator("#history li").count() == 5
    page.route(
        "**/*:predict",
        lambda route: route.fulfill(status=200, json={"outputs": {"items": [[]], "scores": [[]], "unknown": [0]}}),
    )
    page.get_by_role("button", name="Clear").click()
    sync_api.expect(page.locator("#measure")).to_have_text("No items left to recommend.")


def test_the_page_sends_a_user_id_to_a_model_with_users(page, server):
    about = {"name": "bert4rec", "version": "2", "items": 1, "titles": False, "max_history": 9, "needs_users": True}
    about |= {"signatures": ["recommend", "score"], "card": {"model": "BprMf", "scores": "the model's own"}}
    page.route("**/page/model", lambda route: route.fulfill(json=about))
    items = [{"id": "anything", "title": "", "tags": []}]
    page.route("**/page/items?*", lambda route: route.fulfill(json={"items": items}))
    found = {"outputs": {"items": [["x", "y", ""]], "scores": [[2.5, -1, "-Infinity"]], "unknown": [1]}}
    asked = []
    page.route("**/*:predict", lambda route: (asked.append(route.request.post_data_json), route.fulfill(json=found)))
    page.reload()
    sync_api.expect(page.locator("#recommendations .share")).to_have_text(["2.500", "-1.000"])
    page.get_by_label("User id").fill("u7")
    sync_api.expect(page.get_by_role("button", name="Load", exact=True)).to_be_hidden()
    page.fill("#query", "anything")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#history li")).to_have_count(1)
    sync_api.expect(page.locator("#state")).to_have_text(re.compile("does not know 1 of the items"))
    choices = {"k": 10, "exclude_seen": True, "popularity_correction": 0}
    expected = {"histories": [["anything"]], "users": ["u7"], **choices}
    assert asked[-1] == {"signature_name": "recommend", "inputs": expected}
    assert {one["signature_name"] for one in asked} == {"recommend"}
    assert "higher is better" in page.locator("#measure").text_content()


LIKELY = np.log([0.4, 0.3, 0.15, 0.1, 0.05])
COUNTS = np.array([900, 90, 30, 8, 1])


@pytest.fixture(scope="module")
def corrected(tmp_path_factory):
    """A server of a real export, whose default is a correction of 0.25."""
    folder = tmp_path_factory.mktemp("corrected") / "model"
    vocabulary = Vocabulary(np.array(["m", "n", "o", "p", "q"], object), COUNTS)
    card = {"scores": "log-probabilities"}
    saved_model.export(Fixed(LIKELY), vocabulary, folder, ExportOptions(popularity_correction=0.25), card=card)
    with Server(open_versions(ServerSettings(model=str(folder)))) as running:
        yield running


def shown_number(number):
    """With two digits, as in English."""
    return f"{float(f'{number:.2g}'):,g}"


def wait_for_less_popular(page, strength):
    """Waits until the items after the history `q` are ranked by score - strength * log(count + 1)."""
    scores = (LIKELY - strength * np.log(COUNTS + 1))[:4]
    order = np.argsort(-scores)
    sync_api.expect(page.locator("#recommendations .name")).to_have_text(["mnop"[item] for item in order])
    sync_api.expect(page.locator("#strength")).to_have_text(f"{strength:g}")
    lifts = np.exp(LIKELY - np.log(COUNTS / COUNTS.sum()))
    shown = [f"{100 * np.exp(LIKELY[item]):#.3g}%\u00d7{shown_number(lifts[item])}" for item in order]
    sync_api.expect(page.locator("#recommendations .share")).to_have_text(shown)
    words = "Probability of being next" if strength == 0 else "Ranked with popular items lowered. Probability"
    sync_api.expect(page.locator("#measure")).to_have_text(re.compile(f"^{words}"))


def test_the_slider_asks_for_less_popular_items(browser, corrected):
    with opened(browser, corrected) as page:
        visit(page, "q")
        slider = page.get_by_role("slider", name="Less popular")
        sync_api.expect(slider).to_have_value("0.25")
        wait_for_less_popular(page, 0.25)
        slider.focus()
        for key, strength in (("Home", 0), ("PageUp", 0.1), ("ArrowLeft", 0.09), ("End", 1)):
            page.keyboard.press(key)
            wait_for_less_popular(page, strength)
        page.get_by_label("include history").check()
        sync_api.expect(page.locator("#recommendations .name").first).to_have_text("q")


def test_tiny_probabilities_and_great_lifts_are_short(browser, tmp_path):
    vocabulary = Vocabulary(np.array(["m", "n", "o"], object), np.array([9_998, 2, 1]))
    card = {"scores": "log-probabilities"}
    peaked = Fixed(np.array([-70.0, np.log(0.999), np.log(0.0005)]))
    saved_model.export(peaked, vocabulary, tmp_path / "model", card=card)
    with (
        Server(open_versions(ServerSettings(model=str(tmp_path / "model")))) as running,
        opened(browser, running) as page,
    ):
        visit(page, "o")
        sync_api.expect(page.locator("#recommendations .share")).to_have_text(["99.9%\u00d75K", "<0.01%\u00d7<0.01"])


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


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """A server of a real export with titles, tags and histories, and its model in Python."""
    folder = tmp_path_factory.mktemp("films")
    model = transformer()
    numbers = [FILM_IDS.index(item) + 1 for history in STORED.values() for item in history]
    kept = Histories(np.array(numbers, np.int32), np.cumsum([0, *map(len, STORED.values())]), list(STORED))
    options = ExportOptions(histories=kept)
    saved_model.export(model, Vocabulary(np.array(FILM_IDS, object), ACTIONS), folder / "model", options, card=CARD)
    lines = [f'{item},"{title}",{genres}' for item, (title, genres) in FILMS.items()]
    (folder / "films.csv").write_text("\n".join(["movieId,title,genres", *lines]), encoding="utf-8")
    chosen = ServerSettings(model=str(folder / "model"), titles=str(folder / "films.csv"))
    with Server(open_versions(chosen)) as running:
        yield SimpleNamespace(port=running.port, model=model, after=by_encoder(model))


def film(item):
    return FILMS[item][0] if item in FILMS else item


def likeliest(films, history, k=10):
    """The k likeliest items that are not in the history, by the model itself."""
    known = [FILM_IDS.index(item) + 1 for item in history]
    scores = films.after(known) if known else LOG_SHARES
    return [FILM_IDS[row] for row in np.argsort(-scores, kind="stable") if FILM_IDS[row] not in history][:k]


def wait_for_films(page, films, history, answers_to=None):
    """Waits until the history and its recommendations are shown. `answers_to`: the items of it that the model knows."""
    sync_api.expect(page.locator("#history .name")).to_have_text([film(item) for item in history])
    items = likeliest(films, history if answers_to is None else answers_to)
    for place, item in enumerate(items):
        found = page.locator("#recommendations .name").nth(place)
        sync_api.expect(found).to_have_text(film(item))
    return items


def test_the_first_pick_replaces_the_example_and_clears_the_search_field(browser, films):
    with opened(browser, films, "") as page:
        sync_api.expect(page.locator("#count")).to_have_text("(example)")
        page.keyboard.type("garden")
        page.keyboard.press("Enter")
        wait_for_films(page, films, ["m7"])
        sync_api.expect(page.locator("#query")).to_have_value("")
        sync_api.expect(page.locator("#found")).to_have_attribute("aria-label", "Popular items")
        find(page, "river")
        page.locator("#found [role=option]").click()
        wait_for_films(page, films, ["m7", "m0"])
        sync_api.expect(page.locator("#query")).to_have_value("")


def choices(page):
    """Returns how many are shown, whether the history comes back, and how far popular items are lowered."""
    controls = page.locator("#number"), page.locator("#seen"), page.locator("#strength")
    return controls[0].input_value(), controls[1].is_checked(), controls[2].text_content()


def test_back_undoes_the_last_change_and_a_reload_keeps_all_of_them(browser, films):
    with opened(browser, films, "") as page:
        sync_api.expect(page.locator("#count")).to_have_text("(example)")
        example = page.locator("#history .name").all_text_contents()
        find(page, "garden")
        page.keyboard.press("Enter")
        wait_for_films(page, films, ["m7"])
        find(page, "river")
        page.keyboard.press("Enter")
        wait_for_films(page, films, ["m7", "m0"])
        page.get_by_label("Show").select_option("20")
        page.get_by_label("include history").check()
        page.get_by_label("Less popular").press("PageUp")
        sync_api.expect(page).to_have_url(re.compile("popularity=0.1"))
        page.reload()
        sync_api.expect(page.locator("#history .name")).to_have_text([film("m7"), film("m0")])
        sync_api.expect(page.locator("#recommendations li")).to_have_count(20)
        assert choices(page) == ("20", True, "0.1")
        for expected in (("20", True, "0"), ("20", False, "0"), ("10", False, "0")):
            page.go_back()
            sync_api.expect(page.locator("#state")).to_have_text("Restored from the address.")
            sync_api.expect(page.locator("#recommendations li")).to_have_count(int(expected[0]))
            assert choices(page) == expected
        wait_for_films(page, films, ["m7", "m0"])
        page.go_back()
        wait_for_films(page, films, ["m7"])
        page.go_back()
        sync_api.expect(page.locator("#count")).to_have_text("(example)")
        sync_api.expect(page.locator("#history .name")).to_have_text(example)
        page.go_forward()
        wait_for_films(page, films, ["m7"])


def test_an_address_with_impossible_choices_shows_the_usual_ones(browser, films):
    with opened(browser, films, "#item=m7&show=7&popularity=much&seen=perhaps") as page:
        wait_for_films(page, films, ["m7"])
        assert choices(page) == ("10", False, "0")


def test_items_that_the_model_does_not_know_are_said_to_give_the_most_popular_ones(browser, films):
    said = re.compile("^The model knows no item of the history, so these are the most popular items.")
    with opened(browser, films, "#item=unknown&item=neither") as page:
        wait_for_films(page, films, ["unknown", "neither"], answers_to=[])
        sync_api.expect(page.locator("#measure")).to_have_text(said)
        sync_api.expect(page.locator("#measure")).not_to_have_text(re.compile("than without the history"))
        sync_api.expect(page.locator(".lift")).to_have_count(0)
        find(page, "garden")
        page.keyboard.press("Enter")
        wait_for_films(page, films, ["unknown", "neither", "m7"], answers_to=["m7"])
        sync_api.expect(page.locator(".lift")).to_have_count(10)
        sync_api.expect(page.locator("#measure")).not_to_have_text(said)


def test_the_found_items_are_one_tab_stop_that_escape_closes(browser, films):
    with opened(browser, films, "#item=m7", viewport={"width": 1300, "height": 900}) as page:
        find(page, "m1")
        options = page.get_by_role("listbox", name="11 found for m1").get_by_role("option")
        sync_api.expect(options).to_have_count(11)
        for key, place in (("Tab", 0), ("ArrowDown", 1), ("End", 10), ("ArrowDown", 10), ("ArrowUp", 9), ("Home", 0)):
            page.keyboard.press(key)
            sync_api.expect(options.nth(place)).to_be_focused()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('section').id") == "past"
        page.keyboard.press("Shift+Tab")
        sync_api.expect(options.nth(1)).to_be_focused()
        page.keyboard.press("Escape")
        sync_api.expect(page.locator("#found")).to_be_hidden()
        sync_api.expect(page.locator("#query")).to_be_focused()
        sync_api.expect(page.locator("#query")).to_have_value("m1")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('section').id") == "past"
        page.locator("#query").press("ArrowDown")
        sync_api.expect(options.first).to_be_focused()
        page.keyboard.press("Space")
        sync_api.expect(page.locator("#history li")).to_have_count(2)
        sync_api.expect(page.locator("#query")).to_be_focused()


def test_a_server_that_does_not_answer_is_named_and_asked_again(browser, films):
    with opened(browser, films, "#item=m7", loses_server=True) as page:
        wait_for_films(page, films, ["m7"])
        retry = page.get_by_role("button", name="Retry")
        sync_api.expect(retry).to_be_hidden()
        page.route("**/*:predict", lambda route: route.abort("connectionrefused"))
        page.get_by_label("Add: ", exact=False).first.click()
        message = "The server does not answer. What you see is out of date."
        sync_api.expect(page.locator("#state")).to_have_text(message)
        sync_api.expect(page.locator("#next")).to_have_class("stale")
        sync_api.expect(page.locator("#find")).not_to_have_class("stale")
        shown = page.locator("#next").evaluate("one => getComputedStyle(one, '::after').content")
        assert shown == '"Out of date"'
        retry.click()
        sync_api.expect(page.locator("#state")).to_have_text(message)
        page.unroute("**/*:predict")
        retry.focus()
        page.keyboard.press("Enter")
        sync_api.expect(page.locator("#state")).to_have_text("The server answers again.")
        sync_api.expect(retry).to_be_hidden()
        sync_api.expect(page.locator("#next")).not_to_have_class("stale")
        sync_api.expect(page.locator("#next-title")).to_be_focused()
        wait_for_films(page, films, ["m7", likeliest(films, ["m7"])[0]])
        page.route("**/*:predict", lambda route: route.abort("connectionrefused"))
        item = page.locator("#history button.item").first
        item.click()
        sync_api.expect(page.locator("#state")).to_have_text("The server does not answer.")
        sync_api.expect(item).to_have_attribute("aria-expanded", "false")
        sync_api.expect(retry).to_be_hidden()


LONG_TITLE = "a story so long that nobody could ever tell the whole of it in one breath, " * 5


@pytest.fixture(scope="module")
def long_titles(tmp_path_factory):
    """A server whose titles are long, and for two items blank."""
    folder = tmp_path_factory.mktemp("long")
    saved_model.export(transformer(), Vocabulary(np.array(FILM_IDS, object), ACTIONS), folder / "model")
    titles = {**{item: f"{item}: {LONG_TITLE}" for item in FILM_IDS}, "m1": "   ", "m2": "\u200b"}
    lines = [f'{item},"{title}",Drama|Comedy|Thriller|Film-Noir' for item, title in titles.items()]
    (folder / "films.csv").write_text("\n".join(["id,title,genres", *lines]), encoding="utf-8")
    settings = ServerSettings(model=str(folder / "model"), titles=str(folder / "films.csv"))
    with Server(open_versions(settings)) as running:
        yield running


def test_a_blank_title_gives_way_to_the_id(browser, long_titles):
    with opened(browser, long_titles, "#item=m1&item=m2&item=%20") as page:
        sync_api.expect(page.locator("#history .name")).to_have_text(["m1", "m2", '" "'])
        sync_api.expect(page.get_by_label("Remove: m1")).to_be_visible()


@pytest.mark.parametrize("width", [1300, 360])
def test_long_titles_have_three_lines_and_show_the_rest_on_request(browser, long_titles, width):
    size = {"width": width, "height": 640}
    with opened(browser, long_titles, "#item=m3&item=m5", viewport=size, has_touch=True) as page:
        page.wait_for_selector(".why")
        lines = "one => one.clientHeight / parseFloat(getComputedStyle(one).lineHeight)"
        name = page.locator("#recommendations .name").filter(has_text="story").first
        assert 2.5 < name.evaluate(lines) < 3.5
        assert name.get_attribute("title") == name.text_content() and LONG_TITLE.strip() in name.text_content()
        for one in page.locator(".name:visible").all():
            assert one.evaluate(lines) < 3.5
        if width == 360:
            sync_api.expect(page.locator("#recommendations li")).to_have_count(10)
            assert page.locator("#recommendations").bounding_box()["height"] <= 2 * size["height"]
        name.tap()
        sync_api.expect(page.locator("#recommendations .similar")).to_have_count(1)
        assert name.evaluate(lines) > 4


def test_the_first_visit_shows_popular_items_that_follow_each_other(browser, films):
    example = [FILM_IDS[0], *likeliest(films, [FILM_IDS[0]], 2)]
    with opened(browser, films, "") as page:
        wait_for_films(page, films, example)
        sync_api.expect(page.locator("#history-hint")).to_have_text(re.compile("^An example"))
        page.get_by_role("button", name="Clear").click()
        wait_for_films(page, films, [])
        page.reload()
        wait_for_films(page, films, [])
        page.get_by_role("button", name="Example").click()
        wait_for_films(page, films, example)
        page.get_by_label(f"Remove: {film(example[0])}").click()
        wait_for_films(page, films, example[1:])
        sync_api.expect(page.locator("#history-hint")).to_have_text("Oldest first.")
        page.reload()
        wait_for_films(page, films, example[1:])


def test_an_item_has_its_title_and_tags_and_its_id_only_without_a_title(browser, films):
    with opened(browser, films) as page:
        page.route("**/page/items?query=", lambda route: route.fulfill(json={"items": []}))
        page.reload()
        visit(page, "m7", "m12", "m20")
        wait_for_films(page, films, ["m7", "m12", "m20"])
        rows = page.locator("#history li")
        sync_api.expect(rows.nth(0).locator(".tag")).to_have_text(["Comedy", "Sci-Fi"])
        sync_api.expect(rows.nth(1).locator(".tag")).to_have_text(["Drama", "Thriller", "Crime", "Mystery"])
        sync_api.expect(rows.nth(2).locator(".tag")).to_have_count(0)
        assert "m7" not in page.inner_text("body")
        find(page, "m7")
        sync_api.expect(page.locator("#found .name")).to_have_text(["Star Garden"])


@pytest.mark.parametrize("section, item", [("history", "m7"), ("recommendations", None)])
def test_a_click_on_an_item_shows_similar_items_which_can_be_added(browser, films, section, item):
    with opened(browser, films) as page:
        visit(page, "m0", "m7")
        item = item or wait_for_films(page, films, ["m0", "m7"])[1]
        vectors = films.model.item_vectors().numpy()
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        nearest = np.argsort(-(vectors @ vectors[FILM_IDS.index(item)]))[1:7]
        row = page.locator(f"#{section} li").nth(1)
        button = row.locator("button.item")
        button.click()
        sync_api.expect(button).to_have_attribute("aria-expanded", "true")
        expected = [f"Add: {film(FILM_IDS[one])}" for one in nearest]
        sync_api.expect(row.locator(".chip")).to_have_count(6)
        assert [one.get_attribute("aria-label") for one in row.locator(".chip").all()] == expected
        button.click()
        sync_api.expect(row.locator(".similar")).to_have_count(0)
        button.click()
        row.locator(".chip").nth(2).click()
        wait_for_films(page, films, ["m0", "m7", FILM_IDS[nearest[2]]])


def test_bars_show_how_many_times_likelier_an_item_is_than_its_share_of_all_actions(browser, films):
    history = ["m0", "m7"]
    with opened(browser, films) as page:
        sync_api.expect(page.locator(".lift")).to_have_count(0)
        visit(page, *history)
        rows = [FILM_IDS.index(item) for item in wait_for_films(page, films, history)]
        logarithms = (
            films.after([FILM_IDS.index(item) + 1 for item in history])[rows] - np.log(ACTIONS / ACTIONS.sum())[rows]
        )
        sync_api.expect(page.locator(".lift")).to_have_text(
            [f"\u00d7{shown_number(one)}" for one in np.exp(logarithms)]
        )
        sync_api.expect(page.locator("#measure")).to_have_text(
            re.compile(
                r"^Probability of being next, together .*%\. \u00d7 and bar: times likelier than without the history\.$"
            )
        )
        shares = page.locator("#recommendations > li").evaluate_all(
            "all => all.map(one => one.style.getPropertyValue('--share'))"
        )
        expected = 100 * np.clip(logarithms / max(np.log(2), logarithms.max()), 0, 1)
        assert [float(one.rstrip("%")) for one in shares] == pytest.approx(expected, abs=0.02)


def test_a_user_whose_history_the_export_holds_can_be_loaded(browser, films, page):
    sync_api.expect(page.get_by_role("button", name="Load a user")).to_be_hidden()
    with opened(browser, films, refused=1) as page:
        page.get_by_role("button", name="Load a user").click()
        page.keyboard.type("nobody")
        page.keyboard.press("Enter")
        sync_api.expect(page.locator("#state")).to_have_text(re.compile("must be one of the model's 2 users"))
        assert page.locator("#history li").count() == 0
        page.get_by_label("User id").fill("ann")
        page.get_by_role("button", name="Load", exact=True).click()
        wait_for_films(page, films, STORED["ann"])
        sync_api.expect(page.locator("#state")).to_have_text("The last 3 items of user ann")


def background(page):
    """The brightest and the darkest of red, green and blue."""
    found = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    return max(map(int, found[:3])), min(map(int, found[:3]))


def test_the_theme_is_the_system_s_or_the_reader_s_and_is_kept(browser, films):
    with opened(browser, films, color_scheme="light") as page:
        assert background(page)[1] > 200
        page.get_by_label("Theme").select_option("Dark")
        assert background(page)[0] < 60
        page.reload()
        page.wait_for_selector("#recommendations li")
        assert background(page)[0] < 60
        page.get_by_label("Theme").select_option("System")
        assert background(page)[1] > 200
        page.emulate_media(color_scheme="dark")
        assert background(page)[0] < 60
        page.get_by_label("Theme").select_option("Light")
        assert background(page)[1] > 200


def test_the_model_card_can_be_read(browser, films):
    with opened(browser, films) as page:
        button = page.get_by_role("button", name="BERT4Rec, trained on films")
        button.press("Enter")
        card = page.get_by_role("dialog", name="Model card")
        terms = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))
        assert terms["Users"] == "4,321" and terms["Actions"] == "98,765"
        assert card.locator("caption").all_inner_texts() == [
            "among all items that are not in the history",
            "among 77 items drawn by popularity",
        ]
        rows = [row.split("\t") for row in card.locator("table").first.inner_text().splitlines() if "0." in row]
        assert [[cell.strip() for cell in row] for row in rows] == [
            ["this model", "0.2500", "0.1250", "0.0625"],
            ["the most popular items", "0.2500", "0.1250", "0.0100"],
        ]
        sentences = " ".join(card.locator("li").all_inner_texts())
        assert "trained again, on all actions" in sentences and "reads the last 5 items" in sentences
        assert "holds the last 3 items of 2 users" in sentences
        link = card.get_by_role("link")
        assert (
            page.request.get(link.evaluate("one => one.href")).json()["metadata"]["model_card"]["data"] == CARD["data"]
        )
        page.keyboard.press("Escape")
        sync_api.expect(card).to_be_hidden()
        sync_api.expect(button).to_be_focused()
        button.click()
        card.get_by_role("button", name="Close").click()
        sync_api.expect(card).to_be_hidden()


@pytest.mark.parametrize(
    "model, data, training, expected",
    [
        ("SASRec", "beauty", {"protocol": "select", "selection_metric": "full"}, ["last action", "not in the history"]),
        ("SASRec", "own-logs", {"protocol": "select"}, ["One item of each user measured", "drawn by popularity"]),
        ("ItemTransitions", "beauty", {"protocol": "select"}, ["last action", "It counts actions"]),
    ],
)
def test_the_model_card_says_only_what_was_used_and_measured(browser, films, model, data, training, expected):
    def tell(route):
        about = route.fetch().json()
        card = {**about["card"], "model": model, "data": {"name": data}, "run": {"training": training}}
        route.fulfill(json={**about, "card": {**card, "metrics": {"test": {"full": MEASURED}}}})

    phrases = [
        "last action",
        "One item of each user measured",
        "not in the history",
        "drawn by popularity",
        "It counts actions",
    ]
    with opened(browser, films) as page:
        page.route("**/page/model", tell)
        page.reload()
        page.get_by_role("button", name=f"{model}, trained on {data}").click()
        card = page.get_by_role("dialog", name="Model card")
        assert card.locator("caption").all_inner_texts() == ["among all items that are not in the history"]
        told = " ".join(card.locator("section").nth(1).locator("li").all_inner_texts())
        assert [phrase for phrase in phrases if phrase in told] == expected
        assert "a date" not in told
        page.keyboard.press("Escape")
        assert "bert4rec" not in page.locator("header").inner_text().casefold()


def test_arrow_keys_move_through_the_lists_and_the_focus_stays_where_something_was_added(browser, films):
    with opened(browser, films) as page:
        items = wait_for_films(page, films, [])
        page.locator("#recommendations button.item").first.focus()
        page.keyboard.press("ArrowDown")
        sync_api.expect(page.locator("#recommendations button.item").nth(1)).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowDown")
        sync_api.expect(page.locator("#recommendations .add").nth(2)).to_be_focused()
        page.keyboard.press("Enter")
        wait_for_films(page, films, [items[2]])
        sync_api.expect(page.locator("#recommendations .add").nth(2)).to_be_focused()
        page.locator("#found [role=option]").first.focus()
        page.keyboard.press("ArrowUp")
        sync_api.expect(page.locator("#query")).to_be_focused()


PHONE = {"viewport": {"width": 360, "height": 640}, "has_touch": True}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


DESKTOP = pytest.param({"viewport": {"width": 1300, "height": 900}}, marks=pytest.mark.slow)


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_that_keeps_people_out(browser, films, screen):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

    def check(*schemes):
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            found = axe.Axe().run(page, options={"runOnly": RULES}).response
            assert "color-contrast" in [one["id"] for one in found["passes"]]
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]] == []

    with opened(browser, films, "", refused=1, loses_server=True, reduced_motion="reduce", **screen) as page:
        page.wait_for_selector(".lift")
        check("light")
        page.locator("#recommendations button.item").first.click()
        page.wait_for_selector(".similar")
        page.get_by_role("button", name="Load a user").click()
        page.keyboard.type("nobody")
        page.keyboard.press("Enter")
        page.wait_for_selector("#state.bad")
        find(page, "m")
        check("light", "dark")
        page.route("**/*:predict", lambda route: route.abort("connectionrefused"))
        page.locator("#recommendations .add").first.click()
        page.wait_for_selector("#next.stale")
        page.evaluate("scrollTo(0, document.body.scrollHeight)")  # where the notice covers no button
        check("dark", "light")
        page.locator("#card").click()
        check("dark", "light")


def test_on_a_phone_the_history_and_its_recommendations_are_on_one_screen(browser, films):
    with opened(browser, films, "", **PHONE) as page:
        page.wait_for_selector(".lift")
        for place in (
            "#query",
            "#history li:first-child",
            "#history li:last-child",
            "#recommendations li:nth-child(2)",
        ):
            sync_api.expect(page.locator(place)).to_be_in_viewport(ratio=0.95)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        sync_api.expect(page.locator("#found")).to_be_hidden()
        find(page, "star")
        page.locator("#found [role=option]").tap()
        sync_api.expect(page.locator("#found")).to_be_hidden()
        sync_api.expect(page.locator("#history .name").last).to_be_in_viewport()
        page.set_viewport_size({"width": 320, "height": 640})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        for button in page.locator("#history .small, #recommendations .small").all():
            assert button.bounding_box()["width"] >= 44 and button.bounding_box()["height"] >= 44
