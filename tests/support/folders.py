"""Folders: what is in them, and commands that some machines do not permit."""

import shlex
import subprocess

import pytest


def list_names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def run_or_skip(*command):
    """Runs a command that needs a right which some machines do not give."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"not permitted here: {shlex.join(command)} ({done.stderr.strip()})")
