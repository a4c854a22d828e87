"""``model.generate(**inputs, custom_generate=pipeline)``: transformers' ``generate`` with this package's decode loop.

``generate`` reads its arguments, builds the logits processors and stopping criteria that they ask for, and hands both
to the pipeline. They are called as plain decoding calls them: for each emitted token once, in order, the processors
with the tokens before it, then the criteria with the tokens up to it. So each may keep a state, and the text ends with
the same token. What the loop cannot honour is refused by name.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import attrs
import torch
from attrs import define, field
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput

from specforge.decoding import TokenStream
from specforge.errors import BrokenPartError, ConfigError
from specforge.request import GenerateOptions, Request, make_request
from specforge.result import GenerationResult
from specforge.sampling import SamplingParams

if TYPE_CHECKING:
    from specforge.pipeline import Pipeline

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "num_beam_groups": (1,),
    "guidance_scale": (1.0,),
    "penalty_alpha": (0.0,),
    "dola_layers": (),
    "constraints": (),
    "force_words_ids": (),
    "prompt_lookup_num_tokens": (0,),
    "assistant_early_exit": (),
    "use_mtp": (False,),
    "speculation_type": (),
}
"""Options of ``GenerationConfig`` that ask for another way of decoding, and what they may say besides ``None``."""
_NEUTRAL_IN_OUTPUT = ("output_attentions", "output_hidden_states")
"""What no tree gives in the form that ``generate`` returns; ignored, as there, unless a dict is to be returned."""
_NOT_FOR_US = {"use_cache", "logits_to_keep", "cache_position", "attention_mask", "position_ids"}
"""Arguments for the model's forward that say nothing, or are looked at one by one."""
_CACHES = ("cache", "past_key_values")
_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


@dataclass
class DropInOutput(GenerateDecoderOnlyOutput):
    """What ``generate`` returns with ``return_dict_in_generate``; ``result`` has rounds, τ and times.

    There is no cache to go on from: the pipeline keeps its own.
    """

    result: GenerationResult | None = None


def generate(
    pipeline: Pipeline,
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    seed: int | None,
    streamer: Any,
    model_arguments: Mapping[str, Any],
) -> Tensor | DropInOutput:
    """Decode what ``model.generate`` has prepared.

    Args:
        pipeline: whose target ``model`` is.
        model: the model that ``generate`` was called on.
        input_ids: ``[1, P]`` int64.
        logits_processor: all that the call asks for, in order.
        stopping_criteria: all that the call asks for; the end-of-sequence tokens and the length are among them.
        generation_config: the call's options.
        seed: of the keyed uniforms; ``None`` draws one from torch's generator.
        streamer: gets the new tokens and the end; ``generate`` has given it the prompt.
        model_arguments: what ``generate`` would pass to the model's forward.

    Returns:
        ``[1, P + n]`` int64, or the output class with these ``sequences``.

    Raises:
        ConfigError: naming what cannot be honoured.
    """
    withheld = _withheld_arguments()
    streamer = withheld.get("streamer") if streamer is None else streamer
    _check_model(pipeline, model)
    _check_options(generation_config, withheld)
    padding = _check_inputs(input_ids, model_arguments)
    hooks = _Hooks.of(
        input_ids[:, :padding], input_ids.shape[1], logits_processor, stopping_criteria, generation_config
    )
    request = _request(pipeline, input_ids[0, padding:], hooks, generation_config, seed)
    stream = TokenStream(pipeline.target, pipeline.parts, pipeline.parts.verifier_for(request.sampling), request)
    for piece in stream:
        if streamer is not None:
            for token in piece.token_ids:
                streamer.put(torch.tensor([token]))
    if streamer is not None:
        streamer.end()
    return _output(input_ids, stream.result, hooks, generation_config)


@define(eq=False)
class _Hooks:
    """The processors and criteria of one generation, called as plain decoding would.

    The target sees the prompt without its padding; the hooks see it with it, as in plain decoding, on the device of
    ``input_ids``.
    """

    padding: Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    processed: int
    checked: int
    scores: list[Tensor] | None
    logits: list[Tensor] | None
    ended_at: int | None = field(default=None)

    @classmethod
    def of(
        cls,
        padding: Tensor,
        length: int,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
    ) -> _Hooks:
        output = bool(config.return_dict_in_generate)
        scores: list[Tensor] | None = [] if output and config.output_scores else None
        logits: list[Tensor] | None = [] if output and config.output_logits else None
        return cls(padding, processors, criteria, length - 1, length, scores, logits)

    @property
    def as_processors(self) -> tuple[_Hooks, ...]:
        """Nothing where rows need not be seen, so that verifiers may do without one row at a time."""
        seen = len(self.processors) > 0 or self.scores is not None or self.logits is not None
        return (self,) if seen else ()

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        """Process ``[1, V]`` float32 after ``[1, L]`` ids."""
        ids = self._padded(ids)
        if ids.shape[1] != self.processed + 1:
            raise BrokenPartError(
                f"the verifier processed the logits after {ids.shape[1]} tokens, not those after {self.processed + 1}; "
                "with logits processors a verifier processes one row for each emitted token, in order"
            )
        self.processed += 1
        if self._ends(ids):
            return logits  # what is chosen from them is not emitted
        scores = logits.to(ids.device)
        if self.logits is not None:
            self.logits.append(scores.clone())
        for processor in self.processors:
            scores = processor(ids, scores)
        if self.scores is not None:
            self.scores.append(scores)
        return scores.to(logits.device)

    def ends(self, ids: Tensor) -> bool:
        """Return whether generation ends with the last of ``[L]`` ids."""
        return self._ends(self._padded(ids[None]))

    def _ends(self, ids: Tensor) -> bool:
        length = ids.shape[1]
        if self.ended_at is None and length > self.checked:
            self.checked = length
            scores = None if self.scores is None else tuple(self.scores)
            if bool(self.criteria(ids, scores)[0]):
                self.ended_at = length
        return self.ended_at is not None and length >= self.ended_at

    def _padded(self, ids: Tensor) -> Tensor:
        return torch.cat([self.padding, ids.to(self.padding.device)], dim=1)


