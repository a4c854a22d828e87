"""A plot of a run's metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specforge.errors import ConfigError
from specforge.training.rundir import RunFolder

PLOT_FILE = "metrics.png"


def plot(run: str | Path) -> Path:
    """Draw loss and acceptance over the steps of a run, into ``metrics.png`` in its folder.

    Raises:
        ConfigError: when matplotlib is not installed or the folder holds no metrics.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('a plot needs matplotlib; run: pip install "specforge-decoding[train]"') from error
    folder = RunFolder(Path(run))
    entries = folder.metrics()
    if not entries:
        raise ConfigError(f"{str(run)!r} holds no metrics; it must be the folder of a training run")
    figure = Figure(figsize=(9, 4), layout="constrained")
    losses, acceptance = figure.subplots(1, 2)
    for key, label in (("final_loss", "corrected"), ("base_loss", "base")):
        _line(losses, entries, key, label)
    losses.set(xlabel="step", ylabel="weighted cross entropy, nats")
    for key, label in (("block_acceptance", "training, corrected"), ("base_block_acceptance", "training, base")):
        _line(acceptance, entries, key, label)
    for preset, points in held_out(entries).items():
        acceptance.plot(*zip(*points, strict=True), marker="o", label=f"held out, {preset}")
    acceptance.set(xlabel="step", ylabel="acceptance length τ")
    for axes in (losses, acceptance):
        if axes.lines:
            axes.legend()
    target = folder.path / PLOT_FILE
    figure.savefig(target, dpi=120)
    return target


def _line(axes: Any, entries: list[dict[str, Any]], key: str, label: str) -> None:
    points = [(entry["step"], entry[key]) for entry in entries if key in entry]
    if points:
        axes.plot(*zip(*points, strict=True), label=label)


def held_out(entries: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return (step, τ) of every validation by preset."""
    found: dict[str, list[tuple[int, float]]] = {}
    for entry in entries:
        for preset, length in entry.get("acceptance_lengths", {}).items():
            found.setdefault(preset, []).append((entry["step"], length))
    return found
