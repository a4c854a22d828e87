"""What the Triton kernels compute, as functions of tensors. Each is a launch or a few."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from specforge import children
from specforge.children import Children, as_edges
from specforge.correction import triton_kernels as kernels
from specforge.ordering import exact_topk

NODES = 16
"""Nodes of a block: the fewest that a product of blocks takes."""
UNITS = 16
"""Outputs of a block: few, so that one node's work is spread over the device."""
COLUMNS = 64
"""Candidates of a block."""
BLOCK_BYTES = 256
"""Bytes of a weight's row that a block reads at a time."""
COUNTED = 32
"""Entries that one block of a ranking finds the ranks of."""
RIVALS = 128
"""Entries that they are compared with at a time."""
LONGEST_ROW = 4096
"""Above this many entries in a row, to sort beats to count: the work of counting grows with the square."""
FEW_CHILDREN = 4096
"""So many candidates of a depth are compared all with all; of more, each row's best are found first, if it has more."""
MOST_CHILDREN = 16_384
"""Above this many candidates of a depth to sort beats to count."""


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel on the device of its first argument."""
    with torch.cuda.device_of(arguments[0]):
        # Triton is about to change its default and warns of it.
        kernel[grid](*arguments, **constants, enable_fp_fusion=True)


def inner(mode: int, parts: list[tuple[Tensor, Tensor]], shift: Tensor) -> Tensor:
    """Return a nonlinearity of projected states: ``[n, E]`` float32.

    Args:
        mode: ``SILU``, ``TANH``, or ``GATE``, which multiplies the first part's rows by the sigmoid.
        parts: one or two pairs of rows ``[n, k]`` and their weight ``[E, k]``; the weights share a row stride.
        shift: ``[E]`` added to the sum.
    """
    (first, first_weight), (second, second_weight) = (
        (rows, _by_rows(weight)) for rows, weight in (parts[0], parts[-1])
    )
    count, width = first.shape[0], first_weight.shape[0]
    out = torch.empty(count, width, device=first.device)
    launch(
        kernels.inner_kernel,
        (triton.cdiv(count, NODES), triton.cdiv(width, UNITS)),
        first.contiguous(),
        first_weight,
        first.shape[1],
        second.contiguous(),
        second_weight,
        second.shape[1],
        first_weight.stride(0),
        shift.contiguous(),
        out,
        count,
        width,
        MODE=mode,
        TWO=len(parts) == 2,
        **_blocks(first_weight),
    )
    return out


def slice_log_softmax(paths: Tensor, up: Tensor, candidates: Tensor, base: Tensor, temperature: float) -> Tensor:
    """Return the log-softmax over a slice of ``(base + paths W2^T) / temperature``: ``[n, M]`` float32.

    Args:
        paths: ``[n, r]`` float32, what the head makes of each path.
        up: ``W2``, ``[V, r]``.
        candidates: ``[M]`` int64 rows of ``up``.
        base: ``[M]`` float32.
        temperature: above 0.
    """
    (count, size), width = paths.shape, candidates.shape[0]
    blocks = triton.cdiv(width, COLUMNS)
    out = torch.empty(count, width, device=paths.device)
    peaks, sums = torch.empty(2, count, blocks, device=paths.device)
    launch(
        kernels.slice_kernel,
        (triton.cdiv(count, NODES), blocks),
        paths.contiguous(),
        up.contiguous(),
        candidates.contiguous(),
        base.contiguous(),
        out,
        peaks,
        sums,
        count,
        width,
        size,
        float(temperature),
        WHOLE=blocks == 1,
        BLOCK_N=NODES,
        BLOCK_M=COLUMNS,
        BLOCK_K=BLOCK_BYTES // paths.element_size(),
    )
    if blocks > 1:
        powers = triton.next_power_of_2(blocks)
        grid = (count, blocks)
        launch(kernels.normalize_kernel, grid, out, peaks, sums, width, blocks, BLOCK_M=COLUMNS, BLOCKS=powers)
    return out


def gru(states: Tensor, rows: Tensor, inputs: Tensor, tokens: Tensor | None, weight: Tensor) -> Tensor:
    """Return a bias-free GRU's states ``[m, G]`` after one step from ``states`` at ``rows``.

    Args:
        states: ``[n, G]``.
        rows: ``[m]`` int64.
        inputs: inputs times their weights, gates in the order reset, update, new: ``[V, 3G]`` of all tokens, or
            ``[m, 3G]`` of each node's.
        tokens: ``[m]`` int64, the rows of ``inputs``; ``None`` for one a node, in order.
        weight: ``[3G, G]``.
    """
    count, size = rows.shape[0], states.shape[1]
    out = states.new_empty(count, size)
    launch(
        kernels.gru_kernel,
        (triton.cdiv(count, NODES), triton.cdiv(size, UNITS)),
        states.contiguous(),
        rows.contiguous(),
        inputs.contiguous(),
        rows if tokens is None else tokens.contiguous(),
        weight.contiguous(),
        out,
        count,
        size,
        BY_TOKEN=tokens is not None,
        **_blocks(weight),
    )
    return out


def markov(recurrent: Tensor, code: Tensor, rows: Tensor, joint: Tensor, shift: Tensor) -> Tensor:
    """Return the recurrent Markov head's memory ``[m, R]`` one step after ``rows`` of its states.

    Args:
        recurrent: ``[n, R]``.
        code: ``[n, R]``.
        rows: ``[m]`` int64.
        joint: ``[3R, 2R + H]``.
        shift: ``[3R]`` what the hidden state at this depth and the bias add.
    """
    count, size = rows.shape[0], recurrent.shape[1]
    out = recurrent.new_empty(count, size)
    launch(
        kernels.markov_kernel,
        (triton.cdiv(count, NODES), triton.cdiv(size, UNITS)),
        recurrent.contiguous(),
        code.contiguous(),
        rows.contiguous(),
        joint,
        joint.stride(0),
        shift.contiguous(),
        out,
        count,
        size,
        **_blocks(joint),
    )
    return out


def best_of_rows(values: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Return ``exact_topk(values, keep)`` for float32 ``values`` ``[n, M]``."""
    count, width = values.shape
    if width > LONGEST_ROW:
        return exact_topk(values, keep)
    keep = min(keep, width)
    out_values = values.new_empty(count, keep)
    out_columns = torch.empty(count, keep, dtype=torch.int64, device=values.device)
    launch(
        kernels.rank_kernel,
        (count, triton.cdiv(width, COUNTED)),
        values.contiguous(),
        out_values,
        out_columns,
        width,
        keep,
        BLOCK=COUNTED,
        OTHERS=RIVALS,
    )
    return out_values, out_columns


