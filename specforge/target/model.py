"""The target: a Hugging Face causal LM as the loop sees it, one forward over a prompt or over a tree."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specforge.errors import ConfigError, UnsupportedTargetError
from specforge.target import support
from specforge.target.attention import ATTENTION_NAME, PLAN_KEYWORD, AttentionPlan
from specforge.target.cache import DEFAULT_CAPACITY, TreeCache
from specforge.target.fast import speed_up
from specforge.tree import DraftTree

PREFILL_CHUNK = 512


@frozen(eq=False)
class TargetOutput:
    """What one forward gives.

    Attributes:
        logits: of the model's float type; ``[N, V]`` after ``verify``, ``[1, V]`` (the last position's) after
            ``prefill``. An inference tensor: clone it before saving it for a backward pass.
        features: ``[1, N, len(taps) * H]`` hidden states of the taps, concatenated in tap order, or ``None``. An
            ordinary tensor.
    """

    logits: Tensor
    features: Tensor | None


class Target:
    """A causal LM with attention-only layers, ready to verify trees.

    The model is not changed: forwards run through a second tree of modules that shares its parameters and buffers
    and has the registered attention function in its config, so ``model.generate`` works as before.

    Attributes:
        name: what the target is called in reports.
        model: the model as it was given.
        config: the config of its text decoder.
        tokenizer: its tokenizer, or ``None``.
        device: where its embedding lies.
        dtype: of its parameters.
        hidden_size: ``H``.
        vocab_size: ``V``, the width of the logits.
        num_layers: decoder layers; taps lie in ``[0, num_layers)``.
        context_limit: longest sequence in tokens.
        stop_token_ids: the ids that end a generation, from the generation config, else from the config.
        embedding: the model's own input embedding.
        decoder: what runs below the head.
        layers: its decoder layers.
        lm_head: the output head over the model's own weights, tied or not, in the form that the target runs.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, name: str) -> None:
        support.check_config(model.config)
        support.check_signature(model)
        support.check_device(model)
        self.name = name
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.config = model.config.get_text_config(decoder=True)
        self.embedding: nn.Module = model.get_input_embeddings()
        self.device: torch.device = self.embedding.weight.device
        self.dtype: torch.dtype = model.dtype
        self.hidden_size = int(self.config.hidden_size)
        self.num_layers = int(self.config.num_hidden_layers)
        self.context_limit = support.context_limit(self.config)
        self.stop_token_ids = _stop_token_ids(model)
        self._runner = _sharing_copy(model)
        self.lm_head: nn.Module = self._runner.get_output_embeddings()
        self.vocab_size = int(self.lm_head.weight.shape[0])
        self.decoder: nn.Module = self._runner.get_decoder()
        self.layers = _decoder_layers(self.decoder, self.num_layers)
        self._cache_keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self._probe()

    @classmethod
    def from_model(
        cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, name: str | None = None
    ) -> Target:
        """Make a target of a model in memory; it is put in evaluation mode, and must not be moved afterwards.

        Raises:
            UnsupportedTargetError: naming the layer type that tree verification cannot serve.
        """
        return cls(model, tokenizer, name or model.config.name_or_path or model.config.model_type)

    def new_cache(self, capacity: int = DEFAULT_CAPACITY) -> TreeCache:
        """Return an empty cache for one sequence; memory is taken on first use, and doubled when it runs out."""
        return TreeCache(self.num_layers, capacity)

    def prefill(self, token_ids: Tensor, cache: TreeCache, taps: Sequence[int] = ()) -> TargetOutput:
        """Run tokens behind the cache's prefix and commit them.

        The tokens go through in chunks, so that activations stay bounded whatever the length.

        Args:
            token_ids: ``[P]`` int64, at least one.
            cache: empty, or holding the tokens before (an earlier turn).
            taps: decoder layers whose output hidden states to return.

        Returns:
            Logits of the last position only, features of all.

        Raises:
            ConfigError: when a tap is out of range or the tokens do not fit into the context.
        """
        taps = self.check_taps(taps)
        self._check_room(cache, int(token_ids.shape[0]))
        features = []
        chunks = token_ids.to(self.device).split(PREFILL_CHUNK)
        for index, chunk in enumerate(chunks):
            plan = AttentionPlan.causal(cache.length, len(chunk), self.device)
            head_rows = 1 if index == len(chunks) - 1 else 0
            logits, tapped = self._forward(chunk, plan, cache, taps, head_rows)
            cache.commit(range(len(chunk)))
            if taps:
                features.append(_features(tapped, taps))
        return TargetOutput(logits, torch.cat(features, dim=1) if taps else None)

    def verify(self, tree: DraftTree, cache: TreeCache, taps: Sequence[int] = ()) -> TargetOutput:
        """Run one forward over the root and the draft nodes of a tree.

        Node ``i`` has position ``cache.length + depth`` and sees the prefix and its own ancestors. Its entries wait
        in the cache until ``cache.commit(path)``; a forward before that overwrites them.

        Args:
            tree: ``N`` nodes.
            cache: holding every token before the root.
            taps: decoder layers whose output hidden states to return.

        Raises:
            ConfigError: when a tap is out of range or the tree is deeper than the context allows.
        """
        taps = self.check_taps(taps)
        deepest = int(tree.depths.max())
        self._check_room(cache, deepest + 1)
        token_ids, depths, ancestors = (
            torch.tensor(array, device=self.device) for array in (tree.token_ids, tree.depths, tree.mask)
        )
        plan = AttentionPlan(cache.length, depths, ancestors, deepest)
        logits, tapped = self._forward(token_ids, plan, cache, taps, len(tree))
        return TargetOutput(logits, _features(tapped, taps) if taps else None)

    @torch.inference_mode()
    def _forward(
        self, token_ids: Tensor, plan: AttentionPlan, cache: TreeCache, taps: tuple[int, ...], head_rows: int
    ) -> tuple[Tensor, dict[int, Tensor]]:
        inputs: dict[str, Any] = {
            "input_ids": token_ids[None],
            "position_ids": (plan.depths + plan.prefix)[None],
            self._cache_keyword: cache,
            "use_cache": True,
            PLAN_KEYWORD: plan,
        }
        logits = token_ids.new_empty(0, dtype=self.dtype)
        with _tapped(self.layers, self.decoder, taps) as tapped:
            if head_rows:
                logits = self._runner(**inputs, logits_to_keep=head_rows).logits[0]
            else:
                self.decoder(**inputs)
        return logits, tapped

    def _probe(self) -> None:
        cache = self.new_cache(support.PROBE_TOKENS)
        plan = AttentionPlan.causal(0, support.PROBE_TOKENS, self.device)
        token_ids = torch.zeros(support.PROBE_TOKENS, dtype=torch.int64, device=self.device)
        try:
            self._forward(token_ids, plan, cache, (), support.PROBE_TOKENS)
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, RuntimeError, TypeError) as error:
            raise UnsupportedTargetError(
                f"{type(self.model).__name__} fails in a forward with tree attention: {error}"
            ) from error
        support.check_probe(self.layers, self.config, plan, cache)

    def check_taps(self, taps: Sequence[int]) -> tuple[int, ...]:
        """Return the taps.

        Raises:
            ConfigError: when one is no decoder layer of this target.
        """
        if not isinstance(taps, Sequence) or not all(type(tap) is int for tap in taps):
            raise ConfigError(f"taps are {taps!r}; they must be numbers of decoder layers")
        wrong = [tap for tap in taps if not 0 <= tap < self.num_layers]
        if wrong:
            raise ConfigError(
                f"taps {wrong} are out of range: {self.name} has decoder layers 0 to {self.num_layers - 1}"
            )
        return tuple(taps)

    def _check_room(self, cache: TreeCache, count: int) -> None:
        if count == 0:
            raise ConfigError("there are no tokens to prefill; give at least one")
        if cache.length + count > self.context_limit:
            raise ConfigError(
                f"{cache.length + count} tokens do not fit into the context of {self.name}, {self.context_limit} tokens"
            )


