"""Disks that are full: a small file system where this process may mount one, else a limit to the size of each file."""

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile


@contextlib.contextmanager
def largest_file(limit):
    """Lets no file become larger, here and not in a process of its own."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Disk:
    """A folder on a file system of its own, if that can be mounted."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.is_mounted = os.geteuid() == 0 and self._mount("size=1g")

    def _mount(self, options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        return shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0

    @property
    def used(self):
        found = os.statvfs(self.folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    @contextlib.contextmanager
    def room(self, size):
        """Leaves so many bytes inside the block; where nothing is mounted, to each file."""
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
            tempfile.tempdir = str(self.folder)
            if self.is_mounted:
                assert self._mount(f"remount,size={max(self.used + size, 4096)}")
                stack.callback(self._mount, "remount,size=1g")
            else:
                stack.enter_context(largest_file(size))
            yield

    def close(self):
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)
