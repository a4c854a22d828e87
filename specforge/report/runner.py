"""The loop of a comparison: every pipeline on every prompt before the next repeat, in an order drawn with a seed.

A case is what all pipelines are given alike: a turn of a prompt, at a temperature, in a repeat. All pipelines run one
case before the next begins; nothing else (comparing outputs, writing, drawing the progress) happens while they run.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from attrs import define, field, frozen

from specforge.checks import number, whole
from specforge.errors import ConfigError
from specforge.pipeline import Pipeline
from specforge.report.prompts import PromptItem, PromptSet
from specforge.report.records import BASELINE, generation_line, round_lines
from specforge.report.runfolder import Case, Generation, RoundLine, RunData, RunFolder
from specforge.request import GenerateOptions, encode_prompt, make_request
from specforge.result import GenerationResult
from specforge.target import Target

logger = logging.getLogger("specforge")

_WARM_UP_TOKENS = 16


def _temperatures(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(number(value, "temperature") for value in values)


@frozen
class Plan:
    """What to run.

    Attributes:
        prompt_sets: by name, at least one.
        options: keyword options of ``Pipeline.generate``, without ``temperature`` and ``trace``.
        temperatures: each once, at least one.
        repeats: how often everything is run, at least 1.
        order_seed: of the order of prompts and pipelines.
        keep_rounds: keep every verification round, for plots.

    Raises:
        ConfigError: naming what cannot be used.
    """

    prompt_sets: Mapping[str, PromptSet]
    options: Mapping[str, Any] = field(factory=dict)
    temperatures: tuple[float, ...] = field(default=(0.0,), converter=_temperatures)
    repeats: int = 1
    order_seed: int = 0
    keep_rounds: bool = False

    def __attrs_post_init__(self) -> None:
        whole(self.repeats, "repeats", 1)
        whole(self.order_seed, "order_seed", 0)
        if not self.prompt_sets:
            raise ConfigError("a comparison needs at least one prompt")
        for own, instead in (("trace", "keep_rounds"), ("temperature", "temperatures")):
            if own in self.options:
                raise ConfigError(f"the options hold {own!r}, which a comparison sets itself; use {instead}")
        if not self.temperatures:
            raise ConfigError("temperatures is empty; a comparison needs at least one")
        if len({*self.temperatures}) < len(self.temperatures):
            raise ConfigError(f"temperatures are {', '.join(map(str, self.temperatures))}; each must be given once")
        for temperature in self.temperatures:
            self.options_at(temperature)

    def options_at(self, temperature: float) -> GenerateOptions:
        """Return the checked options at one of the temperatures."""
        try:
            return GenerateOptions(**self.options, temperature=temperature)
        except TypeError as error:
            raise ConfigError(f"generate: {error}".replace("GenerateOptions.__init__() ", "")) from error

    def talks(self, repeat: int) -> list[Talk]:
        """Return the conversations of a repeat, in its order."""
        found = [
            Talk(prompt_set.name, item, temperature, repeat)
            for prompt_set in self.prompt_sets.values()
            for temperature in self.temperatures
            for item in prompt_set.items
        ]
        random.Random(f"{self.order_seed} {repeat}").shuffle(found)
        return found

    def order(self, names: Sequence[str], case: Case) -> list[str]:
        """Return the order in which the pipelines run a case; it hangs on the seed and the case alone."""
        return random.Random(f"{self.order_seed} {attrs.astuple(case)}").sample(list(names), len(names))

    @property
    def cases(self) -> int:
        """How many cases there are at most: a chat ends early where it outgrows the target's context."""
        turns = sum(len(item.turns) for prompt_set in self.prompt_sets.values() for item in prompt_set.items)
        return turns * len(self.temperatures) * self.repeats


@frozen(eq=False)
class Talk:
    """One conversation at one temperature in one repeat."""

    prompt_set: str
    item: PromptItem
    temperature: float
    repeat: int

    def case(self, turn: int, repeat: int | None = None) -> Case:
        """Return the case of a turn, counted from 1, in this repeat or in another."""
        repeat = self.repeat if repeat is None else repeat
        return Case(self.prompt_set, self.item.name, turn, self.temperature, repeat)


@define
class Chat:
    """One conversation, carried on with the baseline's answers."""

    target: Target
    options: GenerateOptions
    messages: list[dict[str, str]] = field(factory=list)
    ids: list[int] = field(factory=list)

    def ask(self, turn: str | Sequence[int]) -> list[int]:
        """Return the prompt of the next turn; what takes no chat template is appended to what came before.

        Raises:
            ConfigError: for a turn that cannot be encoded.
        """
        if self.options.raw or not isinstance(turn, str) or self.target.tokenizer is None:
            self.ids = [*self.ids, *encode_prompt(self.target, turn, raw=True)]
        else:
            self.messages.append({"role": "user", "content": turn})
            self.ids = encode_prompt(self.target, self.messages, template_args=self.options.template_args)
        return list(self.ids)

    def answer(self, text: str | None, token_ids: Sequence[int]) -> None:
        """Take in the baseline's answer."""
        self.messages.append({"role": "assistant", "content": text or ""})
        self.ids = [*self.ids, *token_ids]


