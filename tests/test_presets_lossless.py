"""Every preset, with every verifier that it can have, gives what the target alone gives: random targets and drafters.

Greedy and sampling are compared with plain decoding token by token, rejection by its distribution. Mutants of the
tree's mask, the commit, the trees and the draws fail the same comparisons.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import hypothesis
import numpy as np
import pytest
import scipy.stats
import torch
from attrs import define, evolve, frozen
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from statistics_helpers import SIGNIFICANCE, g_test
from tiny_models import FAMILIES, KINDS, random_target, write_drafter

from specforge import Pipeline, PipelineConfig
from specforge.assembly import takes_checkpoint, with_checkpoint
from specforge.errors import ConfigError, IncompatiblePartsError
from specforge.interfaces import Draft, Round, Scorer, TreeBuilder, Verdict
from specforge.presets import PRESETS, preset_config
from specforge.result import GenerationResult
from specforge.sampling import SamplingParams, processed_distribution
from specforge.strategies import depthwise, drawing
from specforge.target import Target, TreeCache
from specforge.tree import DraftTree
from specforge.verifiers.greedy import Greedy
from specforge.verifiers.sampling import Sampling

COSTS = {
    "draft_seconds": 0.5,
    "context_lengths": [0],
    "nodes": [0, 4, 16, 64],
    "seconds": {"0": [1.0, 1.02, 1.2, 4.0]},
}
DRAWN_CHAIN = {"name": "chain", "sample": True}
DRAWN_TREE = {"name": "sampled", "branching": (2, 2, 1)}
PROMPT = (1, 2, 0, 3)
TREES = tuple(name for name, preset in PRESETS.items() if preset.builder.name in ("heap", "depthwise"))

Json = dict[str, Any]
Options = dict[str, Any]


# --- worlds


@pytest.fixture(scope="module")
def drafter_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int, int], str]:
    """Return the function from format, vocabulary and seed to the folder of a checkpoint."""
    folder = tmp_path_factory.mktemp("drafters")

    @cache
    def written(name: str, vocab_size: int, seed: int) -> str:
        return write_drafter(folder / f"{name}-{vocab_size}-{seed}", name, vocab_size, seed)

    return written


target_of = cache(random_target)


@frozen
class World:
    """Which target and which drafter weights; ``form`` picks one of the drafter's published formats."""

    family: str
    vocab_size: int
    seed: int
    form: int

    @property
    def target(self) -> Target:
        return target_of(self.family, self.vocab_size, self.seed)

    def checkpoint(self, kind: str, drafter_of: Callable[[str, int, int], str]) -> str:
        return drafter_of(KINDS[kind][self.form % len(KINDS[kind])], self.vocab_size, self.seed + 1000)


@frozen
class Pipes:
    """Makes pipelines on one world."""

    world: World
    drafter_of: Callable[[str, int, int], str]

    def make(self, config: PipelineConfig, builder: Json | None = None, verifier: str = "auto") -> Pipeline:
        """Return a pipeline of ``config``, with builder options or another builder, whose trees are checked."""
        fields = config.to_dict() | {"verifier": verifier}
        fields["builder"] |= {"cost_model": COSTS} if "cost_model" in fields["builder"] else {}
        fields["builder"] |= builder or {}
        config = PipelineConfig(**fields)
        if takes_checkpoint(config):
            config = with_checkpoint(config, self.world.checkpoint(config.drafter.name, self.drafter_of))
        pipeline = Pipeline.from_config(config, target=self.world.target)
        return with_builder(pipeline, Checked)

    def preset(self, name: str, **fields: Any) -> Pipeline:
        return self.make(preset_config(name), **fields)

    def ar(self, prompt: Sequence[int], **options: Any) -> list[int]:
        return Pipeline.from_preset("ar", target=self.world.target).generate(prompt, **options).token_ids


def with_builder(pipeline: Pipeline, wrap: Callable[[TreeBuilder], TreeBuilder]) -> Pipeline:
    parts = evolve(pipeline.parts, builder=wrap(pipeline.parts.builder))
    return Pipeline(pipeline.target, parts, pipeline.config)


