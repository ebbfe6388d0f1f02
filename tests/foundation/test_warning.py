"""Warnings have classes that Python's filters tell apart, name the user's line, and are lines in the shell."""

import linecache
import threading
import warnings

import pytest

import bert4rec_tf as b4r
from bert4rec_tf.foundation.errors import speak_python
from bert4rec_tf.foundation.startup import exit_on_error
from bert4rec_tf.foundation.warning import print_warnings, warn

CLASSES = [getattr(b4r, name) for name in b4r.__all__ if name.endswith(("Warning", "Note"))]


@pytest.mark.parametrize("category", CLASSES)
def test_each_class_is_public_and_one_filter_means_them_all(category):
    assert category.__doc__ and issubclass(category, b4r.Bert4RecWarning) and issubclass(category, UserWarning)
    with warnings.catch_warnings(record=True, action="always") as caught:
        warnings.simplefilter("ignore", b4r.Bert4RecWarning)
        warn("a line", category)
    assert len(CLASSES) == 7 and not caught


@pytest.mark.parametrize("call", [warn, speak_python()(warn)], ids=["plain", "decorated"])
def test_the_place_of_a_warning_is_the_line_outside_of_the_package(call):
    with pytest.warns(b4r.DataWarning) as caught:
        call("a line", b4r.DataWarning)
    assert caught[0].filename == __file__ and "call(" in linecache.getline(__file__, caught[0].lineno)


def test_the_shell_prints_each_as_a_line_whatever_the_filters_and_threads(capsys):
    def work():
        for _ in range(2):
            warn("--steps is odd", b4r.TrainingWarning)
        warn("some users are new", b4r.DataNote)

    def main():
        work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        warnings.warn("of another library", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="of another library") as caught:
        warnings.simplefilter("error", b4r.Bert4RecWarning)
        exit_on_error(main)
    lines = ["warning: --steps is odd"] * 2 + ["note: some users are new"]
    assert capsys.readouterr().err.splitlines() == 2 * lines and len(caught) == 1


def test_a_warning_of_another_library_may_name_its_place_by_keywords():
    with pytest.warns(UserWarning, match="of another library"), print_warnings():
        warnings.showwarning("of another library", UserWarning, filename=__file__, lineno=1)
