"""One engine in several threads, and after interrupts at any moment."""

import signal
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxspec import Engine
from jaxspec.checkpoint.loading import Checkpoint


@pytest.fixture(scope="module")
def engine(model: Checkpoint) -> Engine:
    return Engine(model, "draft-model+chain,length=3+beta-ts")


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Sets a timer after which KeyboardInterrupt is raised in the main thread, wherever it is, as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def tokens(engine: Engine, prompts: list[str], temperature: float = 0.0) -> list[list[int]]:
    found = engine.generate(prompts, max_new_tokens=24, seed=5, batch_size=2, temperature=temperature)
    return [list(one.tokens) for one in found]


def test_threads_share_an_engine(engine: Engine):
    calls = [[f"{word} {word}", "abcabc", word] for word in ("one", "two", "three", "four")]
    alone = [tokens(engine, prompts, 0.9) for prompts in calls]
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda prompts: tokens(engine, prompts, 0.9), calls)]
        streamed = [*pool.map(lambda prompts: "".join(engine.stream(prompts[0], max_new_tokens=24)), calls)]
    assert found == alone
    assert streamed == [engine.generate(prompts[0], max_new_tokens=24)[0].text for prompts in calls]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one may come inside a __del__
def test_an_interrupt_at_any_moment_leaves_the_engine_usable(engine: Engine, alarm: Callable[[float], None]):
    prompts = ["abcabc", "one two", "x"]
    text, lists = engine.generate("abcabc", max_new_tokens=24)[0].text, tokens(engine, prompts)
    began = time.monotonic()
    assert "".join(engine.stream("abcabc", rounds=1, max_new_tokens=24)) == text
    whole = time.monotonic() - began
    interrupted = 0
    for part in range(1, 11):
        try:
            alarm(whole * part / 10)
            "".join(engine.stream("abcabc", rounds=1, max_new_tokens=24))
            tokens(engine, prompts)
            alarm(0)
        except (KeyboardInterrupt, ValueError) as error:  # ValueError: it came as JAX compared static arguments
            interrupted += "KeyboardInterrupt" in repr(error)
    assert interrupted
    assert "".join(engine.stream("abcabc", rounds=1, max_new_tokens=24)) == text
    assert tokens(engine, prompts) == lists


def test_a_stream_that_is_given_up_leaves_the_engine_usable(engine: Engine):
    expected = engine.generate("abcabc", max_new_tokens=24)[0].text
    for pieces in range(4):
        stream = engine.stream("abcabc", rounds=1, max_new_tokens=24)
        for _ in range(pieces):
            next(stream)
        assert isinstance(stream, Generator)
        stream.close()
    assert "".join(engine.stream("abcabc", max_new_tokens=24)) == expected
