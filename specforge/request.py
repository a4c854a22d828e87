"""What one generation is asked for."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from specforge.checks import flag, whole
from specforge.errors import ConfigError
from specforge.sampling import SamplingParams
from specforge.target import Target

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]] | Tensor | np.ndarray


@frozen(eq=False)
class Request:
    """A validated request.

    Attributes:
        prompt_ids: ``[P]`` int64 on the target's device, P >= 1.
        limit: tokens that may be emitted, P and the context limit considered; at least 1.
        cut_by_context: whether the context limit, not ``max_new_tokens``, sets ``limit``.
        sampling: how tokens are chosen.
        seed: of the keyed uniforms.
        stop_token_ids: generation ends with any of them.
        stop_strings: generation ends with the token that completes any of them.
        trace: keep every round's tree.
        stops_after: asked after each emitted token, in order, with the ``[L]`` ids so far, prompt included, whether
            generation ends here; or ``None``.
    """

    prompt_ids: Tensor
    limit: int
    cut_by_context: bool
    sampling: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    trace: bool
    stops_after: Callable[[Tensor], bool] | None = None


def _strings(value: str | Iterable[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    found = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(s, str) and s for s in found):
        raise ConfigError(f"stop_strings is {value!r}; it must hold non-empty strings")
    return found


def _arguments(value: Mapping[str, Any] | None) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"template_args is {value!r}; it must be a dict of names and values")
    taken = sorted({"conversation", "tokenize", "add_generation_prompt", "return_dict", "return_tensors"} & set(value))
    if taken:
        raise ConfigError(f"template_args holds {taken[0]!r}, which the pipeline sets itself")
    return dict(value)


@frozen
class GenerateOptions:
    """The keyword options of ``Pipeline.generate`` and ``Pipeline.stream``.

    Attributes:
        max_new_tokens: emit at most so many tokens, at least 1.
        temperature: 0 is greedy.
        top_k: 0 keeps all.
        top_p: in (0, 1].
        min_p: in [0, 1].
        repetition_penalty: above 0, 1 changes nothing.
        seed: any whole number of 64 bits.
        stop_token_ids: ``None`` means the target's own; ``[]`` means none.
        stop_strings: stop once the text contains one of them; the text then ends with it.
        trace: keep every round's tree and accepted path in ``result.rounds``.
        raw: do not apply the chat template to a string.
        template_args: further arguments of the chat template, such as ``{"enable_thinking": False}``.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop_token_ids: Iterable[int] | None = None
    stop_strings: tuple[str, ...] = field(default=(), converter=_strings)
    trace: bool = False
    raw: bool = False
    template_args: Mapping[str, Any] = field(default=None, converter=_arguments)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "max_new_tokens", whole(self.max_new_tokens, "max_new_tokens", 1))
        object.__setattr__(self, "seed", whole(self.seed, "seed", -(2**63), 2**63 - 1))
        flag(self.trace, "trace")
        flag(self.raw, "raw")
        if self.stop_token_ids is not None and not isinstance(self.stop_token_ids, Iterable):
            raise ConfigError(f"stop_token_ids is {self.stop_token_ids!r}; it must be token ids, [] for none, or None")
        self.sampling  # noqa: B018 - validates the sampling options now, before any model runs

    @property
    def sampling(self) -> SamplingParams:
        """The sampling options.

        Raises:
            ConfigError: naming the option that is out of range.
        """
        names = [a.name for a in attrs.fields(SamplingParams) if hasattr(self, a.name)]
        return SamplingParams(**{name: getattr(self, name) for name in names})


def make_request(target: Target, prompt: Prompt, options: GenerateOptions) -> Request:
    """Tokenise the prompt and work out where generation must end.

    Raises:
        ConfigError: for an empty prompt, one that does not fit the context, tokens outside the vocabulary, text for
            a target without a tokenizer, or chat for one without a template.
    """
    ids = encode_prompt(target, prompt, raw=options.raw, template_args=options.template_args)
    room = target.context_limit - len(ids)
    if room < 1:
        raise ConfigError(
            f"the prompt has {len(ids)} tokens; target {target.name!r} holds {target.context_limit} in all, "
            f"so a prompt may have at most {target.context_limit - 1}"
        )
    if options.stop_strings and target.tokenizer is None:
        raise ConfigError(f"stop_strings need a tokenizer, and target {target.name!r} has none; use stop_token_ids")
    stops = target.stop_token_ids if options.stop_token_ids is None else options.stop_token_ids
    return Request(
        prompt_ids=torch.tensor(ids, dtype=torch.int64, device=target.device),
        limit=min(options.max_new_tokens, room),
        cut_by_context=room < options.max_new_tokens,
        sampling=options.sampling,
        seed=options.seed,
        stop_token_ids=frozenset(_token_id(t, target, "stop_token_ids") for t in stops),
        stop_strings=options.stop_strings,
        trace=options.trace,
    )


