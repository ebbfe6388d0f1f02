"""The page in a headless Chromium: a person's way through it, by mouse and by keyboard."""

import contextlib
import re

import numpy as np
import pytest
from support.exports import Fixed
from support.http_server import ITEMS, NUMBER, Server, best, export, log_probabilities, wait_until
from support.page import NASTY, STORED, TITLES, expect, find, name, open_page, sync_api, visit, wait_for_films

from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export import saved_model
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    export(folder / "model")
    lines = "".join('{},"{}"\n'.format(item, title.replace('"', '""')) for item, title in TITLES.items())
    (folder / "titles.csv").write_text(f"id,title\n{lines}", encoding="utf-8")
    settings = ServerSettings(model=str(folder / "model"), titles=str(folder / "titles.csv"))
    with Server(open_versions(settings), max_history=5) as running:
        yield running


@pytest.fixture
def page(browser, server):
    with open_page(browser, server) as page:
        yield page


def wait_for_recommendations(page, history, k=10, keep_seen=False):
    """Waits until what the oracle gives is shown, and checks the probabilities."""
    items, scores, _ = best(history, k=k, keep_seen=keep_seen)
    names = page.locator("#recommendations .name")
    expect(names).to_have_count(len(items))
    for place, item in enumerate(items):
        expect(names.nth(place)).to_have_text(name(item))
    shown = page.locator("#recommendations .share").all_text_contents()
    expected = [max(2.718281828**score * 100, 0.01) for score in scores]
    assert [float(one.strip("<%")) for one in shown] == pytest.approx(expected, rel=6e-3)
    return items


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
        falls = [(fall, left) for fall, left in falls if fall > 1e-4]
        if whole <= log_probabilities([], 1)[NUMBER[item]]:
            falls = []
        total = sum(fall for fall, _ in falls)
        reasons = [f"{name(left)} ({round(100 * fall / total)}%)" for fall, left in falls][:2]
        expected.append("because of " + " and ".join(reasons) if reasons else "")
    assert "because of Star Garden (100%)" in expected
    expect(page.locator(".why")).to_have_text([one for one in expected if one])
    page.get_by_role("button", name="Clear").click()
    wait_for_recommendations(page, [])
    expect(page.locator(".why")).to_have_count(0)


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


def test_what_was_found_and_added_is_read_out(page):
    find(page, "star")
    assert page.locator("#found").get_attribute("aria-label") == "2 found for star"
    expect(page.locator("#found-count")).to_have_text("2 found")
    page.locator("#found [role=option]").first.click()
    expect(page.locator("#state")).to_have_text("Électric Star added")
    assert page.locator("#state").get_attribute("aria-live") == "polite"
    find(page, "nothing like it")
    expect(page.locator("#found-count")).to_have_text("Nothing found.")
    expect(page.locator("#found")).to_be_hidden()


def test_a_history_that_is_full_and_a_list_without_anything_are_reported(page):
    for number in range(6):
        expect(page.locator("#history li")).to_have_count(min(number, 5))
        page.get_by_label(re.compile("^Add: ")).first.click()
    expect(page.locator("#state")).to_have_text("A history has at most 5 items.")
    assert page.locator("#history li").count() == 5
    outputs = {"items": [[]], "scores": [[]], "unknown": [0], "basis": ["popular"]}
    page.route("**/*:predict", lambda route: route.fulfill(status=200, json={"outputs": outputs}))
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#measure")).to_have_text("No items left to recommend.")


def test_a_refused_question_leaves_the_older_answer_marked(browser, server):
    with open_page(browser, server, refused=1) as page:
        refusal = {"error": "`k` must be at most 9. Received: 10"}
        page.route("**/*:predict", lambda route: route.fulfill(status=400, json=refusal))
        page.get_by_label(re.compile("^Add: ")).first.click()
        expect(page.locator("#state")).to_have_text("`k` must be at most 9. Received: 10. What you see is out of date.")
        expect(page.locator("#next")).to_have_class("stale")
        expect(page.get_by_role("button", name="Retry")).to_be_hidden()
        page.unroute("**/*:predict")
        page.get_by_label("include history").check()
        expect(page.locator("#next")).not_to_have_class("stale")
        expect(page.locator("#state")).to_have_text("")


