"""`b4r.fit(..., tune=)`: a search on the validation items that resumes, and whose winner is trained as usual."""

import os
import shutil
import signal
import sys

import pandas as pd
import pytest
from support.trainings import Killed

pytest.importorskip("optuna", reason="the extra [tune] is not installed")

import optuna
from optuna.storages.journal import JournalFileBackend

import bert4rec_tf as b4r
from bert4rec_tf.config import presets
from bert4rec_tf.config.model_settings import MODEL_SETTINGS
from bert4rec_tf.config.run_record import ALL
from bert4rec_tf.evaluation.metrics import NDCG
from bert4rec_tf.notebook import tuning
from bert4rec_tf.runs.folder import WorkDirectory

pytestmark = pytest.mark.usefixtures("quick")

ROWS = [(user, (3 * user + 2 * place) % 40, place) for user in range(60) for place in range(8)]
FRAME = pd.DataFrame(ROWS, columns=["user", "item", "time"])
SMALL = {"model": "bpr_mf", "hidden_dim": 8, "steps": 12, "evaluate_every": 6, "silent": True}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    return b4r.fit(FRAME, **SMALL, tune=3, workdir=tmp_path_factory.mktemp("tuned") / "shop")


def read_study(folder):
    backend = JournalFileBackend(str(folder / tuning.TRIALS))
    return optuna.load_study(study_name="tuning", storage=optuna.storages.JournalStorage(backend))


def list_trials(folder):
    """Returns what each trial tried and measured, without those that another one repeats."""
    trials = [trial for trial in read_study(folder).trials if tuning.REPEATED not in trial.user_attrs]
    errors = [trial.user_attrs.get(tuning.ERROR) for trial in trials]
    return [(one.params, one.state.name, one.intermediate_values, error) for one, error in zip(trials, errors)]


def test_the_best_trial_is_trained_as_usual(tuned):
    table, run = tuned.trials, WorkDirectory(tuned.workdir).read_config().run.to_dict()
    searched = list(table.columns.drop(NDCG))
    assert len(table) == 3 and table[NDCG].is_monotonic_decreasing
    assert set(searched) == {"batch_size", "learning_rate", "l2"}, "and no setting that was named"
    settings = {**run["architecture"], **run["training"]}
    assert table.loc[0, searched].to_dict() == pytest.approx({name: settings[name] for name in searched})
    assert (settings["protocol"], settings["steps"], settings["hidden_dim"]) == (ALL, 12, 8)
    assert tuned.metrics["validation"]["popular"][NDCG] == pytest.approx(table.loc[0, NDCG])
    assert f"batch_size={settings['batch_size']}," in repr(tuned) and "best of 3 trials: " in repr(tuned)
    assert len(tuned.recommend(user=3)) == 10


def test_the_first_trial_has_the_usual_settings(tuned):
    folder = tuned.workdir.with_name("shop-tuning")
    identity = read_study(folder).user_attrs[tuning.SEARCHED]
    usual = {**identity["run"]["architecture"], **identity["run"]["training"]}
    assert list_trials(folder)[0][0] == {name: usual[name] for name in identity["space"]}
    assert {path.name for path in folder.iterdir()} == {tuning.TRIALS, ".lock"}, "the disk does not fill"


def test_a_longer_search_goes_on_and_names_the_model_that_is_no_longer_the_best(tmp_path, monkeypatch):
    shop, search = tmp_path / "shop", tmp_path / "shop-tuning"
    options = {**SMALL, "steps": 2, "evaluate_every": 1, "workdir": shop}
    monkeypatch.setattr(tuning, "find_best_trial", lambda trials: list(trials)[-1])
    b4r.fit(FRAME, **options, tune=1)
    first = list_trials(search)
    with pytest.raises(b4r.UserError, match=r"shop: holds a model with other settings than the best trial; delete"):
        b4r.fit(FRAME, **options, tune=2)
    assert list_trials(search)[:1] == first
    shutil.rmtree(shop)
    assert len(b4r.fit(FRAME, **options, tune=2).trials) == len(list_trials(search)) == 2


class Training:
    """Invents measurements that grow with the learning rate, and fails with much decay. `begin` is called at first."""

    def __init__(self, run, watch, begin):
        self.run, self.watch, self.begin = run, watch, begin

    def train(self):
        self.begin(self.run)
        if self.run.architecture.l2 == 0.1:
            raise b4r.UserError("the loss is nan")
        for step in range(1, 5):
            self.watch({NDCG: step * self.run.training.learning_rate})
        if (self.run.architecture.l2, self.run.training.learning_rate) == (0.001, 0.03):
            raise b4r.UserError("the disk is full")


