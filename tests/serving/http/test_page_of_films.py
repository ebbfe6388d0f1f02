"""The page of a real export, with titles, tags and users' histories: what a visitor sees and does."""

import re

import numpy as np
import pytest
from support.page import FILM_IDS, expect, film, find, likeliest, open_page, visit, wait_for_films

pytestmark = pytest.mark.long


def test_the_first_pick_replaces_the_example_and_clears_the_search_field(browser, films):
    with open_page(browser, films, "") as page:
        expect(page.locator("#count")).to_have_text("(example)")
        page.keyboard.type("garden")
        page.keyboard.press("Enter")
        wait_for_films(page, films, ["m7"])
        expect(page.locator("#query")).to_have_value("")
        expect(page.locator("#found")).to_have_attribute("aria-label", "Popular items")
        find(page, "river")
        page.locator("#found [role=option]").click()
        wait_for_films(page, films, ["m7", "m0"])
        expect(page.locator("#query")).to_have_value("")


def choices(page):
    """Returns how many are shown, whether the history comes back, and how far popular items are lowered."""
    controls = page.locator("#number"), page.locator("#seen"), page.locator("#strength")
    return controls[0].input_value(), controls[1].is_checked(), controls[2].text_content()


def test_back_undoes_the_last_change_and_a_reload_keeps_all_of_them(browser, films):
    with open_page(browser, films, "") as page:
        expect(page.locator("#count")).to_have_text("(example)")
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
        expect(page).to_have_url(re.compile("popularity=0.1"))
        page.reload()
        expect(page.locator("#history .name")).to_have_text([film("m7"), film("m0")])
        expect(page.locator("#recommendations li")).to_have_count(20)
        assert choices(page) == ("20", True, "0.1")
        for expected in (("20", True, "0"), ("20", False, "0"), ("10", False, "0")):
            page.go_back()
            expect(page.locator("#state")).to_have_text("Restored from the address.")
            expect(page.locator("#recommendations li")).to_have_count(int(expected[0]))
            assert choices(page) == expected
        wait_for_films(page, films, ["m7", "m0"])
        page.go_back()
        wait_for_films(page, films, ["m7"])
        page.go_back()
        expect(page.locator("#count")).to_have_text("(example)")
        expect(page.locator("#history .name")).to_have_text(example)
        page.go_forward()
        wait_for_films(page, films, ["m7"])


def test_an_address_with_impossible_choices_shows_the_usual_ones(browser, films):
    with open_page(browser, films, "#item=m7&show=7&popularity=much&seen=perhaps") as page:
        wait_for_films(page, films, ["m7"])
        assert choices(page) == ("10", False, "0")


def test_a_history_of_unknown_items_shows_popular_items_and_says_so(browser, films):
    said = re.compile("^The model knows no item of the history, so these are the most popular items.")
    with open_page(browser, films, "#item=unknown&item=neither") as page:
        wait_for_films(page, films, ["unknown", "neither"], answers_to=[])
        expect(page.locator("#measure")).to_have_text(said)
        expect(page.locator(".why")).to_have_count(0)
        find(page, "garden")
        page.keyboard.press("Enter")
        wait_for_films(page, films, ["unknown", "neither", "m7"], answers_to=["m7"])
        expect(page.locator(".why").first).to_be_visible()
        expect(page.locator("#measure")).not_to_have_text(said)


def test_the_found_items_are_one_tab_stop_that_escape_closes(browser, films):
    with open_page(browser, films, "#item=m7", viewport={"width": 1300, "height": 900}) as page:
        find(page, "m1")
        options = page.get_by_role("listbox", name="11 found for m1").get_by_role("option")
        expect(options).to_have_count(11)
        for key, place in (("Tab", 0), ("ArrowDown", 1), ("End", 10), ("ArrowDown", 10), ("ArrowUp", 9), ("Home", 0)):
            page.keyboard.press(key)
            expect(options.nth(place)).to_be_focused()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('section').id") == "past"
        page.keyboard.press("Shift+Tab")
        expect(options.nth(1)).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("#found")).to_be_hidden()
        expect(page.locator("#query")).to_be_focused()
        expect(page.locator("#query")).to_have_value("m1")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('section').id") == "past"
        page.locator("#query").press("ArrowDown")
        expect(options.first).to_be_focused()
        page.keyboard.press("Space")
        expect(page.locator("#history li")).to_have_count(2)
        expect(page.locator("#query")).to_be_focused()


def test_a_server_that_does_not_answer_is_named_and_asked_again(browser, films):
    with open_page(browser, films, "#item=m7", loses_server=True) as page:
        wait_for_films(page, films, ["m7"])
        retry = page.get_by_role("button", name="Retry")
        expect(retry).to_be_hidden()
        page.route("**/*:predict", lambda route: route.abort("connectionrefused"))
        page.get_by_label("Add: ", exact=False).first.click()
        message = "The server does not answer. What you see is out of date."
        expect(page.locator("#state")).to_have_text(message)
        expect(page.locator("#next")).to_have_class("stale")
        expect(page.locator("#find")).not_to_have_class("stale")
        shown = page.locator("#next").evaluate("one => getComputedStyle(one, '::after').content")
        assert shown == '"Out of date"'
        retry.click()
        expect(page.locator("#state")).to_have_text(message)
        page.unroute("**/*:predict")
        retry.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text("The server answers again.")
        expect(retry).to_be_hidden()
        expect(page.locator("#next")).not_to_have_class("stale")
        expect(page.locator("#next-title")).to_be_focused()
        wait_for_films(page, films, ["m7", likeliest(films, ["m7"])[0]])
        page.route("**/*:predict", lambda route: route.abort("connectionrefused"))
        item = page.locator("#history button.item").first
        item.click()
        expect(page.locator("#state")).to_have_text("The server does not answer.")
        expect(item).to_have_attribute("aria-expanded", "false")
        expect(retry).to_be_hidden()


