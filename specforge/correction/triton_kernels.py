"""Triton kernels of the correction and of a depth of a tree.

Products, sums and gates are float32 whatever the dtype of the weights. Matrices are row-major with unit last strides;
blocks are powers of two of at least 16, and sizes need not be multiples of them. What a kernel makes of a node does
not depend on the other nodes of its batch.
"""

# Triton compiles signatures too, and knows no annotations but its own.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import triton
import triton.language as tl

SILU, GATE, TANH = 0, 1, 2
"""What ``inner_kernel`` makes of its sum."""


@triton.jit
def load_left(left, rows, inside, stride, first, size, BLOCK_K: tl.constexpr):
    """Load ``[n, BLOCK_K]``: columns from ``first`` on of ``rows`` of ``left`` ``[., size]``."""
    column = first + tl.arange(0, BLOCK_K)
    at = left + rows[:, None] * stride + column[None, :]
    return tl.load(at, mask=inside[:, None] & (column < size)[None, :], other=0.0)


INTERPRETED = tl.constexpr(type(load_left).__name__ == "InterpretedFunction")
"""Whether kernels run under Triton's interpreter, which multiplies blocks of bfloat16 as if they were integers."""


@triton.jit
def add_product(total, left, weight, rows, inside, stride, first, size, BLOCK_K: tl.constexpr):
    """Return ``total`` ``[n, m]`` plus ``left`` ``[n, BLOCK_K]`` times those columns of ``rows`` of ``weight``."""
    column = first + tl.arange(0, BLOCK_K)
    at = weight + rows[None, :] * stride + column[:, None]
    right = tl.load(at, mask=inside[None, :] & (column < size)[:, None], other=0.0)
    if INTERPRETED:
        left = left.to(tl.float32)
    return tl.dot(left, right.to(left.dtype), total, input_precision="ieee")


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent of float32 ``x``."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def gru_kernel(
    states,
    rows,
    inputs,
    tokens,
    weight,
    out,
    count,
    size,
    BY_TOKEN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_U: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Run a bias-free GRU cell for a batch of nodes.

    ``states`` ``[., size]`` at ``rows`` ``[count]`` are the parents'. ``inputs`` ``[., 3 size]`` is what the input
    weights made of tokens: of all, read at ``tokens`` ``[count]``, where ``BY_TOKEN``, else a row a node. ``weight``
    is ``[3 size, size]``, ``out`` ``[count, size]``.
    """
    node = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    unit = tl.program_id(1) * BLOCK_U + tl.arange(0, BLOCK_U)
    node_in, unit_in = node < count, unit < size
    parent = tl.load(rows + node, mask=node_in, other=0)
    reset = tl.zeros((BLOCK_N, BLOCK_U), dtype=tl.float32)
    update = tl.zeros((BLOCK_N, BLOCK_U), dtype=tl.float32)
    new = tl.zeros((BLOCK_N, BLOCK_U), dtype=tl.float32)
    for first in range(0, size, BLOCK_K):
        left = load_left(states, parent, node_in, size, first, size, BLOCK_K)
        reset = add_product(reset, left, weight, unit, unit_in, size, first, size, BLOCK_K)
        update = add_product(update, left, weight, size + unit, unit_in, size, first, size, BLOCK_K)
        new = add_product(new, left, weight, 2 * size + unit, unit_in, size, first, size, BLOCK_K)
    both = node_in[:, None] & unit_in[None, :]
    given = node.to(tl.int64)
    if BY_TOKEN:
        given = tl.load(tokens + node, mask=node_in, other=0)
    given_at = inputs + given[:, None] * (3 * size) + unit[None, :]
    reset = tl.sigmoid(tl.load(given_at, mask=both, other=0.0).to(tl.float32) + reset)
    update = tl.sigmoid(tl.load(given_at + size, mask=both, other=0.0).to(tl.float32) + update)
    new = tanh(tl.load(given_at + 2 * size, mask=both, other=0.0).to(tl.float32) + reset * new)
    previous = tl.load(states + parent[:, None] * size + unit[None, :], mask=both, other=0.0).to(tl.float32)
    result = new + update * (previous - new)
    tl.store(out + node[:, None] * size + unit[None, :], result.to(out.dtype.element_ty), mask=both)


@triton.jit
def markov_kernel(
    recurrent,
    codes,
    rows,
    weight,
    weight_stride,
    shift,
    out,
    count,
    size,
    BLOCK_N: tl.constexpr,
    BLOCK_U: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Advance the recurrent Markov head for a batch of nodes.

    ``recurrent`` and ``codes`` ``[., size]`` at ``rows`` ``[count]`` are the parents'; the rows of ``weight``
    ``[2 size, >= 2 size]`` are gate and new state, its first columns meet ``recurrent`` and the next ``codes``;
    ``shift`` is ``[2 size]``; ``out`` ``[count, size]``.
    """
    node = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    unit = tl.program_id(1) * BLOCK_U + tl.arange(0, BLOCK_U)
    node_in, unit_in = node < count, unit < size
    parent = tl.load(rows + node, mask=node_in, other=0)
    gate = tl.zeros((BLOCK_N, BLOCK_U), dtype=tl.float32)
    new = tl.zeros((BLOCK_N, BLOCK_U), dtype=tl.float32)
    lower, stride, second = size + unit, weight_stride, weight + size
    for first in range(0, size, BLOCK_K):
        left = load_left(recurrent, parent, node_in, size, first, size, BLOCK_K)
        gate = add_product(gate, left, weight, unit, unit_in, stride, first, size, BLOCK_K)
        new = add_product(new, left, weight, lower, unit_in, stride, first, size, BLOCK_K)
        left = load_left(codes, parent, node_in, size, first, size, BLOCK_K)
        gate = add_product(gate, left, second, unit, unit_in, stride, first, size, BLOCK_K)
        new = add_product(new, left, second, lower, unit_in, stride, first, size, BLOCK_K)
    gate = tl.sigmoid(gate + tl.load(shift + unit, mask=unit_in, other=0.0).to(tl.float32)[None, :])
    new = tanh(new + tl.load(shift + lower, mask=unit_in, other=0.0).to(tl.float32)[None, :])
    both = node_in[:, None] & unit_in[None, :]
    previous = tl.load(recurrent + parent[:, None] * size + unit[None, :], mask=both, other=0.0).to(tl.float32)
    result = new + gate * (previous - new)
    tl.store(out + node[:, None] * size + unit[None, :], result.to(out.dtype.element_ty), mask=both)


