"""Writes actions.csv and titles.csv: an invented shop, with no real person and no real purchase.

A customer has one or two hobbies and buys most things of a hobby in the usual order, sometimes skips one, and now and
then buys something else. Run it in this folder: `python make_shop.py`. Equal versions of Python write equal files.
"""

import csv
import datetime
import random

ACTIONS = 2_000
HOBBIES = {
    "coffee": "hand grinder, pour-over cone, paper filters, gooseneck kettle, kitchen scale, single-origin beans, "
    "milk frother, espresso cups, moka pot, espresso machine, tamper, descaling powder",
    "bread": "bread flour, dry yeast, loaf tin, dough scraper, proofing basket, sourdough jar, baking stone, bread "
    "knife, rye flour, linen cloth, cast-iron pot, grain mill",
    "garden": "seed tray, tomato seeds, potting soil, watering can, hand trowel, plant labels, pruning shears, "
    "garden gloves, compost bin, raised bed, rain barrel, cold frame",
    "cycling": "bike lock, helmet, front light, rear light, floor pump, tyre levers, inner tube, bottle cage, rain "
    "jacket, pannier bag, repair stand, chain cleaner",
    "camping": "two-person tent, sleeping bag, sleeping mat, head torch, gas stove, cooking pot, water filter, "
    "pocket knife, dry bag, camping chair, tarp, hammock",
    "watercolour": "student paint set, round brush, mixing palette, watercolour pad, masking tape, pencil, kneaded "
    "eraser, flat brush, masking fluid, artist paint set, cold-pressed paper, field easel",
    "knitting": "wool yarn, knitting needles, stitch markers, tapestry needle, circular needles, pattern book, row "
    "counter, sock yarn, cable needle, blocking mats, yarn swift, ball winder",
    "running": "running shoes, running socks, sports shirt, water bottle, cap, heart-rate strap, running belt, "
    "energy gels, trail shoes, foam roller, head lamp, race vest",
    "photography": "camera bag, memory card, spare battery, lens cloth, tripod, polarising filter, prime lens, remote "
    "release, flash, reflector, macro lens, light tent",
    "board games": "card sleeves, family game, cooperative game, dice set, trivia game, playing cards, strategy game, "
    "expansion pack, game mat, storage box, two-player game, miniatures",
    "guitar": "nylon strings, plectrums, tuner, capo, songbook, guitar stand, strap, gig bag, steel strings, "
    "metronome, effects pedal, practice amplifier",
    "tea": "green tea, teapot, tea strainer, tea cups, oolong tea, kettle with thermostat, storage tin, matcha "
    "bowl, bamboo whisk, white tea, tea tray, tea timer",
}


def draw_history(hobbies: dict[str, list[str]], rng: random.Random) -> list[str]:
    """Returns what a customer buys, in order."""
    history: list[str] = []
    for hobby in rng.sample(list(hobbies), rng.choice([1, 1, 2])):
        begin = rng.randrange(4)
        usual = [title for title in hobbies[hobby][begin : begin + 9] if rng.random() < 0.75]
        history += usual if rng.random() < 0.8 else rng.sample(usual, len(usual))
    extra = rng.choice(rng.choice(list(hobbies.values())))
    if extra not in history and rng.random() < 0.5:
        history.insert(rng.randrange(len(history) + 1), extra)
    return history


def main() -> None:
    rng = random.Random(2019)
    hobbies = {hobby: [title.strip() for title in titles.split(",")] for hobby, titles in HOBBIES.items()}
    titles = [(hobby, title) for hobby, titles in hobbies.items() for title in titles]
    items = {title: f"P{number:03d}" for number, (_, title) in enumerate(titles, start=1)}
    rows: list[tuple[str, str, str]] = []
    customer = 0
    while len(rows) < ACTIONS:
        customer += 1
        day = datetime.date(2024, 1, 1) + datetime.timedelta(days=rng.randrange(300))
        for title in draw_history(hobbies, rng):
            rows.append((f"C{customer:03d}", items[title], day.isoformat()))
            day += datetime.timedelta(days=rng.randrange(1, 20))
    rows = sorted(rows[:ACTIONS], key=lambda row: (row[2], row[0], row[1]))
    write_csv("actions.csv", ("customer_id", "product_id", "date"), rows)
    catalogue = [(items[title], title.capitalize(), hobby) for hobby, title in titles]
    write_csv("titles.csv", ("product_id", "title", "category"), catalogue)


def write_csv(name: str, header: tuple[str, ...], rows: list[tuple[str, str, str]]) -> None:
    with open(name, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([header, *rows])


if __name__ == "__main__":
    main()