def test_a_version_that_replaces_another_shows_its_own_card_and_answers(browser, tmp_path):
    export(tmp_path / "models" / "1")
    export(tmp_path / "second", 2)
    titles = tmp_path / "titles.csv"
    titles.write_text("id,title\n" + "".join(f"{item},old {item}\n" for item in TITLES))
    versions = open_versions(ServerSettings(model=str(tmp_path / "models"), titles=str(titles)))
    with Server(versions) as server, open_page(browser, server, "#item=i1", replaced=1) as page:
        expect(page.locator("#model")).to_have_text(f"version 1, {len(ITEMS)} items")
        assert history_of(page) == ["old i1"]
        titles.write_text(titles.read_text().replace("old", "new"))
        (tmp_path / "second").rename(tmp_path / "models" / "2")
        wait_until(lambda: versions.current.version == 2)
        page.get_by_label("include history").check()
        expect(page.locator("#model")).to_have_text(f"version 2, {len(ITEMS)} items")
        expected = best(["i1"], 2, k=10, keep_seen=True)[0]
        shown = [f"new {item}" if item in TITLES else item for item in expected]
        expect(page.locator("#recommendations .name")).to_have_text(shown)
        expect(page.locator("#history .name")).to_have_text(["new i1"])
        page.get_by_role("button", name=re.compile("trained on")).click()
        expect(page.locator("#card-content")).to_contain_text("version 2")


def test_the_page_sends_a_user_id_to_a_model_with_users(page, server):
    about = {"name": "bert4rec", "version": "2", "items": 1, "titles": False, "max_history": 9, "needs_users": True}
    about |= {
        "can_explain": True,
        "signatures": ["recommend", "score"],
        "card": {"model": "BprMf", "scores": "the model's own"},
    }
    page.route("**/page/model", lambda route: route.fulfill(json=about))
    items = [{"id": "anything", "title": "", "tags": []}]
    page.route("**/page/items?*", lambda route: route.fulfill(json={"items": items}))
    outputs = {"items": [["x", "y", ""]], "scores": [[2.5, -1, "-Infinity"]], "unknown": [1], "basis": ["history"]}
    found = {"outputs": outputs}
    asked = []
    page.route("**/*:predict", lambda route: (asked.append(route.request.post_data_json), route.fulfill(json=found)))
    page.reload()
    expect(page.locator("#recommendations .share")).to_have_text(["2.500", "-1.000"])
    page.get_by_label("User id").fill("u7")
    expect(page.get_by_role("button", name="Load", exact=True)).to_be_hidden()
    page.fill("#query", "anything")
    page.keyboard.press("Enter")
    expect(page.locator("#history li")).to_have_count(1)
    expect(page.locator("#state")).to_have_text(re.compile("does not know 1 of the items"))
    choices = {"k": 10, "exclude_seen": True, "popularity_correction": 0, "explain": True}
    expected = {"histories": [["anything"]], "users": ["u7"], **choices}
    assert asked[-1] == {"signature_name": "recommend", "inputs": expected}
    assert {one["signature_name"] for one in asked} == {"recommend"}
    assert page.locator("#measure").text_content().startswith("Scores; higher is better.")
    outputs |= {"unknown": [0], "basis": ["popular"]}
    page.get_by_label("Show").select_option("20")
    said = "The model does not know the user, so these are the most popular items. Scores; higher is better."
    expect(page.locator("#measure")).to_have_text(re.compile(f"^{said}"))


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


