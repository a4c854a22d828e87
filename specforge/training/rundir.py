"""The folder of a run: its config, metrics, training state, and the drafter as a checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from specforge.errors import ConfigError
from specforge.jsonfiles import read_object, write_object

# A resumed run may be given more time, elsewhere, and report otherwise; anything else would make it another run.
_MAY_CHANGE = frozenset({"out", "device", "reporting", "steps", "max_minutes", "cache"})


@frozen(eq=False)
class RunFolder:
    """The files of one run.

    Attributes:
        path: the folder.
    """

    path: Path

    @property
    def state_file(self) -> Path:
        """Weights, optimizer and position."""
        return self.path / "state.pt"

    @property
    def metrics_file(self) -> Path:
        """One JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def drafter(self) -> Path:
        """The drafter as it was last validated."""
        return self.path / "drafter"

    @property
    def best(self) -> Path:
        """The drafter with the best held-out acceptance of its tree."""
        return self.path / "best"

    def start(self, config: dict[str, Any], resume: bool) -> None:
        """Prepare the folder for a new run, or for going on with the one in it.

        Raises:
            ConfigError: when there is a run that was not to be resumed, none to resume, or one of another config.
        """
        if not resume:
            if self.state_file.exists():
                raise ConfigError(f"{str(self.path)!r} holds a run; resume it (--resume) or give another folder")
            self.path.mkdir(parents=True, exist_ok=True)
            self.metrics_file.unlink(missing_ok=True)
            write_object(self.path / "run.json", config, "run config")
            return
        if not self.state_file.exists():
            raise ConfigError(f"{str(self.path)!r} holds no training state to resume from")
        _check_same(read_object(self.path / "run.json", "run config"), config, "")
        write_object(self.path / "run.json", config, "run config")
        self._drop_metrics_after(self.load_state()["step"])

    def load_state(self) -> dict[str, Any]:
        """Return the training state as it was last saved."""
        state: dict[str, Any] = torch.load(self.state_file, map_location="cpu", weights_only=True)
        return state

    def save_state(self, state: dict[str, Any]) -> None:
        """Replace the training state in one step."""
        partial = self.state_file.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.state_file)

    def log(self, entry: dict[str, Any]) -> None:
        """Append a line to the metrics."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics so far; a line that a kill cut short is left out."""
        if not self.metrics_file.exists():
            return []
        lines = self.metrics_file.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def _drop_metrics_after(self, step: int) -> None:
        kept = [json.dumps(entry) + "\n" for entry in self.metrics() if entry["step"] <= step]
        partial = self.metrics_file.with_suffix(".partial")
        partial.write_text("".join(kept), encoding="utf-8")
        os.replace(partial, self.metrics_file)


def _check_same(found: dict[str, Any], wanted: dict[str, Any], prefix: str) -> None:
    for key, value in wanted.items():
        if key in _MAY_CHANGE:
            continue
        if isinstance(value, dict) and isinstance(found.get(key), dict):
            _check_same(found[key], value, f"{prefix}{key}.")
        elif found.get(key) != value:
            raise ConfigError(f"the run was started with {prefix}{key} {found.get(key)!r}, not {value!r}")
