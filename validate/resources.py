"""Where package data lie: in the wheel first, then in the checkout."""

from pathlib import Path


def path(name: str) -> Path:
    """Folder or file of package data called `name` (for example ``"transfer-study"``).

    Raises
    ------
    FileNotFoundError
        Neither the installed package nor the checkout holds it.
    """
    here = Path(__file__).resolve().parent
    candidates = (here / "data" / name, here.parent / "data" / name)
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise FileNotFoundError(f"package data {name!r} is missing: neither in the wheel nor in the checkout")