# --- trees


@define(eq=False)
class Checked(TreeBuilder):
    """Builds as ``inner`` does, and checks every tree against the draft, the scorer and the round."""

    inner: TreeBuilder

    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        tree = self.inner.build(draft, scorer, round)
        check_tree(tree, draft, scorer, round)
        assert tree.budget <= most_nodes(self.inner, draft)
        return tree

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        self.inner.observe(tree, verdict)


def most_nodes(builder: TreeBuilder, draft: Draft) -> int:
    if hasattr(builder, "branching"):
        return sum(itertools.accumulate(builder.branching, int.__mul__))
    return getattr(builder, "budget", draft.depth)


def check_tree(tree: DraftTree, draft: Draft, scorer: Scorer, round: Round) -> None:
    assert tree.token_ids[0] == round.root
    assert tree.depths.max() <= min(draft.depth, round.max_depth)
    np.testing.assert_array_equal(tree.mask, ancestors(tree))
    siblings = Counter(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True))
    assert max(siblings.values()) == 1
    np.testing.assert_allclose(uncalibrated(tree), path_scores(tree, draft, scorer, round), atol=1e-4)


def uncalibrated(tree: DraftTree) -> np.ndarray:
    """Return the path scores by the scorer's own edges."""
    if tree.edge_log_probs is None:
        return tree.log_probs
    return np.array([tree.edge_log_probs[list(tree.path(node))].sum() for node in range(len(tree))])


def ancestors(tree: DraftTree) -> np.ndarray:
    mask = np.zeros((len(tree), len(tree)), dtype=bool)
    for node in range(len(tree)):
        mask[node, list(tree.path(node))] = True
    return mask


def path_scores(tree: DraftTree, draft: Draft, scorer: Scorer, round: Round) -> list[float]:
    """Score every node of ``tree`` afresh, along its own path."""
    scores, level, state = [0.0] * len(tree), [0], scorer.begin(draft, round)
    for depth in range(int(tree.depths.max())):
        rows = scorer.expand(draft, depth, state)
        children = np.flatnonzero(tree.depths == depth + 1).tolist()
        tokens = [int(tree.token_ids[child]) for child in children]
        parents = [level.index(tree.parents[child]) for child in children]
        for child, row, token in zip(children, parents, tokens, strict=True):
            column = rows.tokens[row].tolist().index(token)
            scores[child] = scores[tree.parents[child]] + float(rows.log_probs[row, column])
        state = scorer.advance(draft, depth, state, torch.tensor(parents), torch.tensor(tokens))
        level = children
    return scores


def check_rounds(result: GenerationResult, limit: int) -> None:
    """Follow the rounds: each starts at the last token, walks its own tree, and emits what it walked."""
    emitted = result.token_ids[:1]
    for record in result.rounds:
        tree, path = record.tree, record.path
        assert tree.token_ids[0] == emitted[-1]
        assert tree.depths.max() <= limit - len(emitted) - 1
        assert [int(tree.parents[node]) for node in path] == [-1, *path[:-1]]
        drafts = [int(tree.token_ids[node]) for node in path[1:]]
        assert list(record.token_ids[: len(drafts)]) == drafts[: len(record.token_ids)]
        emitted += record.token_ids
    assert emitted == result.token_ids


# --- token by token

worlds = st.builds(
    World,
    family=st.sampled_from(FAMILIES),
    vocab_size=st.sampled_from([3, 3, 4, 5, 8]),
    seed=st.integers(0, 999),
    form=st.integers(0, 11),
)
processing = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.7, 1.3]),
        "top_k": st.sampled_from([0, 0, 3]),
        "top_p": st.sampled_from([1.0, 1.0, 0.8]),
        "min_p": st.sampled_from([0.0, 0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.4, 0.7]),
    }
)
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=12)
lengths = st.sampled_from([1, 2, 5, 16, 20, 24, 24, 24])
stops = st.sampled_from([[], [], [], [1]])
smaller = st.sampled_from([{}, {"budget": 3}, {"budget": 9}, {"budget": 7, "calibration": "online"}])
"""Options in place of a tree preset's own: its 64 nodes often hold all that a small vocabulary has to offer."""

