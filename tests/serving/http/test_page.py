"""The page in a headless Chromium: a person's way through it, by mouse and by keyboard."""

import contextlib
import re
import shutil

import numpy as np
import pytest
from support.exports import Fixed
from support.http_server import ITEMS, NUMBER, Server, best, export, log_probabilities

from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export import saved_model
from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.settings import ServerSettings

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
def opened(browser, server, **options):
    """The page; anything wrong in its console, or asked of another host, fails the test."""
    context = browser.new_context(**options)
    page = context.new_page()
    wrong, own = [], f"http://127.0.0.1:{server.port}/"
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(asked.url))
    page.goto(own)
    page.wait_for_selector("#recommendations button")
    yield page
    assert page.title() == "What comes next?" and not wrong
    context.close()


@pytest.fixture
def page(browser, server, request):
    with opened(browser, server, **getattr(request, "param", {})) as page:
        yield page


def name(item):
    return TITLES.get(item, item)


def wait_for_recommendations(page, history, k=10, keep_seen=False):
    """Waits until what the oracle gives is shown, and checks the probabilities."""
    items, scores, _ = best(history, k=k, hidden=() if keep_seen else history)
    names = page.locator("#recommendations .name")
    sync_api.expect(names).to_have_count(len(items))
    for place, item in enumerate(items):
        text = f"{name(item)}{item}" if item in TITLES else item
        sync_api.expect(names.nth(place)).to_have_text(text)
    shown = page.locator("#recommendations .share").all_text_contents()
    expected = [2.718281828**score * 100 for score in scores]
    assert [float(one.rstrip("%")) for one in shown] == pytest.approx(expected, rel=6e-3)
    return items


def find(page, query):
    """Types a query and waits until what is found for it is shown."""
    page.fill("#query", query)
    sync_api.expect(page.locator("#found")).to_have_attribute("aria-label", re.compile(f"found for {query}$"))


def history_of(page):
    return [re.sub(r"^\d+", "", text) for text in page.locator("#history .item .name").all_text_contents()]


def test_find_add_reorder_remove_and_extend_by_click(page):
    wait_for_recommendations(page, [])
    assert page.locator("#model").text_content() == f"bert4rec, version 1, {len(ITEMS)} items"
    assert page.locator("#card").text_content() == "Neighbours, trained on letters"
    assert page.locator("#card a").get_attribute("href") == "v1/models/bert4rec/metadata"
    find(page, "ELEC star")
    page.locator("#found button").get_by_text("Électric Star").click()
    items = wait_for_recommendations(page, ["i2"])
    page.locator("#recommendations button").nth(1).click()
    items = ["i2", items[1]]
    wait_for_recommendations(page, items)
    assert history_of(page) == ["Électric Stari2", f"{name(items[1])}{items[1]}"]
    page.get_by_label("Earlier").nth(1).click()
    wait_for_recommendations(page, items[::-1])
    page.get_by_label(f"Remove: {name(items[1])}").click()
    wait_for_recommendations(page, ["i2"])
    page.reload()
    wait_for_recommendations(page, ["i2"])
    page.get_by_role("button", name="Clear").click()
    wait_for_recommendations(page, [])
    assert page.url.endswith("/")


def test_how_many_are_shown_and_whether_the_history_comes_back_is_the_reader_s_choice(page):
    page.goto(f"{page.url}#item=i1&item=i4")
    page.reload()
    wait_for_recommendations(page, ["i1", "i4"])
    page.get_by_label("include history").check()
    assert "i4" in wait_for_recommendations(page, ["i1", "i4"], keep_seen=True)
    page.get_by_label("Show").select_option("20")
    wait_for_recommendations(page, ["i1", "i4"], 20, keep_seen=True)
    page.get_by_label("include history").uncheck()
    wait_for_recommendations(page, ["i1", "i4"], 20)


def test_under_each_recommendation_stands_without_which_items_its_score_falls_most(page):
    page.goto(f"{page.url}#item=i1&item=i9&item=i4")
    page.reload()
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
        page.locator("#found button").click()
    wait_for_recommendations(page, ["i3", ITEMS[5]])
    assert history_of(page) == [f"{NASTY}i3", ITEMS[5]]
    assert page.locator("img").count() == 0 and page.locator("#history b").count() == 0


