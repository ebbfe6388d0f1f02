"""Presets: settings by name, data set and model, and the runs made from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bert4rec_tf.config.data_names import OWN, Interactions, add_source, is_own, remove_source
from bert4rec_tf.config.model_settings import ALONE, AUTO, MODEL_SETTINGS, PAPERS_MODEL, TRANSITIONS
from bert4rec_tf.config.presets import authors, best, fast, own
from bert4rec_tf.config.run_record import ALL, FIXED_STEPS, SELECT_AND_RETRAIN, Run, TrainingSettings, check_values
from bert4rec_tf.config.setting_fields import convert_value
from bert4rec_tf.foundation.errors import UserError, unknown_name_error
from bert4rec_tf.foundation.warning import TrainingWarning, warn


@dataclass(frozen=True)
class Preset:
    """Settings for one model on one data set.

    Attributes:
        dataset: name of the data set without its source; OWN for a user's own data.
        settings: as `Run.make` takes them; the others have their defaults.
        search: settings in place of these when a fixed number of steps is selected again: under another protocol and,
            unless this is empty, for another architecture.
        rule: (number of users, number of actions) -> settings, if the size of the data decides them.
    """

    name: str
    dataset: str
    model: str
    settings: Mapping[str, Any]
    search: Mapping[str, Any] = field(default_factory=dict)
    rule: Callable[[int, int], dict[str, Any]] | None = None

    @property
    def command(self) -> str:
        data = "--interactions=FILE" if self.dataset == OWN else f"--dataset={self.dataset}"
        return f"python -m bert4rec_tf.run {data} --model={self.model} --preset={self.name}"


TABLES: dict[str, fast.Table] = {
    "fast": fast.FAST_SETTINGS,
    "best": best.BEST_SETTINGS,
    "released": {data: {PAPERS_MODEL: settings} for data, settings in authors.RELEASED.items()},
    "table2": {data: {PAPERS_MODEL: settings} for data, settings in authors.TABLE2.items()},
}
NAMES = tuple(TABLES)

PRESETS: dict[tuple[str, str, str], Preset] = {
    (name, data, model): Preset(
        name,
        data,
        model,
        {**authors.OPTIMIZERS.get(model, {}), **settings},
        fast.SEARCH.get(data, {}).get(model, {}) if name == "fast" else {},
        own.RULES.get(model) if data == OWN else None,
    )
    for name, table in TABLES.items()
    for data, models in table.items()
    for model, settings in models.items()
}
"""(Name, data set, model) -> preset."""

SAME_AS = {"steam-sample": "steam"}
"""Data set -> the one whose presets it takes."""


def choose_model(dataset: str | None) -> str:
    """Returns the model to train on data if none is named: the paper's on a data set, and AUTO on your own data."""
    return AUTO if dataset is not None and is_own(dataset) else PAPERS_MODEL


def add_own_model(name: str, is_trained: bool) -> None:
    """Gives a model of the user's own a preset `fast` for any data."""
    settings = {**authors.OPTIMIZERS["sasrec"], **fast.FAST_SETTINGS[OWN]["gru4rec"]} if is_trained else {}
    PRESETS["fast", OWN, name] = Preset("fast", OWN, name, settings)


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
        if (name, data, model) in [*PRESETS]:  # by equality: a name may be a list
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
    for kind, value, choices in (("preset", name, NAMES), ("model", model, MODEL_SETTINGS)):
        if value not in [*choices]:  # as above
            return unknown_name_error(kind, value, choices)
    if data not in datasets:
        return unknown_name_error("dataset", data, datasets - {OWN})
    names = [entry.name for entry in PRESETS.values() if (entry.dataset, entry.model) == (data, model)]
    if not names and (name, OWN, model) in PRESETS:
        return UserError(
            f"`size` must be the data: {model} on {dataset!r} has the settings of your own data, which follow their "
            "size. Received: none"
        )
    names = names or [preset for preset in NAMES if (preset, OWN, model) in PRESETS]
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
    another one, and with evidence whose gain is not given, the number is selected, unless you ask for
    `protocol="fixed"`. The protocol of your own data is "all".

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
    settings = {name: convert_value(value) for name, value in settings.items()}
    entry = find_preset(preset, dataset, model)
    if uses_own_data_rule(preset, dataset, model):
        if size is None:
            raise _no_preset_error(preset, dataset, model)
        warn(
            f"{model} has no preset {preset!r} for {dataset!r}; its settings are those for your own data of this size",
            TrainingWarning,
        )
    counts = own.SHOP
    if size is not None:  # users with one action are no examples
        counts = getattr(size, "training_size", (size.num_users, size.num_actions))
    defaults = make_defaults(entry, counts, {"protocol": ALL} if is_own(dataset) else {}, settings)
    run = Run.make(dataset, model, seed, **{**defaults, **settings})
    run.refuse_unused(settings)
    return run