QUICK = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
THOROUGH = settings(QUICK, max_examples=30)
EXACT = (("greedy", 0.0), ("sampling", 0.0), ("sampling", None), ("auto", None))
"""The verifiers that reproduce plain decoding, with the temperatures they take; ``None`` is the drawn one."""


def compare(pipes: Pipes, make: Callable[..., Pipeline], verifiers: Iterable[tuple], options: Options) -> Counter[str]:
    """Compare with plain decoding under each verifier; return what was seen."""
    seen: Counter[str] = Counter()
    prompt, warm = options["prompt"], options["temperature"]
    asked = {name: value for name, value in options.items() if name != "prompt"}
    expected = {t: pipes.ar(prompt, **asked | {"temperature": t}) for t in (0.0, warm)}
    for verifier, fixed in verifiers:
        temperature = warm if fixed is None else fixed
        result = make(verifier).generate(prompt, trace=True, **asked | {"temperature": temperature})
        assert result.token_ids == expected[temperature], (verifier, temperature)
        check_rounds(result, asked["max_new_tokens"])
        seen += tally(result)
    return seen


def tally(result: GenerationResult) -> Counter[str]:
    paths = [record.path for record in result.rounds]
    return Counter(
        accepted=sum(length - 1 for length in result.acceptance_lengths),
        rejected=sum(len(record.path) <= int(record.tree.depths.max()) for record in result.rounds),
        branched=sum(path != tuple(range(len(path))) for path in paths),
        deep=sum(len(path) > 2 for path in paths),
    )


def compare_preset(preset: str, drafter_of: Callable[[str, int, int], str], effort: settings) -> Counter[str]:
    seen: Counter[str] = Counter()

    @hypothesis.seed(zlib.crc32(preset.encode()))
    @effort
    @given(worlds, processing, prompts, lengths, stops, smaller, st.integers(0, 2**40))
    def check(
        world: World, warm: Options, prompt: list[int], count: int, stop: list[int], fewer: Json, seed: int
    ) -> None:
        pipes = Pipes(world, drafter_of)
        options = {**warm, "prompt": prompt, "max_new_tokens": count, "stop_token_ids": stop, "seed": seed}
        fewer = fewer if preset in TREES else {}
        seen.update(compare(pipes, lambda v: pipes.preset(preset, builder=fewer, verifier=v), EXACT, options))

    check()
    return seen


def check_seen(preset: str, seen: Counter[str], least: int) -> None:
    """See that drafts were accepted and rejected, and in trees that accepted paths left the first nodes."""
    if preset == "ar":
        assert seen["accepted"] == 0
        return
    assert seen["accepted"] > least
    assert seen["rejected"] > least
    if preset in TREES:
        assert seen["branched"] > least
        assert seen["deep"] > least


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_equal_plain_decoding(preset: str, drafter_of: Callable[[str, int, int], str]) -> None:
    check_seen(preset, compare_preset(preset, drafter_of, QUICK), least=0)


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_equal_plain_decoding_at_length(preset: str, drafter_of: Callable[[str, int, int], str]) -> None:
    check_seen(preset, compare_preset(preset, drafter_of, THOROUGH), least=15)


# --- what cannot work is refused


@pytest.fixture(scope="module")
def plain_pipes(drafter_of: Callable[[str, int, int], str]) -> Pipes:
    return Pipes(World("llama", 8, 1, 0), drafter_of)


@pytest.mark.parametrize("preset", PRESETS)
def test_rejection_refuses_every_preset_as_it_is(preset: str, plain_pipes: Pipes) -> None:
    refusal = rf"verifier 'rejection' needs .*'{PRESETS[preset].builder.name}' does not.*chain \(by option\), sampled"
    with pytest.raises(IncompatiblePartsError, match=refusal):
        plain_pipes.preset(preset, verifier="rejection")


