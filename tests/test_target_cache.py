"""The KV cache against a list: appending, committing in place, growing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specforge.target.cache import TreeCache, TreeLayer

LAYERS, HEADS, DIM = 3, 2, 4


def append(cache: TreeCache, values: list[int]) -> None:
    """Write entries whose every element is the value, in every layer and head; values get the negative."""
    keys = torch.tensor(values, dtype=torch.float32)[None, None, :, None].expand(1, HEADS, len(values), DIM)
    for layer in range(len(cache)):
        seen_keys, seen_values = cache.update(keys + layer, -keys - layer, layer)
        assert seen_keys.shape == seen_values.shape == (1, HEADS, cache.length + len(values), DIM)


def contents(cache: TreeCache) -> list[int]:
    """The committed entries, after checking that all layers, heads and elements agree."""
    for index, layer in enumerate(cache.layers):
        keys, values = (t[:, :, : cache.length] for t in (layer.keys, layer.values))
        assert torch.equal(keys, keys[:, :1, :, :1].expand_as(keys))
        assert torch.equal(keys - index, cache.layers[0].keys[:, :, : cache.length])
        assert torch.equal(values, -keys)
    return cache.layers[0].keys[0, 0, : cache.length, 0].int().tolist()


paths = st.integers(1, 12).flatmap(
    lambda count: st.tuples(st.just(count), st.sets(st.integers(1, count - 1)) if count > 1 else st.just(set()))
)


def replay(rounds: list[tuple[int, set[int]]], capacity: int) -> None:
    cache, expected, fresh = TreeCache(LAYERS, capacity), [], 0
    for count, kept in rounds:
        entries = list(range(fresh, fresh + count))
        fresh += count
        append(cache, entries)
        assert cache.pending == count
        path = [0, *sorted(kept)]
        cache.commit(path)
        expected += [entries[node] for node in path]
        assert cache.length == len(expected)
        assert cache.pending == 0
        assert contents(cache) == expected


@settings(max_examples=150, deadline=None)
@given(st.lists(paths, min_size=1, max_size=6), st.integers(1, 40))
def test_commit_keeps_the_path_and_nothing_else(rounds: list[tuple[int, set[int]]], capacity: int) -> None:
    replay(rounds, capacity)


def test_the_property_catches_a_copy_that_overwrites_its_own_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(self: TreeLayer, kept: int, moved: torch.Tensor | None) -> None:
        sources = [] if moved is None else moved.tolist()
        for offset, source in reversed(list(enumerate(sources))):
            for entries in (self.keys, self.values):
                entries[:, :, self.length + kept + offset] = entries[:, :, source]
        self.length, self.pending = self.length + kept + len(sources), 0

    monkeypatch.setattr(TreeLayer, "commit", commit)
    with pytest.raises(AssertionError):
        replay([(4, {2, 3})], capacity=8)


def test_the_property_catches_growth_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TreeLayer, "_moved", lambda self, old: torch.zeros_like(self._allocate(old)))
    with pytest.raises(AssertionError):
        replay([(3, {1, 2}), (3, {1, 2})], capacity=4)


def test_an_empty_path_drops_everything() -> None:
    cache = TreeCache(LAYERS, 8)
    append(cache, [1, 2])
    cache.commit((0, 1))
    append(cache, [3, 4])
    cache.commit(())
    assert contents(cache) == [1, 2]


def test_a_forward_before_the_commit_overwrites_what_was_pending() -> None:
    cache = TreeCache(LAYERS, 8)
    append(cache, [1, 2, 3])
    append(cache, [4])
    cache.commit((0,))
    assert contents(cache) == [4]


@pytest.mark.parametrize("path", [(1,), (0, 2, 1), (0, 0), (0, 3), (0, 1, 5)])
def test_paths_that_are_none_are_refused(path: tuple[int, ...]) -> None:
    cache = TreeCache(LAYERS, 8)
    append(cache, [1, 2, 3])
    with pytest.raises(ValueError, match=str(path[-1])):
        cache.commit(path)


def test_capacity_doubles_and_is_not_taken_before_use() -> None:
    cache = TreeCache(LAYERS, 4)
    assert cache.nbytes == 0
    append(cache, [1, 2, 3])
    assert cache.capacity == 4
    assert cache.nbytes == LAYERS * 2 * HEADS * 4 * DIM * 4
    cache.commit((0, 1, 2))
    append(cache, [4, 5])
    assert cache.capacity == 8
    append(cache, list(range(20)))
    assert cache.capacity == 23
    with pytest.raises(ValueError, match="capacity is 0"):
        TreeCache(LAYERS, 0)


def test_no_step_copies_the_prefix() -> None:
    cache = TreeCache(LAYERS, 64)
    append(cache, [1, 2, 3])
    cache.commit((0, 1, 2))
    before = [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in cache.layers]
    keys = torch.zeros(1, HEADS, 5, DIM)
    for index, layer in enumerate(cache.layers):
        for seen, stored in zip(cache.update(keys, keys, index), (layer.keys, layer.values), strict=True):
            assert seen.data_ptr() == stored.data_ptr()
    cache.commit((0, 2, 4))
    assert [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in cache.layers] == before
