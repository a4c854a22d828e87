"""A drafter's weights in training: many blocks of many chats in one pass, heads fed the true tokens.

What a registered drafter class offers to training is its ``training_model``; training reaches it through the registry.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specforge.checkpoints import DominoHeadConfig, DrafterConfig, MarkovHeadConfig
from specforge.drafters.backbone import KeysValues, Sight
from specforge.drafters.model import DraftModel

INITIAL_DEVIATION = 0.02


class _GivenContext:
    """The context of one pass, made anew for it."""

    def __init__(self, layers: Sequence[KeysValues]) -> None:
        self._layers = layers

    def extend(self, layer: int, keys: Tensor, values: Tensor, first: int) -> KeysValues:
        before_keys, before_values = self._layers[layer]
        return torch.cat([before_keys, keys], dim=2), torch.cat([before_values, values], dim=2)


class TrainableDraft(DraftModel):
    """Backbone and heads with random weights, and differentiable forms of what drafting computes step by step.

    ``state_dict`` is that of a checkpoint. The head's last projection starts at zero, so that training starts from
    the base logits as they are.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | nn.GRU):
                for name, parameter in module.named_parameters(recurse=False):
                    nn.init.normal_(parameter, std=0.0 if "bias" in name else INITIAL_DEVIATION)
        if self.up is not None:
            nn.init.zeros_(self.up)

    @property
    def up(self) -> nn.Parameter | None:
        """``[V, r]`` what takes the head's codes to corrections of the logits; ``None`` without a head."""
        if isinstance(self.config.head, DominoHeadConfig):
            return self.get_parameter("embed_proj.2.weight")
        if isinstance(self.config.head, MarkovHeadConfig):
            return self.get_parameter("markov_head.markov_w2.weight")
        return None

    def blocks(self, noise: Tensor, positions: Tensor, features: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """Return the hidden states ``[B, R, H]`` of blocks that lie side by side in ``R`` rows.

        Args:
            noise: ``[B, R, H]`` embeddings.
            positions: ``[B, R]`` int64 sequence indices of the rows.
            features: ``[B, P, taps * H]`` target features of the first ``P`` tokens.
            masks: ``[B, 1, R, P + R]`` bool, one a layer: which context and which rows each row sees.
        """
        context = self.context(features, torch.arange(features.shape[1], device=features.device))
        noise = noise * self.config.input_embedding_scale
        return self(noise, positions[:, None], _GivenContext(context), [Sight(0, mask) for mask in masks])

    def codes(self, hidden: Tensor, tokens: Tensor, embeddings: Tensor) -> Tensor | None:
        """Return ``[n, D, r]``: the correction at position ``d`` is ``codes[:, d] @ up.T``; ``None`` without a head.

        Args:
            hidden: ``[n, D, H]`` the blocks' hidden states.
            tokens: ``[n, D]`` int64, what precedes each position: the root, then the true tokens.
            embeddings: ``[n, D, H]`` the target's embeddings of ``tokens``.
        """
        head = self.config.head
        if isinstance(head, DominoHeadConfig):
            return self._domino_codes(head, hidden, embeddings)
        return self._markov_codes(head, hidden, tokens) if isinstance(head, MarkovHeadConfig) else None

    def confidence(self, hidden: Tensor, tokens: Tensor) -> Tensor | None:
        """Return ``[n, D]`` logits of the confidence head, which learns without pulling at the rest, or ``None``."""
        if self.config.confidence is None:
            return None
        inputs = hidden
        if self.config.confidence.with_markov:
            inputs = torch.cat([hidden, self.markov_head.markov_w1(tokens)], dim=-1)
        return self.confidence_head.proj(inputs.detach())[..., 0]

    def _domino_codes(self, head: DominoHeadConfig, hidden: Tensor, embeddings: Tensor) -> Tensor:
        weights = self.get_parameter("prefix_gru.weight_ih_l0"), self.get_parameter("prefix_gru.weight_hh_l0")
        states = gru_states(embeddings, *weights)
        codes = self.embed_proj[1](self.embed_proj[0](torch.cat([hidden, states], dim=-1)))
        corrected = torch.arange(codes.shape[1], device=codes.device) >= head.first_corrected
        return codes * corrected[:, None]

    def _markov_codes(self, head: MarkovHeadConfig, hidden: Tensor, tokens: Tensor) -> Tensor:
        codes = self.markov_head.markov_w1(tokens)
        if head.variant == "gated":
            return torch.sigmoid(self.markov_head.gate_proj(torch.cat([hidden, codes], dim=-1))) * codes
        if head.variant == "rnn":
            joint = self.markov_head.joint_proj
            return _recurrent_codes(hidden, codes, joint.weight, joint.bias)
        return codes


def gru_states(inputs: Tensor, input_weight: Tensor, state_weight: Tensor) -> Tensor:
    """Return ``[n, D, G]``, a bias-free GRU's states after each of ``inputs`` ``[n, D, H]``, from zero."""
    from_inputs = F.linear(inputs, input_weight)
    state = from_inputs.new_zeros(inputs.shape[0], state_weight.shape[1])
    states = []
    for step in range(inputs.shape[1]):
        into = from_inputs[:, step].chunk(3, dim=-1)
        within = F.linear(state, state_weight).chunk(3, dim=-1)
        reset, update = torch.sigmoid(into[0] + within[0]), torch.sigmoid(into[1] + within[1])
        new = torch.tanh(into[2] + reset * within[2])
        state = (1 - update) * new + update * state
        states.append(state)
    return torch.stack(states, dim=1)


def _recurrent_codes(hidden: Tensor, codes: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rank = codes.shape[-1]
    given = F.linear(torch.cat([codes, hidden], dim=-1), weight[:, rank:], bias)
    state, outputs = torch.zeros_like(codes[:, 0]), []
    for step in range(codes.shape[1]):
        gate, new, output = (given[:, step] + F.linear(state, weight[:, :rank])).chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        state = gate * state + (1 - gate) * torch.tanh(new)
        outputs.append(torch.tanh(output))
    return torch.stack(outputs, dim=1)
