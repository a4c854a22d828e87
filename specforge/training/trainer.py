"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor, nn

from specforge.checkpoints import DrafterConfig, save_checkpoint
from specforge.errors import ConfigError, SpecforgeError
from specforge.target import Target
from specforge.training.blocks import BlockBatch, make_batch, sample_anchors
from specforge.training.chats import Chat
from specforge.training.config import TrainConfig
from specforge.training.devices import Devices
from specforge.training.features import FeatureSource
from specforge.training.losses import base_weight
from specforge.training.objective import BlockObjective, LossParts
from specforge.training.replay import PRESETS_OF_KIND, parts_of, replay
from specforge.training.rundir import RunFolder
from specforge.training.schedule import chats_of_step, generator, learning_rate
from specforge.training.vocabulary import SoftmaxVocabulary


@frozen
class Progress:
    """How far a run is.

    Attributes:
        step: optimizer steps done.
        share: of the run that is done, in [0, 1].
        seconds: of training so far, those before a resumption included.
        entries: the lines of metrics just written.
    """

    step: int
    share: float
    seconds: float
    entries: tuple[dict[str, Any], ...]


@define(eq=False)
class Trainer:
    """One run.

    Attributes:
        config: what the run was told.
        drafter: the drafter's config.
        target: the frozen target.
        chats: all chats.
        training: indices of those to train on.
        held_out: indices of those to validate on.
        features: their features.
        model: the drafter's weights, float32 on the target's device.
        vocabulary: the softmax's columns.
        folder: the run's files.
        devices: one or several.
        step: optimizer steps done.
        best: the best held-out acceptance length so far, of the last preset validated.
    """

    config: TrainConfig
    drafter: DrafterConfig
    target: Target
    chats: Sequence[Chat]
    training: Sequence[int]
    held_out: Sequence[int]
    features: FeatureSource
    model: nn.Module
    vocabulary: SoftmaxVocabulary
    folder: RunFolder
    devices: Devices
    step: int = 0
    best: float = 0.0
    _seconds_before: float = 0.0
    _started: float = field(factory=time.monotonic)
    _objective: nn.Module = field(init=False)
    _optimizer: Any = field(init=False)
    _sums: Tensor | None = None

    def __attrs_post_init__(self) -> None:
        size, world = self.config.optimization.batch_size, self.devices.world
        if size % world:
            raise ConfigError(f"batch_size is {size}; it must be a multiple of the {world} devices")
        objective = BlockObjective(self.model, self.target, self.config.objective)
        optimizer = _adamw(self.model, self.config)
        self._objective, self._optimizer = self.devices.prepare(objective, optimizer)

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to where a saved run was."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.best, self._seconds_before = state["step"], state["best"], state["seconds"]

    def run(self, watch: Callable[[Progress], None] = lambda _progress: None) -> None:
        """Train to the end, logging, saving and validating on the way.

        Raises:
            SpecforgeError: when gradients are no longer finite.
        """
        self._started = time.monotonic()
        when = self.config.reporting
        while (share := self._share()) < 1.0:
            self._train_step(share)
            entries = [self._log()] if self.step % when.log_every == 0 else []
            if self.step % when.validate_every == 0:
                entries += self._validate()
            if self.step % when.save_every == 0:
                self._save()
            watch(Progress(self.step, self._share(), self._seconds(), tuple(entries)))
        if self.step % when.validate_every:
            watch(Progress(self.step, 1.0, self._seconds(), tuple(self._validate())))
        self._save()

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    def _share(self) -> float:
        """Return how much of the run is done, by steps or by time, whichever is further; the same on all devices."""
        options = self.config.optimization
        share = self.step / options.steps
        if options.max_minutes is None:
            return share
        by_time = torch.tensor(self._seconds() / 60.0 / options.max_minutes, device=self.target.device)
        return max(share, float(self.devices.total(by_time)) / self.devices.world)

    def _train_step(self, share: float) -> None:
        options, objective = self.config.optimization, self.config.objective
        batch = self._batch().to(self.target.device)
        draws = generator(options.seed, "softmax", self.step, self.devices.rank)
        columns = self.vocabulary.columns(batch.labels, draws)
        mixed = base_weight(share, objective.base_weight, objective.base_weight_until)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(options, self.step, share)
        kind = self.target.device.type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=options.precision == "bfloat16"):
            parts: LossParts = self._objective(batch, columns, mixed)
        # gradients are averaged over the devices, so each counts its own sum as often as there are devices
        weight = self.devices.total(parts.weight)
        self.devices.backward(parts.total * self.devices.world / weight)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), options.clip)
        if not math.isfinite(float(norm)):
            raise SpecforgeError(f"step {self.step}: the gradient is no longer finite; lower learning_rate")
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._count(parts, norm)

    def _batch(self) -> BlockBatch:
        options = self.config.optimization
        places = chats_of_step(options.seed, self.step, options.batch_size, len(self.training))
        indices = [self.training[place] for place in places[self.devices.rank :: self.devices.world]]
        chats = [self.chats[index] for index in indices]
        anchors = [
            sample_anchors(self.chats[index], options.anchors, generator(options.seed, "anchors", self.step, index))
            for index in indices
        ]
        return make_batch(chats, [self.features(index) for index in indices], anchors, self.drafter)

    def _count(self, parts: LossParts, norm: Tensor) -> None:
        values = torch.stack([part.detach().double() for part in parts] + [norm.double() / self.devices.world])
        values = torch.cat([values, values.new_ones(1) / self.devices.world])
        self._sums = values if self._sums is None else self._sums + values

    def _log(self) -> dict[str, Any]:
        assert self._sums is not None
        sums = self.devices.total(self._sums).tolist()
        self._sums = None
        total, weight, final, base, accepted, base_accepted, blocks, norm, steps = sums
        entry = {
            "step": self.step,
            "seconds": round(self._seconds(), 1),
            "loss": total / weight,
            "final_loss": final / weight,
            "base_loss": base / weight,
            "block_acceptance": 1.0 + accepted / blocks,
            "base_block_acceptance": 1.0 + base_accepted / blocks,
            "gradient_norm": norm / steps,
            "learning_rate": self._optimizer.param_groups[0]["lr"],
        }
        if self.devices.rank == 0:
            self.folder.log(entry)
        return entry

    def _save(self) -> None:
        if self.devices.rank == 0:
            state = {
                "step": self.step,
                "best": self.best,
                "seconds": self._seconds(),
                "model": self.model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
            }
            self.folder.save_state(state)
        self.devices.wait()

    def _validate(self) -> list[dict[str, Any]]:
        """Write the drafter as a checkpoint and replay it on the held-out answers; process 0 does, and others wait."""
        entries = [self._replay()] if self.devices.rank == 0 else []
        self.devices.wait()
        return entries

    def _replay(self) -> dict[str, Any]:
        when = self.config.reporting
        tensors = {
            name: tensor.to(self.target.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in self.model.state_dict().items()
        }
        save_checkpoint(self.folder.drafter, self.drafter, tensors)
        found: dict[str, float] = {}
        if self.held_out:
            chats = [self.chats[index] for index in self.held_out]
            features = [self.features(index) for index in self.held_out]
            for preset in when.presets or PRESETS_OF_KIND[self.drafter.kind]:
                parts = parts_of(preset, str(self.folder.drafter), self.drafter.kind, when.budget, self.target)
                found[preset] = replay(parts, chats, features, when.validation_tokens).acceptance_length
        entry = {"step": self.step, "seconds": round(self._seconds(), 1), "acceptance_lengths": found}
        self.folder.log(entry)
        if found and list(found.values())[-1] > self.best:
            self.best = list(found.values())[-1]
            save_checkpoint(self.folder.best, self.drafter, tensors)
        return entry


def _adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    options = config.optimization
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, options.beta2), fused=True)