def make_defaults(
    entry: Preset, size: tuple[int, int], data_defaults: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings in place of those that are not given. `size`: the number of users and of actions.

    They are the preset's, then those of its rule for the size of the data, then `data_defaults`, those of the kind of
    data; adapted to the given protocol and steps.
    """
    defaults = dict(entry.settings)
    if entry.rule is not None:
        defaults |= entry.rule(*size)
    defaults |= data_defaults
    protocol, is_fixed = settings.get("protocol"), defaults.get("protocol") == FIXED_STEPS
    is_other = entry.search and _changes_architecture(entry, settings)
    if is_fixed and protocol != FIXED_STEPS and (protocol or is_other or _leaves_gain_open({**defaults, **settings})):
        defaults |= {"protocol": SELECT_AND_RETRAIN, **entry.search}
    if not is_fixed and protocol == FIXED_STEPS and "evidence_gain" not in settings:
        defaults.pop("evidence", None)  # nothing would choose its gain
    defaults |= _follow_given_settings(defaults, settings)
    if entry.rule is not None and isinstance(settings.get("steps"), int) and settings["steps"] > 0:
        defaults["evaluate_every"] = own.space_measurements(settings["steps"])
    return defaults


def _follow_given_settings(defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that follow given ones, such as the batches of BERT4Rec in a pair, and the warm-up."""
    followers: dict[str, Any] = {}
    if settings.get("protocol") == FIXED_STEPS and "patience" in defaults:
        followers["patience"] = 0  # nothing is measured during a fixed training
    if settings.get("use_item_features") == ALONE and "initial_vectors" in defaults:
        followers["initial_vectors"] = "random"  # items have no vectors of their own
    if isinstance(settings.get("batch_size"), int) and defaults.get("masked_batch_size"):
        masked_batch_size = defaults["masked_batch_size"] * settings["batch_size"] // defaults["batch_size"]
        followers["masked_batch_size"] = max(1, masked_batch_size)
    if "steps" in settings:
        steps, warmup = (defaults.get(name, getattr(TrainingSettings, name)) for name in ("steps", "warmup_steps"))
        followers["warmup_steps"] = shorten_warmup(warmup, steps, settings["steps"])
    return followers


def change_run(run: Run, dataset: str, **settings: Any) -> Run:
    """Returns a run of another data set with some settings changed, and those that follow them.

    Raises UserError for a setting that is unknown, out of its range or has no effect.
    """
    settings = {name: convert_value(value) for name, value in settings.items()}
    old_settings = run.flatten()
    values = {**old_settings, **_follow_given_settings(old_settings, settings)}
    if isinstance(settings.get("steps"), int):
        most_steps_apart = own.space_measurements(max(settings["steps"], 1))
        values["evaluate_every"] = min(old_settings["evaluate_every"], most_steps_apart)
        values["stop_after"] = 0
    new_run = Run.make(dataset, run.model, settings.pop("seed", run.seed), **{**values, **settings})
    new_run.refuse_unused(settings)
    return new_run


def check_settings(
    dataset: str | Interactions, model: str, preset: str, seed: int, source: str = "processed", **settings: Any
) -> None:
    """Raises UserError for what `make_run` would refuse, as far as it can be known before the data are read."""
    name = dataset.name if isinstance(dataset, Interactions) else add_source(dataset, source)
    entry = find_preset(preset, name, model)
    check_values(model, settings)
    if entry.rule is None:
        make_run(OWN if entry.dataset == OWN else dataset, model, preset, seed, source, **settings)


def shorten_warmup(warmup_steps: int, steps: int, new_steps: Any) -> int:
    """Returns the warm-up for `new_steps` instead of `steps`: in proportion or a tenth of them, but never longer."""
    if not isinstance(new_steps, int):
        return warmup_steps  # such steps are refused later
    return min(warmup_steps, max(new_steps * warmup_steps // steps, new_steps // 10))


def _leaves_gain_open(settings: Mapping[str, Any]) -> bool:
    """Returns whether the gain of evidence is to be chosen on the validation items."""
    return settings.get("evidence") == TRANSITIONS and settings.get("evidence_gain") is None


def _changes_architecture(entry: Preset, settings: Mapping[str, Any]) -> bool:
    architecture = Run.make(entry.dataset, entry.model, **entry.settings).architecture
    return any(getattr(architecture, name, value) != value for name, value in settings.items())
