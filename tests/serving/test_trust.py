"""Models of strangers: others than exports are not loaded, nor what could touch files unless the user says so."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from support import models
from support.commands import console, refused
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

import bert4rec_tf as b4r
from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import ServingWarning
from bert4rec_tf.models import MODELS
from bert4rec_tf.serving import batch
from bert4rec_tf.serving.client import Choices, SavedRecommender
from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings
from bert4rec_tf.serving.signatures import LoadedModel
from bert4rec_tf.serving.trust import COMPUTING, check_only_computes


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "model"
    export(models.make("pop"), models.SEQUENCES.vocabulary, folder)
    return folder


@pytest.fixture(scope="module")
def similar(tmp_path_factory):
    """An export that also compares items."""
    folder = tmp_path_factory.mktemp("similar") / "model"
    export(models.make("item_transitions"), models.SEQUENCES.vocabulary, folder)
    return folder


def changed(folder, change):
    content = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    change(content)
    (folder / "saved_model.pb").write_bytes(content.SerializeToString())


OPS = [
    *("WriteFile", "ReadFile", "MatchingFiles", "PrintV2", "EagerPyFunc", "InitializeTableFromTextFileV2", "SaveV2"),
    *("DatasetFromGraph", "DebugIdentityV2", "OfTomorrow"),
]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("is_in_function", [True, False])
def test_an_op_that_does_more_than_compute_is_refused_by_name(own, op, is_in_function):
    content = saved_model_pb2.SavedModel.FromString((own / "saved_model.pb").read_bytes())
    graph = content.meta_graphs[0].graph_def
    called = next(one for one in graph.library.function if "signature_wrapper" in one.signature.name)
    (called.node_def if is_in_function else graph.node).add(op=op)
    if op == "SaveV2" and not is_in_function:  # as TensorFlow itself saves the variables
        check_only_computes(own, content)
        return
    with pytest.raises(
        UserError, match=f"model: could do more than compute: it has the op {op}, which .* compute. If .* --trust_model"
    ):
        check_only_computes(own, content)


IN_MEMORY = {
    *("Assert", "DisableCopyOnRead", "HashTableV2", "If", "LookupTableFindV2", "ReadVariableOp"),
    *("StatefulPartitionedCall", "VarHandleOp", "VarIsInitializedOp", "While"),
}


def test_the_ops_of_own_models_are_allowed_and_have_no_state():
    names = "Abs ArgMax Cos Elu LeakyRelu Log1p OneHot ReverseV2 Sign Sin Softplus Sqrt Tile"
    assert set(names.split()) <= COMPUTING
    assert {name for name in COMPUTING if op_def_registry.get(name).is_stateful} == IN_MEMORY


def asset_of_elsewhere(folder):
    (folder.parent / "secret").write_text("hidden\n")
    changed(folder, lambda content: setattr(content.meta_graphs[0].asset_file_def[0], "filename", "../../secret"))


def link_to_elsewhere(folder):
    (folder.parent / "secret").write_text("hidden\n")
    (folder / "assets" / "vocabulary.txt").unlink()
    (folder / "assets" / "vocabulary.txt").symlink_to(folder.parent / "secret")


def constant_for_an_asset(folder):
    """Has the table's initializer read a path of the file's author in place of the asset's."""

    def change(content):
        for function in content.meta_graphs[0].object_graph_def.concrete_functions.values():
            for place, number in enumerate(function.bound_inputs):
                if content.meta_graphs[0].object_graph_def.nodes[number].WhichOneof("kind") == "asset":
                    function.bound_inputs[place] = 0

    changed(folder, change)


def call_of_what_saves(folder):
    """Has an object name the function that only TensorFlow 1 calls to save the variables."""

    def change(content):
        graph = content.meta_graphs[0]
        names = [one.signature.name for one in graph.graph_def.library.function]
        name = next(name for name in names if "traced_save" in name)
        graph.object_graph_def.nodes.add().bare_concrete_function.concrete_function_name = name

    changed(folder, change)


def of_tensorflow_1(folder):
    changed(folder, lambda content: content.meta_graphs[0].ClearField("object_graph_def"))


CHANGES = {
    asset_of_elsewhere: "its asset '../../secret' is not in its folder",
    link_to_elsewhere: "assets/vocabulary.txt is a link to elsewhere",
    constant_for_an_asset: "it has the op InitializeTableFromTextFileV2",
    call_of_what_saves: "it has the op (ShardedFilename|SaveV2|MergeV2Checkpoints)",
    of_tensorflow_1: "it is of TensorFlow 1, or has several graphs",
}