def _withheld_arguments() -> dict[str, Any]:
    """Return the arguments of the ``generate`` that is running: it hands a callable neither streamer nor assistant.

    Without them a streamer would wait for its end for ever.
    """
    frame = sys._getframe()
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back  # type: ignore[assignment]
    return {} if frame is None else dict(frame.f_locals)


def _check_model(pipeline: Pipeline, model: PreTrainedModel) -> None:
    target = pipeline.target
    if model is not target.model:
        raise ConfigError(
            f"generate was called on a {type(model).__name__} that is not the pipeline's target; call "
            "pipeline.target.model.generate, or make the pipeline with target=model"
        )
    if model.get_input_embeddings().weight.device != target.device:
        raise ConfigError(
            f"the model lies on {model.get_input_embeddings().weight.device} and was on {target.device} when the "
            "pipeline was made; make a new pipeline after moving a model"
        )


def _check_options(config: GenerationConfig, withheld: Mapping[str, Any]) -> None:
    if withheld.get("assistant_model") is not None:
        raise _refusal("assistant_model", type(withheld["assistant_model"]).__name__)
    if withheld.get("synced_gpus"):
        raise _refusal("synced_gpus", True)
    for name, neutral in _NEUTRAL.items():
        value = getattr(config, name, None)
        if value is not None and value not in neutral:
            raise _refusal(name, value)
    if config.cache_implementation == "quantized":
        raise _refusal("cache_implementation", config.cache_implementation)
    for name in _NEUTRAL_IN_OUTPUT:
        if config.return_dict_in_generate and getattr(config, name):
            raise _refusal(name, True)


def _refusal(name: str, value: object) -> ConfigError:
    return ConfigError(
        f"{name} is {value!r}, which a pipeline cannot honour; leave it out or leave out custom_generate"
    )


def _check_inputs(input_ids: Tensor, arguments: Mapping[str, Any]) -> int:
    """Return how many tokens on the left are padding."""
    if input_ids.shape[0] != 1:
        raise ConfigError(f"the batch has {input_ids.shape[0]} sequences; a pipeline decodes one at a time")
    for name, value in arguments.items():
        if name in _CACHES:
            _check_cache(name, value)
        elif name not in _NOT_FOR_US and value is not None:
            raise _refusal(name, type(value).__name__)
    length, mask = input_ids.shape[1], arguments.get("attention_mask")
    padding = 0 if mask is None else int((mask == 0).sum())
    if mask is not None and (mask.shape != input_ids.shape or bool((mask[0, padding:] == 0).any())):
        raise ConfigError(
            f"attention_mask has shape {list(mask.shape)} and {padding} zeros; a pipeline takes one of the shape of "
            f"input_ids, {list(input_ids.shape)}, with zeros on the left only"
        )
    positions = arguments.get("position_ids")
    if positions is not None and positions[..., padding:].reshape(-1).tolist() != list(range(length - padding)):
        raise ConfigError("position_ids do not count from 0 at the first token; a pipeline takes no others")
    return padding


def _check_cache(name: str, cache: Any) -> None:
    if cache is not None and cache.get_seq_length() > 0:
        raise ConfigError(
            f"{name} holds {cache.get_seq_length()} tokens; a pipeline keeps its own cache and starts from the prompt"
        )


def _request(pipeline: Pipeline, prompt: Tensor, hooks: _Hooks, config: GenerationConfig, seed: int | None) -> Request:
    sampling = SamplingParams(temperature=_temperature(config), processors=hooks.as_processors)
    if seed is None:
        seed = 0 if sampling.greedy else int(torch.randint(2**62, ()))
    longest = hooks.criteria.max_length or pipeline.target.context_limit
    options = GenerateOptions(max_new_tokens=longest - hooks.checked, seed=seed, stop_token_ids=())
    request = make_request(pipeline.target, prompt, options)
    return attrs.evolve(request, sampling=sampling, stops_after=hooks.ends)


def _temperature(config: GenerationConfig) -> float:
    if not config.do_sample:
        return 0.0
    return 1.0 if config.temperature is None else config.temperature


def _output(
    input_ids: Tensor, result: GenerationResult, hooks: _Hooks, config: GenerationConfig
) -> Tensor | DropInOutput:
    if result.finish_reason == "context":
        warnings.warn(
            f"the text was cut at {result.prompt_tokens + len(result.token_ids)} tokens, the context limit of the "
            "target; plain decoding would have gone on",
            stacklevel=4,
        )
    new = torch.tensor([result.token_ids], dtype=input_ids.dtype, device=input_ids.device)
    sequences = torch.cat([input_ids, new], dim=1)
    if not config.return_dict_in_generate:
        return sequences
    # The loop runs in inference mode; what it kept must be of use outside of it.
    scores, logits = (
        None if rows is None else tuple(row.clone() for row in rows) for rows in (hooks.scores, hooks.logits)
    )
    return DropInOutput(sequences=sequences, scores=scores, logits=logits, result=result)
