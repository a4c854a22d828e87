"""What a round costs: the latency of drafting and of verifying ``n`` draft nodes at a context length.

A cost model is measured once for a target, drafter, device and dtype (``specforge.profiling``) and read by the
cost-aware budget (``specforge.strategies.budget``), after CaDDTree (arXiv:2606.01813).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from attrs import field, frozen
from scipy.optimize import nnls

from specforge.errors import ConfigError, IncompatiblePartsError
from specforge.jsonfiles import read_object, write_object

Doubles = npt.NDArray[np.float64]

_REQUIRED = ("draft_seconds", "context_lengths", "nodes", "seconds")
_IDENTITY = ("target", "drafter", "device", "dtype")


def _counts(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


def _rows(values: Iterable[Iterable[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values)


@frozen(eq=False)
class CostModel:
    """``C_draft`` and ``C_verify(n, context)``, tabulated.

    Linear in ``n`` between the listed nodes and beyond the last one (the last segment goes on), constant below the
    first; linear between context lengths and constant outside them.

    Attributes:
        draft_seconds: one drafter pass.
        context_lengths: increasing; the tokens in the target's cache before the root.
        nodes: increasing; draft nodes in the verified tree, the root not counted (0 is a plain decoding step).
        seconds: for each context length, the verification at each of ``nodes``.
        target, drafter, device, dtype: what was measured, or ``None`` when the model was written by hand and does
            not say.

    Raises:
        ConfigError: naming the key, its value and what it must be.
    """

    draft_seconds: float
    context_lengths: tuple[int, ...] = field(converter=_counts)
    nodes: tuple[int, ...] = field(converter=_counts)
    seconds: tuple[tuple[float, ...], ...] = field(converter=_rows)
    target: str | None = None
    drafter: str | None = None
    device: str | None = None
    dtype: str | None = None
    _table: Doubles = field(init=False, repr=False)

    KIND: ClassVar[str] = "cost model"

    def __attrs_post_init__(self) -> None:
        _check_seconds("draft_seconds", [self.draft_seconds])
        _check_increasing("context_lengths", self.context_lengths)
        _check_increasing("nodes", self.nodes)
        if len(self.seconds) != len(self.context_lengths):
            raise _wrong(
                "seconds", f"{len(self.seconds)} rows", f"one for each of {len(self.context_lengths)} contexts"
            )
        for context, row in zip(self.context_lengths, self.seconds, strict=True):
            _check_seconds(f"seconds[{context}]", row)
            if len(row) != len(self.nodes):
                raise _wrong(f"seconds[{context}]", f"{len(row)} long", f"as long as nodes, {len(self.nodes)}")
            if self.draft_seconds + min(row) <= 0:
                raise _wrong(f"seconds[{context}]", "0 with draft_seconds 0", "such that every round costs something")
        for name in _IDENTITY:
            value = getattr(self, name)
            if not (value is None or isinstance(value, str)):
                raise _wrong(name, repr(value), "a string")
        object.__setattr__(self, "_table", np.array(self.seconds, dtype=np.float64))

    @classmethod
    def of(cls, source: CostModel | Mapping[str, Any] | str | os.PathLike[str]) -> CostModel:
        """Return the cost model that an option holds: the model itself, its JSON object, or the path to one.

        Raises:
            ConfigError: when the file cannot be read or a value is wrong.
        """
        if isinstance(source, CostModel):
            return source
        if isinstance(source, Mapping):
            return cls.from_dict(source)
        if isinstance(source, str | os.PathLike):
            return cls.from_dict(read_object(source, cls.KIND))
        raise ConfigError(f"cost_model is {source!r}; it must be a path or an object with {', '.join(_REQUIRED)}")

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any]) -> CostModel:
        """Make a model of its JSON object, in which ``seconds`` is keyed by context length.

        Raises:
            ConfigError: for a missing or unknown key or a wrong value, naming it.
        """
        missing = [key for key in _REQUIRED if key not in contents]
        if missing:
            raise ConfigError(f"cost model lacks {', '.join(missing)}; it needs {', '.join(_REQUIRED)}")
        unknown = sorted(str(key) for key in set(contents) - {*_REQUIRED, *_IDENTITY})
        if unknown:
            raise ConfigError(f"cost model has unknown {', '.join(unknown)}; known: {', '.join(_IDENTITY + _REQUIRED)}")
        contexts, nodes = (_list(key, contents[key]) for key in ("context_lengths", "nodes"))
        if not isinstance(contents["seconds"], Mapping):
            raise _wrong("seconds", repr(contents["seconds"]), "an object keyed by context length")
        rows = {str(context): row for context, row in contents["seconds"].items()}
        if set(rows) != {str(context) for context in contexts}:
            raise _wrong("seconds", f"keyed by {', '.join(rows) or 'nothing'}", f"keyed by context_lengths {contexts}")
        seconds = [_list(f"seconds[{context}]", rows[str(context)]) for context in contexts]
        identity = {key: contents.get(key) for key in _IDENTITY}
        return cls(contents["draft_seconds"], contexts, nodes, seconds, **identity)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, without what the model does not say."""
        identity = {key: getattr(self, key) for key in _IDENTITY if getattr(self, key) is not None}
        return {
            **identity,
            "draft_seconds": self.draft_seconds,
            "context_lengths": list(self.context_lengths),
            "nodes": list(self.nodes),
            "seconds": {str(c): list(row) for c, row in zip(self.context_lengths, self.seconds, strict=True)},
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON object to ``path``, atomically."""
        write_object(path, self.to_dict(), self.KIND)

    def verify_seconds(self, n: int, context: int) -> float:
        """Return ``C_verify(n, context)``: one target pass over the root and ``n`` draft nodes."""
        return float(self._interpolate(np.array([n], dtype=np.float64), context)[0])

    def round_seconds(self, largest: int, context: int) -> Doubles:
        """Return ``[largest + 1]`` float64, ``C_draft + C_verify(n, context)`` for ``n`` from 0 to ``largest``.

        Raises:
            ConfigError: where a model that falls in ``n`` gives a round that costs nothing.
        """
        costs = self.draft_seconds + self._interpolate(np.arange(largest + 1, dtype=np.float64), context)
        if costs.min() <= 0.0:
            raise ConfigError(
                f"cost model: a round of {int(costs.argmin())} draft nodes costs {costs.min():g} s at context "
                f"{context}; every round must cost something"
            )
        return costs

    def _interpolate(self, n: Doubles, context: int) -> Doubles:
        contexts = self.context_lengths
        upper = int(np.searchsorted(contexts, context))
        if upper == 0:
            return self._row(n, 0)
        if upper == len(contexts):
            return self._row(n, upper - 1)
        share = (context - contexts[upper - 1]) / (contexts[upper] - contexts[upper - 1])
        return (1.0 - share) * self._row(n, upper - 1) + share * self._row(n, upper)

    def _row(self, n: Doubles, index: int) -> Doubles:
        nodes, row = self.nodes, self._table[index]
        inside = np.interp(n, nodes, row)
        if len(nodes) == 1:
            return inside
        slope = (row[-1] - row[-2]) / (nodes[-1] - nodes[-2])
        return inside + slope * np.maximum(n - nodes[-1], 0.0)

    def check(self, target: str, device: Sequence[str], dtype: str) -> None:
        """Refuse a model that was measured on something else; what the model does not say is not checked.

        Args:
            target: the target's name.
            device: the names the device goes by; any of them will do.
            dtype: the target's dtype, as in ``"bfloat16"``.

        Raises:
            IncompatiblePartsError: naming what was measured and what is used.
        """
        same_target = self.target in (None, target) or _same_folder(self.target, target)
        known = {"target": (target, same_target)}
        known["device"] = (device[0], self.device is None or self.device in device)
        known["dtype"] = (dtype, self.dtype in (None, dtype))
        for name, (here, same) in known.items():
            if not same:
                raise IncompatiblePartsError(
                    f"the cost model was measured for {name} {getattr(self, name)!r}, this pipeline uses {here!r}; "
                    "measure one with `specforge profile`"
                )


def _same_folder(a: str | None, b: str) -> bool:
    return a is not None and os.path.isdir(b) and os.path.realpath(a) == os.path.realpath(b)


def fit(nodes: Sequence[int] | npt.ArrayLike, seconds: Sequence[float] | npt.ArrayLike) -> Doubles:
    """Return the least-squares fit of latencies that does not decrease and is convex in the number of nodes.

    The fit is ``a + b (n - n0) + sum_k c_k max(0, n - n_k)`` with a hinge at every inner node and all coefficients
    non-negative, solved by SciPy's non-negative least squares; every monotone convex function on the nodes is of
    this form. A node may be given several times, in any order.

    Args:
        nodes: ``[m]`` node counts.
        seconds: ``[m]`` latencies, at least 0.

    Returns:
        ``[m]`` float64, the fit at each given node, in the given order.

    Raises:
        ValueError: when the two are not one-dimensional, of one length and non-empty.
    """
    n = np.asarray(nodes, dtype=np.float64)
    y = np.asarray(seconds, dtype=np.float64)
    if n.ndim != 1 or n.shape != y.shape or n.size == 0:
        raise ValueError(f"nodes {n.shape} and seconds {y.shape} must be of one length, at least 1")
    order = np.lexsort((y, n))
    n, y = n[order], y[order]
    knots = np.unique(n)
    span, size = max(knots[-1] - knots[0], 1.0), max(float(y.max()), np.finfo(np.float64).tiny)
    hinges = np.maximum(n[:, None] - knots[None, :-1], 0.0) / span
    basis = np.concatenate([np.ones((len(n), 1)), hinges], axis=1)
    coefficients, _ = nnls(basis, y / size, maxiter=50 * basis.shape[1])
    fitted = np.empty_like(y)
    fitted[order] = basis @ coefficients * size
    return fitted


def _wrong(name: str, value: str, wanted: str) -> ConfigError:
    return ConfigError(f"cost model: {name} is {value}; it must be {wanted}")


def _list(name: str, value: object) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _wrong(name, repr(value), "a list")
    return list(value)


def _check_seconds(name: str, values: Sequence[object]) -> None:
    for value in values:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value >= 0):  # type: ignore[arg-type, operator]
            raise _wrong(name, repr(value), "seconds, finite and at least 0")


def _check_increasing(name: str, values: Sequence[object]) -> None:
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)
    if not values or not whole or any(a >= b for a, b in pairwise(values)):  # type: ignore[operator]
        raise _wrong(name, repr(list(values)), "increasing whole numbers, at least one, none negative")