def test_a_link_to_itself_in_a_folder_is_ignored(own, tmp_path):
    folder = shutil.copytree(own, tmp_path / "model")
    (folder / "loop").symlink_to("loop")
    LoadedModel(folder)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_an_export_that_was_changed_to_reach_elsewhere_is_refused(own, change, tmp_path):
    folder = shutil.copytree(own, tmp_path / "model")
    change(folder)
    with pytest.raises(UserError, match=CHANGES[change]):
        LoadedModel(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_exports_of_every_model_only_compute(name, tmp_path):
    model = models.make(name)
    users = models.SEQUENCES.users.tolist() if model.needs_users else None
    export(model, models.SEQUENCES.vocabulary, tmp_path / "model", users=users)
    assert LoadedModel(tmp_path / "model").signatures


def add_writing(folder):
    """Adds a function that writes a file. No signature calls it."""

    def change(content):
        function = content.meta_graphs[0].graph_def.library.function.add()
        function.signature.name = "write"
        function.node_def.add(op="WriteFile", name="write", input=["name", "content"])
        for name in ("name", "content"):
            function.signature.input_arg.add(name=name, type=tf.string.as_datatype_enum)

    changed(folder, change)


FOREIGN = "model: was not exported by this version of bert4rec_tf; export it again, or serve it with TensorFlow Serving"


def test_commands_and_python_refuse_unsafe_and_foreign_models(own, tmp_path):
    writing = shutil.copytree(own, tmp_path / "own" / "model")
    add_writing(writing)
    foreign, module = tmp_path / "foreign" / "model", tf.Module()
    module.same = tf.function(lambda text: {"x": text}, input_signature=[tf.TensorSpec([], tf.string)])
    tf.saved_model.save(module, str(foreign), signatures={"serving_default": module.same})
    for command, *arguments in (["recommend", "--history=a"], ["similar", "--item=a"], ["serve", "--port=0"]):
        for folder, trust, words in (
            (writing, [], "it has the op WriteFile"),
            (foreign, [], FOREIGN),
            (foreign, ["--trust_model"], FOREIGN),
        ):
            assert words in refused(console(command, f"--model={folder}", *trust, *arguments, cwd=tmp_path))
    with pytest.raises(UserError, match="it has the op WriteFile"):
        b4r.open(writing)
    with pytest.raises(UserError, match=FOREIGN):
        b4r.open(foreign, trust_model=True)


def signature_of(content, name):
    return content.meta_graphs[0].signature_def[name]


NOT_OURS = {
    "a signature more": lambda content: signature_of(content, "classify").CopyFrom(signature_of(content, "encode")),
    "an input less": lambda content: signature_of(content, "recommend").inputs.pop("popularity_correction"),
    "users for one signature": lambda content: (
        signature_of(content, "encode").inputs["users"].CopyFrom(signature_of(content, "similar").inputs["items"])
    ),
    "another type": lambda content: setattr(signature_of(content, "recommend").inputs["k"], "dtype", 9),
    "any rank": lambda content: (
        signature_of(content, "encode").inputs["histories"].tensor_shape.CopyFrom(tf.TensorShape(None).as_proto())
    ),
    "no graph to serve": lambda content: content.meta_graphs[0].meta_info_def.tags.remove("serve"),
}


@pytest.mark.parametrize("name", NOT_OURS)
def test_a_model_without_the_signatures_of_an_export_is_refused(similar, name, tmp_path):
    folder = shutil.copytree(similar, tmp_path / "model")
    changed(folder, NOT_OURS[name])
    with pytest.raises(UserError, match=FOREIGN):
        LoadedModel(folder)


def test_a_trusted_model_is_trusted_elsewhere_too(own, tmp_path, monkeypatch):
    """A process of a cluster loads the model by itself."""
    shutil.copytree(own, tmp_path / "model")
    add_writing(tmp_path / "model")
    with pytest.raises(UserError, match="it has the op WriteFile"):
        SavedRecommender(tmp_path / "model")
    for number in ("intra", "inter"):  # this process computes already
        monkeypatch.setattr(tf.config.threading, f"set_{number}_op_parallelism_threads", lambda _: None)
    model = SavedRecommender(tmp_path / "model", is_trusted=True)
    vocabulary = Vocabulary(np.array([model.items[0]], object), np.ones(1, np.int64))
    users = Sequences(np.ones(1, np.int32), np.array([0, 1]), np.array(["ann"], object), vocabulary)
    cluster = SimpleNamespace(map=lambda *calls: list(map(*calls)), tasks_in_flight=2)
    batch.recommend_file(model, users, tmp_path / "out.csv", Choices(k=2), cluster=cluster)
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 3


def test_a_version_that_could_do_more_than_compute_is_not_served(own, tmp_path):
    for version in "12":
        shutil.copytree(own, tmp_path / "models" / version)
    add_writing(tmp_path / "models" / "2")
    with pytest.warns(ServingWarning, match="version 2 cannot be served.*WriteFile") as told:
        assert open_versions(ServerSettings(model=str(tmp_path / "models"))).current.version == 1
    assert len(told) == 1
    trusting = ServerSettings(model=str(tmp_path / "models"), trust_model=True)
    assert open_versions(trusting).current.version == 2
