"""The door of `python -m bert4rec_tf.data`: the same as `bert4rec data`."""

from bert4rec_tf.commands.data import main
from bert4rec_tf.foundation.startup import exit_on_error

if __name__ == "__main__":
    exit_on_error(lambda: main(prog="python -m bert4rec_tf.data"))
