"""Random attacks: how long they go on, with which numbers, and what they tell at the end."""

import collections
import random
import time


class Attack:
    """Trials of one kind, until the time is over; at least one.

    Attributes:
        seed: decides the trials, so that one that failed can be repeated: `--attack_seed=SEED`.
        outcomes: what came of them, counted by the test.
    """

    def __init__(self, name, seed, seconds):
        self.name, self.seed, self.seconds = name, seed, seconds
        self.outcomes = collections.Counter()
        self.number = 0

    def trials(self):
        """Yields a generator of random numbers for each trial."""
        until = time.monotonic() + self.seconds
        while self.number == 0 or time.monotonic() < until:
            self.number += 1
            yield random.Random(f"{self.seed} {self.name} {self.number}")

    def __str__(self):
        held = ", ".join(f"{what}: {count:,}" for what, count in sorted(self.outcomes.items()))
        return f"{self.name}, seed {self.seed}: {self.number:,} trials ({held})"