def wait_for_less_popular(page, strength):
    """Waits until the items after the history `q` are ranked by score - strength * log(count + 1)."""
    scores = (LIKELY - strength * np.log(COUNTS + 1))[:4]
    order = np.argsort(-scores)
    expect(page.locator("#recommendations .name")).to_have_text(["mnop"[item] for item in order])
    expect(page.locator("#strength")).to_have_text(f"{strength:g}")
    shown = [f"{np.exp(score):#.3%}"[:4] + "%" if strength == 0 else f"{score:#.4g}" for score in scores[order]]
    expect(page.locator("#recommendations .share")).to_have_text(shown)
    words = "Probability of being next" if strength == 0 else "Scores, with popular items lowered"
    expect(page.locator("#measure")).to_have_text(re.compile(f"^{words}"))


def test_the_slider_asks_for_less_popular_items(browser, corrected):
    with open_page(browser, corrected) as page:
        visit(page, "q")
        slider = page.get_by_role("slider", name="Less popular")
        expect(slider).to_have_value("0.25")
        wait_for_less_popular(page, 0.25)
        slider.focus()
        for key, strength in (("Home", 0), ("PageUp", 0.1), ("ArrowLeft", 0.09), ("End", 1)):
            page.keyboard.press(key)
            wait_for_less_popular(page, strength)
        page.get_by_label("include history").check()
        expect(page.locator("#recommendations .name").first).to_have_text("q")


def test_tiny_probabilities_are_short(browser, tmp_path):
    vocabulary = Vocabulary(np.array(["m", "n", "o"], object), np.array([9_998, 2, 1]))
    card = {"scores": "log-probabilities"}
    peaked = Fixed(np.array([-70.0, np.log(0.999), np.log(0.0005)]))
    saved_model.export(peaked, vocabulary, tmp_path / "model", card=card)
    with (
        Server(open_versions(ServerSettings(model=str(tmp_path / "model")))) as running,
        open_page(browser, running) as page,
    ):
        visit(page, "o")
        expect(page.locator("#recommendations .share")).to_have_text(["99.9%", "<0.01%"])


@pytest.mark.long
def test_a_user_whose_history_the_export_holds_can_be_loaded(browser, films, page):
    expect(page.get_by_role("button", name="Load a user")).to_be_hidden()
    with open_page(browser, films, refused=1) as page:
        page.get_by_role("button", name="Load a user").click()
        page.keyboard.type("nobody")
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text('This model does not know the user "nobody".')
        assert page.locator("#history li").count() == 0
        page.get_by_label("User id").fill("ann")
        page.get_by_role("button", name="Load", exact=True).click()
        wait_for_films(page, films, STORED["ann"])
        expect(page.locator("#state")).to_have_text("The last 3 items of user ann")


def test_a_bookmark_stays_in_the_address_while_its_titles_are_loading(page):
    held = []
    page.route("**/page/items?id=*", lambda route: route.continue_() if held else held.append(route))
    visit(page, "i1", "a")
    page.reload()
    expect(page.locator("#found [role=option]")).not_to_have_count(0)
    page.get_by_label("Show").select_option("20")
    assert page.url.endswith("#item=i1&item=a&show=20") and held
    held[0].continue_()
    wait_for_recommendations(page, ["i1", "a"], k=20)
    assert history_of(page) == [name("i1"), name("a")]


def test_a_long_bookmark_keeps_the_newest_items(page):
    visit(page, *ITEMS[:7])
    wait_for_recommendations(page, ITEMS[2:7])


@pytest.mark.long
def test_of_two_users_the_last_one_asked_for_is_shown(browser, films):
    with open_page(browser, films) as page:
        held = []
        page.route("**/page/items?user=ann", lambda route: held.append(route))
        page.get_by_role("button", name="Load a user").click()
        for user in ("ann", "bob"):
            page.get_by_label("User id").fill(user)
            page.get_by_role("button", name="Load", exact=True).click()
        wait_for_films(page, films, STORED["bob"])
        with contextlib.suppress(sync_api.Error):  # the page has given it up
            held[0].fulfill(json={"items": [{"id": item, "title": "", "tags": []} for item in STORED["ann"]]})
        expect(page.locator("#state")).to_have_text("The last 1 items of user bob")
        wait_for_films(page, films, STORED["bob"])
