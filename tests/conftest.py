"""What all tests share: a home of their own, the shared rows, and which suites must not be skipped.

`TRIMTAB_REQUIRE` is a comma list of suites. A suite that is named must run: what would be a skip with a reason on a
laptop is a failure there, so that a CI that lacks something cannot look green.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SUITES = ("slow", "cgroup", "browser", "kubernetes", "postgres", "shared")

hypothesis.settings.register_profile("trimtab", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("trimtab")


def required_suites() -> frozenset[str]:
    """The suites named in TRIMTAB_REQUIRE."""
    return frozenset(name.strip() for name in os.environ.get("TRIMTAB_REQUIRE", "").split(",") if name.strip())


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long; runs only where TRIMTAB_REQUIRE names slow")
    unknown = required_suites() - set(SUITES)
    if unknown:
        raise pytest.UsageError(f"TRIMTAB_REQUIRE: {', '.join(sorted(unknown))}: name some of {', '.join(SUITES)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "slow" in required_suites():
        return
    skip = pytest.mark.skip(reason="slow: runs where TRIMTAB_REQUIRE names slow")
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _own_home() -> Iterator[None]:
    """Jobs and caches go to a directory that is removed; compiled kernels stay, for they cost minutes."""
    before = dict(os.environ)
    home = Path(os.environ.get("TRIMTAB_HOME") or "~/.trimtab").expanduser()
    os.environ.setdefault("TRIMTAB_KERNEL_CACHE", str(home / "cache" / "kernels"))
    # Processes that tests start must find trimtab in a checkout that is not installed, too.
    paths = [str(REPOSITORY / "src"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    with tempfile.TemporaryDirectory(prefix="trimtab-tests-") as own:
        os.environ["TRIMTAB_HOME"] = own
        yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def require() -> Callable[[str, bool, str], None]:
    """`require(suite, present, reason)`: skips with the reason where something is absent, fails if it is required."""

    def check(suite: str, present: bool, reason: str) -> None:
        assert suite in SUITES, f"{suite}: name one of {', '.join(SUITES)}"
        if present:
            return
        if suite in required_suites():
            pytest.fail(f"{suite} is required here, but: {reason}", pytrace=False)
        pytest.skip(f"{suite}: {reason}")

    return check


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout's root."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data(require: Callable[[str, bool, str], None]) -> Path:
    """The folder of real rows beside the checkout, which is not part of the product."""
    folder = REPOSITORY.parent / "shared" / "data"
    rows = folder / "criteo_sample" / "train.tiny.csv"
    require("shared", rows.is_file(), "../shared/data/criteo_sample/train.tiny.csv with real rows is not there")
    return folder