@triton.jit
def inner_kernel(
    first,
    first_weight,
    first_size,
    second,
    second_weight,
    second_size,
    weight_stride,
    shift,
    out,
    count,
    width,
    MODE: tl.constexpr,
    TWO: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_U: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Project each node's state, add what its depth adds, and apply the head's nonlinearity.

    ``first`` ``[count, first_size]`` meets ``first_weight`` ``[width, first_size]``, and where ``TWO``, ``second``
    its own; ``shift`` is ``[width]``; ``out`` ``[count, width]`` float32. ``MODE`` ``GATE`` multiplies ``first`` by
    the sigmoid.
    """
    node = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    unit = tl.program_id(1) * BLOCK_U + tl.arange(0, BLOCK_U)
    node_in, unit_in = node < count, unit < width
    total = tl.zeros((BLOCK_N, BLOCK_U), dtype=tl.float32)
    for start in range(0, first_size, BLOCK_K):
        left = load_left(first, node, node_in, first_size, start, first_size, BLOCK_K)
        total = add_product(total, left, first_weight, unit, unit_in, weight_stride, start, first_size, BLOCK_K)
    if TWO:
        for start in range(0, second_size, BLOCK_K):
            left = load_left(second, node, node_in, second_size, start, second_size, BLOCK_K)
            total = add_product(total, left, second_weight, unit, unit_in, weight_stride, start, second_size, BLOCK_K)
    both = node_in[:, None] & unit_in[None, :]
    total += tl.load(shift + unit, mask=unit_in, other=0.0).to(tl.float32)[None, :]
    if MODE == 0:
        total = total * tl.sigmoid(total)
    elif MODE == 1:
        own = tl.load(first + node[:, None] * first_size + unit[None, :], mask=both, other=0.0).to(tl.float32)
        total = tl.sigmoid(total) * own
    else:
        total = tanh(total)
    tl.store(out + node[:, None] * width + unit[None, :], total, mask=both)


@triton.jit
def slice_kernel(
    inner,
    up,
    candidates,
    base,
    out,
    peaks,
    sums,
    count,
    width,
    size,
    temperature,
    WHOLE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Correct a block of the candidates of a batch of nodes; where the block is ``WHOLE``, take the log-softmax.

    ``inner`` ``[count, size]`` float32 meets the rows of ``up`` ``[V, size]`` at ``candidates`` ``[width]``; ``base``
    ``[width]`` float32 is added; ``out`` is ``[count, width]`` float32: logits over the temperature, unless ``WHOLE``
    with their maximum and the sum of what they exceed it by, exponentiated, in ``peaks`` and ``sums``
    ``[count, blocks]``.
    """
    node = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    node_in, column_in = node < count, column < width
    token = tl.load(candidates + column, mask=column_in, other=0)
    logits = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for first in range(0, size, BLOCK_K):
        left = load_left(inner, node, node_in, size, first, size, BLOCK_K)
        logits = add_product(logits, left, up, token, column_in, size, first, size, BLOCK_K)
    logits = (logits + tl.load(base + column, mask=column_in, other=0.0)[None, :]) / temperature
    shown = tl.where(column_in[None, :], logits, float("-inf"))
    peak = tl.max(shown, axis=1)
    anchor = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp(shown - anchor[:, None]), axis=1)
    if WHOLE:
        logits = logits - anchor[:, None] - tl.log(total)[:, None]
    else:
        block = node * tl.num_programs(1) + tl.program_id(1)
        tl.store(peaks + block, peak, mask=node_in)
        tl.store(sums + block, total, mask=node_in)
    tl.store(out + node[:, None] * width + column[None, :], logits, mask=node_in[:, None] & column_in[None, :])


