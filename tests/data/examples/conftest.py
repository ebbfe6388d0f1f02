"""Prepared shards, which the tests only read."""

import pytest
from support.shards import prepare_stored


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    return prepare_stored(tmp_path_factory.mktemp("static"))


@pytest.fixture(scope="session")
def static(stored):
    return stored.shards
