"""What the eager heads share and precompute changes no number, and backends are chosen or refused by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from checkpoint_factory import domino, dspark, tiny_target, write
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from specforge.correction import backends, linear
from specforge.correction.backends import CorrectionBackend, backend_names, register_backend, run_on
from specforge.correction.domino import DominoCorrection, input_table
from specforge.correction.markov import MarkovCorrection
from specforge.drafters.domino import DominoDrafter
from specforge.drafters.dspark import DSparkDrafter
from specforge.errors import ConfigError, IncompatiblePartsError, UnknownNameError
from specforge.interfaces import CorrectionHead, Draft

CPU = torch.device("cpu")
VOCABULARY, HIDDEN, STATE, INNER, DEPTH = 50, 12, 10, 6, 3


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.4


def random_head(seed: int = 0, **options: Any) -> DominoCorrection:
    embedding = random(VOCABULARY, HIDDEN, seed=seed + 1)
    return DominoCorrection(
        lambda tokens: F.embedding(tokens, embedding),
        random(3 * STATE, HIDDEN, seed=seed + 2),
        random(3 * STATE, STATE, seed=seed + 3),
        random(INNER, HIDDEN + STATE, seed=seed + 4),
        random(VOCABULARY, INNER, seed=seed + 5),
        **options,
    )


def with_table(head: DominoCorrection) -> DominoCorrection:
    return attrs.evolve(head, input_table=input_table(head.embed, head.input_weight, VOCABULARY))


def walk(head: CorrectionHead, candidates: Tensor | None) -> list[Tensor]:
    """Return the corrections along two levels, over the slice or over the vocabulary."""
    draft = Draft(DEPTH, hidden=random(DEPTH, HIDDEN, seed=9))
    state = head.begin(draft, torch.tensor([4]))
    state = state if candidates is None else head.prepare(state, candidates)
    found = [head.correct(draft, 0, state, None if candidates is None else candidates[0])]
    for depth, (rows, tokens) in enumerate([([0, 0, 0], [3, 7, 3]), ([2, 0, 2, 1], [9, 9, 1, 9])]):
        state = head.advance(draft, depth, state, torch.tensor(rows), torch.tensor(tokens))
        row = None if candidates is None else candidates[depth + 1]
        found.append(head.correct(draft, depth + 1, state.select(torch.arange(len(rows))), row))
    return found


def test_the_host_runs_small_16_bit_heads_in_float32() -> None:
    head = with_table(random_head())
    names = ["input_weight", "state_weight", "down", "up", "input_table"]
    narrow = attrs.evolve(head, **{name: getattr(head, name).bfloat16() for name in names})
    rounded = attrs.evolve(head, **{name: getattr(narrow, name).float() for name in names})
    wide = run_on("eager", narrow, CPU)
    exact = walk(rounded, None)
    # what is left of 16 bits is in the output rows, whose product is in theirs over the vocabulary, and only there
    slices = torch.arange(VOCABULARY).expand(DEPTH, -1)
    same = zip(walk(wide, slices), walk(run_on("eager", rounded, CPU), slices), strict=True)
    assert all(torch.equal(one, other) for one, other in same)
    for one, other in zip(walk(wide, None), exact, strict=True):
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, atol=1e-2, rtol=2e-2)


def test_the_host_runs_large_16_bit_heads_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specforge.correction.domino.LARGE_WEIGHT", 1)
    head = random_head()
    narrow = attrs.evolve(head, state_weight=head.state_weight.bfloat16(), down=head.down.bfloat16())
    assert run_on("eager", narrow, CPU) is narrow


@pytest.mark.parametrize("large", [1, 1 << 20], ids=["shared", "unshared"])
def test_a_table_of_input_products_changes_no_number(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "LARGE_WEIGHT", large)
    head = random_head()
    for one, other in zip(walk(head, None), walk(with_table(head), None), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    wrong = attrs.evolve(with_table(head), input_table=with_table(head).input_table.roll(1, 0))
    assert not torch.allclose(walk(head, None)[0], walk(wrong, None)[0], atol=1e-3)


def test_a_table_is_made_in_chunks_that_cover_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    head = random_head()
    whole = with_table(head).input_table
    sizes: list[int] = []

    def embed(tokens: Tensor) -> Tensor:
        sizes.append(len(tokens))
        return head.embed(tokens)

    monkeypatch.setattr("specforge.correction.domino._TABLE_CHUNK", 16)
    torch.testing.assert_close(input_table(embed, head.input_weight, VOCABULARY), whole)
    assert sizes == [16, 16, 16, 2]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 100), count=st.integers(1, 9))
def test_slices_are_columns_of_the_whole(seed: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    candidates = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:count] for _ in range(DEPTH)])
    codes = random(VOCABULARY, INNER, seed=seed)
    for head in (random_head(seed), MarkovCorrection(codes, random(VOCABULARY, INNER, seed=seed + 1))):
        for depth, (part, whole) in enumerate(zip(walk(head, candidates), walk(head, None), strict=True)):
            assert part.dtype == torch.float32
            torch.testing.assert_close(part, whole[:, candidates[depth]], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 6, 7, 12, 256, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_either_way_round_gives_the_product(rows: int, dtype: torch.dtype, biased: bool) -> None:
    weight, inputs = random(1024, 1024, seed=1).to(dtype), random(rows, 1024, seed=2).to(dtype)
    bias = random(1024, seed=3).to(dtype) if biased else None
    exact = inputs.double() @ weight.double().t() + (0 if bias is None else bias.double())
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    found = linear.project(inputs, weight, bias)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, atol=tolerance, rtol=tolerance)
    index = torch.arange(rows).flip(0) // 2
    shared = linear.project_at(lambda distinct: inputs[distinct], index, weight)
    product = exact if bias is None else exact - bias.double()
    torch.testing.assert_close(shared.double(), product[index], atol=tolerance, rtol=tolerance)


def test_a_large_weight_meets_each_row_once() -> None:
    weight, inputs, seen = random(1024, 1024, seed=1), random(9, 1024, seed=2), []

    def source(index: Tensor) -> Tensor:
        seen.append(index.tolist())
        return inputs[index]

    linear.project_at(source, torch.tensor([4, 0, 4, 4, 8, 0]), weight)
    linear.project_at(source, torch.tensor([4, 0, 4]), weight[:8])
    assert seen == [[0, 4, 8], [4, 0, 4]]


class Elsewhere(CorrectionBackend):
    """Runs Domino heads, on devices that are not here."""

    rank = 5

    def lacks(self, device: torch.device) -> str | None:
        return None if device.type == "meta" else "it needs a meta device"

    def run(self, head: CorrectionHead) -> CorrectionHead | None:
        return attrs.evolve(head, first_corrected=99) if isinstance(head, DominoCorrection) else None


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(backends, "_backends", dict(backends._backends))
    register_backend("elsewhere")(Elsewhere)
    return "elsewhere"


def test_auto_takes_the_fastest_that_runs_the_head_on_the_device(elsewhere: str) -> None:
    head = random_head()
    vanilla = MarkovCorrection(head.up, head.up)
    assert run_on("auto", vanilla, CPU) is vanilla
    tuned = run_on("auto", head, CPU)
    assert type(tuned) is DominoCorrection
    for name in ("state_weight", "down", "down_hidden", "down_state"):
        assert torch.equal(getattr(tuned, name), getattr(head, name))
        assert getattr(tuned, name).stride() == (1, getattr(head, name).shape[0])
    assert run_on("auto", head, torch.device("meta")).first_corrected == 99
    assert run_on("auto", vanilla, torch.device("meta")) is vanilla
    assert run_on("eager", vanilla, torch.device("meta")) is vanilla


def test_refuses_a_backend_that_the_device_lacks(elsewhere: str) -> None:
    head = random_head()
    with pytest.raises(IncompatiblePartsError, match=r"'elsewhere' cannot run on cpu: it needs a meta device; .*eager"):
        run_on(elsewhere, head, CPU)
    with pytest.raises(IncompatiblePartsError, match="has no implementation of MarkovCorrection; use 'eager'"):
        run_on(elsewhere, MarkovCorrection(head.up, head.up), torch.device("meta"))


def test_names_are_checked(elsewhere: str) -> None:
    assert {"eager", elsewhere} <= set(backend_names())
    with pytest.raises(UnknownNameError, match="unknown correction backend 'eagre'; did you mean 'eager'"):
        run_on("eagre", random_head(), CPU)
    for name in ("auto", "eager"):
        with pytest.raises(ConfigError, match="registered already"):
            register_backend(name)(Elsewhere)
    assert register_backend(elsewhere)(Elsewhere) is Elsewhere


@pytest.mark.parametrize(("kind", "checkpoint"), [(DominoDrafter, domino), (DSparkDrafter, dspark)])
def test_drafters_take_a_backend_by_name(tmp_path: Path, elsewhere: str, kind: Any, checkpoint: Any) -> None:
    folder = write(tmp_path, *checkpoint())
    for name in ("auto", "eager"):
        drafter = kind(folder, correction=name)
        drafter.bind(tiny_target())
        assert isinstance(drafter.bound.correction, DominoCorrection | MarkovCorrection)
    for name in ("fast", 3, None):
        with pytest.raises(UnknownNameError, match=f"unknown correction backend {name!r}"):
            kind(folder, correction=name)
    with pytest.raises(IncompatiblePartsError, match="cannot run on cpu"):
        kind(folder, correction=elsewhere).bind(tiny_target())


def test_the_table_is_made_where_it_fits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="specforge")
    folder = write(tmp_path, *domino())
    tables = []
    for limit in (0, 1e-4, 256):
        drafter = DominoDrafter(folder, input_table_limit=limit)
        drafter.bind(tiny_target())
        tables.append(drafter.bound.correction.input_table)
    assert tables[0] is None
    assert tables[1] is None
    assert tables[2].numel() * tables[2].element_size() > 1e-4 * 2**20
    assert [message.rsplit(": ")[-1] for message in caplog.messages] == ["not made", "not made", "made"]
    for limit in (-1, True, "all", float("nan")):
        with pytest.raises(ConfigError, match=r"input_table_limit is .*(at least 0|a finite number)"):
            DominoDrafter(folder, input_table_limit=limit)
