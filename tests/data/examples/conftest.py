"""Prepared shards, which the tests only read."""

import pytest
from support.shards import prepare


@pytest.fixture(scope="session")
def static(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("static"))