@pytest.mark.parametrize("preset", PRESETS)
def test_auto_is_greedy_at_temperature_0_and_sampling_above(preset: str, plain_pipes: Pipes) -> None:
    parts = plain_pipes.preset(preset).parts
    assert type(parts.verifier_for(SamplingParams())) is Greedy
    assert type(parts.verifier_for(SamplingParams(0.1))) is Sampling


@pytest.mark.parametrize("preset", PRESETS)
def test_greedy_refuses_a_temperature(preset: str, plain_pipes: Pipes) -> None:
    pipeline = plain_pipes.preset(preset, verifier="greedy")
    with pytest.raises(ConfigError, match=r"verifier 'greedy' .* temperature is 0\.7; use 'sampling'"):
        pipeline.generate(PROMPT, temperature=0.7)


@pytest.mark.parametrize("scorer", ["conditional", "chain-conditional", "trie"])
def test_scorers_refuse_a_drafter_without_what_they_read(scorer: str, plain_pipes: Pipes) -> None:
    with pytest.raises(IncompatiblePartsError, match=f"scorer '{scorer}' needs .*drafter 'dflash' does not give"):
        plain_pipes.make(PipelineConfig(drafter="dflash", scorer=scorer, builder=DRAWN_CHAIN))


# --- drawn drafts

DRAWN = tuple(
    (drafter, scorer, builder)
    for builder in (DRAWN_CHAIN, DRAWN_TREE)
    for drafter, scorers in {
        "dflash": ("marginal",),
        "domino": ("marginal", "conditional", "chain-conditional"),
        "dspark": ("marginal", "conditional", "chain-conditional"),
    }.items()
    for scorer in scorers
)
DRAWN_IDS = [f"{drafter}-{scorer}-{builder['name']}" for drafter, scorer, builder in DRAWN]


def drawn(pipes: Pipes, case: tuple[str, str, Json], verifier: str = "rejection") -> Pipeline:
    drafter, scorer, builder = case
    return pipes.make(PipelineConfig(drafter=drafter, scorer=scorer, builder=builder), verifier=verifier)


@pytest.mark.parametrize("case", DRAWN, ids=DRAWN_IDS)
def test_drawn_drafts_equal_plain_decoding(case: tuple, drafter_of: Callable[[str, int, int], str]) -> None:
    """With the verifiers that ignore how drafts came about, and with rejection at temperature 0."""
    pipes = Pipes(World("qwen3", 6, 5, 2), drafter_of)
    options = {"prompt": PROMPT, "temperature": 1.1, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 3}
    options |= {"max_new_tokens": 40, "stop_token_ids": []}
    verifiers = (("rejection", 0.0), ("greedy", 0.0), ("sampling", None), ("auto", None))
    seen = compare(pipes, lambda verifier: drawn(pipes, case, verifier), verifiers, options)
    assert min(seen["accepted"], seen["rejected"]) > 10


SAMPLINGS = (
    {"temperature": 0.7},
    {"temperature": 1.3, "repetition_penalty": 1.4},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.3, "top_p": 0.85, "min_p": 0.05},
)

SEEDS = (0, 2, 5, 2, 15, 0, 0, 8, 20, 0, 0, 1, 0, 1)
"""One world a case of ``DRAWN``, with a target that is undecided and a drafter that is often right."""


def window_probabilities(target: Target, options: Json) -> dict[tuple[int, int], float]:
    """Return the target's own distribution of the second and third token after ``PROMPT``, by plain forwards."""
    sampling, tokens = SamplingParams(**options), range(target.vocab_size)
    pairs = torch.tensor([(*PROMPT, a, b) for a in tokens for b in tokens])
    with torch.no_grad():
        logits = target.model(pairs).logits[:, len(PROMPT) - 1 :]
    cells: Counter[tuple[int, int]] = Counter()
    for ids, rows in zip(pairs, logits, strict=True):
        steps = [processed_distribution(rows[i], ids[: len(PROMPT) + i], sampling) for i in range(3)]
        a, b = ids[-2:].tolist()
        for c, share in enumerate(steps[2].tolist()):
            cells[b, c] += float(steps[0][a]) * float(steps[1][b]) * share
    return dict(cells)


