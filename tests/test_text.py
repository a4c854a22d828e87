"""Text piece by piece: the pieces concatenate to the whole, and stop strings cut it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specforge.text import TextStream


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token a byte: characters of several bytes span tokens."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Words that start with a space, which is left out at the start of a text, as SentencePiece does it."""
    words = ["<unk>", *(f"▁{word}" for word in ("the", "cat", "sat", "on", "a", "mat")), "s", "."]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


BYTES, WORDS = byte_tokenizer(), word_tokenizer()


def pieces(tokenizer: PreTrainedTokenizerFast, ids: list[int], sizes: list[int]) -> list[str]:
    stream, found, rest = TextStream(tokenizer), [], list(ids)
    for size in [*sizes, len(rest)]:
        for token in rest[:size]:
            stream.push(token)
        rest = rest[size:]
        found.append(stream.new_text())
    return [*found, stream.new_text(final=True)]


@given(st.text(max_size=60), st.lists(st.integers(1, 20), max_size=20))
def test_pieces_of_any_characters_concatenate_to_the_text(text: str, sizes: list[int]) -> None:
    ids = BYTES(text).input_ids
    assert "".join(pieces(BYTES, ids, sizes)) == text == BYTES.decode(ids)


@given(st.lists(st.integers(1, len(WORDS) - 1), max_size=80), st.lists(st.integers(1, 20), max_size=20))
def test_spaces_between_words_are_those_of_the_whole_text(ids: list[int], sizes: list[int]) -> None:
    assert "".join(pieces(WORDS, ids, sizes)) == WORDS.decode(ids)


@given(st.lists(st.integers(0, 255), max_size=50))
def test_broken_bytes_lose_no_text(ids: list[int]) -> None:
    assert "".join(pieces(BYTES, ids, [1] * len(ids))) == BYTES.decode(ids)


def test_no_piece_holds_half_a_character() -> None:
    ids = BYTES("aé日🙂b").input_ids
    assert [p for p in pieces(BYTES, ids, [1] * len(ids)) if p] == ["a", "é", "日", "🙂", "b"]


@pytest.mark.parametrize("lead", [0, 3, 40])
def test_text_ends_with_the_first_stop_string(lead: int) -> None:
    text = "x" * lead + "one STOP two END"
    stream = TextStream(BYTES, ("END", "STOP"))
    ids = BYTES(text).input_ids
    stopped = next(index for index, token in enumerate(ids) if stream.push(token))
    assert stream.text == "x" * lead + "one STOP"
    assert stopped == lead + len("one STOP") - 1
    assert stream.new_text(final=True) == stream.text


def test_a_stop_string_inside_a_token_cuts_the_token() -> None:
    stream = TextStream(WORDS, ("ca",))
    assert [stream.push(token) for token in WORDS.convert_tokens_to_ids(["▁the", "▁cat"])] == [False, True]
    assert stream.text == "the ca"
