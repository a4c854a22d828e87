"""Prompt lookup against a brute-force search, and the trie that its scorer reads."""

from __future__ import annotations

import math

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from specforge.continuations import ContinuationTrie
from specforge.drafters.ngram import Ngram, NgramSession
from specforge.drafters.none import NoDrafter
from specforge.errors import ConfigError
from specforge.interfaces import Draft, Round
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.strategies.chain import Chain
from specforge.strategies.trie import Trie

QUICK = settings(max_examples=150, deadline=None, derandomize=True)

texts = st.lists(st.integers(0, 2), min_size=1, max_size=24)
configs = st.builds(
    lambda low, extra, length, matches, decay: Ngram(low + extra, low, length, matches, decay),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from([0.5, 0.3, 1.0]),
)


def make_round(text: list[int], max_depth: int = 99) -> Round:
    return Round(torch.tensor(text), max_depth, SamplingParams(), KeyedUniforms())


def draft_after(config: Ngram, text: list[int]) -> Draft:
    session = config.start(torch.tensor(text[:-1], dtype=torch.int64), None)
    return session.draft(make_round(text))


def continuations(config: Ngram, text: list[int]) -> list[list[int]]:
    """Search all of ``text`` for its longest suffix that occurred before; most recent occurrence first."""
    for n in range(config.max_ngram, config.min_ngram - 1, -1):
        starts = [i for i in range(n, len(text)) if text[i - n : i] == text[-n:]] if n < len(text) else []
        if starts:
            found = []
            for start in starts[::-1][: config.max_matches]:
                extended = list(text)
                for _ in range(config.length):
                    extended.append(extended[start + len(extended) - len(text)])
                found.append(extended[len(text) :])
            return found
    return []


def paths_of(trie: ContinuationTrie, node: int = 0) -> dict[tuple[int, ...], float]:
    """Return every path of the trie with its probability."""
    found = {}
    for token, log_prob in trie.ranked(node):
        below = paths_of(trie, trie.child(node, token))
        found[(token,)] = math.exp(log_prob)
        found |= {(token, *path): math.exp(log_prob) * p for path, p in below.items()}
    return found


def assert_same_paths(got: dict[tuple[int, ...], float], wanted: dict[tuple[int, ...], float]) -> None:
    assert got.keys() == wanted.keys()
    for path, probability in wanted.items():
        assert got[path] == pytest.approx(probability)


def weighted_paths(config: Ngram, found: list[list[int]]) -> dict[tuple[int, ...], float]:
    total = sum(config.decay**age for age in range(len(found)))
    wanted: dict[tuple[int, ...], float] = {}
    for age, tokens in enumerate(found):
        for length in range(1, len(tokens) + 1):
            prefix = tuple(tokens[:length])
            wanted[prefix] = wanted.get(prefix, 0.0) + config.decay**age / total
    return wanted


@QUICK
@given(configs, texts)
def test_a_draft_is_what_a_search_of_the_whole_text_finds(config: Ngram, text: list[int]) -> None:
    draft = draft_after(config, text)
    found = continuations(config, text)
    assert draft.depth == (config.length if found else 0)
    assert_same_paths(paths_of(draft.payload), weighted_paths(config, found))


def test_the_search_tells_wrong_orders_apart() -> None:
    config, text = Ngram(2, 1, 2, 4), [1, 2, 0, 1, 2, 1, 3, 2, 5, 1, 2]
    right = paths_of(draft_after(config, text).payload)
    oldest_first = weighted_paths(config, continuations(config, text)[::-1])
    shortest_match = weighted_paths(config, continuations(evolve(config, max_ngram=1), text))
    for wrong in (oldest_first, shortest_match):
        with pytest.raises(AssertionError):
            assert_same_paths(right, wrong)


@QUICK
@given(configs, texts, st.lists(st.integers(1, 5), max_size=6))
def test_committing_in_pieces_is_starting_with_the_whole(config: Ngram, text: list[int], pieces: list[int]) -> None:
    session = config.start(torch.tensor(text[:1], dtype=torch.int64), None)
    at = 1
    for piece in [*pieces, len(text)]:
        end = min(at + piece, len(text) - 1)
        if end > at:
            session.draft(make_round(text[: at + 1]))
            session.commit(torch.tensor(text[at:end]), None)
            at = end
    if len(text) > 1:
        whole = draft_after(config, text)
        assert_same_paths(paths_of(session.draft(make_round(text)).payload), paths_of(whole.payload))


