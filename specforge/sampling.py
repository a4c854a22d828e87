"""The target's processed distribution and the keyed uniforms that every draw is made with."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

import torch
from attrs import frozen
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specforge.checks import number, whole
from specforge.errors import ConfigError

LEAST_TEMPERATURE = 1e-5
"""Below it, logits divided by the temperature leave float32."""

Processor = Callable[[Tensor, Tensor], Tensor]
"""A logits processor as transformers has them: ``([1, L] ids, [1, V] float32 scores) -> [1, V] scores``."""


@frozen
class SamplingParams:
    """How a next token is chosen from the target's logits; the names and meanings are transformers'.

    Attributes:
        temperature: 0 is greedy (the warpers below then do nothing), else the logits are divided by it.
        top_k: keep the ``top_k`` most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens with at least this mass; in (0, 1], 1 keeps all.
        min_p: drop tokens less likely than ``min_p`` times the most likely one; in [0, 1], 0 keeps all.
        repetition_penalty: > 0; above 1 it lowers the logits of tokens already on the path, prompt included.
        processors: what processes the logits, in order, in place of what the options above stand for; the temperature
            then only says whether the argmax is taken. The verifiers that ship call them once for each emitted token,
            in the order of positions, as plain decoding does.

    Raises:
        ConfigError: naming the option, its value and the range it must lie in.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    processors: tuple[Processor, ...] | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            object.__setattr__(self, name, number(getattr(self, name), name))
        object.__setattr__(self, "top_k", whole(self.top_k, "top_k", 0))
        useful = self.temperature == 0.0 or self.temperature >= LEAST_TEMPERATURE
        _require(useful, "temperature", self.temperature, f"0 (greedy) or at least {LEAST_TEMPERATURE}")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "in (0, 1]")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "in [0, 1]")
        above = self.repetition_penalty > 0.0
        _require(above, "repetition_penalty", self.repetition_penalty, "above 0 (1 changes nothing)")

    @property
    def greedy(self) -> bool:
        """Whether the next token is the argmax."""
        return self.temperature == 0.0

    @property
    def unprocessed_argmax(self) -> bool:
        """Whether the next token is the argmax of the logits as the target gives them."""
        return self.greedy and self.repetition_penalty == 1.0 and not self.processors


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value!r}; it must be {wanted}")


@frozen
class KeyedUniforms:
    """Uniforms in [0, 1) that depend on the seed, the position and the purpose alone.

    A draw at a position is therefore the same however the tokens before it were grouped into rounds, on every device
    and in every process.
    """

    seed: int = 0

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "seed", whole(self.seed, "seed", -(2**63), 2**63 - 1))

    def __call__(self, position: int, purpose: str, index: int = 0) -> float:
        """Return the uniform for the token at sequence index ``position``; ``index`` counts draws of one purpose."""
        key = struct.pack("<qqq", self.seed, position, index) + purpose.encode()
        bits = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        return (bits >> 11) * 2.0**-53


def logits_processors(sampling: SamplingParams) -> Sequence[Processor]:
    """Return the processors that were given, else transformers' own, in the order ``generate`` applies them."""
    if sampling.processors is not None:
        return sampling.processors
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.greedy:
        return processors
    if sampling.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0.0:
        processors.append(MinPLogitsWarper(sampling.min_p))
    return processors


def processed_logits(logits: Tensor, path_ids: Tensor, sampling: SamplingParams) -> Tensor:
    """Apply the processors to one row, as plain decoding would after the same tokens.

    Args:
        logits: ``[V]`` of any float type.
        path_ids: ``[L]`` int64, all tokens before the one to be chosen, prompt included.
        sampling: the options.

    Returns:
        ``[V]`` float32.
    """
    scores = logits.to(dtype=torch.float32, copy=True)[None]
    # Calling the list itself would inspect every processor's signature, which costs more than most of them.
    for processor in logits_processors(sampling):
        scores = processor(path_ids[None], scores)
    return scores[0]


def processed_distribution(logits: Tensor, path_ids: Tensor, sampling: SamplingParams) -> Tensor:
    """Return the ``[V]`` float64 probabilities of the next token; at temperature 0 all mass is on the argmax.

    Arguments are those of ``processed_logits``.
    """
    scores = processed_logits(logits, path_ids, sampling).double()
    if sampling.greedy:
        return torch.zeros_like(scores).index_fill_(0, scores.argmax(), 1.0)
    return torch.softmax(scores, dim=-1)


def choose_next(logits: Tensor, path_ids: Tensor, sampling: SamplingParams, draws: KeyedUniforms, position: int) -> int:
    """Choose the token after a path as plain decoding does: the argmax, or a draw with the position's own uniform.

    Plain decoding and the greedy and sampling verifiers all choose here, one row at a time, so that equal logits
    give equal tokens bit for bit.

    Args:
        logits: ``[V]`` the target's unprocessed logits after the path.
        path_ids: ``[L]`` int64, the path; read only when there is a repetition penalty.
        sampling: how the logits are processed.
        draws: the generation's uniforms.
        position: the sequence index of the token to be chosen.
    """
    if sampling.greedy:
        return int(processed_logits(logits, path_ids, sampling).argmax())
    return draw(processed_distribution(logits, path_ids, sampling), draws(position, "target"))


def draw(probabilities: Tensor, uniform: float) -> int:
    """Draw by inverse CDF over token ids.

    Args:
        probabilities: ``[V]`` non-negative, not necessarily normalised.
        uniform: in [0, 1).

    Returns:
        The smallest token id whose cumulative mass exceeds ``uniform`` times the total; never one of mass 0.

    Raises:
        ValueError: when there is no mass to draw from, or it is not a number.
    """
    token = int(draw_rows(probabilities[None], uniform))
    if token == probabilities.shape[0]:
        raise ValueError(f"there is no mass to draw from: the total is {float(probabilities.double().sum())}")
    return token


def draw_rows(probabilities: Tensor, uniform: float) -> Tensor:
    """Draw from each row of ``[n, V]`` as ``draw`` does, all with one uniform.

    Returns:
        ``[n]`` int64; ``V`` for a row without mass.
    """
    cumulative = torch.cumsum(probabilities.double(), dim=-1)
    total = cumulative[:, -1:]
    # Below the total even after rounding, so that the mark is always passed, and by an entry that has mass.
    marks = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, marks, right=True)[:, 0]
