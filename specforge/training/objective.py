"""From a batch of blocks to a loss: the trained drafter between the target's frozen embedding and head."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specforge.checkpoints import DrafterConfig
from specforge.errors import IncompatiblePartsError
from specforge.target import Target
from specforge.training.blocks import BlockBatch, layer_masks, row_positions
from specforge.training.chunked import sum_in_chunks
from specforge.training.config import Objective
from specforge.training.contract import TrainingModel
from specforge.training.losses import SparseTargets, cross_entropy, leading_correct, mix_targets, position_weights
from specforge.training.vocabulary import SoftmaxColumns

CHUNK_ENTRIES = 2**20


class LossParts(NamedTuple):
    """Sums over a batch; a mean is ``total / weight``.

    Attributes:
        total: the weighted loss, to be minimised.
        weight: the sum of the weights.
        final: the weighted cross entropy of the corrected logits, detached.
        base: that of the base logits, detached.
        accepted: draft tokens a greedy chain would have had accepted, over all blocks.
        base_accepted: the same without the correction.
        blocks: how many blocks there are.
    """

    total: Tensor
    weight: Tensor
    final: Tensor
    base: Tensor
    accepted: Tensor
    base_accepted: Tensor
    blocks: Tensor


class BlockObjective(nn.Module):
    """The loss of a drafter; its only parameters are the drafter's.

    Args:
        model: a drafter class's ``training_model``.
        target: whose embedding and head are used, frozen.
        options: the loss.

    Raises:
        IncompatiblePartsError: when the target's head is no ``Linear``.
    """

    def __init__(self, model: nn.Module, target: Target, options: Objective) -> None:
        super().__init__()
        head = target.lm_head
        if not isinstance(head, nn.Linear):
            raise IncompatiblePartsError(f"the target's head is a {type(head).__name__}; training needs a Linear")
        self.model = model
        self._config = self.drafter.config
        self._options = options
        # plain tensors in a tuple: what is frozen is neither trained, nor saved, nor averaged over devices
        self._frozen = (head.weight.detach(), None if head.bias is None else head.bias.detach())
        self._embedding = (target.embedding,)

    @property
    def drafter(self) -> TrainingModel:
        """The model, as what it offers to training."""
        return cast(TrainingModel, self.model)

    def forward(self, batch: BlockBatch, columns: SoftmaxColumns, base_weight: float) -> LossParts:
        """Return the loss of ``batch`` with λ = ``base_weight``."""
        dtype = self._compute_dtype(batch.features.device)
        hidden = self._hidden(batch, dtype)
        codes = self.drafter.codes(hidden, batch.inputs, self._embed(batch.inputs, dtype))
        known = batch.known
        weights = position_weights(known.shape[1], self._options.position_decay, known.device)
        rows = _Rows(
            self._targets(batch, columns),
            weights.expand(known.shape)[known],
            columns,
            columns.column_of[batch.labels[known]],
            *self._head(columns, dtype),
            self._config,
            base_weight,
            torch.zeros(2, int(known.sum()), dtype=torch.bool, device=known.device),
        )
        size = max(1, CHUNK_ENTRIES // len(columns.token_ids))
        up = self.drafter.up
        if codes is None or up is None:
            total, sums = sum_in_chunks(rows.base_loss, size, [hidden[known].to(dtype)], [])
        else:
            inputs = [hidden[known].to(dtype), codes[known].to(dtype)]
            total, sums = sum_in_chunks(rows.mixed_loss, size, inputs, [up[columns.token_ids].to(dtype)])
        right, base_right = (torch.zeros_like(known).masked_scatter_(known, r) for r in rows.right)
        total = total + self._confidence_loss(hidden, batch, right, rows.weights)
        return LossParts(
            total,
            rows.weights.sum(),
            sums[0],
            sums[1],
            leading_correct(right).sum(),
            leading_correct(base_right).sum(),
            torch.tensor(len(known), device=known.device),
        )

    def _compute_dtype(self, device: torch.device) -> torch.dtype:
        if torch.is_autocast_enabled(device.type):
            return torch.get_autocast_dtype(device.type)
        return self.drafter.fc.weight.dtype

    def _hidden(self, batch: BlockBatch, dtype: torch.dtype) -> Tensor:
        """Return ``[N, D, H]``, the hidden states at the draft positions of every block."""
        config = self._config
        masks = layer_masks(config, batch.anchors, batch.features.shape[1])
        positions = row_positions(batch.anchors, config.block_size)
        noise = self._embed(batch.noise_ids, self.drafter.fc.weight.dtype)
        hidden = self.drafter.blocks(noise, positions, batch.features.to(dtype), masks)
        hidden = hidden.unflatten(1, (-1, config.block_size))[batch.filled]
        return hidden if config.anchor_predicts else hidden[:, 1:]

    def _embed(self, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
        with torch.no_grad():
            return self._embedding[0](token_ids).to(dtype)

    def _head(self, columns: SoftmaxColumns, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        weight, bias = self._frozen
        return weight[columns.token_ids].to(dtype), None if bias is None else bias[columns.token_ids].to(dtype)

    def _targets(self, batch: BlockBatch, columns: SoftmaxColumns) -> SparseTargets:
        known = batch.known
        best = batch.top_tokens[known], batch.top_log_probs[known]
        share = self._options.distillation if batch.top_tokens.shape[-1] else 0.0
        return mix_targets(batch.labels[known], *best, columns, share)

    def _confidence_loss(self, hidden: Tensor, batch: BlockBatch, right: Tensor, weights: Tensor) -> Tensor:
        """Return the binary cross entropy of the confidence head with what greedy verification would accept."""
        confidence = self.drafter.confidence(hidden, batch.inputs)
        if confidence is None:
            return torch.zeros((), device=hidden.device)
        logits, accepted = confidence[batch.known].float(), right[batch.known].float()
        losses = F.binary_cross_entropy_with_logits(logits, accepted, reduction="none")
        return self._options.confidence_weight * (losses * weights).sum()


class _Rows(NamedTuple):
    """The rows of one batch's loss, and what each should predict; ``right`` notes which ones do."""

    targets: SparseTargets
    weights: Tensor
    columns: SoftmaxColumns
    labels: Tensor
    head: Tensor
    head_bias: Tensor | None
    config: DrafterConfig
    base_weight: float
    right: Tensor

    def base_loss(self, rows: slice, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of a drafter without a head."""
        base = self._loss(rows, self._base_logits(hidden), (0, 1))
        return base, torch.stack([base, base])

    def mixed_loss(self, rows: slice, hidden: Tensor, codes: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(1 - λ) · final + λ · base``, and both."""
        base_logits = self._base_logits(hidden)
        base = self._loss(rows, base_logits, (1,))
        final = self._loss(rows, base_logits + F.linear(codes, up).float(), (0,))
        return (1.0 - self.base_weight) * final + self.base_weight * base, torch.stack([final, base])

    def _loss(self, rows: slice, logits: Tensor, noted: tuple[int, ...]) -> Tensor:
        for index in noted:
            self.right[index, rows] = logits.detach().argmax(dim=-1) == self.labels[rows]
        return (cross_entropy(logits, self.targets[rows]) * self.weights[rows]).sum()

    def _base_logits(self, hidden: Tensor) -> Tensor:
        """Return ``[R, M]`` float32, as the drafter makes them, with the sampled columns' offsets."""
        logits, cap = F.linear(hidden, self.head, self.head_bias).float(), self.config.final_logit_softcapping
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits + self.columns.offsets
