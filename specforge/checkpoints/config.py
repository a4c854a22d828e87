"""What a drafter checkpoint says about its drafter, whatever format it came in."""

from __future__ import annotations

from typing import Any

from attrs import frozen

FULL = "full_attention"
SLIDING = "sliding_attention"


@frozen
class DominoHeadConfig:
    """Domino's GRU correction (arXiv:2605.29707).

    Attributes:
        bottleneck: ``E``, the width between the head's two projections (``emb_dim`` in the files).
        state: ``G``, the width of the recurrent state (``gru_hidden_dim``).
        first_corrected: draft positions below this one stay uncorrected (``pure_draft_prefix_len``).
    """

    bottleneck: int
    state: int
    first_corrected: int = 0


@frozen
class MarkovHeadConfig:
    """DSpark's previous-token correction (arXiv:2607.05147).

    Attributes:
        rank: ``R``, the width of the token codes.
        variant: ``"vanilla"``, ``"gated"`` or ``"rnn"``.
    """

    rank: int
    variant: str = "vanilla"


@frozen
class ConfidenceHeadConfig:
    """DSpark's confidence head.

    Attributes:
        with_markov: whether it reads the previous token's Markov code next to the hidden state.
    """

    with_markov: bool


@frozen(kw_only=True)
class DrafterConfig:
    """A block-parallel drafter, in one vocabulary for all published formats.

    Attributes:
        kind: ``"dflash"``, ``"domino"`` or ``"dspark"``.
        hidden_size: ``H``, that of the target.
        vocab_size: ``V``, that of the target.
        intermediate_size: width of the MLP.
        num_heads: query heads of a layer.
        num_kv_heads: key heads of a layer.
        head_dim: width of one head.
        rms_norm_eps: epsilon of every norm.
        attention_bias: whether the four attention projections have biases.
        layer_types: one ``"full_attention"`` or ``"sliding_attention"`` a layer.
        sliding_window: ``W`` of the sliding layers; ``None`` where there are none.
        is_causal: whether attention inside the block is causal in every layer; ``None``: in sliding layers only.
        rope: ``rope_type``, ``rope_theta`` and what the type needs, as transformers' ``rope_parameters``.
        max_position_embeddings: the drafter's own context length; YaRN may refer to it.
        block_size: ``S`` it was trained with, root included.
        mask_token_id: what fills the block behind the root.
        taps: target layers whose outputs feed it, in the order of ``fc``'s columns.
        num_target_layers: layers of the target, where the files say so.
        anchor_predicts: whether the root's row predicts the first draft, so that ``D = S`` (else ``D = S - 1``).
        input_embedding_scale: factor on the noise block's embeddings.
        output_multiplier: factor on the base logits.
        final_logit_softcapping: soft cap of the base logits, after the factor.
        draft_vocab_size: how many target tokens it can draft, where that is not all.
        head: the correction, or ``None``.
        confidence: the confidence head, or ``None``.
    """

    kind: str
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    attention_bias: bool
    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool | None
    rope: dict[str, Any]
    max_position_embeddings: int | None
    block_size: int
    mask_token_id: int
    taps: tuple[int, ...]
    num_target_layers: int | None
    anchor_predicts: bool
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    draft_vocab_size: int | None = None
    head: DominoHeadConfig | MarkovHeadConfig | None = None
    confidence: ConfidenceHeadConfig | None = None

    def draft_positions(self, block_size: int) -> int:
        """Return ``D`` of a block of ``block_size`` query positions."""
        return block_size if self.anchor_predicts else block_size - 1

    def window(self, layer: int) -> int | None:
        """Return the layer's sliding window, ``None`` for a full layer."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def causal(self, layer: int) -> bool:
        """Return whether the layer's attention inside the block is causal."""
        return self.layer_types[layer] == SLIDING if self.is_causal is None else self.is_causal

    @property
    def confidence_inputs(self) -> int:
        """Width of what the confidence head reads: the hidden state and, where it asks for it, a Markov code."""
        if self.confidence is not None and self.confidence.with_markov and isinstance(self.head, MarkovHeadConfig):
            return self.hidden_size + self.head.rank
        return self.hidden_size
