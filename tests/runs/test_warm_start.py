"""Runs that start from trained weights: where these are found, what they become, killed and refused."""

import json
import shutil

import numpy as np
import pytest
from support import commands, whole_runs
from support.commands import contents
from support.mistakes import BEAUTY, lines, text
from support.ranking_oracle import group_histories
from support.tf1_program import CHECKPOINT, CONFIG, TOKENS
from support.trainings import EACH_STEP, RUN, killed_at_step, small_and_quick

import bert4rec_tf as b4r
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.models import tf1_import
from bert4rec_tf.runs import warm_start
from bert4rec_tf.runs.trainings import make_model

NEW = group_histories(
    {f"user {user}": [f"item {(5 * user + 3 * step) % 31}" for step in range(5 + user % 4)] for user in range(24)}
)
OLD = group_histories(
    {
        f"user {user}": [f"item {(5 * user + 3 * step) % 24 + 10}" for step in range(4 + user % 3)]
        for user in range(19, -3, -1)
    }
)
SHORT = {
    "steps": 3,
    "warmup_steps": 1,
    "evaluate_every": 3,
    "batch_size": 16,
    "learning_rate": 0.03,
    "num_negatives": 5,
}


def run_of(model, **changes):
    if model == "bert4rec":
        return Run.make("beauty", **{**RUN, **SHORT, **changes})
    return Run.make("beauty", model, **{**SHORT, "hidden_dim": 8, **changes})


def execute(run, folder, sequences=NEW, **options):
    return b4r.execute(run, sequences=sequences, workdir=folder, silent=True, execution=EACH_STEP, **options)


@pytest.fixture(scope="module")
def trained(quick, tmp_path_factory):
    """Folders of finished runs on the old data, made where one is asked for."""
    folder, made = tmp_path_factory.mktemp("sources"), {}

    def get(model):
        if model not in made:
            made[model] = execute(run_of(model), folder / model, OLD)
        return made[model].workdir

    return get


@pytest.fixture
def source(trained, tmp_path):
    """A folder of one's own that can be damaged or deleted."""
    return lambda model: shutil.copytree(trained(model), tmp_path / "source")


def weights_in(path, model):
    with np.load(path) as content:
        values = [content[name] for name in sorted(content.files) if name.startswith("model/")]
    return [value for value, variable in zip(values, model.variables) if variable.name != "seed_generator_state"]


@pytest.mark.long
@pytest.mark.parametrize(("model", "killed_at"), [pytest.param("bert4rec", 4, marks=pytest.mark.slow), ("bpr_mf", 1)])
def test_both_trainings_start_from_the_weights_and_a_killed_one_resumes_to_the_bit(source, tmp_path, model, killed_at):
    """The first step's rate is 0, so the checkpoint after it holds what a training began with. One is killed in its
    second training, the other before its first checkpoint."""
    run, folder = run_of(model, steps=2, evaluate_every=2), source(model)
    fresh = make_model(run, NEW.num_items, NEW.num_users)
    expected = execute(run, tmp_path / "one", init_from=folder)
    ids = [[OLD.vocabulary.items.tolist(), NEW.vocabulary.items.tolist()], [OLD.users.tolist(), NEW.users.tolist()]]
    assert set(ids[0][1]) - set(ids[0][0]) and set(ids[0][0]) - set(ids[0][1]) and set(ids[1][1]) - set(ids[1][0])
    warm_start.read_start_weights(folder).apply_to(fresh, ids[0][1], ids[1][1])
    for phase in ("select", "retrain"):
        began = weights_in(tmp_path / "one" / phase / "step-000000001.npz", fresh)
        for value, weight in zip(began, fresh.weights, strict=True):
            np.testing.assert_array_equal(value, np.asarray(weight), err_msg=weight.path)
    with killed_at_step(killed_at):
        execute(run, tmp_path / "other", init_from=folder)
    found = execute(run, tmp_path / "other", init_from=folder)
    whole_runs.assert_same_runs(tmp_path / "one", tmp_path / "other")
    assert found.metrics["initial"]["items"] == {
        "shared": len({*ids[0][0]} & {*ids[0][1]}),
        "added": len({*ids[0][1]} - {*ids[0][0]}),
        "removed": len({*ids[0][0]} - {*ids[0][1]}),
    }
    assert ("users" in found.metrics["initial"]) == (model == "bpr_mf")
    assert found.metrics["digest"] == expected.metrics["digest"] != run.digest


