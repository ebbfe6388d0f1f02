"""RecTools' SASRec and BERT4Rec as the benchmark of peers trains them, against RecTools' own.

RecTools needs an older NumPy than this package, so an interpreter that has it runs this file by itself:
`PYTHON -m pytest --noconftest -m slow tests/benchmarks/test_rectools.py`.
"""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

PEERS = str(Path(__file__).parents[2] / "benchmarks" / "peers")
pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("rectools", reason="rectools is not installed")
pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")

sys.path.insert(0, PEERS)  # as in the process that trains
import peer_training  # noqa: E402
import unpadded  # noqa: E402
from rectools.models import BERT4RecModel, SASRecModel  # noqa: E402
from torch.nn import functional  # noqa: E402


@pytest.fixture(scope="module")
def task():
    """60 users with 2 to 30 items of a circle of 40."""
    generator = np.random.default_rng(5)
    lengths = generator.integers(2, 31, size=60)
    items = np.concatenate([(generator.integers(40) + np.arange(length)) % 40 for length in lengths])
    return peer_training.Task(np.repeat(np.arange(60), lengths), items, math.inf)


@pytest.mark.parametrize("positions", [8, 40])
@pytest.mark.parametrize("kind", [SASRecModel, BERT4RecModel])
def test_skipping_padding_changes_neither_loss_nor_gradients(task, kind, positions):
    layers = {SASRecModel: unpadded.UnpaddedSASRecLayers, BERT4RecModel: unpadded.UnpaddedBERT4RecLayers}
    parts = {"lightning_module_type": unpadded.UnpaddedLoss, "transformer_layers_type": layers[kind]}
    parts["transformer_layers_kwargs"] = {"session_max_len": positions}
    data = peer_training.to_rectools(task)
    theirs = kind(dropout_rate=0.0, session_max_len=positions)
    skipping = kind(dropout_rate=0.0, session_max_len=positions, **parts)
    for model in (theirs, skipping):
        model.fit_partial(data, min_epochs=1, max_epochs=1)
        model.torch_model.load_state_dict(theirs.torch_model.state_dict())
    (batch,) = theirs.data_preparator.get_dataloader_train()
    losses, gradients, lists = [], [], []
    for model in (theirs, skipping):
        model.lightning_model.zero_grad()
        model.lightning_model.log = lambda *_, **__: None  # logging needs a trainer
        loss = model.lightning_model.training_step(batch, 0)
        loss.backward()
        losses.append(loss.item())
        gradients.append([weight.grad.numpy() for weight in model.torch_model.parameters()])
        lists.append(peer_training.list_with_rectools(model, data, np.arange(60)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for expected, received in zip(*gradients, strict=True):
        np.testing.assert_allclose(received, expected, atol=1e-5 * np.abs(expected).max() + 1e-9)
    np.testing.assert_array_equal(*lists)


def test_dropout_on_padding_that_is_one_key_has_the_mean_and_the_spread_of_many():
    torch.manual_seed(1)
    draws, num_padding, rate = 20_000, 5, 0.4
    heads = [torch.randn(1, 1, 3, 2) for _ in range(3)]
    padding = [torch.randn(1, 1, 1, 2) for _ in range(2)]
    queries, keys, values = (one.expand(draws, -1, -1, -1) for one in heads)
    is_real = torch.ones(draws, 3, dtype=torch.bool)
    received = unpadded.attend([queries, keys, values], padding, is_real, 3 + num_padding, rate)
    long_keys, long_values = (
        torch.cat([one.expand(1, 1, num_padding, 2), other], 2).expand(draws, -1, -1, -1)
        for one, other in zip(padding, heads[1:])
    )
    may_read = torch.ones(3, 3 + num_padding, dtype=torch.bool).tril(num_padding)
    expected = functional.scaled_dot_product_attention(
        queries, long_keys, long_values, attn_mask=may_read, dropout_p=rate
    )
    for measure in (torch.mean, torch.std):
        torch.testing.assert_close(measure(received, 0), measure(expected, 0), rtol=0.05, atol=0.02)


def test_a_killed_training_goes_on_from_its_last_epoch(task, tmp_path, monkeypatch):
    save, step, epochs, states = peer_training.save_rectools_state, unpadded.UnpaddedLoss.training_step, [0], []

    def save_and_stop(model, best, task):
        save(model, best, task)
        epochs.append(best.epochs)
        if epochs == [0, 1, 2]:
            raise KeyboardInterrupt

    def note_and_step(module, *batch):
        moments = [state["exp_avg"].clone() for state in module.optimizer.state_dict()["state"].values()]
        states.append([*(weight.detach().clone() for weight in module.torch_model.parameters()), *moments])
        return step(module, *batch)

    monkeypatch.setattr(peer_training, "save_rectools_state", save_and_stop)
    monkeypatch.setattr(peer_training.Task, "is_over", property(lambda _: epochs[-1] >= 3))
    monkeypatch.setattr(unpadded.UnpaddedLoss, "training_step", note_and_step)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        peer_training.train_rectools_sasrec(task)
    peer_training.train_rectools_sasrec(task)
    killed = states.copy()
    (tmp_path / "state.pt").unlink()
    epochs[:] = [0, 0]
    peer_training.train_rectools_sasrec(task)
    whole = states[len(killed) :]
    assert len(whole) == len(killed) == 3  # one batch has all users
    for received, expected in zip(killed[2], whole[2], strict=True):
        torch.testing.assert_close(received, expected, rtol=0, atol=2e-4)
