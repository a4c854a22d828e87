"""What the block-parallel drafters share: fitting a checkpoint to a target, and one draft a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
from attrs import define, field, frozen
from torch import Tensor

from specforge.checkpoints import Checkpoint, DrafterConfig, open_checkpoint
from specforge.drafters.backbone import block_sights
from specforge.drafters.cache import ContextCache
from specforge.drafters.logits import BaseLogits
from specforge.drafters.model import DraftModel, load_model
from specforge.errors import CheckpointError, ConfigError, IncompatiblePartsError
from specforge.interfaces import BASE_LOGITS, HIDDEN, Capabilities, CorrectionHead, Draft, Drafter, DraftSession, Round
from specforge.target.fast import speed_up

if TYPE_CHECKING:
    from specforge.target import Target


@frozen(eq=False)
class BoundDrafter:
    """A drafter's weights next to the target's embedding and head.

    Attributes:
        config: what the drafter is.
        block_size: ``S`` of the blocks to draft.
        model: backbone and heads, on the target's device and in its dtype.
        embed: tokens -> the target's embeddings.
        base_logits: hidden states ``[D, H]`` -> ``[D, V]`` float32.
        correction: the head, ready to run, or ``None``.
    """

    config: DrafterConfig
    block_size: int
    model: DraftModel
    embed: Callable[[Tensor], Tensor]
    base_logits: Callable[[Tensor], Tensor]
    correction: CorrectionHead | None


@define(eq=False, slots=False)
class BlockDrafter(Drafter):
    """A drafter that proposes a block in one pass over the target's features.

    Attributes:
        checkpoint: a folder or hub id in one of the published formats.
        block_size: query positions of one pass, root included; may be lowered below what it was trained with.
        opened: the checkpoint, checked.

    Raises:
        CheckpointError: when the checkpoint is no good, or is another kind of drafter.
        ConfigError: when ``block_size`` is out of range.
    """

    checkpoint: str
    block_size: int | None = field(default=None, kw_only=True)
    opened: Checkpoint = field(init=False, repr=False)
    _bound: BoundDrafter | None = field(init=False, default=None, repr=False)

    gives: ClassVar[Capabilities] = frozenset({HIDDEN, BASE_LOGITS})
    kind: ClassVar[str]

    def __attrs_post_init__(self) -> None:
        self.opened = open_checkpoint(self.checkpoint)
        self.check_kind(self.opened)
        self.taps = self.opened.config.taps
        trained = self.opened.config.block_size
        least = 1 if self.opened.config.anchor_predicts else 2
        size = trained if self.block_size is None else self.block_size
        if isinstance(size, bool) or not isinstance(size, int) or not least <= size <= trained:
            allowed = f"in [{least}, {trained}]: {self.checkpoint} was trained with {trained}"
            raise ConfigError(f"block_size is {size!r}; it must be {allowed}")

    def check_kind(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint of another kind.

        Raises:
            CheckpointError: naming the drafter that takes it.
        """
        kind = checkpoint.config.kind
        if kind != self.kind:
            raise CheckpointError(
                f"{self.checkpoint} is a {kind} drafter; drafter {self.kind!r} needs a {self.kind} one"
            )

    def make_correction(self, model: DraftModel, embed: Callable[[Tensor], Tensor]) -> CorrectionHead | None:
        """Return the head that a conditional scorer runs, or ``None``."""
        return None

    def bind(self, target: Target) -> None:
        """Load the weights next to ``target``'s.

        Raises:
            IncompatiblePartsError: when sizes, vocabulary or layers differ; the message names both values.
        """
        config = self.opened.config
        check_fits(self.opened, target)
        model = load_model(self.opened, target.device, target.dtype)
        size = config.block_size if self.block_size is None else self.block_size
        correction = self.make_correction(model, target.embedding)
        speed_up(model, target.lm_head)
        base_logits = BaseLogits(model, target.lm_head)
        self._bound = BoundDrafter(config, size, model, target.embedding, base_logits, correction)

    @property
    def bound(self) -> BoundDrafter:
        """The weights next to the target's.

        Raises:
            RuntimeError: before ``bind``.
        """
        if self._bound is None:
            raise RuntimeError("the drafter is not bound to a target; call bind first")
        return self._bound

    def start(self, prompt_ids: Tensor, features: Tensor | None) -> BlockSession:
        """Begin one generation after a prompt whose features are ``features`` ``[1, P, len(taps) * H]``."""
        session = BlockSession(self, self.bound)
        session.commit(prompt_ids, features)
        return session

    def finish(self, draft: Draft, root: Tensor) -> Draft:
        """Complete a draft; the base class has nothing to add."""
        return draft


