"""What a training run is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from attrs import Attribute, field, frozen
from attrs.converters import optional

from specforge.config import load_python_file
from specforge.errors import ConfigError
from specforge.target import BUNDLED_TARGET

KINDS = ("dflash", "domino", "dspark")
PRECISIONS = ("float32", "bfloat16")
_Validator = Callable[[Any, "Attribute[Any]", Any], None]


def _whole(least: int, optional: bool = False) -> _Validator:
    def check(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
        right = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if not (right or (optional and value is None)):
            raise ConfigError(f"{attribute.name} is {value!r}; it must be a whole number of at least {least}")

    return check


def _within(low: float, high: float, open_low: bool = False) -> _Validator:
    def check(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if not low <= value <= high or (open_low and value == low):
            bounds = f"{'(' if open_low else '['}{low}, {high}]"
            raise ConfigError(f"{attribute.name} is {value!r}; it must be in {bounds}")

    return check


def _one_of(names: tuple[str, ...]) -> _Validator:
    def check(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if value not in names:
            raise ConfigError(f"{attribute.name} is {value!r}; it must be one of {', '.join(names)}")

    return check


INFINITY = float("inf")


@frozen
class Architecture:
    """The drafter to train. Widths that are ``None`` are the target's.

    Attributes:
        kind: ``"dflash"``, ``"domino"`` or ``"dspark"``.
        taps: target layers whose outputs feed it.
        mask_token_id: what fills the block behind the root; a token that ordinary text does not hold.
        block_size: query positions of a block, the root included.
        layers: decoder layers.
        copied_layers: target layers whose weights the decoder layers start from, one each, with the target's final
            norm; ``None``: random weights.
        anchor_predicts: whether the root's row predicts the first draft, so that a block drafts ``block_size`` tokens.
        intermediate_size: width of the MLP.
        num_heads: query heads.
        num_kv_heads: key heads.
        head_dim: width of one head.
        bottleneck: Domino's ``E``, or DSpark's rank (0: no head).
        state: Domino's ``G``.
        first_corrected: positions below this one stay uncorrected (Domino).
        markov: DSpark's variant: ``"vanilla"``, ``"gated"`` or ``"rnn"``.
        confidence: whether DSpark gets a confidence head.
    """

    taps: tuple[int, ...] = field(converter=tuple)
    mask_token_id: int = field(validator=_whole(0))
    kind: str = field(default="domino", validator=_one_of(KINDS))
    block_size: int = field(default=8, validator=_whole(2))
    layers: int = field(default=2, validator=_whole(1))
    copied_layers: tuple[int, ...] | None = field(default=None, converter=optional(tuple))
    anchor_predicts: bool = True
    intermediate_size: int | None = field(default=None, validator=_whole(1, optional=True))
    num_heads: int | None = field(default=None, validator=_whole(1, optional=True))
    num_kv_heads: int | None = field(default=None, validator=_whole(1, optional=True))
    head_dim: int | None = field(default=None, validator=_whole(2, optional=True))
    bottleneck: int = field(default=128, validator=_whole(0))
    state: int = field(default=256, validator=_whole(1))
    first_corrected: int = field(default=1, validator=_whole(0))
    markov: str = field(default="vanilla", validator=_one_of(("vanilla", "gated", "rnn")))
    confidence: bool = False


@frozen
class Data:
    """What to train on.

    Attributes:
        chats: JSONL file with the target's own chats (``specforge selfchat``).
        cache: folder of the feature cache; ``None`` runs the target on the fly, every time a chat comes up.
        top_k: how many of the target's most likely tokens are kept as soft targets; 0 for none.
        max_tokens: longest chat, prompt included; longer answers are cut.
        held_out: how many greedy chats, the last ones of the file, are kept for validation.
        limit: train on the first so many of the other chats only; ``None``: on all.
    """

    chats: str
    cache: str | None = None
    top_k: int = field(default=64, validator=_whole(0))
    max_tokens: int = field(default=512, validator=_whole(3))
    held_out: int = field(default=16, validator=_whole(0))
    limit: int | None = field(default=None, validator=_whole(1, optional=True))


@frozen
class Objective:
    """The loss: ``(1 - λ) · final + λ · base``, each a weighted mean of cross entropies over a block's positions.

    Attributes:
        base_weight: λ at the end of its descent from 1; above 0 keeps the backbone's own marginals good.
        base_weight_until: share of the run over which λ descends.
        position_decay: ``γ`` of the weights ``exp(-d / γ)`` of draft positions ``d``.
        distillation: share of the loss that goes to the target's own distribution, the rest to the token it chose.
        softmax_tokens: the softmax runs over so many of the data's most frequent tokens, those the batch asks for,
            and ``sampled_tokens`` others; ``None``: over the vocabulary.
        sampled_tokens: drawn anew every step to stand for the rest of the vocabulary.
        confidence_weight: of DSpark's confidence head's loss.
    """

    base_weight: float = field(default=0.3, validator=_within(0.0, 1.0))
    base_weight_until: float = field(default=0.5, validator=_within(0.0, 1.0, open_low=True))
    position_decay: float = field(default=4.0, validator=_within(0.0, INFINITY, open_low=True))
    distillation: float = field(default=0.5, validator=_within(0.0, 1.0))
    softmax_tokens: int | None = field(default=None, validator=_whole(1, optional=True))
    sampled_tokens: int = field(default=0, validator=_whole(0))
    confidence_weight: float = field(default=0.1, validator=_within(0.0, INFINITY))


@frozen
class Optimization:
    """AdamW with warm-up and a cosine.

    Attributes:
        steps: optimizer steps of the whole run.
        max_minutes: end after so many minutes of training, if that comes first: the schedule then follows whichever
            of steps and time is further on. With it a resumed run is not the same as one that was never stopped.
        batch_size: chats a step, over all devices.
        anchors: blocks a chat; fewer where the answer is shorter.
        learning_rate: after the warm-up.
        final_share: of the learning rate that is left at the end of the cosine.
        warmup: steps over which the learning rate rises from 0.
        weight_decay: AdamW's, on matrices.
        beta2: AdamW's second moment decay.
        clip: largest gradient norm.
        precision: of the forward and backward pass; weights and optimizer are float32.
        seed: of weights, order, anchors and sampled tokens.
    """

    steps: int = field(validator=_whole(1))
    max_minutes: float | None = None
    batch_size: int = field(default=8, validator=_whole(1))
    anchors: int = field(default=32, validator=_whole(1))
    learning_rate: float = field(default=1e-3, validator=_within(0.0, 1.0, open_low=True))
    final_share: float = field(default=0.02, validator=_within(0.0, 1.0))
    warmup: int = field(default=100, validator=_whole(0))
    weight_decay: float = field(default=0.01, validator=_within(0.0, 1.0))
    beta2: float = field(default=0.95, validator=_within(0.0, 1.0))
    clip: float = field(default=1.0, validator=_within(0.0, INFINITY, open_low=True))
    precision: str = field(default="bfloat16", validator=_one_of(PRECISIONS))
    seed: int = field(default=0, validator=_whole(0))

    def __attrs_post_init__(self) -> None:
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise ConfigError(f"max_minutes is {self.max_minutes!r}; it must be above 0, or None")


@frozen
class Reporting:
    """When to log, save and validate.

    Attributes:
        log_every: steps between lines of ``metrics.jsonl``.
        save_every: steps between training states on disk.
        validate_every: steps between validations; the last step is always validated.
        presets: pipelines to validate; ``None``: a chain and a tree that suit the kind of drafter.
        budget: draft nodes of validation trees.
        validation_tokens: answer tokens replayed of each held-out chat.
    """

    log_every: int = field(default=20, validator=_whole(1))
    save_every: int = field(default=200, validator=_whole(1))
    validate_every: int = field(default=1000, validator=_whole(1))
    presets: tuple[str, ...] | None = None
    budget: int = field(default=24, validator=_whole(1))
    validation_tokens: int = field(default=128, validator=_whole(2))


@frozen(kw_only=True)
class TrainConfig:
    """A training run.

    Attributes:
        out: folder of the run: training state, metrics, and the drafter as a checkpoint.
        target: a folder or hub id, or ``"smollm2"``, the bundled one.
        architecture: the drafter.
        data: what it is trained on.
        objective: the loss.
        optimization: how it is minimised.
        reporting: when to log, save and validate.
        initial: a checkpoint of the same architecture to start from.
        dtype: of the target.
        device: ``"auto"`` is CUDA where there is one, else the CPU.
    """

    out: str
    target: str = BUNDLED_TARGET
    architecture: Architecture
    data: Data
    objective: Objective = Objective()
    optimization: Optimization
    reporting: Reporting = Reporting()
    initial: str | None = None
    dtype: str = "auto"
    device: str = "auto"

    def with_options(self, **options: Any) -> TrainConfig:
        """Return a copy with fields of any of its parts replaced by name; ``None`` changes nothing."""
        changes = {name: value for name, value in options.items() if value is not None}
        parts: dict[str, Any] = {}
        for name in ("architecture", "data", "objective", "optimization", "reporting"):
            part = getattr(self, name)
            own = {key: changes.pop(key) for key in list(changes) if hasattr(part, key)}
            parts[name] = attrs.evolve(part, **own)
        return attrs.evolve(self, **parts, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return attrs.asdict(self, value_serializer=lambda _i, _a, v: list(v) if isinstance(v, tuple) else v)


def load_train_config(path: str | Path) -> TrainConfig:
    """Run a Python file and return its ``config``.

    Raises:
        ConfigError: when the file is missing, raises, or has no ``config`` that is a ``TrainConfig``.
    """
    return load_python_file(path, TrainConfig)
