"""The option that brings builders of one's own into the groups."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="a config file, whose builder joins the groups of test_correction_speed.py under the file's name",
    )