def test_the_first_visit_shows_popular_items_that_follow_each_other(browser, films):
    example = [FILM_IDS[0], *likeliest(films, [FILM_IDS[0]], 2)]
    with open_page(browser, films, "") as page:
        wait_for_films(page, films, example)
        expect(page.locator("#history-hint")).to_have_text(re.compile("^An example"))
        page.get_by_role("button", name="Clear").click()
        wait_for_films(page, films, [])
        page.reload()
        wait_for_films(page, films, [])
        page.get_by_role("button", name="Example").click()
        wait_for_films(page, films, example)
        page.get_by_label(f"Remove: {film(example[0])}").click()
        wait_for_films(page, films, example[1:])
        expect(page.locator("#history-hint")).to_have_text("Oldest first.")
        page.reload()
        wait_for_films(page, films, example[1:])


def test_an_item_has_its_title_and_tags_and_its_id_only_without_a_title(browser, films):
    with open_page(browser, films) as page:
        page.route("**/page/items?query=", lambda route: route.fulfill(json={"items": []}))
        page.reload()
        visit(page, "m7", "m12", "m20")
        wait_for_films(page, films, ["m7", "m12", "m20"])
        rows = page.locator("#history li")
        expect(rows.nth(0).locator(".tag")).to_have_text(["Comedy", "Sci-Fi"])
        expect(rows.nth(1).locator(".tag")).to_have_text(["Drama", "Thriller", "Crime", "Mystery"])
        expect(rows.nth(2).locator(".tag")).to_have_count(0)
        assert "m7" not in page.inner_text("body")
        find(page, "m7")
        expect(page.locator("#found .name")).to_have_text(["Star Garden"])


@pytest.mark.parametrize("section, item", [("history", "m7"), ("recommendations", None)])
def test_a_click_on_an_item_shows_similar_items_which_can_be_added(browser, films, section, item):
    with open_page(browser, films) as page:
        visit(page, "m0", "m7")
        item = item or wait_for_films(page, films, ["m0", "m7"])[1]
        vectors = films.model.item_vectors().numpy()
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        nearest = np.argsort(-(vectors @ vectors[FILM_IDS.index(item)]))[1:7]
        row = page.locator(f"#{section} li").nth(1)
        button = row.locator("button.item")
        button.click()
        expect(button).to_have_attribute("aria-expanded", "true")
        expected = [f"Add: {film(FILM_IDS[one])}" for one in nearest]
        expect(row.locator(".chip")).to_have_count(6)
        assert [one.get_attribute("aria-label") for one in row.locator(".chip").all()] == expected
        button.click()
        expect(row.locator(".similar")).to_have_count(0)
        button.click()
        row.locator(".chip").nth(2).click()
        wait_for_films(page, films, ["m0", "m7", FILM_IDS[nearest[2]]])


def test_numbers_and_bars_show_how_probable_an_item_is(browser, films):
    history = ["m0", "m7"]
    with open_page(browser, films) as page:
        visit(page, *history)
        rows = [FILM_IDS.index(item) for item in wait_for_films(page, films, history)]
        probable = np.exp(films.after([FILM_IDS.index(item) + 1 for item in history])[rows])
        expect(page.locator("#measure")).to_have_text(
            re.compile(r"^Probability of being next, together [\d.]+%\. In brackets: an item's part in raising it\.$")
        )
        numbers = page.locator("#recommendations .share").all_text_contents()
        assert [float(one.rstrip("%")) for one in numbers] == pytest.approx(100 * probable, rel=6e-3)
        shares = page.locator("#recommendations > li").evaluate_all(
            "all => all.map(one => one.style.getPropertyValue('--share'))"
        )
        expected = 100 * probable / probable.max()
        assert [float(one.rstrip("%")) for one in shares] == pytest.approx(expected, abs=0.02)


def test_arrow_keys_move_through_the_lists_and_the_focus_stays_where_something_was_added(browser, films):
    with open_page(browser, films) as page:
        items = wait_for_films(page, films, [])
        page.locator("#recommendations button.item").first.focus()
        page.keyboard.press("ArrowDown")
        expect(page.locator("#recommendations button.item").nth(1)).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowDown")
        expect(page.locator("#recommendations .add").nth(2)).to_be_focused()
        page.keyboard.press("Enter")
        wait_for_films(page, films, [items[2]])
        expect(page.locator("#recommendations .add").nth(2)).to_be_focused()
        page.locator("#found [role=option]").first.focus()
        page.keyboard.press("ArrowUp")
        expect(page.locator("#query")).to_be_focused()
