"""``model.generate(..., custom_generate=pipeline)`` against ``model.generate``: same tokens, calls and classes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st
from target_families import tiny_model
from tiny_models import random_target, write_drafter
from tokenizers import Tokenizer, decoders, models
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    MaxLengthCriteria,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StopStringCriteria,
    TextIteratorStreamer,
)
from transformers.generation import GenerateDecoderOnlyOutput

from specforge import ConfigError, Pipeline, PipelineConfig, dropin
from specforge.errors import BrokenPartError
from specforge.interfaces import Round, Verdict, Verifier
from specforge.sampling import processed_logits
from specforge.target import Target
from specforge.tree import DraftTree
from specforge.verifiers import walk

VOCAB = 24
PROMPT = (1, 2, 3, 1, 2, 7, 1, 2, 3)
FORMATS = {"dflash": "zlab", "domino": "domino", "dspark": "dspark"}
PRESETS = {
    "ar": None,
    "ngram": None,
    "dflash": "dflash",
    "ddtree": "dflash",
    "dominotree": "domino",
    "dartree": "domino",
    "dspark": "dspark",
}
EOS = 5


@pytest.fixture(scope="module")
def targets() -> dict[str, Target]:
    return {family: random_target(family, VOCAB, 3) for family in ("llama", "qwen3")}


class Pipelines(dict[tuple[str, str], Pipeline]):
    """Pipelines by preset and family, each made when it is first asked for."""

    def __init__(self, targets: dict[str, Target], folder: Path) -> None:
        super().__init__()
        self.targets, self.folder = targets, folder

    def __missing__(self, key: tuple[str, str]) -> Pipeline:
        preset, family = key
        kind = PRESETS[preset]
        checkpoint = kind and write_drafter(self.folder / f"{preset}-{family}", FORMATS[kind], VOCAB, 8)
        self[key] = Pipeline.from_preset(preset, target=self.targets[family], checkpoint=checkpoint)
        return self[key]


@pytest.fixture(scope="module")
def pipelines(targets: dict[str, Target], tmp_path_factory: pytest.TempPathFactory) -> Pipelines:
    return Pipelines(targets, tmp_path_factory.mktemp("drafters"))


@pytest.fixture(params=[("ngram", "qwen3"), ("ddtree", "llama"), ("dartree", "qwen3")], ids="-".join)
def pipeline(request: pytest.FixtureRequest, pipelines: Pipelines) -> Pipeline:
    return pipelines[request.param]


@pytest.fixture
def tree(pipelines: Pipelines) -> Pipeline:
    return pipelines["dominotree", "llama"]


def ids(*tokens: int) -> torch.Tensor:
    return torch.tensor([tokens or PROMPT])


def plain(model: PreTrainedModel, *arguments: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.generate(*arguments, **options)


def both(pipeline: Pipeline, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Return what plain decoding and the pipeline give; options that keep a state are made anew for each."""
    model = pipeline.target.model
    made = ({k: v() if k in MADE else v for k, v in options.items()} for _ in range(2))
    return plain(model, *arguments, **next(made)), plain(model, *arguments, custom_generate=pipeline, **next(made))


MADE = ("logits_processor", "stopping_criteria", "streamer", "prefix_allowed_tokens_fn")


# --- what is recorded


@define(eq=False)
class Recorder(LogitsProcessor):
    """A processor with a state: it forbids a token more at each call."""

    calls: list[list[int]] = field(factory=list)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.calls.append(input_ids[0].tolist())
        scores[:, len(self.calls) % scores.shape[1]] = float("-inf")
        return scores


@define(eq=False)
class StopsAfter(StoppingCriteria):
    """A criterion with a state: it ends the text at its ``count``-th call."""

    count: int
    calls: list[list[int]] = field(factory=list)

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        self.calls.append(input_ids[0].tolist())
        return torch.full((input_ids.shape[0],), len(self.calls) >= self.count)


@define(eq=False)
class RecordingStreamer:
    calls: list[Any] = field(factory=list)

    def put(self, value: torch.Tensor) -> None:
        self.calls.append((tuple(value.shape), value.tolist()))

    def end(self) -> None:
        self.calls.append("end")


# --- equality


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("preset", PRESETS)
def test_greedy_equals_generate(preset: str, family: str, pipelines: Pipelines) -> None:
    expected, got = both(pipelines[preset, family], ids(), max_new_tokens=30)
    assert got.tolist() == expected.tolist()
    assert got.shape == (1, len(PROMPT) + 30)
    assert not got.is_inference()