class BlockSession(DraftSession):
    """One generation's state: the context cache, and features not yet in it."""

    def __init__(self, drafter: BlockDrafter, bound: BoundDrafter) -> None:
        self._drafter = drafter
        self._bound = bound
        self._cache: ContextCache | None = None
        self._pending: list[Tensor] = []

    def commit(self, token_ids: Tensor, features: Tensor | None) -> None:
        """Take in committed tokens' features; they are kept as they are until the next draft projects them."""
        if features is None or features.shape[1] != len(token_ids):
            given = "none" if features is None else f"those of {features.shape[1]}"
            raise ValueError(f"{len(token_ids)} tokens committed, but the features are {given}")
        self._pending.append(features)

    @torch.inference_mode()
    def draft(self, round: Round) -> Draft:
        """Run one pass over ``[root, MASK, ...]``."""
        bound, root = self._bound, round.history[-1:]
        cache = self._absorb(round.root_position)
        positions = torch.arange(cache.length, cache.length + bound.block_size, device=root.device)
        masks = root.new_full((bound.block_size - 1,), bound.config.mask_token_id)
        noise = bound.embed(torch.cat([root, masks]))[None]
        if bound.config.input_embedding_scale != 1.0:
            noise = noise * bound.config.input_embedding_scale
        sights = block_sights(bound.config, cache.length, bound.block_size, root.device)
        hidden = bound.model(noise, positions, cache, sights)[0]
        hidden = hidden if bound.config.anchor_predicts else hidden[1:]
        draft = Draft(len(hidden), hidden, bound.base_logits(hidden), bound.correction)
        return self._drafter.finish(draft, root)

    def _absorb(self, root_position: int) -> ContextCache:
        bound, known = self._bound, 0 if self._cache is None else self._cache.length
        count = sum(f.shape[1] for f in self._pending)
        if known + count != root_position:
            raise ValueError(
                f"the root is at position {root_position}, but {known + count} tokens were committed before it"
            )
        room = root_position + bound.block_size
        weight = bound.model.fc.weight
        if self._cache is None:
            self._cache = ContextCache(bound.config, room, weight.device, weight.dtype)
        else:
            self._cache.reserve(room)
        if self._pending:
            features = torch.cat(self._pending, dim=1).to(weight.dtype)
            self._cache.append(bound.model.context(features, torch.arange(known, root_position, device=weight.device)))
            self._pending.clear()
        return self._cache


def check_fits(checkpoint: Checkpoint, target: Target) -> None:
    """Check that a drafter was made for a target of this shape.

    Raises:
        IncompatiblePartsError: naming the checkpoint, the key and both values.
    """
    config = checkpoint.config
    pairs = {
        "hidden_size": (config.hidden_size, target.hidden_size),
        "vocab_size": (config.vocab_size, target.vocab_size),
        "num_target_layers": (config.num_target_layers, target.num_layers),
    }
    for key, (ours, theirs) in pairs.items():
        if ours is not None and ours != theirs:
            raise IncompatiblePartsError(
                f"{checkpoint.source} does not fit target {target.name}: its {key} is {ours}, the target's {theirs}"
            )
    outside = [tap for tap in config.taps if tap >= target.num_layers]
    if outside:
        raise IncompatiblePartsError(
            f"{checkpoint.source} does not fit target {target.name}: it taps layer {outside[0]}, "
            f"the target's last is {target.num_layers - 1}"
        )