def windows(pipeline: Pipeline, options: Json, seeds: Iterable[int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the window of each seed and how many drafts were accepted on the way; trees look beyond the window."""
    for seed in seeds:
        tokens: list[int] = []
        accepted = 0
        for piece in pipeline.stream(PROMPT, max_new_tokens=9, stop_token_ids=[], seed=seed, **options):
            tokens += piece.token_ids
            accepted += len(piece.token_ids) - 1
            if len(tokens) >= 3:
                break
        yield (tokens[1], tokens[2]), accepted


def rejection_p_values(cases: Sequence[tuple], drafter_of: Callable[[str, int, int], str], samples: int) -> list[float]:
    """Return the p-value of each case; see to it that each puts something to the test."""
    found = []
    for index, (case, seed) in enumerate(zip(cases, SEEDS, strict=False)):
        world = World(FAMILIES[index % 2], 4 + index % 5, seed, index)
        options = SAMPLINGS[index % len(SAMPLINGS)]
        expected = window_probabilities(world.target, options)
        assert max(expected.values()) < 0.4
        pipeline = unchecked(drawn(Pipes(world, drafter_of), case))
        outcomes = list(windows(pipeline, options, range(samples)))
        assert sum(drafts for _, drafts in outcomes) > samples / 2
        found.append(g_test(Counter(cells for cells, _ in outcomes), expected))
    return found


def unchecked(pipeline: Pipeline) -> Pipeline:
    """Drop the checks on trees, which would take as long as the rest."""
    return with_builder(pipeline, lambda builder: builder.inner)


def combined(p_values: Sequence[float]) -> float:
    """Combine independent p-values by Fisher's method: a bias that no case shows alone may show in all together."""
    return float(scipy.stats.combine_pvalues(np.maximum(p_values, 1e-300)).pvalue)


def check_rejection(drafter_of: Callable[[str, int, int], str], samples: int) -> None:
    assert len(SEEDS) == len(DRAWN)
    p_values = rejection_p_values(DRAWN, drafter_of, samples)
    assert min(p_values) > SIGNIFICANCE
    assert combined(p_values) > SIGNIFICANCE


def test_rejection_has_the_targets_distribution(drafter_of: Callable[[str, int, int], str]) -> None:
    check_rejection(drafter_of, samples=60)


@pytest.mark.slow
def test_rejection_has_the_targets_distribution_at_length(drafter_of: Callable[[str, int, int], str]) -> None:
    check_rejection(drafter_of, samples=500)


# --- mutants


def best_in_place_of_draws(q: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    return q.argsort(dim=1, descending=True)[:, : len(uniforms)]


def test_deterministic_candidates_accepted_with_min_1_p_over_q_are_caught(
    drafter_of: Callable[[str, int, int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "draw_without_replacement", best_in_place_of_draws)
    p_values = rejection_p_values(DRAWN[:4], drafter_of, samples=80)
    assert combined(p_values) < SIGNIFICANCE


def differs(presets: Iterable[str], drafter_of: Callable[[str, int, int], str]) -> bool:
    """Whether any generation differs from plain decoding, on fixed worlds; trees go unchecked."""
    for preset, seed, family in itertools.product(presets, range(3), FAMILIES):
        pipes = Pipes(World(family, 12, seed, 0), drafter_of)
        pipeline = unchecked(pipes.preset(preset))
        for temperature in (0.9, 0.0):
            # The penalty keeps a greedy text from repeating itself.
            options = {"temperature": temperature, "repetition_penalty": 1.3, "seed": seed}
            options |= {"max_new_tokens": 24, "stop_token_ids": []}
            if pipeline.generate(PROMPT, **options).token_ids != pipes.ar(PROMPT, **options):
                return True
    return False


SOME_TREES = ("ddtree", "dominotree", "dartree")


def sees_a_sibling(tree: DraftTree) -> np.ndarray:
    mask = ancestors(tree)
    for node in range(1, len(tree)):
        mask[node, tree.children(tree.parents[node])[0]] = True
    return mask


def misses_its_parent(tree: DraftTree) -> np.ndarray:
    mask = ancestors(tree)
    mask[np.arange(1, len(tree)), tree.parents[1:]] = False
    return mask


def one_node_off(tree: DraftTree) -> np.ndarray:
    mask = ancestors(tree)
    mask[2:] = mask[1:-1]
    return mask | np.eye(len(tree), dtype=bool)


def commit_first(path: list[int]) -> list[int]:
    return list(range(len(path)))


def commit_a_neighbour(path: list[int]) -> list[int]:
    return [*path[:-1], path[-1] - 1] if len(path) > 1 and path[-1] - 1 > path[-2] else path


def commit_one_less(path: list[int]) -> list[int]:
    return path[:-1] if len(path) > 1 else path


def test_what_the_mutants_break_is_whole(drafter_of: Callable[[str, int, int], str]) -> None:
    assert not differs(SOME_TREES, drafter_of)


@pytest.mark.parametrize("preset", SOME_TREES)
@pytest.mark.parametrize("wrong", [sees_a_sibling, misses_its_parent, one_node_off])
def test_a_wrong_mask_is_caught(
    preset: str,
    wrong: Callable[[DraftTree], np.ndarray],
    drafter_of: Callable[[str, int, int], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DraftTree, "mask", property(wrong))
    assert differs([preset], drafter_of)


@pytest.mark.parametrize("preset", SOME_TREES)
@pytest.mark.parametrize("wrong", [commit_first, commit_a_neighbour, commit_one_less])
def test_a_wrong_commit_is_caught(
    preset: str,
    wrong: Callable[[list[int]], list[int]],
    drafter_of: Callable[[str, int, int], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = TreeCache.commit
    monkeypatch.setattr(TreeCache, "commit", lambda cache, path: commit(cache, wrong(list(path))))
    assert differs([preset], drafter_of)


@define(eq=False)
class WrongParent(TreeBuilder):
    """Hangs the last node at depth 2 that can be moved under a sibling of its parent."""

    inner: TreeBuilder

    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        tree = self.inner.build(draft, scorer, round)
        for node in reversed(np.flatnonzero(tree.depths == 2).tolist()):
            for other in tree.children(0):
                fits = other < node and tree.child_with_token(other, tree.token_ids[node]) is None
                if other != tree.parents[node] and fits:
                    parents = tree.parents.copy()
                    parents[node] = other
                    return evolve(tree, parents=parents)
        return tree


@pytest.mark.parametrize("preset", SOME_TREES)
def test_a_wrong_parent_is_caught(preset: str, drafter_of: Callable[[str, int, int], str]) -> None:
    """Any tree is verified losslessly, so the check on scores along paths must be the one that sees it."""
    pipeline = Pipes(World("llama", 12, 0, 0), drafter_of).preset(preset)
    pipeline.generate(PROMPT, max_new_tokens=20, stop_token_ids=[])
    wrong = with_builder(unchecked(pipeline), lambda builder: Checked(WrongParent(builder)))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        wrong.generate(PROMPT, max_new_tokens=20, stop_token_ids=[])


def test_parents_lost_in_the_depthwise_builder_are_caught(
    drafter_of: Callable[[str, int, int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grow = depthwise.grow

    def forgetful(*arguments: Any) -> depthwise.Supertree:
        """Keep, of each node, not its own parent but the one of the node before it."""
        tree = grow(*arguments)
        return evolve(tree, rows=torch.cat([tree.rows[:1], tree.rows[:-1]]))

    monkeypatch.setattr(depthwise, "grow", forgetful)
    with pytest.raises((AssertionError, ValueError)):
        Pipes(World("llama", 12, 0, 0), drafter_of).preset("dartree").generate(PROMPT, stop_token_ids=[])
