"""The drafter that ships with the package: a Domino drafter for the bundled target."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

BUNDLED_DRAFTER = "smollm2-domino"
BUNDLED_DRAFTER_KIND = "domino"


def bundled_drafter_folder() -> Path:
    """Return the folder of its checkpoint and model card, inside the installed package."""
    package = find_spec("specforge.drafters")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "pretrained" / "smollm2-135m-domino"
