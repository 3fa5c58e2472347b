"""Commands in processes of their own, whose Python finds nothing but what is installed for it."""

import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    given: dict[str, Any] = {"cwd": cwd, "env": dict(os.environ) if env is None else env}
    for name in ("PYTHONPATH", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "ARGS"):  # of a make that runs these tests
        given["env"].pop(name, None)
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **given)


def run_well(*command: str | Path, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class MainJob(NamedTuple):
    """A report by the installed program: the folder it ran in, what it printed, files of the package that are new."""

    home: Path
    printed: str
    into_the_package: set[Path]

    @property
    def report(self) -> Path:
        """Its folder."""
        return self.home / "reports" / "transfer-study"
