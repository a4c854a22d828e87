"""Validation without the target: its greedy answers and features are known, so a drafter can be replayed on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from specforge.assembly import Parts, with_checkpoint
from specforge.config import PartConfig
from specforge.interfaces import DraftSession, Round, Verdict
from specforge.pipeline import Pipeline
from specforge.presets import preset_config
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.target import Target
from specforge.training.chats import Chat
from specforge.training.features import Features
from specforge.tree import DraftTree

# A chain without the head, a chain, and a tree: what conditioning and branching are worth.
PRESETS_OF_KIND = {
    "dflash": ("dflash", "ddtree"),
    "domino": ("dflash", "domino", "dominotree"),
    "dspark": ("dspark", "dspark-dartree"),
}


def parts_of(preset: str, checkpoint: str, kind: str, budget: int, target: Target) -> Parts:
    """Return a preset's parts with ``checkpoint`` as drafter and trees of ``budget`` nodes, bound to ``target``."""
    config = with_checkpoint(preset_config(preset), checkpoint, kind, preset)
    if "budget" in config.builder.options:
        builder = PartConfig(config.builder.name, {**config.builder.options, "budget": budget})
        config = preset_config(preset, drafter=config.drafter, builder=builder)
    return Pipeline.from_config(config, target=target).parts


@frozen
class Replay:
    """What a replay of several chats came to.

    Attributes:
        tokens: tokens emitted by verification rounds.
        rounds: verification rounds.
    """

    tokens: int
    rounds: int

    @property
    def acceptance_length(self) -> float:
        """τ, tokens a round."""
        return self.tokens / self.rounds


def replay(parts: Parts, chats: Sequence[Chat], features: Sequence[Features], tokens: int) -> Replay:
    """Draft ``tokens`` answer tokens of each chat, accepting what the answer says."""
    lengths = [length for c, f in zip(chats, features, strict=True) for length in replay_chat(parts, c, f, tokens)]
    return Replay(sum(lengths), len(lengths))


@torch.inference_mode()
def replay_chat(parts: Parts, chat: Chat, features: Features, tokens: int) -> list[int]:
    """Return every round's acceptance length on a greedy answer, as decoding its first ``tokens`` tokens would."""
    ids, hidden = chat.token_ids, features.hidden[None]
    end, root = min(len(ids), chat.answer_start + tokens), chat.answer_start
    session = parts.drafter.start(ids[:root], hidden[:, :root])
    lengths = []
    while root < end - 1:
        round = Round(ids[: root + 1], end - root - 2, SamplingParams(), KeyedUniforms())
        tree = _draft_tree(parts, session, round)
        path = _follow(tree, ids[root + 1 : end])
        following = root + len(path)
        parts.builder.observe(tree, Verdict(tuple(path), int(ids[following])))
        session.commit(ids[root:following], hidden[:, root:following])
        lengths.append(len(path))
        root = following
    return lengths


def _draft_tree(parts: Parts, session: DraftSession, round: Round) -> DraftTree:
    if round.max_depth == 0:
        return DraftTree.root_only(round.root)
    draft = session.draft(round)
    return parts.builder.build(draft, parts.scorer, round) if draft.depth else DraftTree.root_only(round.root)


def _follow(tree: DraftTree, answer: Tensor) -> list[int]:
    """Return the nodes from the root on that hold the answer's next tokens; the last token is left to the target."""
    path = [0]
    for token in answer[:-1].tolist():
        child = tree.child_with_token(path[-1], token)
        if child is None:
            break
        path.append(child)
    return path