USUAL = 14
"""What the target of the cases writes most: options that speak of it change the text."""

CASES: dict[str, dict[str, Any]] = {
    "max_length": {"max_length": 21},
    "repetition penalty": {"repetition_penalty": 1.7},
    "no repeated n-gram": {"no_repeat_ngram_size": 2},
    "end of sequence": {"eos_token_id": [EOS, USUAL], "pad_token_id": 0},
    "min_new_tokens": {"min_new_tokens": 20, "eos_token_id": list(range(1, USUAL + 1)), "pad_token_id": 0},
    "min_length": {"min_length": 25, "eos_token_id": list(range(1, USUAL + 1)), "pad_token_id": 0},
    "bad words": {"bad_words_ids": [[USUAL], [1, 2], [7, 1, 2]]},
    "sequence bias": {"sequence_bias": [[[4], 2.0], [[USUAL, USUAL], -8.0]]},
    "suppressed": {"suppress_tokens": [1, 2, USUAL], "begin_suppress_tokens": [7, 4]},
    "length penalty": {"exponential_decay_length_penalty": (4, 1.6), "eos_token_id": EOS, "pad_token_id": 0},
    "forced end": {"forced_eos_token_id": EOS, "repetition_penalty": 1.2},
    "encoder penalties": {"encoder_repetition_penalty": 50.0, "encoder_no_repeat_ngram_size": 2},
    "allowed": {"prefix_allowed_tokens_fn": lambda: lambda _, ids: [t for t in range(VOCAB) if (t + len(ids)) % 3]},
    "processor with a state": {"logits_processor": lambda: [Recorder()], "repetition_penalty": 1.1},
    "criterion with a state": {"stopping_criteria": lambda: [StopsAfter(13)]},
    "own max length": {"stopping_criteria": lambda: [MaxLengthCriteria(23)]},
    "longer own max length": {"stopping_criteria": lambda: [MaxLengthCriteria(45)]},
    "no time": {"max_time": 0.0},
}


@pytest.fixture(scope="module")
def usual(pipelines: Pipelines) -> list[list[int]]:
    return plain(pipelines["dartree", "qwen3"].target.model, ids(), max_new_tokens=30).tolist()


@pytest.mark.parametrize("case", CASES)
def test_what_users_ask_of_generate_is_honoured(case: str, usual: list[list[int]], pipelines: Pipelines) -> None:
    options = {"max_new_tokens": 30, **CASES[case]}
    if "max_length" in options:
        del options["max_new_tokens"]
    expected, got = both(pipelines["dartree", "qwen3"], ids(), **options)
    assert got.tolist() == expected.tolist()
    assert got.tolist() != usual


def test_a_generation_config_is_honoured(pipeline: Pipeline) -> None:
    config = GenerationConfig(max_new_tokens=30, repetition_penalty=1.3, eos_token_id=9, pad_token_id=0)
    expected, got = both(pipeline, ids(), generation_config=config)
    assert got.tolist() == expected.tolist()


processing = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.7, 1.1, 2.0]),
        "no_repeat_ngram_size": st.integers(1, 3),
        "min_new_tokens": st.integers(1, 12),
        "bad_words_ids": st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3), min_size=1, max_size=3),
        "suppress_tokens": st.lists(st.integers(0, VOCAB - 1), max_size=5),
        "eos_token_id": st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=2),
    },
)


@settings(max_examples=20)
@given(
    options=processing,
    prompt=st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=12),
    count=st.integers(1, 24),
    preset=st.sampled_from(["ngram", "ddtree", "dominotree", "dspark"]),
)
def test_any_mix_equals_generate(options: dict, prompt: list, count: int, preset: str, pipelines: Pipelines) -> None:
    asked = {"max_new_tokens": count, "pad_token_id": 0, **options}
    expected, got = both(pipelines[preset, "qwen3"], ids(*prompt), **asked)
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("family", ["gemma2", "gpt-neox", "mistral-sliding", "phi3"])
def test_other_families(family: str) -> None:
    model = tiny_model(family)
    pipeline = Pipeline.from_config(
        PipelineConfig(drafter={"name": "ngram", "min_ngram": 1}, builder={"name": "heap", "budget": 12}), target=model
    )
    expected, got = both(pipeline, ids(), max_new_tokens=40, repetition_penalty=1.2, eos_token_id=None)
    assert got.tolist() == expected.tolist()


# --- calls