def _stop_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    stated = [getattr(config, "eos_token_id", None) for config in (model.generation_config, model.config)]
    found = next((ids for ids in stated if ids is not None), ())
    return (found,) if isinstance(found, int) else tuple(int(i) for i in found)


def _sharing_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Return the same modules over the same parameters and buffers, with a config of their own."""
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    twin = copy.deepcopy(model, shared)
    twin.config._attn_implementation = ATTENTION_NAME
    speed_up(twin, twin.get_output_embeddings())
    return twin


def _features(tapped: dict[int, Tensor], taps: tuple[int, ...]) -> Tensor:
    # outside inference mode, so that what comes out can be saved for a backward pass through a drafter
    return torch.cat([tapped[tap] for tap in taps], dim=-1)


def _decoder_layers(decoder: nn.Module, count: int) -> nn.ModuleList:
    for module in decoder.children():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedTargetError(f"{type(decoder).__name__} has no list of its {count} decoder layers")


@contextmanager
def _tapped(layers: nn.ModuleList, decoder: nn.Module, taps: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
    """Collect the tapped layers' outputs while the context lasts; the last layer's after the final norm."""
    found: dict[int, Tensor] = {}

    def keep(tap: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            # a decoder layer may return a tuple, the decoder returns a model output; hidden states come first in both
            found[tap] = output if isinstance(output, Tensor) else output[0]

        return hook

    last = len(layers) - 1
    handles = [(decoder if tap == last else layers[tap]).register_forward_hook(keep(tap)) for tap in set(taps)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