@pytest.mark.slow
def test_the_run_depends_on_the_weights_and_not_on_where_they_lie(trained, source):
    run = run_of("bert4rec")
    one, _ = warm_start.resolve_initial(run, trained("bert4rec"))
    other, weights = warm_start.resolve_initial(run, str(source("bert4rec")))
    best, _ = warm_start.resolve_initial(run, trained("bert4rec") / "select")
    assert one == other and len({run.digest, one.digest, best.digest}) == 3
    assert Run.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert warm_start.resolve_initial(run, weights) == (one, weights)


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "file", "words"),
    [
        (OLD, "", "trained on the same data with the validation items"),
        (OLD, "select", "trained on the same data without the held-out items"),
        (NEW, "select", "trained on other data, which may have the held-out items"),
    ],
)
def test_the_leak_of_initial_weights_is_reported(trained, tmp_path, data, file, words):
    run, path = run_of("bert4rec"), trained("bert4rec") / file
    opened = b4r.open_experiment(run, sequences=data, workdir=tmp_path / "work", init_from=path)
    initial = opened.workdir.read_config().initial
    assert words in initial["leak"] and initial["path"] == str(path.resolve())
    assert initial["checkpoint"] == (file or "retrain")
    assert ("too high" in initial["leak"]) == (data is NEW or not file)


@pytest.mark.long
def test_weights_of_all_actions_make_both_metrics_too_high(tmp_path, quick):
    execute(run_of("bpr_mf", protocol="all"), tmp_path / "all", OLD)
    again = b4r.open_experiment(
        run_of("bpr_mf"), sequences=OLD, workdir=tmp_path / "work", init_from=tmp_path / "all" / "all"
    )
    leak = again.workdir.read_config().initial["leak"]
    assert "with the validation and test items" in leak and "too high" in leak


def test_weights_of_a_warm_start_may_know_several_data_sets(trained, tmp_path, quick):
    run = run_of("bpr_mf", protocol="select")
    execute(run, tmp_path / "one", init_from=trained("bpr_mf"))
    again = b4r.open_experiment(run, sequences=NEW, workdir=tmp_path / "two", init_from=tmp_path / "one")
    initial = again.workdir.read_config().initial
    assert initial["checkpoint"] == "select" and "trained on other data" in initial["leak"]


def test_a_training_that_has_not_begun_needs_the_weights(trained, tmp_path, quick):
    run, _ = warm_start.resolve_initial(run_of("bpr_mf"), trained("bpr_mf"))
    with pytest.raises(b4r.UserError, match="work: name the weights to start from with --init_from"):
        execute(run, tmp_path / "work")
    assert not (tmp_path / "work").exists()
    b4r.open_experiment(run, sequences=NEW, workdir=tmp_path / "work", init_from=trained("bpr_mf"))
    with pytest.raises(b4r.UserError, match="work: name the weights to start from with --init_from"):
        execute(run, tmp_path / "work")
    assert not list((tmp_path / "work").rglob("step-*"))
    expected = execute(run, tmp_path / "work", init_from=trained("bpr_mf")).metrics
    assert execute(run, tmp_path / "work").metrics == expected


# The authors' checkpoints

ITEMS = [str(number) for number in range(57, 5, -2)] + [f"new {number}" for number in range(9)] + ["1", "2"]
ORIGINAL = {
    "max_length": CONFIG["max_position_embeddings"],
    "hidden_dim": CONFIG["hidden_size"],
    "num_layers": CONFIG["num_hidden_layers"],
    "num_heads": CONFIG["num_attention_heads"],
    "intermediate_dim": CONFIG["intermediate_size"],
    "use_token_type": True,
}


@pytest.fixture
def program(tmp_path):
    """A checkpoint of the authors' program with what must lie beside it."""
    folder = tmp_path / "program"
    shutil.copytree(CHECKPOINT.parent, folder)
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    (folder / "vocabulary.txt").write_text("\n".join(TOKENS) + "\n")
    return folder / CHECKPOINT.name


def test_known_items_score_as_in_the_authors_checkpoint(program):
    theirs, words = tf1_import.load(
        program, *(program.with_name(name) for name in ("bert_config.json", "vocabulary.txt"))
    )
    ours = make_model(Run.make("beauty", **ORIGINAL), len(ITEMS), 1)
    source = warm_start.read_start_weights(program)
    source.apply_to(ours, ITEMS, [])
    known = [item for item in ITEMS if item in words.items]
    assert len(known) == len(ITEMS) - 9

    def scores(model, ids):
        batch = {"users": [0], "items": [ids[3:9]], "lengths": [6]}
        return np.asarray(model.score(batch))[0, np.array(ids) - 1]

    found = scores(ours, [ITEMS.index(item) + 1 for item in known])
    np.testing.assert_allclose(found, scores(theirs, words.encode(known).tolist()), atol=1e-5)
    np.testing.assert_array_equal(ours.item_embeddings[ours.mask_token], theirs.item_embeddings[theirs.mask_token])


@pytest.mark.long
def test_a_run_starts_from_the_authors_checkpoint(program, tmp_path, quick):
    sequences = group_histories(
        {f"user {user}": [ITEMS[(user + 2 * step) % 35] for step in range(5)] for user in range(35)}
    )
    run = run_of("bert4rec", **ORIGINAL, protocol="select")
    found = execute(run, tmp_path / "work", sequences, init_from=program).metrics["initial"]
    assert found["items"] == {"shared": 26, "added": 9, "removed": 31} and found["checkpoint"] == CHECKPOINT.name
    assert "trained on other data" in found["leak"]


