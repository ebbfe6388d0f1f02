"""How the page looks: long titles, themes, the model card, on a phone, and to those who use a screen reader."""

import re

import numpy as np
import pytest
from support.exports import COUNTS as ACTIONS
from support.exports import transformer
from support.http_server import Server
from support.page import CARD, FILM_IDS, MEASURED, PHONE, expect, find, open_page

from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export import saved_model
from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings

pytestmark = pytest.mark.long

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


def test_the_id_is_shown_for_a_blank_title(browser, long_titles):
    with open_page(browser, long_titles, "#item=m1&item=m2&item=%20") as page:
        expect(page.locator("#history .name")).to_have_text(["m1", "m2", '" "'])
        expect(page.get_by_label("Remove: m1")).to_be_visible()


@pytest.mark.parametrize("width", [1300, 360])
def test_long_titles_have_three_lines_and_show_the_rest_on_request(browser, long_titles, width):
    size = {"width": width, "height": 640}
    with open_page(browser, long_titles, "#item=m3&item=m5", viewport=size, has_touch=True) as page:
        page.wait_for_selector(".why")
        lines = "one => one.clientHeight / parseFloat(getComputedStyle(one).lineHeight)"
        name = page.locator("#recommendations .name").filter(has_text="story").first
        assert 2.5 < name.evaluate(lines) < 3.5
        assert name.get_attribute("title") == name.text_content() and LONG_TITLE.strip() in name.text_content()
        for one in page.locator(".name:visible").all():
            assert one.evaluate(lines) < 3.5
        if width == 360:
            expect(page.locator("#recommendations li")).to_have_count(10)
            assert page.locator("#recommendations").bounding_box()["height"] <= 2 * size["height"]
        name.tap()
        expect(page.locator("#recommendations .similar")).to_have_count(1)
        assert name.evaluate(lines) > 4


def background(page):
    """The brightest and the darkest of red, green and blue."""
    found = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    return max(map(int, found[:3])), min(map(int, found[:3]))


def test_the_theme_is_the_system_s_or_the_one_selected_and_survives_a_reload(browser, films):
    with open_page(browser, films, color_scheme="light") as page:
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
    with open_page(browser, films) as page:
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
        expect(card).to_be_hidden()
        expect(button).to_be_focused()
        button.click()
        card.get_by_role("button", name="Close").click()
        expect(card).to_be_hidden()


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
    with open_page(browser, films) as page:
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

    with open_page(browser, films, "", refused=1, loses_server=True, reduced_motion="reduce", **screen) as page:
        page.wait_for_selector(".why")
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
    with open_page(browser, films, "", **PHONE) as page:
        page.wait_for_selector(".why")
        for place in (
            "#query",
            "#history li:first-child",
            "#history li:last-child",
            "#recommendations li:nth-child(2)",
        ):
            expect(page.locator(place)).to_be_in_viewport(ratio=0.95)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        expect(page.locator("#found")).to_be_hidden()
        find(page, "star")
        page.locator("#found [role=option]").tap()
        expect(page.locator("#found")).to_be_hidden()
        expect(page.locator("#history .name").last).to_be_in_viewport()
        page.set_viewport_size({"width": 320, "height": 640})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        for button in page.locator("#history .small, #recommendations .small").all():
            assert button.bounding_box()["width"] >= 44 and button.bounding_box()["height"] >= 44