@pytest.fixture
def search(monkeypatch):
    def make_run(**settings):
        return presets.make_run("own-shop", "bpr_mf", **{"learning_rate": 0.01, "l2": 0.01, **settings})

    def search_in(folder, num_trials=16, frame=FRAME, begin=lambda run: None):
        monkeypatch.setattr(tuning, "open_experiment", lambda run, *_, watch, **__: Training(run, watch, begin))
        return tuning.tune_settings(make_run, {}, b4r.interactions(frame), num_trials, folder, silent=True)

    return search_in


def test_a_trial_behind_the_others_is_ended_early_and_a_failed_one_is_passed_over(search, tmp_path):
    chosen, table = search(tmp_path)
    trials = list_trials(tmp_path)
    states = [state for _, state, *_ in trials]
    assert {*states} == {"COMPLETE", "PRUNED", "FAIL"} and "PRUNED" not in states[: tuning.FIRST_TRIALS]
    assert chosen["learning_rate"] == 0.03 and chosen["l2"] == 0.01
    assert {name: table[name][0] for name in table.columns[:-1]}.items() <= chosen.items()
    assert table[NDCG][0] == pytest.approx(0.12) and table[NDCG].isna().sum() == states.count("FAIL")
    usual = read_study(tmp_path).user_attrs[tuning.SEARCHED]["run"]["training"]
    changed = [values for values, *_ in trials if values["batch_size"] != usual["batch_size"]]
    assert changed, "with other batches, as many examples are read"
    for values in changed:
        run = presets.make_run("own-shop", "bpr_mf", learning_rate=0.01, l2=0.01)
        training = presets.make_run("own-shop", "bpr_mf", **tuning.derive_settings(run, {}, values)).training
        assert training.steps * training.batch_size == usual["steps"] * usual["batch_size"]
    short = presets.make_run("own-shop", "bpr_mf", stop_after=40)
    doubled = tuning.derive_settings(short, {"stop_after"}, {"batch_size": 2 * short.training.batch_size})
    assert doubled["stop_after"] == 20, "named, and yet as many examples"


@pytest.mark.long
def test_a_stopped_search_resumes_and_a_finished_one_is_not_repeated(search, tmp_path):
    chosen, table = search(tmp_path / "one", 12)
    runs = []

    def stop_in_the_fifth(run):
        runs.append(run)
        if len(runs) == 5:
            raise Killed

    with pytest.raises(Killed):
        search(tmp_path / "other", 12, begin=stop_in_the_fifth)
    assert len(list_trials(tmp_path / "other")) == 4
    search(tmp_path / "other", 12)
    assert list_trials(tmp_path / "other") == list_trials(tmp_path / "one")
    again, same = search(tmp_path / "other", 12, begin=lambda run: pytest.fail("all trials are known"))
    assert again == chosen
    pd.testing.assert_frame_equal(same, table, check_like=True)
    with pytest.raises(b4r.UserError, match="holds a search of other data or settings"):
        search(tmp_path / "other", 12, FRAME[FRAME["user"] < 50])


def test_a_torn_line_of_the_journal_is_cut_and_a_damaged_one_is_named(search, tmp_path):
    search(tmp_path / "one", 1)
    journal = tmp_path / "one" / tuning.TRIALS
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "wor')
    search(tmp_path / "one", 1, begin=lambda run: pytest.fail("all trials are known"))
    assert journal.read_bytes().startswith(whole)
    journal.write_bytes(b"no line of Optuna\n" + whole)
    with pytest.raises(b4r.UserError, match=r"trials\.log: is damaged"):
        search(tmp_path / "one", 1)


def die(search, folder, num_trials):
    """Searches in a process that is killed in its first new trial."""
    child = os.fork()
    if not child:
        try:
            search(folder, num_trials, begin=lambda run: os.kill(os.getpid(), signal.SIGKILL))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*multi-threaded")