# The command line, and mistakes

MORE = text([*lines(), *(f"{user} {31 + user % 5}" for user in range(1, 41))])


@pytest.fixture(scope="session")
def finished(shared_folders):
    """A finished run, the same users' data with five items more, and a finished run on those that starts there."""

    def make(folder):
        (folder / "beauty.txt").write_bytes(text(lines()))
        (folder / "more").mkdir()
        (folder / "more" / "beauty.txt").write_bytes(MORE)
        with small_and_quick():
            commands.finished(*f"{BEAUTY} --mode=train --workdir=old --protocol=select".split(), cwd=folder)
            commands.finished(*f"{WARM} --mode=train --workdir=work --init_from=old".split(), cwd=folder)
            commands.finished(*f"{BEAUTY} --mode=train --workdir=other --protocol=select --seed=2".split(), cwd=folder)

    return shared_folders.get("warm", make)


WARM = f"{BEAUTY} --data_dir=more --protocol=select"


@pytest.mark.slow
def test_the_command_prints_the_initial_weights_and_resumes_without_them(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "old")
    before = sorted((tmp_path / "work" / "select").glob("step-*.npz"))
    told = commands.finished("--mode=evaluate", "--workdir=work", "--data_dir=more", cwd=tmp_path).stdout
    assert "old (select, step " in told and "items: 30 shared, 5 added, 0 removed." in told
    assert told.count("The weights were trained on other data") == 2
    commands.finished("--mode=train", "--workdir=work", "--data_dir=more", cwd=tmp_path)
    assert sorted((tmp_path / "work" / "select").glob("step-*.npz")) == before
    metrics = json.loads((tmp_path / "work" / "metrics.json").read_text())
    assert metrics["run"]["initial_weights"] and metrics["initial"]["dataset"] == "beauty"


def cut(name):
    def damage(folder):
        for path in folder.glob(name):
            path.write_bytes(path.read_bytes()[:-100])

    return damage


def without(name):
    return lambda folder: [shutil.rmtree(path) if path.is_dir() else path.unlink() for path in folder.glob(name)]


def program_in(folder):
    shutil.copytree(CHECKPOINT.parent, folder / "program")
    (folder / "program" / "bert_config.json").write_text(json.dumps(CONFIG))


def nothing(folder):
    pass


SOURCES = "must be a work directory, the folder of a training in one (select), or the prefix"
MISTAKES = {
    "nothing there": ("--init_from=absent", nothing, SOURCES, "init_from=absent"),
    "the folder itself": ("--init_from=.", nothing, SOURCES),
    "another file": ("--init_from=beauty.txt", nothing, SOURCES, "init_from=beauty.txt"),
    "a run that has not begun": (
        "--init_from=old",
        without("old/select"),
        "old/select: no finished training; run with --mode=train first",
    ),
    "a checkpoint cut short": ("--init_from=old", cut("old/select/best.npz"), "old/select/best.npz: cannot be read"),
    "a vocabulary cut short": ("--init_from=old", cut("old/vocabulary.npz"), "old/vocabulary.npz: cannot be read"),
    "another width": ("--init_from=old --hidden_dim=16", nothing, "`hidden_dim` must be 8", "hidden_dim=16"),
    "other weights": (
        "--init_from=other/select --workdir=work",
        nothing,
        "work: holds another run (there initial_weights=",
    ),
    "fresh weights": ("--workdir=work", nothing, "work: holds another run", "now initial_weights=None"),
    "no configuration": ("--init_from=program/model.ckpt-0", program_in, "program/vocabulary.txt: cannot be read"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_ends_in_one_line_and_changes_nothing(finished, tmp_path, kind):
    flags, set_up, *words = MISTAKES[kind]
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    set_up(tmp_path)
    before = contents(tmp_path)
    line = commands.refused(commands.run(*f"{WARM} --workdir=new {flags}".split(), cwd=tmp_path))
    for part in words:
        assert part in line
    assert contents(tmp_path) == before


def test_models_that_cannot_start_so_are_named(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    other = "--dataset=beauty --data_dir=. --mode=train --protocol=select"
    fixed = "--dataset=beauty --data_dir=. --mode=train --protocol=fixed"
    commands.finished(*f"{fixed} --model=pop --workdir=pop".split(), cwd=tmp_path)
    for flags, words in (
        (
            f"{other} --model=sasrec --init_from=old",
            "`model` must be bert4rec, as in the weights. Received: model=sasrec",
        ),
        (f"{other} --model=pop --init_from=pop", "`init_from` must be left out for pop"),
        ("--workdir=work --init_from=old", "--dataset is required with --init_from"),
    ):
        assert words in commands.refused(commands.run(*flags.split(), cwd=tmp_path))
