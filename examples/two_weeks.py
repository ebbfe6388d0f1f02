"""Plays two weeks of an invented shop on a real server: nightly updates, a rule, a bad file, and a weekly training.

Run it: `python two_weeks.py`. It takes minutes, works in a temporary folder, and prints what each day shows.
"""

import csv
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import bert4rec_tf as b4r

ACTIONS = Path(__file__).with_name("actions.csv")
TITLES = ACTIONS.with_name("titles.csv")
BERT4REC = (sys.executable, "-c", "from bert4rec_tf.commands.main import main; main()")
SMALL = {"holdout": 2, "steps": 60, "evaluate_every": 30, "hidden_dim": 16, "num_layers": 1, "silent": True}


def run(*arguments: str) -> str:
    """Runs `bert4rec` and returns what it printed, with its errors."""
    command = [*BERT4REC, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith(("WARNING", "I0000"))]
    return "\n".join(lines)


class Shop:
    """Asks the server as the shop's own program does."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> str:
        return urllib.request.urlopen(self.address + path, timeout=60).read().decode()

    def recommend(self, **inputs) -> dict:
        body = json.dumps({"signature_name": "recommend", "inputs": {"k": 3, **inputs}}).encode()
        request = urllib.request.Request(self.address + "/v1/models/bert4rec:predict", body)
        return json.load(urllib.request.urlopen(request, timeout=60))["outputs"]

    def wait_for_version(self, version: int) -> None:
        while json.loads(self.get("/readyz"))["version"] != str(version):
            time.sleep(0.2)


def write(path: Path, header: list[str], rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def play(folder: Path) -> None:
    header, *rows = csv.reader(ACTIONS.open())
    days = sorted({row[2] for row in rows})[-14:]
    before = [row for row in rows if row[2] < days[0]]
    write(folder / "first.csv", header, before)
    versions = folder / "versions"
    model = b4r.fit(folder / "first.csv", titles=TITLES, workdir=folder / "work", **SMALL)
    versions.mkdir()
    (model.save(folder / "copy") / "saved_model").rename(versions / "1")
    print(f"first fit: {len(model.users)} users, {len(model.items)} items")

    blocked = folder / "blocked.txt"
    blocked.write_text("")
    flags = [f"--model={versions}", "--port=0", "--poll_seconds=0.2", f"--attributes={TITLES}", f"--blocked={blocked}"]
    command = [*BERT4REC, "serve", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            line = next(line for line in server.stdout if line.startswith("version "))
            shop = Shop(int(line.rstrip("/\n").rsplit(":", 1)[1]))
            play_days(folder, shop, days, rows, header, model)
        finally:
            server.terminate()


def play_days(folder: Path, shop: Shop, days: list[str], rows: list[list[str]], header: list[str], model) -> None:
    versions, version, known = folder / "versions", 1, {row[0] for row in rows if row[2] < days[0]}
    print("user nobody:", shop.recommend(users=["nobody"])["basis"])
    for number, day in enumerate(days, start=1):
        today = [row for row in rows if row[2] == day]
        if number == 3:
            today += [[row[0], "P999", day] for row in today]  # a new item
        new_users = {row[0] for row in today} - known
        known |= new_users
        write(folder / "today.csv", header, today)
        if number == 5:
            (folder / "today.csv").write_text("customer_id,product_id,date\nC001,P0")
            print("a bad file:", run("update", f"--model={versions}", f"--interactions={folder / 'today.csv'}"))
            assert sorted(path.name for path in versions.iterdir())[-1] == str(version), "nothing was written"
            write(folder / "today.csv", header, today)
        if number == 7:
            history = [row for row in rows if row[2] <= day]
            write(folder / "week.csv", header, history)
            model = b4r.fit(folder / "week.csv", titles=TITLES, workdir=folder / "week", **SMALL)
            version += 1
            (model.save(folder / "weekly") / "saved_model").rename(versions / str(version))
            shop.wait_for_version(version)
            print(f"{day}: the weekly training is version {version}")
            continue
        if number > 2:
            b4r.open(versions / str(version)).update(folder / "today.csv", path=versions / str(version + 1))
        else:
            print(
                f"{day}:",
                run("update", f"--model={versions}", f"--interactions={folder / 'today.csv'}").split(": ")[-1],
            )
        version += 1
        shop.wait_for_version(version)
        user = today[0][0]
        assert shop.recommend(users=[user])["basis"] == ["history"], "who bought today is known tonight"
        if number == 3:
            print(f"{day}: the new item P999 after", shop.recommend(histories=[["P999"]])["items"][0])
        if number == 8:
            coffee = shop.recommend(users=[user], where="category == 'coffee'")["items"][0]
            (folder / "blocked.txt").write_text(coffee[0] + "\n")
            left = coffee
            while coffee[0] in left:  # until the server has looked at the file
                time.sleep(0.2)
                left = shop.recommend(users=[user], where="category == 'coffee'")["items"][0]
            assert len(left) == 3, "another item takes the place of the blocked one"
            print(f"  where category is coffee: {coffee}; {coffee[0]} blocked: {left}")
            reasons = shop.recommend(users=[user], explain=True)["explanations"][0][0]
            print(f"  why: {reasons}")
    numbers = [
        line for line in shop.get("/metrics").splitlines() if line.startswith("bert4rec_") and "_created" not in line
    ]
    print("\n".join(line for line in numbers if line.split("{")[0].split(" ")[0].endswith(("_total", "_version"))))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        play(Path(scratch))
