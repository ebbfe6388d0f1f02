"""Presets: named settings with the quality to expect and the time they took, and the runs made from them."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Protocol

from bert4rec_tf.config.data_names import OWN, Interactions, add_source, is_own, remove_source
from bert4rec_tf.config.model_settings import MODEL_SETTINGS
from bert4rec_tf.config.presets import authors, best, fast, own
from bert4rec_tf.config.presets.entry import Preset
from bert4rec_tf.config.run_record import ALL, FIXED, SELECT_AND_RETRAIN, Run, TrainingSettings
from bert4rec_tf.foundation.errors import UserError, unknown_name_error
from bert4rec_tf.foundation.progress import warn

PRESETS: dict[tuple[str, str, str], Preset] = {
    (entry.name, entry.dataset, entry.model): entry for entry in (*fast.ENTRIES, *best.ENTRIES, *authors.ENTRIES)
}
"""(Name, data set, model) -> preset."""

SAME_AS = {"steam-sample": "steam"}
"""Data set -> the one whose presets it takes."""

NAMES = tuple(dict.fromkeys(name for name, _, _ in PRESETS))


class Size(Protocol):
    """The size of some data; `Sequences` have it."""

    @property
    def num_users(self) -> int: ...

    @property
    def num_actions(self) -> int: ...


def find_preset(name: str, dataset: str, model: str = "bert4rec") -> Preset:
    """Returns the preset `name` for `dataset` and `model`. A data set without one takes that of your own data.

    Raises UserError if there is neither.
    """
    for data in (_find_preset_data(dataset), OWN):
        if (name, data, model) in PRESETS:
            return PRESETS[name, data, model]
    raise _no_preset_error(name, dataset, model)


def uses_own_data_rule(name: str, dataset: str, model: str) -> bool:
    """Returns whether `find_preset` returns the preset of your own data for a data set."""
    return find_preset(name, dataset, model).dataset == OWN and not is_own(dataset)


def _find_preset_data(dataset: str) -> str:
    return OWN if is_own(dataset) else SAME_AS.get(remove_source(dataset), remove_source(dataset))


def _no_preset_error(name: str, dataset: str, model: str) -> UserError:
    """Returns the error for a preset that does not exist. It names what is unknown, or the presets that exist."""
    data = _find_preset_data(dataset)
    datasets = {entry.dataset for entry in PRESETS.values()}
    for what, requested, choices in (("preset", name, NAMES), ("model", model, MODEL_SETTINGS)):
        if requested not in choices:
            return unknown_name_error(what, requested, choices)
    if data not in datasets:
        return unknown_name_error("dataset", data, datasets - {OWN})
    names = [entry.name for entry in PRESETS.values() if (entry.dataset, entry.model) == (data, model)]
    return UserError(f"Model {model!r} has no preset {name!r} for {dataset!r}. It has: {', '.join(names)}")


def make_run(
    dataset: str | Interactions,
    model: str = "bert4rec",
    preset: str = "fast",
    seed: int = 1,
    source: str = "processed",
    size: Size | None = None,
    **settings: Any,
) -> Run:
    """Makes the run of a preset, with single settings changed.

    A preset's fixed number of steps is for its own protocol and, if it has `Preset.search`, its own architecture. With
    another one the number is selected, unless you ask for `protocol="fixed"`. The protocol of your own data is "all".

    Args:
        dataset: a name in `DATASETS`, or your own files (or their `name`).
        model: a name in `models.MODELS`.
        preset: `fast`, `best`, `released` or `table2`.
        seed: seed of the masks, the initial weights, dropout and the order of examples.
        source: `processed` or `raw`, where a data set comes from.
        size: the data as `Sequences`; their size decides the settings of a preset with a `rule`. A data set without the
            preset needs it: it takes the preset of your own data, and a warning says so.
        **settings: fields of the settings in `config`, in place of the preset's.

    Raises:
        UserError: for an unknown name, a value out of its range, or a setting that has no effect.
    """
    dataset = dataset.name if isinstance(dataset, Interactions) else add_source(dataset, source)
    entry = find_preset(preset, dataset, model)
    if uses_own_data_rule(preset, dataset, model):
        if size is None:
            raise _no_preset_error(preset, dataset, model)
        warn(f"{model} has no preset {preset!r} for {dataset!r}; its settings are those for your own data of this size")
    if size is not None and entry.rule is not None:
        size = getattr(size, "training_size", size)  # users with one action are no examples
        entry = replace(entry, settings=entry.rule(size.num_users, size.num_actions))
    if is_own(dataset):
        entry = replace(entry, settings={**entry.settings, "protocol": ALL})
    run = Run.make(dataset, model, seed, **_adapt_preset(entry, settings), **settings)
    run.refuse_unused(settings)
    return run


def check_settings(
    dataset: str | Interactions, model: str, preset: str, seed: int, source: str = "processed", **settings: Any
) -> Run:
    """Returns `make_run` for data that were not read yet: for some size, if that decides settings.

    Raises UserError if no size of the data would do.
    """
    if not isinstance(dataset, Interactions):
        dataset = OWN if uses_own_data_rule(preset, dataset, model) else dataset
    errors = []
    for num_users, num_actions in own.SIZES:
        size = SimpleNamespace(num_users=num_users, num_actions=num_actions)
        try:
            return make_run(dataset, model, preset, seed, source, size, **settings)
        except UserError as error:
            errors.append(error)
    raise errors[0]


def shorten_warmup(warmup_steps: int, steps: int, new_steps: Any) -> int:
    """Returns the warm-up for `new_steps` instead of `steps`: in proportion or a tenth of them, but never longer."""
    if not isinstance(new_steps, int):
        return warmup_steps  # such steps are refused later
    return min(warmup_steps, max(new_steps * warmup_steps // steps, new_steps // 10))


def _adapt_preset(entry: Preset, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the preset's settings that the given ones leave open, adapted to the given protocol and steps."""
    base, protocol = dict(entry.settings), settings.get("protocol")
    is_fixed = base.get("protocol") == FIXED
    if is_fixed and protocol != FIXED and (protocol or (entry.search and _changes_architecture(entry, settings))):
        base |= {"protocol": SELECT_AND_RETRAIN, **entry.search}
    if not is_fixed and protocol == FIXED:
        base.pop("patience", None)  # nothing is measured during a fixed training
        if "evidence_gain" not in settings:
            base.pop("evidence", None)  # nothing would choose its gain
    if "steps" in settings:
        steps, warmup = (base.get(name, getattr(TrainingSettings, name)) for name in ("steps", "warmup_steps"))
        base["warmup_steps"] = shorten_warmup(warmup, steps, settings["steps"])
    return {name: value for name, value in base.items() if name not in settings}


def _changes_architecture(entry: Preset, settings: Mapping[str, Any]) -> bool:
    architecture = Run.make(entry.dataset, entry.model, **entry.settings).architecture
    return any(getattr(architecture, name, value) != value for name, value in settings.items())