def calls(pipeline: Pipeline, **options: Any) -> list[list[Any]]:
    """Return the calls of processor, criterion and streamer in plain decoding, then through the pipeline."""
    found = []
    for custom in (None, pipeline):
        processor, criterion, streamer = Recorder(), StopsAfter(1000), RecordingStreamer()
        plain(
            pipeline.target.model,
            ids(),
            custom_generate=custom,
            logits_processor=[processor],
            stopping_criteria=[criterion],
            streamer=streamer,
            **options,
        )
        found.append([processor.calls, criterion.calls, streamer.calls])
    return found


@pytest.mark.parametrize("options", [{"max_new_tokens": 24}, {"max_new_tokens": 60, "eos_token_id": [5, 11]}])
def test_processors_criteria_and_streamers_see_what_plain_decoding_shows_them(
    options: dict, pipeline: Pipeline
) -> None:
    expected, got = calls(pipeline, **options)
    assert got == expected
    assert got[2][0] == ((1, len(PROMPT)), [list(PROMPT)])
    assert got[2][-1] == "end"


def test_nothing_is_asked_about_what_follows_the_end(tree: Pipeline) -> None:
    """A grammar may know nothing of what comes after its end."""

    def grammar(_: int, so_far: torch.Tensor) -> list[int]:
        assert EOS not in so_far[len(PROMPT) :]
        return list(range(VOCAB)) if len(so_far) < 22 else [EOS, 9]

    expected, got = both(tree, ids(), max_new_tokens=30, eos_token_id=EOS, prefix_allowed_tokens_fn=lambda: grammar)
    assert got.tolist() == expected.tolist()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    letters = Tokenizer(models.BPE({chr(97 + token): token for token in range(VOCAB)}, merges=[]))
    letters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=letters)


def test_stop_strings(tokenizer: PreTrainedTokenizerFast, pipeline: Pipeline) -> None:
    usual = plain(pipeline.target.model, ids(), max_new_tokens=40)[0, len(PROMPT) :].tolist()
    stop = tokenizer.decode(usual[10:12])
    expected, got = both(
        pipeline,
        ids(),
        max_new_tokens=40,
        stopping_criteria=lambda: [StopStringCriteria(tokenizer=tokenizer, stop_strings=[stop])],
    )
    assert got.tolist() == expected.tolist()
    assert got.shape[1] < len(PROMPT) + 40


def test_text_streamers_end(tokenizer: PreTrainedTokenizerFast, tree: Pipeline) -> None:
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=5.0)
    got = plain(tree.target.model, ids(), max_new_tokens=12, custom_generate=tree, streamer=streamer)
    assert "".join(streamer) == tokenizer.decode(got[0, len(PROMPT) :])


# --- what is returned


def test_a_dict_is_returned_with_scores_and_logits(pipeline: Pipeline) -> None:
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    expected, got = both(pipeline, ids(), max_new_tokens=20, repetition_penalty=1.3, eos_token_id=11, **options)
    assert isinstance(got, GenerateDecoderOnlyOutput)
    assert got.sequences.tolist() == expected.sequences.tolist()
    for name in ("scores", "logits"):
        mine, theirs = getattr(got, name), getattr(expected, name)
        assert len(mine) == len(theirs) == got.sequences.shape[1] - len(PROMPT)
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3)
    model = pipeline.target.model
    transitions = model.compute_transition_scores(got.sequences, got.scores, normalize_logits=True)
    assert transitions.shape == (1, len(got.scores))
    assert got.result.token_ids == got.sequences[0, len(PROMPT) :].tolist()
    assert got.result.finish_reason == "stopping_criteria"


def test_criteria_see_the_scores_that_are_kept(tree: Pipeline) -> None:
    seen: list[list[int]] = []

    @define(eq=False)
    class Counts(StoppingCriteria):
        counts: list[int] = field(factory=list)

        def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
            self.counts.append(len(scores))
            return torch.zeros(1, dtype=torch.bool)

    def criteria() -> list[Counts]:
        criterion = Counts()
        seen.append(criterion.counts)
        return [criterion]

    both(tree, ids(), max_new_tokens=9, stopping_criteria=criteria, return_dict_in_generate=True, output_scores=True)
    assert seen == [list(range(1, 10))] * 2


# --- padding


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 1}])
def test_left_padding_is_as_in_plain_decoding(options: dict, pipeline: Pipeline) -> None:
    padded = ids(0, 0, 0, *PROMPT)
    mask = torch.tensor([[0, 0, 0] + [1] * len(PROMPT)])
    expected, got = both(pipeline, padded, attention_mask=mask, max_new_tokens=12, min_new_tokens=3, **options)
    assert got.tolist() == expected.tolist()
    assert got[0, :3].tolist() == [0, 0, 0]