def check(pipelines: Mapping[str, Pipeline], plan: Plan) -> None:
    """Find what cannot be run before anything is.

    Raises:
        ConfigError: naming the prompt, or what a verifier cannot serve.
    """
    for temperature in plan.temperatures:
        for pipeline in pipelines.values():
            pipeline.parts.verifier_for(plan.options_at(temperature).sampling)
    options = plan.options_at(plan.temperatures[0])
    for prompt_set in plan.prompt_sets.values():
        for item in prompt_set.items:
            try:
                _check_prompt(pipelines[BASELINE].target, item, options)
            except ConfigError as error:
                raise ConfigError(f"{item.name}: {error}") from error


def _check_prompt(target: Target, item: PromptItem, options: GenerateOptions) -> None:
    chat = Chat(target, options)
    make_request(target, chat.ask(item.turns[0]), options)
    for turn in item.turns[1:]:
        chat.answer("", ())
        chat.ask(turn)


@define(eq=False)
class Runner:
    """Runs what is left of a plan.

    Attributes:
        pipelines: by name, the baseline among them.
        plan: what to run.
        data: where lines are added; what it holds already is not run again.
        folder: where they are written as they come, or ``None``.
        on_generation: called with the pipeline's name after each generation.
        on_case: called at the start and after each case with ``data`` and how many generations it will hold.
    """

    pipelines: Mapping[str, Pipeline]
    plan: Plan
    data: RunData
    folder: RunFolder | None = None
    on_generation: Callable[[str], None] = lambda _name: None
    on_case: Callable[[RunData, int], None] = lambda _run, _total: None
    _answers: dict[Case, Generation] = field(factory=dict, init=False)

    def run(self) -> None:
        """Run every case that is not there yet; ``check`` says whether it can be run.

        Raises:
            ConfigError: when the folder cannot be written.
        """
        target = self.pipelines[BASELINE].target
        done = {generation.case for generation in self.data.generations}
        self._answers = {g.case: g for g in self.data.generations if g.pipeline == BASELINE and g.case.repeat == 0}
        if len(done) < self.plan.cases:
            self._warm_up()
        self._show()
        for repeat in range(self.plan.repeats):
            for talk in self.plan.talks(repeat):
                for case, ids in self._prompts(target, talk):
                    if case not in done:
                        self._run_case(case, ids)

    def _show(self) -> None:
        self.on_case(self.data, self.plan.cases * len(self.pipelines))

    def _warm_up(self) -> None:
        """Run everything once, briefly, so that no first use is timed."""
        first = next(iter(self.plan.prompt_sets.values())).items[0]
        brief = min(_WARM_UP_TOKENS, self.plan.options.get("max_new_tokens", _WARM_UP_TOKENS))
        for temperature in self.plan.temperatures:
            for pipeline in self.pipelines.values():
                ids = Chat(pipeline.target, self.plan.options_at(temperature)).ask(first.turns[0])
                pipeline.generate(ids, **self._options(temperature, max_new_tokens=brief))

    def _options(self, temperature: float, **changed: Any) -> dict[str, Any]:
        return {**self.plan.options, "temperature": temperature, "trace": self.plan.keep_rounds, **changed}

    def _prompts(self, target: Target, talk: Talk) -> Iterator[tuple[Case, list[int]]]:
        """Yield each turn's case and prompt; the one before must have been run by then."""
        options = self.plan.options_at(talk.temperature)
        chat = Chat(target, options)
        for place, turn in enumerate(talk.item.turns, start=1):
            case = talk.case(place)
            ids = chat.ask(turn)
            if place > 1 and len(ids) >= target.context_limit:
                logger.warning("%s ends before turn %d, which would not fit the context", talk.item.name, place)
                return
            yield case, ids
            given = self._answers[talk.case(place, repeat=0)]
            chat.answer(given.text, given.token_ids)

    def _run_case(self, case: Case, ids: list[int]) -> None:
        results: dict[str, GenerationResult] = {}
        for name in self.plan.order(list(self.pipelines), case):
            results[name] = self.pipelines[name].generate(ids, **self._options(case.temperature))
            self.on_generation(name)
        generations, rounds = self._lines(case, ids, results)
        if self.folder is not None:
            self.folder.append(generations, rounds)
        self.data.generations.extend(generations)
        self.data.rounds.extend(rounds)
        self._show()

    def _lines(
        self, case: Case, ids: list[int], results: Mapping[str, GenerationResult]
    ) -> tuple[list[Generation], list[RoundLine]]:
        options = self.plan.options_at(case.temperature)
        first = attrs.evolve(case, repeat=0)
        reference = self._answers.get(first, results[BASELINE])
        generations = [
            generation_line(name, self.pipelines[name], case, ids, options, result, reference)
            for name, result in results.items()
        ]
        rounds = [
            line for name, result in results.items() for line in round_lines(name, self.pipelines[name], case, result)
        ]
        for generation in generations:
            if generation.pipeline == BASELINE:
                self._answers.setdefault(first, generation)
        return generations, rounds