@triton.jit
def normalize_kernel(out, peaks, sums, width, blocks, BLOCK_M: tl.constexpr, BLOCKS: tl.constexpr):
    """Subtract the log of a row's sum of exponentials from a block of ``out`` ``[n, width]``, in place.

    ``peaks`` and ``sums`` ``[n, blocks]`` are ``slice_kernel``'s; ``BLOCKS`` is the next power of two.
    """
    node, block = tl.program_id(0), tl.arange(0, BLOCKS)
    peak = tl.load(peaks + node * blocks + block, mask=block < blocks, other=float("-inf"))
    total = tl.load(sums + node * blocks + block, mask=block < blocks, other=0.0)
    top = tl.max(peak, axis=0)
    total = tl.sum(total * tl.exp(peak - top), axis=0)
    column = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = out + node * width + column
    logits = tl.load(at, mask=column < width, other=0.0)
    tl.store(at, logits - top - tl.log(total), mask=column < width)


@triton.jit
def comparable(score):
    """Return float32 ``score`` with NaN as ``-inf`` and without a negative zero."""
    return tl.where(score == score, score, float("-inf")) + 0.0


@triton.jit
def rank_kernel(values, out_values, out_columns, width, keep, BLOCK: tl.constexpr, OTHERS: tl.constexpr):
    """Find the ``keep`` best entries of each row of ``values`` ``[n, width]``, of equal ones the first.

    Every entry counts those before it, and those of a rank below ``keep`` write themselves to their place of
    ``out_values`` ``[n, keep]`` float32 and ``out_columns`` int64.
    """
    row, own = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = values + row * width
    value = comparable(tl.load(start + own, mask=own < width, other=0.0))
    rank = tl.zeros((BLOCK,), dtype=tl.int32)
    for first in range(0, width, OTHERS):
        other = first + tl.arange(0, OTHERS)
        rival = comparable(tl.load(start + other, mask=other < width, other=float("-inf")))
        tied = (rival[None, :] == value[:, None]) & (other[None, :] < own[:, None])
        rank += tl.sum(((rival[None, :] > value[:, None]) | tied).to(tl.int32), axis=1)
    chosen = (own < width) & (rank < keep)
    tl.store(out_values + row * keep + rank, value, mask=chosen)
    tl.store(out_columns + row * keep + rank, own.to(tl.int64), mask=chosen)


@triton.jit
def load_edge(log_probs, stride, parent, column, inside):
    """Return a candidate's log-probability, at most 0 and ``-inf`` for NaN."""
    edge = comparable(tl.load(log_probs + parent * stride + column, mask=inside, other=float("-inf")))
    return tl.minimum(edge, 0.0)


@triton.jit
def children_kernel(
    scores,
    log_probs,
    tokens,
    out_scores,
    out_rows,
    out_tokens,
    out_edges,
    count,
    size,
    keep,
    log_prob_stride,
    token_stride,
    BLOCK: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Find the ``keep`` best children of the nodes of a depth: by path score, then parent, then edge, then column.

    ``scores`` ``[n]`` float32 are the parents', ``log_probs`` and ``tokens`` ``[n, size]`` their candidates, in any
    order; ``count`` is ``n size``. Children know their rank by counting, as in ``rank_kernel``, and write their path
    score, their parent's row, their token and their edge to their place of ``[keep]`` outputs.
    """
    own = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    parent, place = own // size, own % size
    own_in = own < count
    edge = load_edge(log_probs, log_prob_stride, parent, place, own_in)
    score = comparable(tl.load(scores + parent, mask=own_in, other=0.0) + edge)
    rank = tl.zeros((BLOCK,), dtype=tl.int32)
    for first in range(0, count, OTHERS):
        other = first + tl.arange(0, OTHERS)
        above, beside, other_in = other // size, other % size, other < count
        gain = load_edge(log_probs, log_prob_stride, above, beside, other_in)
        rival = comparable(tl.load(scores + above, mask=other_in, other=0.0) + gain)
        siblings = above[None, :] == parent[:, None]
        better = siblings & (gain[None, :] > edge[:, None])
        worse = siblings & (gain[None, :] < edge[:, None])
        tied = (rival[None, :] == score[:, None]) & (better | ((other[None, :] < own[:, None]) & ~worse))
        before = ((rival[None, :] > score[:, None]) | tied) & other_in[None, :]
        rank += tl.sum(before.to(tl.int32), axis=1)
    chosen = own_in & (rank < keep)
    token = tl.load(tokens + parent * token_stride + place, mask=chosen, other=0)
    tl.store(out_scores + rank, score, mask=chosen)
    tl.store(out_rows + rank, parent.to(tl.int64), mask=chosen)
    tl.store(out_tokens + rank, token, mask=chosen)
    tl.store(out_edges + rank, edge, mask=chosen)
