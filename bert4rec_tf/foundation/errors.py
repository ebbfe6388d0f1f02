"""Mistakes that a user can make and mend, told apart from defects of the program."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in a flag, a file or a folder. The command line prints it as one line and exits with code 2."""


def in_one_line(error: Exception) -> str:
    """Returns what an error says: a user's mistake whole, of a defect its type and 300 characters at most."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text[:300]}"


def of_system(error: OSError) -> str:
    """Returns what the operating system refused, and of which file."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def unknown_name(what: str, name: str, known: Iterable[str]) -> UserError:
    """Returns the error for a `name` that is none of the `known` ones, with the nearest of them."""
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return UserError(f"Unknown {what}: {name!r}.{hint} Known: {', '.join(known)}")
