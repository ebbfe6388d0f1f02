"""What `dir` shows of the package and its public modules."""

import importlib

import pytest

import bert4rec_tf as b4r


def test_the_package_shows_public_names_only():
    assert dir(b4r) == sorted(b4r.__all__) and not [name for name in dir(b4r) if name.startswith("_")]


@pytest.mark.parametrize("name", b4r._MODULES)
def test_a_public_module_shows_what_it_offers(name):
    module = importlib.import_module(f"bert4rec_tf.{name}")
    assert dir(module) == sorted(module.__all__) and all(hasattr(module, one) for one in module.__all__)