def best_children(scores: Tensor, log_probs: Tensor, tokens: Tensor, keep: int, ranked: bool = False) -> Children:
    """Return what ``specforge.children.best_children`` does of uncalibrated ``log_probs``; rows may be expanded."""
    if log_probs.numel() > FEW_CHILDREN and log_probs.shape[1] > keep:
        # A row's best are found by comparing it with itself only.
        log_probs, columns = best_of_rows(log_probs.clamp(max=0.0), keep)
        tokens, ranked = tokens.gather(1, columns), True
    count, device = log_probs.numel(), scores.device
    if count > MOST_CHILDREN:
        edges = as_edges(log_probs)
        return children.best_children(scores, edges, edges, tokens, keep, ranked)
    keep = min(keep, count)
    log_probs, tokens = _by_rows(log_probs), _by_rows(tokens)
    out_scores, out_edges = torch.empty(2, keep, device=device)
    out_rows, out_tokens = torch.empty(2, keep, dtype=torch.int64, device=device)
    launch(
        kernels.children_kernel,
        (triton.cdiv(count, COUNTED),),
        scores.contiguous(),
        log_probs,
        tokens,
        out_scores,
        out_rows,
        out_tokens,
        out_edges,
        count,
        log_probs.shape[1],
        keep,
        log_probs.stride(0),
        tokens.stride(0),
        BLOCK=COUNTED,
        OTHERS=RIVALS,
    )
    return Children(out_scores, out_rows, out_tokens, out_edges)


def _by_rows(matrix: Tensor) -> Tensor:
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()


def _blocks(weight: Tensor) -> dict[str, int]:
    return {"BLOCK_N": NODES, "BLOCK_U": UNITS, "BLOCK_K": BLOCK_BYTES // weight.element_size()}