def test_every_control_has_a_name_and_a_state_that_is_read_out(page):
    find(page, "star")
    page.locator("#found button").first.click()
    sync_api.expect(page.locator("#state")).to_have_text("Électric Star added")
    assert page.locator("#state").get_attribute("aria-live") == "polite"
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, select")].filter((one) => one.checkVisibility()
        && !one.textContent.trim() && !one.labels?.length && !one.getAttribute("aria-label")).length"""
    )
    assert unnamed == 0
    assert page.locator("#found").get_attribute("aria-label") == "2 found for star"


def test_a_history_that_is_full_and_a_list_without_anything_are_told(page):
    for _ in range(6):
        page.locator("#recommendations button").first.click()
    sync_api.expect(page.locator("#state")).to_have_text("A history has at most 5 items.")
    assert page.locator("#history li").count() == 5
    page.route(
        "**/*:predict", lambda route: route.fulfill(status=200, json={"outputs": {"items": [[]], "scores": [[]]}})
    )
    page.get_by_role("button", name="Clear").click()
    sync_api.expect(page.locator("#measure")).to_have_text("No items left to recommend.")


def test_a_model_that_knows_users_is_asked_for_one(page, server):
    inputs = {"serving_default": {"histories": True, "users": True}}
    about = {"name": "bert4rec", "version": "2", "items": 0, "titles": False, "inputs": inputs}
    about["card"] = {"scores": "the model's own"}
    page.route("**/page/model", lambda route: route.fulfill(json={**about, "max_history": 9}))
    found = {"outputs": {"items": [["x", "y", ""]], "scores": [[2.5, -1, "-Infinity"]], "unknown": [1]}}
    asked = []
    page.route("**/*:predict", lambda route: (asked.append(route.request.post_data_json), route.fulfill(json=found)))
    page.reload()
    sync_api.expect(page.locator("#recommendations .share")).to_have_text(["2.500", "-1.000"])
    page.get_by_label("User").fill("u7")
    page.fill("#query", "anything")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#history li")).to_have_count(1)
    sync_api.expect(page.locator("#state")).to_have_text(re.compile("does not know 1 of the items"))
    assert asked[-1] == {
        "signature_name": "serving_default",
        "inputs": {"histories": [["anything"]], "users": ["u7"]},
    }
    assert "higher is better" in page.locator("#measure").text_content()


LIKELY = np.log([0.4, 0.3, 0.15, 0.1, 0.05])
COUNTS = np.array([900, 90, 30, 8, 1])


@pytest.fixture(scope="module")
def corrected(tmp_path_factory):
    """A server of a real export, whose default is a correction of 0.25."""
    folder = tmp_path_factory.mktemp("corrected") / "model"
    vocabulary = Vocabulary(np.array(["m", "n", "o", "p", "q"], object), COUNTS)
    card = {"scores": "log-probabilities"}
    saved_model.export(Fixed(LIKELY), vocabulary, folder, card=card, popularity_correction=0.25)
    with Server(open_versions(ServerSettings(model=str(folder)))) as running:
        yield running


def wait_for_less_popular(page, strength):
    """Waits until the items after the history `q` are ranked by score - strength * log(count + 1)."""
    scores = (LIKELY - strength * np.log(COUNTS + 1))[:4]
    order = np.argsort(-scores)
    sync_api.expect(page.locator("#recommendations .name")).to_have_text(["mnop"[item] for item in order])
    sync_api.expect(page.locator("#strength")).to_have_text(f"{strength:g}")
    shown = [f"{100 * np.exp(one):#.3g}%" if strength == 0 else f"{one:#.4g}" for one in scores[order]]
    sync_api.expect(page.locator("#recommendations .share")).to_have_text(shown)
    words = "Probability of being the next item" if strength == 0 else "Corrected scores"
    assert page.locator("#measure").text_content().startswith(words)


def test_the_slider_asks_for_less_popular_items(browser, corrected):
    with opened(browser, corrected) as page:
        page.goto(f"{page.url}#item=q")
        page.reload()
        slider = page.get_by_role("slider", name="Less popular")
        sync_api.expect(slider).to_have_value("0.25")
        wait_for_less_popular(page, 0.25)
        slider.focus()
        for key, strength in (("Home", 0), ("PageUp", 0.1), ("ArrowLeft", 0.09), ("End", 1)):
            page.keyboard.press(key)
            wait_for_less_popular(page, strength)
        page.get_by_label("include history").check()
        sync_api.expect(page.locator("#recommendations .name").first).to_have_text("q")


def test_while_the_slider_moves_nothing_is_asked(browser, corrected):
    with opened(browser, corrected) as page:
        asked = []
        page.on("request", lambda one: asked.append(one.post_data_json) if one.url.endswith(":predict") else None)
        page.clock.install()
        page.goto(f"{page.url}#item=q")
        page.reload()
        wait_for_less_popular(page, 0.25)
        asked.clear()
        page.clock.pause_at(page.evaluate("Date.now()") + 60_000)
        page.get_by_label("Less popular").focus()
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        page.clock.run_for(1_000)
        wait_for_less_popular(page, 0.3)
        assert [one["inputs"]["popularity_correction"] for one in asked] == [0.3]


def test_a_model_without_such_an_input_has_no_slider(page):
    sync_api.expect(page.locator("#popularity-field")).to_be_hidden()


@pytest.mark.parametrize("page", [{"viewport": {"width": 360, "height": 700}, "color_scheme": "dark"}], indirect=True)
def test_on_a_phone_nothing_is_wider_than_the_screen_and_in_the_dark_it_is_dark(page):
    find(page, "star")
    page.locator("#found button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    sizes = page.locator("#history .small").evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    assert min(sizes) >= 44
    red, green, blue = map(
        int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]
    )
    assert max(red, green, blue) < 60
