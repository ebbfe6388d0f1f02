"""How a training computes: settings that decide its speed, not its result, and are no part of a run's record."""

from dataclasses import dataclass

from bert4rec_tf.config.setting_fields import Settings, setting

AUTO, XLA, OFF = "auto", "xla", "off"


@dataclass(frozen=True)
class ExecutionSettings(Settings):
    """The same run may be resumed with others: they change at most the last bits."""

    compile: str = setting(
        AUTO,
        "compile the training step over fixed shapes: auto, where there is a GPU; xla, also on a CPU, where it is "
        "slower; off, nowhere",
        choices=(AUTO, XLA, OFF),
    )
    steps_per_call: int = setting(
        0, "training steps in one call of TensorFlow (0: about half a second's; 1 on a CPU)", at_least=0
    )
    checkpoint_seconds: float = setting(
        120.0, "seconds between checkpoints: what a killed training loses at most", at_least=0
    )
    deterministic: bool = setting(False, "on a GPU, the same bits in every run, which is slower")
