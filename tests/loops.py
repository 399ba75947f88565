"""The compiled programs of the decoding loop, of which a platform may have two kinds."""

from jaxspec.engine.program import LOOP

KINDS = (LOOP._usual, LOOP._by_eigen)


def count() -> int:
    """The number of programs."""
    return sum(kind._cache_size() for kind in KINDS)


def forget() -> None:
    """The loop is compiled again when it is next called."""
    for kind in KINDS:
        kind.clear_cache()
