"""An export to serve, a browser, and a server of films that its pages show."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from support.exports import COUNTS as ACTIONS
from support.exports import log_probabilities as by_encoder
from support.exports import transformer
from support.http_server import Server, export

from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.export import saved_model
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """The folder of a small export (`support.http_server`)."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    export(folder)
    return folder


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    from support.page import sync_api

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """A server of a real export with titles, tags and histories, and its model in Python."""
    from support.page import CARD, FILM_IDS, FILMS, STORED

    folder = tmp_path_factory.mktemp("films")
    model = transformer()
    numbers = [FILM_IDS.index(item) + 1 for history in STORED.values() for item in history]
    splits, users = np.cumsum([0, *map(len, STORED.values())]), np.array(list(STORED), object)
    vocabulary = Vocabulary(np.array(FILM_IDS, object), ACTIONS)
    options = ExportOptions(histories=Sequences(np.array(numbers, np.int32), splits, users, vocabulary))
    saved_model.export(model, vocabulary, folder / "model", options, card=CARD)
    lines = [f'{item},"{title}",{genres}' for item, (title, genres) in FILMS.items()]
    (folder / "films.csv").write_text("\n".join(["movieId,title,genres", *lines]), encoding="utf-8")
    chosen = ServerSettings(model=str(folder / "model"), titles=str(folder / "films.csv"))
    with Server(open_versions(chosen)) as running:
        yield SimpleNamespace(port=running.port, model=model, after=by_encoder(model))
