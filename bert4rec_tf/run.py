"""`python -m bert4rec_tf.run`: the same program as `bert4rec run`."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bert4rec_tf.commands import run
from bert4rec_tf.foundation.startup import exit_on_error

if __name__ == "__main__":
    exit_on_error(lambda: run.main(sys.argv[1:]))
