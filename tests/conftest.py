"""Shared fixtures."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder ../shared beside the checkout (public data and references); skips where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("../shared is absent: this test reads its public data")
    return folder
