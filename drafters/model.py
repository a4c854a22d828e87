"""A drafter's weights as one module: the backbone and the heads its config names, under z-lab's tensor names."""

from __future__ import annotations

import torch
from torch import nn

from specforge.checkpoints import Checkpoint, DominoHeadConfig, DrafterConfig, MarkovHeadConfig
from specforge.drafters.backbone import Backbone


class MarkovHead(nn.Module):
    """The weights of DSpark's previous-token head."""

    def __init__(self, config: DrafterConfig, head: MarkovHeadConfig) -> None:
        super().__init__()
        rank, hidden = head.rank, config.hidden_size
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size or config.vocab_size, bias=False)
        if head.variant == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        if head.variant == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank)


class ConfidenceHead(nn.Module):
    """The weights of DSpark's confidence head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)


class DraftModel(Backbone):
    """Backbone and heads. ``state_dict`` holds exactly the tensors of a checkpoint in z-lab's layout."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        head, hidden = config.head, config.hidden_size
        if isinstance(head, DominoHeadConfig):
            self.prefix_gru = nn.GRU(hidden, head.state, batch_first=True, bias=False)
            self.embed_proj = nn.Sequential(
                nn.Linear(hidden + head.state, head.bottleneck, bias=False),
                nn.SiLU(),
                nn.Linear(head.bottleneck, config.vocab_size, bias=False),
            )
        if isinstance(head, MarkovHeadConfig):
            self.markov_head = MarkovHead(config, head)
        if config.confidence is not None:
            self.confidence_head = ConfidenceHead(config.confidence_inputs)
        if config.draft_vocab_size is not None:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))


def load_model(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> DraftModel:
    """Return the checkpoint's model with its weights, not to be trained."""
    with torch.device("meta"):
        model = DraftModel(checkpoint.config)
    model.load_state_dict(checkpoint.tensors(device, dtype), strict=True, assign=True)
    return model.requires_grad_(False).eval()
