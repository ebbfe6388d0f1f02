"""RecTools' networks without the products of padding, which take most of the time on a CPU: same outputs and loss.

Most of RecTools' positions are padding where histories are short. BERT4Rec never reads them. SASRec reads them as keys
and values of attention, and there all of them are alike, since RecTools sets their inputs to zero. So one is enough.
"""

from collections.abc import Sequence
from typing import Any

import torch
from rectools.models.nn.transformers.lightning import TransformerLightningModule
from rectools.models.nn.transformers.net_blocks import PreLNTransformerLayers
from rectools.models.nn.transformers.sasrec import SASRecTransformerLayer, SASRecTransformerLayers
from torch.nn import functional


class UnpaddedSASRecLayers(SASRecTransformerLayers):
    """SASRec's blocks, with the same outputs at every position that is not padding, and zeros elsewhere.

    Args:
        session_max_len: the number of positions that each user has in RecTools.
    """

    def __init__(self, session_max_len: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.session_max_len = session_max_len

    def forward(self, seqs: torch.Tensor, timeline_mask: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Returns float [users, positions, hidden_dim].

        Args:
            seqs: float [users, positions, hidden_dim]; padding comes first, and some of it may be left out.
            timeline_mask: bool [users, positions, 1], False at padding.
        """
        is_real = timeline_mask[..., 0]
        states = seqs[is_real]
        for block in self.transformer_blocks:
            states = apply_block(block, states, is_real, self.session_max_len)
        return place(self.last_layernorm(states), is_real)


class UnpaddedBERT4RecLayers(PreLNTransformerLayers):
    """BERT4Rec's blocks, with the same outputs at every position that is not padding, and zeros elsewhere."""

    def forward(self, seqs: torch.Tensor, timeline_mask: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Returns float [users, positions, hidden_dim]; for the arguments see UnpaddedSASRecLayers."""
        is_real = timeline_mask[..., 0]
        states = seqs[is_real]
        for block in self.transformer_blocks:
            attention, inputs = block.multi_head_attn, block.layer_norm_1(states)
            heads = project(attention, (inputs, inputs, inputs), is_real)
            rate = attention.dropout if block.training else 0.0
            context = functional.scaled_dot_product_attention(*heads, is_real[:, None, None, :], rate)
            states = states + block.dropout_1(join_heads(attention, context, is_real))
            states = states + block.dropout_2(block.feed_forward(block.layer_norm_2(states)))
            states = block.dropout_3(states)
        return place(states, is_real)


def place(states: torch.Tensor, is_real: torch.Tensor) -> torch.Tensor:
    """Returns `states`, float [real positions, hidden_dim], among zeros: float [users, positions, hidden_dim]."""
    padded_states = states.new_zeros(*is_real.shape, states.shape[-1])
    padded_states[is_real] = states
    return padded_states


def apply_block(
    block: SASRecTransformerLayer, states: torch.Tensor, is_real: torch.Tensor, session_max_len: int
) -> torch.Tensor:
    """Returns the states after a block, float [real positions, hidden_dim]."""
    attention = block.multi_head_attn
    queries = block.q_layer_norm(states)
    heads = project(attention, (queries, states, states), is_real)
    padding = [split_heads(bias.expand(1, 1, -1), attention.num_heads) for bias in attention.in_proj_bias.chunk(3)[1:]]
    rate = attention.dropout if block.training else 0.0
    context = attend(heads, padding, is_real, session_max_len, rate)
    states = queries + join_heads(attention, context, is_real)
    inputs = block.ff_layer_norm(states)
    return block.dropout(block.feed_forward(inputs)) + inputs


def project(
    attention: torch.nn.MultiheadAttention, states: Sequence[torch.Tensor], is_real: torch.Tensor
) -> list[torch.Tensor]:
    """Returns queries, keys and values, float [users, num_heads, positions, head_dim]; zeros at padding.

    Args:
        attention: with the weights.
        states: what queries, keys and values are made from, float [real positions, hidden_dim].
        is_real: bool [users, positions].
    """
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    projections = map(functional.linear, states, weights, biases)
    return [split_heads(place(projection, is_real), attention.num_heads) for projection in projections]


def join_heads(attention: torch.nn.MultiheadAttention, context: torch.Tensor, is_real: torch.Tensor) -> torch.Tensor:
    """Returns the attention's output at the real positions, float [real positions, hidden_dim]."""
    return attention.out_proj(context.transpose(1, 2).flatten(2)[is_real])


def split_heads(states: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Returns float [users, num_heads, positions, head_dim] of float [users, positions, hidden_dim]."""
    return states.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def attend(
    heads: Sequence[torch.Tensor],
    padding: Sequence[torch.Tensor],
    is_real: torch.Tensor,
    session_max_len: int,
    rate: float,
) -> torch.Tensor:
    """Returns causal attention, float [users, heads, positions, head_dim], where padding is one key of their number.

    Dropout at `rate` leaves out each position of the padding by itself, so it keeps a binomial share of that key.

    Args:
        heads: queries, keys and values, float [users, heads, positions, head_dim].
        padding: key and value, float [1, heads, 1, head_dim].
        is_real: bool [users, positions].
    """
    (queries, keys, values), (padding_key, padding_value) = heads, padding
    positions, scale = queries.shape[2], queries.shape[-1] ** -0.5
    may_read = is_real[:, None, None, :] & torch.ones(positions, positions, dtype=torch.bool).tril()
    scores = (queries @ keys.mT * scale).masked_fill(~may_read, -torch.inf)
    num_padding = (session_max_len - is_real.sum(1)).to(queries.dtype)[:, None, None, None]
    padding_scores = queries @ padding_key.mT * scale + num_padding.log()
    weights = torch.cat([padding_scores, scores], -1).softmax(-1)
    padding_weights, weights = weights[..., :1], functional.dropout(weights[..., 1:], rate, rate > 0)
    if rate:
        draw = torch.binomial(num_padding.expand_as(padding_weights), torch.tensor(1 - rate).expand_as(padding_weights))
        padding_weights = padding_weights * draw / (num_padding.clamp(min=1) * (1 - rate))
    return padding_weights * padding_value + weights @ values


class UnpaddedLoss(TransformerLightningModule):
    """RecTools' softmax loss, with logits only for the positions that have a target."""

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Returns the loss of a batch, a scalar."""
        length = int((batch["x"] != 0).sum(1).max())
        batch = {name: values[:, -length:] for name, values in batch.items()}
        items, has_target = self.torch_model.item_model.get_all_embeddings(), batch["y"] != 0
        states = self.torch_model.encode_sessions(batch, items)[has_target]
        logits = self.torch_model.similarity_module(states, items) / self.logits_t
        losses = functional.cross_entropy(logits, batch["y"][has_target], reduction="none") * batch["yw"][has_target]
        return losses.sum() / (losses > 0).sum()
