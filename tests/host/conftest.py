"""The program that breaks commands off, started once for each module."""

from collections.abc import Iterator

import pytest

from tests.host.interrupted_commands import Breaker, breaking


@pytest.fixture(scope="module")
def breaker() -> Iterator[Breaker]:
    with breaking() as breaker:
        yield breaker