@pytest.mark.parametrize("kills", [tuning.MAX_ATTEMPTS - 1, tuning.MAX_ATTEMPTS])
def test_a_trial_whose_process_is_killed_again_and_again_fails(search, tmp_path, kills):
    search(tmp_path / "one", 3)
    search(tmp_path / "other", 2)
    for _ in range(kills):
        die(search, tmp_path / "other", 3)
    search(tmp_path / "other", 3)
    *before, third = list_trials(tmp_path / "one")
    failed = (third[0], "FAIL", {}, "its process was killed 3 times")
    assert list_trials(tmp_path / "other") == [*before, failed if kills == tuning.MAX_ATTEMPTS else third]


def test_a_folder_is_searched_by_one_process_at_a_time(search, tmp_path):
    def search_there_too(run):
        with pytest.raises(b4r.UserError, match="another process searches in this folder"):
            search(tmp_path, 1)

    search(tmp_path, 1, begin=search_there_too)
    assert len(list_trials(tmp_path)) == 1


@pytest.mark.parametrize("error", [MemoryError("a large table"), b4r.UserError("the loss is nan")])
def test_only_the_usual_settings_must_not_fail(search, tmp_path, error):
    usual = {"learning_rate": 0.01, "l2": 0.01}

    def fail_where(is_failing):
        def fail(run):
            if (run.flatten().items() >= usual.items()) == is_failing:
                raise error

        return fail

    settings, table = search(tmp_path / "others", 4, begin=fail_where(False))
    assert usual.items() <= settings.items() and table[NDCG].isna().any()
    with pytest.raises(type(error), match=str(error)):
        search(tmp_path / "usual", 4, begin=fail_where(True))


@pytest.mark.parametrize("model", sorted(MODEL_SETTINGS))
def test_every_point_is_a_run(model):
    run = presets.make_run("own-shop", model)
    space = tuning.find_space(run, {})
    assert ("hidden_dim" in space) == (model not in ("pop", "item_transitions"))
    for name, values in space.items():
        assert run.flatten()[name] in values and len(values) == len({*values}) > 1
        for value in values:
            presets.make_run("own-shop", model, **tuning.derive_settings(run, {}, {name: value}))


def test_settings_of_the_final_training_stay_out_of_the_trials(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(tuning, "run_trials", lambda make_run, *_: runs.append(make_run({})) or pytest.skip("enough"))
    with pytest.raises(pytest.skip.Exception):
        b4r.fit(FRAME, **SMALL, tune=1, workdir=tmp_path / "shop", final_share=0.5)
    assert (runs[0].training.protocol, runs[0].training.final_share) == ("select", 0.0)


def test_what_cannot_be_searched_is_refused_in_one_line(tmp_path, monkeypatch):
    for options, words in (
        ({"tune": -1}, "`tune` must be a whole number"),
        ({"tune": 2, "init_from": "there"}, "left out with `init_from`"),
        ({"tune": 2, "model": "pop"}, "`tune` needs a model with settings to search"),
        ({"tune": 2, "model": "sasrec", "protocol": "fixed"}, "`tune` needs a protocol with validation items"),
    ):
        with pytest.raises(b4r.UserError, match=words):
            b4r.fit(FRAME, silent=True, **options)
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(b4r.UserError, match="is not a work directory of this program, and not empty"):
        b4r.fit(FRAME, **SMALL, tune=1, workdir=".")
    with pytest.raises(b4r.UserError, match=r"nowhere\.csv"):  # before the search
        b4r.fit(FRAME, **SMALL, tune=1, workdir=tmp_path / "shop", titles="nowhere.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert not (tmp_path.parent / f"{tmp_path.name}-tuning").exists()
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(b4r.UserError, match=r"`tune` needs Optuna: pip install 'bert4rec-tf\[tune\]'"):
        b4r.fit(FRAME, silent=True, tune=2)


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_a_kill_while_a_trial_is_queued_again_queues_it_once(search, tmp_path, monkeypatch):
    search(tmp_path / "one", 3)
    search(tmp_path / "other", 2)
    die(search, tmp_path / "other", 3)
    study = read_study(tmp_path / "other")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(type(study), "tell", lambda *_, **__: (_ for _ in ()).throw(Killed))
        search(tmp_path / "other", 3)
    search(tmp_path / "other", 3)
    assert list_trials(tmp_path / "other") == list_trials(tmp_path / "one")


def test_the_largest_seed_can_be_searched_with(search, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "_copy_equal", lambda *_: None)
    make_run = presets.make_run
    seed = {"seed": 2**32 - 1}
    monkeypatch.setattr(presets, "make_run", lambda *names, **settings: make_run(*names, **{**seed, **settings}))
    assert len(search(tmp_path, 3)[1]) == 3
