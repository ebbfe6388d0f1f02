"""Training on several machines: connects them, and lets them wait for one another, add up numbers and agree.

Every machine runs the same command with its own TF_CONFIG and the same folders. Number 0, the chief, writes; the others
read. TensorFlow's MultiWorkerMirroredStrategy connects them.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.machines import LOST, Machines
from bert4rec_tf.foundation.devices import has_accelerator
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.training.step import sum_over_replicas

LOST_ERRORS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
"""The errors on the other workers if one ends (within seconds) or stops answering (within about ten seconds)."""


@dataclass(frozen=True, eq=False)
class Team:
    """The machines that train together; by default this one alone.

    This machine is number `index` of `count`, from 0. The strategy shares each batch between them; None for one.
    `watch_others`: as of `Machines`.
    """

    index: int = 0
    count: int = 1
    strategy: tf.distribute.Strategy | None = None
    watch_others: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    @property
    def is_chief(self) -> bool:
        """Whether this machine writes the files of the run."""
        return self.index == 0

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum of every machine's `values`, int64 of the same shape on all."""
        if self.strategy is None:
            return values
        # The first device of a machine has its values; the others have zeros.
        devices = self.strategy.num_replicas_in_sync // self.count
        first = np.asarray(values, np.int64)
        device_values = [first, *[np.zeros_like(first)] * (devices - 1)]
        with self.report_lost_workers():
            replica_values = self.strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(device_values[context.replica_id_in_sync_group % devices])
            )
            (total,) = self.strategy.run(_sum_over_replicas, args=([replica_values],))
            return self.strategy.experimental_local_results(total)[0].numpy()

    def agree(self, facts: Mapping[str, str]) -> None:
        """Waits for all machines. Raises UserError on all of them if one has other facts than the chief."""
        digests = np.zeros((self.count, len(facts)), np.int64)
        digests[self.index] = [
            int.from_bytes(hashlib.sha256(fact.encode()).digest()[:7], "big") for fact in facts.values()
        ]
        for column, (name, fact) in zip(self.sum(digests).T, facts.items(), strict=True):
            indices = np.flatnonzero(column != column[0])
            if len(indices):
                raise UserError(
                    f"All workers must have the same {name}: worker {indices[0]} differs from worker 0. "
                    f"Received on worker {self.index}: {fact}"
                )

    @contextlib.contextmanager
    def run_chief_first(self) -> Iterator[None]:
        """Runs the block on the chief, and only then on the others."""
        zeros = np.zeros(1, np.int64)
        if not self.is_chief:
            self.sum(zeros)
        yield
        if self.is_chief:
            self.sum(zeros)

    @contextlib.contextmanager
    def report_lost_workers(self) -> Iterator[None]:
        """Turns TensorFlow's errors about a lost machine into a UserError."""
        try:
            yield
        except LOST_ERRORS as error:
            if self.strategy is None:
                raise
            raise UserError(LOST) from error


_sum_over_replicas = tf_function(sum_over_replicas)


_team = Team()


def current_team() -> Team:
    """Returns the team that this process has joined; a team of one if none."""
    return _team


def join_team(machines: Machines, replicas: int) -> None:
    """Connects this process with the other workers and waits for them. Call it before TensorFlow computes anything.

    Raises UserError if the devices of all machines (every GPU of each, or one CPU each) are not `replicas`.
    """
    global _team
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    kind = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(implementation=kind.RING)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, None if has_accelerator() else options)
    if strategy.num_replicas_in_sync != replicas:
        raise UserError(
            f"`replicas` must be {strategy.num_replicas_in_sync}, the number of devices of all workers. "
            f"Received: replicas={replicas}"
        )
    _team = Team(machines.index, machines.count, strategy, machines.watch_others)


def make_strategy(replicas: int) -> tf.distribute.Strategy | None:
    """Returns the strategy that splits each batch over `replicas` devices; None for one device.

    The devices are GPUs if there are any, else virtual CPUs. If the process has joined others (`join_team`),
    they are those of all machines. Create the model and the optimizer under `strategy.scope()`.

    Raises:
        UserError: if there are fewer devices. Virtual CPUs must be made before TensorFlow starts its devices.
    """
    if current_team().strategy is not None:
        return current_team().strategy
    if replicas == 1:
        return None
    kind = "GPU" if has_accelerator() else "CPU"
    if kind == "CPU":
        cpu = tf.config.list_physical_devices("CPU")[0]
        if len(tf.config.get_logical_device_configuration(cpu) or ()) < replicas:
            with contextlib.suppress(RuntimeError):  # The devices have started already; they are counted below.
                tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    devices = tf.config.list_logical_devices(kind)
    if replicas > len(devices):
        raise UserError(
            f"`replicas` must be at most {len(devices)}, the number of devices. Received: replicas={replicas}"
        )
    # TensorFlow's default way of summing over CPUs fixes their number for the rest of the process.
    reduction = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
    return tf.distribute.MirroredStrategy([device.name for device in devices[:replicas]], reduction)