def test_a_mask_of_ones_is_no_padding(pipeline: Pipeline) -> None:
    expected, got = both(pipeline, ids(), attention_mask=torch.ones(1, len(PROMPT)), max_new_tokens=12)
    assert got.tolist() == expected.tolist()


# --- sampling

SAMPLING = {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.1}


def sample(pipeline: Pipeline, **options: Any) -> list[int]:
    asked = {"max_new_tokens": 30, "do_sample": True, **SAMPLING, **options}
    output = plain(pipeline.target.model, ids(), custom_generate=pipeline, **asked)
    return output[0, len(PROMPT) :].tolist()


def test_a_seed_gives_the_text_of_the_pipelines_own_generate(pipeline: Pipeline) -> None:
    for seed in range(3):
        own = pipeline.generate(PROMPT, max_new_tokens=30, seed=seed, **SAMPLING).token_ids
        assert sample(pipeline, seed=seed) == own


def test_without_a_seed_torch_is_asked_for_one(tree: Pipeline) -> None:
    torch.manual_seed(4)
    first, second = sample(tree), sample(tree)
    torch.manual_seed(4)
    assert sample(tree) == first
    assert first != second


def test_greedy_leaves_torchs_generator_alone(tree: Pipeline) -> None:
    before = torch.get_rng_state()
    plain(tree.target.model, ids(), custom_generate=tree, max_new_tokens=5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("options", [{"typical_p": 0.8}, {"epsilon_cutoff": 0.2}, {"no_repeat_ngram_size": 2}])
def test_every_pipeline_samples_the_same_text(options: dict, pipelines: Pipelines) -> None:
    texts = {tuple(sample(pipelines[preset, "llama"], seed=5, **options)) for preset in PRESETS}
    assert len(texts) == 1
    assert texts != {tuple(sample(pipelines["ar", "llama"], seed=5))}


def test_a_verifier_that_draws_elsewhere_ends_where_plain_decoding_would(
    targets: dict[str, Target], pipelines: Pipelines
) -> None:
    drafter = pipelines["dflash", "llama"].config.drafter
    config = PipelineConfig(drafter=drafter, builder={"name": "chain", "sample": True}, verifier="rejection")
    got = sample(Pipeline.from_config(config, target=targets["llama"]), seed=2, eos_token_id=[5, 9], pad_token_id=0)
    assert len(got) == 30 or got[-1] in (5, 9)
    assert not {5, 9} & set(got[:-1])


# --- what cannot be honoured

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 4}, "num_beams is 4"),
    "sequences": ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences is 2"),
    "guidance": ({"guidance_scale": 1.5}, "guidance_scale is 1.5"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens is 3"),
    "attentions": ({"return_dict_in_generate": True, "output_attentions": True}, "output_attentions is True"),
    "states": ({"return_dict_in_generate": True, "output_hidden_states": True}, "output_hidden_states is True"),
    "devices": ({"synced_gpus": True}, "synced_gpus is True"),
    "holes": ({"attention_mask": torch.tensor([[1, 1, 0] + [1] * 6])}, "attention_mask .* zeros on the left only"),
    "positions": ({"position_ids": torch.arange(3, 12)[None]}, "position_ids do not count from 0"),
    "temperature": ({"do_sample": True, "temperature": 1e-7}, "temperature is 1e-07"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(case: str, tree: Pipeline) -> None:
    options, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        plain(tree.target.model, ids(), custom_generate=tree, max_new_tokens=5, **options)


def test_an_assistant_is_refused(tree: Pipeline, targets: dict[str, Target]) -> None:
    with pytest.raises(ConfigError, match="assistant_model is 'Qwen3ForCausalLM'"):
        plain(tree.target.model, ids(), custom_generate=tree, assistant_model=targets["qwen3"].model)


def test_a_batch_is_refused(tree: Pipeline) -> None:
    with pytest.raises(ConfigError, match="the batch has 2 sequences"):
        plain(tree.target.model, ids().repeat(2, 1), custom_generate=tree)


def test_embeddings_in_place_of_tokens_are_refused(tree: Pipeline) -> None:
    embeddings = tree.target.embedding(ids()).detach()
    with pytest.raises(ConfigError, match="inputs_embeds"):
        plain(tree.target.model, inputs_embeds=embeddings, custom_generate=tree)


def test_a_cache_that_holds_tokens_is_refused(tree: Pipeline) -> None:
    model, cache = tree.target.model, DynamicCache()
    name = tree.target._cache_keyword
    with torch.no_grad():
        model(ids(*PROMPT[:-1]), **{name: cache})
    with pytest.raises(ConfigError, match=f"{name} holds {len(PROMPT) - 1} tokens"):
        plain(model, ids(), custom_generate=tree, **{name: cache})


def test_another_model_is_refused(tree: Pipeline, targets: dict[str, Target]) -> None:
    with pytest.raises(ConfigError, match=r"Qwen3ForCausalLM that is not the pipeline's target; .* target=model"):
        plain(targets["qwen3"].model, ids(), custom_generate=tree)


def test_a_cut_by_the_context_is_said(tree: Pipeline) -> None:
    limit = tree.target.context_limit
    with pytest.warns(UserWarning, match=f"the text was cut at {limit} tokens"):
        got = tree.target.model.generate(ids(), custom_generate=tree, max_new_tokens=limit, pad_token_id=0)
    assert got.shape[1] == limit


# --- making a pipeline around a model


def test_a_pipeline_around_a_loaded_model() -> None:
    model = tiny_model("llama")
    for pipeline in (
        Pipeline.from_preset("ngram", target=model),
        Pipeline.from_config(PipelineConfig(drafter="ngram"), target=model),
    ):
        assert pipeline.target.model is model
        expected, got = both(pipeline, ids(), max_new_tokens=10)
        assert got.tolist() == expected.tolist()


def test_a_folder_may_be_a_path(tiny_folder: Path) -> None:
    assert Pipeline.from_preset("ar", target=tiny_folder / "target").target.name.endswith("target")


# --- mutants


def differs(pipeline: Pipeline, options: dict[str, Any]) -> bool:
    expected, got = both(pipeline, ids(), max_new_tokens=40, **options)
    return got.tolist() != expected.tolist()


def test_processors_that_see_only_the_history_are_caught(tree: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "path_ids", lambda tree, node, round: round.history)
    with pytest.raises(BrokenPartError, match="one row for each emitted token, in order"):
        differs(tree, {"no_repeat_ngram_size": 2})


def test_processors_dropped_are_caught(tree: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropin._Hooks, "as_processors", property(lambda hooks: ()))
    assert differs(tree, {"no_repeat_ngram_size": 2})


def test_criteria_asked_once_a_round_are_caught(tree: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"stopping_criteria": lambda: [StopsAfter(13)]}
    assert not differs(tree, options)
    asked = dropin._Hooks._ends

    def seldom(hooks: dropin._Hooks, ids: torch.Tensor) -> bool:
        return ids.shape[1] % 2 == 0 and asked(hooks, ids)

    monkeypatch.setattr(dropin._Hooks, "_ends", seldom)
    assert differs(tree, options)


def test_hooks_called_past_the_end_are_caught(tree: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"max_new_tokens": 60, "eos_token_id": [5, 11]}
    whole = dropin._Hooks.__call__

    def unending(hooks: dropin._Hooks, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        row = whole(hooks, ids, logits)
        if row is logits:
            for processor in hooks.processors:
                row = processor(ids, row)
        return row

    monkeypatch.setattr(dropin._Hooks, "__call__", unending)
    expected, got = calls(tree, **options)
    assert got[0] != expected[0]


class EveryRow(Verifier):
    """Processes all rows before it walks."""

    def verify(self, tree: DraftTree, logits: torch.Tensor, round: Round) -> Verdict:
        rows = [
            processed_logits(logits[n], walk.path_ids(tree, n, round), round.sampling).argmax()
            for n in range(len(tree))
        ]
        return walk.walk(tree, lambda node: int(rows[node]))


def test_a_verifier_that_processes_rows_it_does_not_emit_is_refused(tree: Pipeline) -> None:
    parts = attrs.evolve(tree.parts, verifier=EveryRow())
    pipeline = Pipeline(tree.target, parts, tree.config)
    with pytest.raises(BrokenPartError, match="one row for each emitted token"):
        plain(tree.target.model, ids(), custom_generate=pipeline, max_new_tokens=20, repetition_penalty=1.2)


def drafts_are_taken(pipeline: Pipeline) -> float:
    return pipeline.generate(PROMPT, max_new_tokens=40, stop_token_ids=[]).mean_acceptance_length


def test_drafts_are_accepted(pipelines: Pipelines) -> None:
    """Without this, equality might hold with nothing ever drafted."""
    for preset in ("ngram", "ddtree", "dominotree", "dartree"):
        assert max(drafts_are_taken(pipelines[preset, family]) for family in ("llama", "qwen3")) > 1.0, preset