@QUICK
@given(texts)
def test_a_chain_follows_the_most_recent_match_to_the_end(text: list[int]) -> None:
    config = Ngram(3, 1, 5, 4, 0.5)
    draft, round = draft_after(config, text), make_round(text)
    found = continuations(config, text)
    tree = Chain().build(draft, Trie(), round)
    assert tree.token_ids.tolist() == [text[-1], *(found[0] if found else [])]


def test_periodic_text_is_continued_in_full() -> None:
    draft = draft_after(Ngram(length=7), [9, 1, 2, 1, 2])
    assert list(max(paths_of(draft.payload), key=len)) == [1, 2, 1, 2, 1, 2, 1]


@pytest.mark.parametrize("text", [[1], [1, 2], [3, 1, 2, 3, 4]])
def test_without_a_match_nothing_is_drafted(text: list[int]) -> None:
    draft = draft_after(Ngram(), text)
    assert draft.depth == 0
    assert len(Chain().build(draft, Trie(), make_round(text))) == 1


def test_streams_share_no_state() -> None:
    config = Ngram(min_ngram=1)
    one = config.start(torch.tensor([1, 2, 3]), None)
    other = config.start(torch.tensor([4, 5]), None)
    one.commit(torch.tensor([1, 2]), None)
    assert other.draft(make_round([4, 5, 1])).depth == 0
    assert one.draft(make_round([1, 2, 3, 1, 2, 1])).depth == 8


def test_a_round_reads_no_history() -> None:
    class Unreadable(list):
        def __iter__(self):
            raise AssertionError("the whole history was read")

    session = NgramSession(Ngram(min_ngram=1))
    session.commit(torch.tensor([1, 2, 3] * 50), None)
    session._tokens = Unreadable(session._tokens)
    assert session.draft(make_round([1])).depth == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_ngram": 0}, "max_ngram is 0"),
        ({"min_ngram": 0}, "min_ngram is 0"),
        ({"length": 1.5}, "length is 1.5"),
        ({"max_matches": True}, "max_matches is True"),
        ({"min_ngram": 5, "max_ngram": 3}, "at most max_ngram, 3"),
        ({"decay": 0.0}, r"decay is 0.0; it must be in \(0, 1\]"),
        ({"decay": 1.1}, "decay is 1.1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Ngram(**options)


# --- the scorer


def test_rows_are_ranked_and_padded_to_one_width() -> None:
    trie = ContinuationTrie([((1, 2), 1.0), ((3, 4), 2.0), ((0, 5), 1.0), ((3, 6), 2.0)])
    draft, scorer = Draft(2, payload=trie), Trie()
    state = scorer.begin(draft, make_round([7]))
    top = scorer.expand(draft, 0, state)
    assert top.tokens.tolist() == [[3, 0, 1]]
    assert top.log_probs.exp().tolist() == [pytest.approx([4 / 6, 1 / 6, 1 / 6])]
    state = scorer.advance(draft, 0, state, torch.tensor([0, 0, 0]), torch.tensor([3, 1, 8]))
    below = scorer.expand(draft, 1, state)
    assert below.tokens[0, :2].tolist() == [4, 6]
    assert below.tokens[1, 0] == 2
    assert below.log_probs.isfinite().sum(1).tolist() == [2, 1, 0]
    assert below.tokens.shape[1] == top.tokens.shape[1]
    swapped = scorer.expand(draft, 1, state.select(torch.tensor([1, 0])))
    assert torch.equal(swapped.tokens, below.tokens[[1, 0]])


def test_a_builder_that_uses_one_child_gets_one() -> None:
    trie = ContinuationTrie([((1,), 1.0), ((2,), 3.0)])
    draft, scorer = Draft(1, payload=trie), Trie()
    state = scorer.begin(draft, evolve(make_round([7]), max_children=1))
    row = scorer.expand(draft, 0, state)
    assert row.tokens.tolist() == [[2]]
    assert row.log_probs.tolist() == [[pytest.approx(math.log(0.75))]]


def test_a_payload_that_is_no_trie_is_refused() -> None:
    with pytest.raises(TypeError, match="NoneType, not a ContinuationTrie"):
        Trie().begin(Draft(1), make_round([1]))


def test_the_drafter_none_drafts_nothing() -> None:
    session = NoDrafter().start(torch.tensor([1]), None)
    session.commit(torch.tensor([1]), None)
    assert session.draft(make_round([1, 2])).depth == 0
