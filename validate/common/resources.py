"""Where package data lie: data/ beside validate/, in the wheel (rooffloor/data) as in the checkout."""

import re
from contextlib import suppress
from pathlib import Path


def path(name: str) -> Path:
    """Folder or file of package data called `name` (for example ``"transfer-study"``).

    Raises
    ------
    FileNotFoundError
        Neither the installed package nor the checkout holds it.
    """
    found = Path(__file__).resolve().parents[2] / "data" / name
    if found.exists():
        return found
    raise FileNotFoundError(f"package data {name!r} is missing: neither in the wheel nor in the checkout")


def embedded(study: str | Path) -> Path | None:
    """Folder of the study of that name, which goes before a file of that name here; None where there is none."""
    if isinstance(study, str) and re.fullmatch(r"\w[\w-]{0,99}", study):
        with suppress(FileNotFoundError):
            return path(study)
    return None