def encode_prompt(
    target: Target, prompt: Prompt, *, raw: bool = False, template_args: Mapping[str, Any] | None = None
) -> list[int]:
    """Return the prompt's token ids.

    Ids (a sequence or a 1-d tensor) are taken as they are. A string is one user turn of the chat template, a list of
    ``{"role", "content"}`` messages a whole chat, unless ``raw``. For a target without a tokenizer a string of whole
    numbers is read as token ids.
    """
    prompt = _plain_prompt(prompt)
    if not prompt or (isinstance(prompt, str) and not prompt.strip()):
        raise ConfigError("the prompt is empty; it must have at least one token")
    if isinstance(prompt, str) and target.tokenizer is None and re.fullmatch(r"\s*\d+([\s,]+\d+)*[\s,]*", prompt):
        prompt = [int(number) for number in re.findall(r"\d+", prompt)]
    if isinstance(prompt, str):
        return _encode_text(target, prompt if raw else _apply_template(target, _user(prompt), template_args), raw)
    if isinstance(prompt[0], Mapping):
        if raw:
            raise ConfigError("a list of chat messages needs the chat template; raw takes a string or token ids")
        return _encode_text(target, _apply_template(target, prompt, template_args), raw)
    return [_token_id(token, target, "the prompt") for token in prompt]


def _plain_prompt(prompt: Any) -> str | list[Any]:
    """Return text, or a list; an array may be one row of a batch, as tokenizers return it."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Tensor | np.ndarray):
        if prompt.ndim == 2 and len(prompt) == 1:
            prompt = prompt[0]
        if prompt.ndim != 1:
            raise ConfigError(f"the prompt has shape {list(prompt.shape)}; token ids are [P] or [1, P], one sequence")
        return prompt.tolist()
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray):
        return list(prompt)
    raise ConfigError(
        f"the prompt is a {type(prompt).__name__}; it must be text, token ids, or a list of chat messages"
    )


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _apply_template(target: Target, messages: Any, template_args: Mapping[str, Any] | None) -> str:
    tokenizer = _tokenizer(target)
    if not tokenizer.chat_template:
        raise ConfigError(f"target {target.name!r} has no chat template; pass the text raw (raw=True, --raw)")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise ConfigError(f"the chat holds {message!r}; a message is {{'role': 'user', 'content': 'text'}}")
    try:
        return tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **dict(template_args or {})
        )
    except Exception as error:  # a template is foreign code: it raises whatever its author chose
        reason = str(error) or type(error).__name__
        raise ConfigError(f"the chat template of target {target.name!r} refused the prompt: {reason}") from error


def _encode_text(target: Target, text: str, special: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"the prompt is not valid Unicode: {error.reason} at character {error.start}") from error
    ids = list(_tokenizer(target)(text, add_special_tokens=special).input_ids)
    if not ids:
        raise ConfigError("the prompt is empty; it must have at least one token")
    return ids


def _tokenizer(target: Target) -> Any:
    if target.tokenizer is None:
        raise ConfigError(f"target {target.name!r} has no tokenizer; give the prompt as token ids")
    return target.tokenizer


def _token_id(token: object, target: Target, where: str) -> int:
    try:
        value = operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{where} holds {token!r}; token ids are whole numbers") from None
    if isinstance(token, bool):
        raise ConfigError(f"{where} holds {token!r}; token ids are whole numbers")
    if not 0 <= value < target.vocab_size:
        raise ConfigError(
            f"{where} holds token id {value}; target {target.name!r} has ids 0 to {target.vocab_size - 1}"
        )
    return value
