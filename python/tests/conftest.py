"""These tests judge the package as it is installed, never the sources beside them."""
from __future__ import annotations

import filecmp
import importlib.util
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
INSTALL = "run scripts/python_wheel.sh"


def pytest_configure(config: pytest.Config) -> None:
    spec = importlib.util.find_spec("loratory")
    if spec is None or spec.origin is None:
        raise pytest.UsageError(f"loratory is not installed; {INSTALL}")
    installed = pathlib.Path(spec.origin).parent
    if ROOT / "python" in installed.parents:
        raise pytest.UsageError(f"{installed} is the source tree, not the installed package")
    pairs = [(source, installed / source.name)
             for source in (ROOT / "python" / "loratory").glob("*.py")]
    if "LORATORY_BUILT_MODULE" in os.environ:
        built = pathlib.Path(os.environ["LORATORY_BUILT_MODULE"])
        pairs.append((built, installed / built.name))
    stale = [a.name for a, b in pairs if not b.exists() or not filecmp.cmp(a, b, shallow=False)]
    if stale:
        raise pytest.UsageError(f"the installed package has an old {stale[0]}; {INSTALL}")


@pytest.fixture
def sample_trace() -> pathlib.Path:
    return ROOT / "traces" / "sample.jsonl.gz"


@pytest.fixture
def fixtures() -> pathlib.Path:
    return ROOT / "tests" / "golden" / "fixtures"


@pytest.fixture
def sigint() -> Iterator[None]:
    """Ctrl-C as at a terminal: what a script starts in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
