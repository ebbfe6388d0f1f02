"""Writes actions.csv and titles.csv: an invented shop, with no real person and no real purchase.

A customer does several hobbies, one after the other, and has a favourite maker. For each hobby they first buy what
nearly everybody begins with, then one or two tools, mostly by that maker. So the last product tells the hobby of the
next tool, and tools of other hobbies tell its maker. Pairs of products are rare; a network can join what both say.

Run it in this folder: `python make_shop.py`. Equal versions of Python write equal files.
"""

import csv
import datetime
import random

CUSTOMERS = 600
LOYALTY = 0.9
"""How often a tool is by the favourite maker of its buyer."""

MAKERS = ("Arbo", "Lumen", "Norr", "Vela")
HOBBIES = {
    "coffee": ("coffee beans", "hand grinder", "gooseneck kettle", "moka pot"),
    "bread": ("bread flour", "loaf tin", "proofing basket", "bread knife"),
    "garden": ("tomato seeds", "hand trowel", "pruning shears", "watering can"),
    "cycling": ("inner tube", "bike lock", "floor pump", "pannier bag"),
    "camping": ("gas cartridge", "head torch", "sleeping bag", "two-person tent"),
    "watercolour": ("watercolour pad", "paint set", "round brush", "field easel"),
    "knitting": ("wool yarn", "knitting needles", "row counter", "ball winder"),
    "running": ("energy gels", "running socks", "trail shoes", "race vest"),
    "photography": ("memory card", "camera bag", "tripod", "flash"),
    "baking": ("cake flour", "mixing bowl", "icing set", "springform tin"),
    "guitar": ("steel strings", "tuner", "capo", "guitar stand"),
    "tea": ("green tea", "teapot", "tea cups", "matcha bowl"),
}
"""Hobby -> what it begins with, which has no maker, and its tools, the most usual one first."""


def draw_history(rng: random.Random) -> list[str]:
    """Returns the titles of what a customer buys, in order."""
    favourite = rng.choice(MAKERS)
    history: list[str] = []
    for hobby in rng.sample(list(HOBBIES), rng.randint(3, 6)):
        first, *tools = HOBBIES[hobby]
        history.append(first)
        while tools and (history[-1] == first or rng.random() < 0.3):
            tool = rng.choices(tools, [4, 2, 1][: len(tools)])[0]
            tools.remove(tool)
            history.append(name_tool(tool, favourite if rng.random() < LOYALTY else rng.choice(MAKERS)))
    return history[: rng.randint(len(history) - 2, len(history))]


def name_tool(tool: str, maker: str) -> str:
    return f"{tool} by {maker}"


def main() -> None:
    rng = random.Random(2019)
    catalogue = [
        (hobby, title)
        for hobby, (first, *tools) in HOBBIES.items()
        for title in (first, *(name_tool(tool, maker) for tool in tools for maker in MAKERS))
    ]
    items = {title: f"P{number:03d}" for number, (_, title) in enumerate(catalogue, start=1)}
    rows: list[tuple[str, str, str]] = []
    for customer in range(1, CUSTOMERS + 1):
        day = datetime.date(2024, 1, 1) + datetime.timedelta(days=rng.randrange(300))
        for title in draw_history(rng):
            rows.append((f"C{customer:03d}", items[title], day.isoformat()))
            day += datetime.timedelta(days=rng.randrange(1, 20))
    rows.sort(key=lambda row: (row[2], row[0]))
    write_csv("actions.csv", ("customer_id", "product_id", "date"), rows)
    named = [(items[title], title[0].upper() + title[1:], hobby) for hobby, title in catalogue]
    write_csv("titles.csv", ("product_id", "title", "category"), named)


def write_csv(name: str, header: tuple[str, ...], rows: list[tuple[str, str, str]]) -> None:
    with open(name, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([header, *rows])


if __name__ == "__main__":
    main()
