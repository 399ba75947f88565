"""Compiles programs in parallel before their first use, and shows the progress."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from typing import Any, TypeVar

import jax

from jaxspec.host.progress import progress

AT_ONCE = 2  # Python traces one at a time, and the compiler itself has several threads
PATIENCE = 1.0  # seconds of which nothing is said: what is compiled already takes less

Name = TypeVar("Name")
_compiling: set[int] = set()  # threads


def compile_all(programs: Mapping[Name, Callable[[], Any]], name: Callable[[Name], str] = str) -> dict[Name, Any]:
    """Calls what compiles each of some programs, two at a time, and returns what they return.

    One at a time where there are several processes: what such a call runs besides must come in the same order in all.

    What JAX compiles under, such as the precision of products, is a thread's own: each call has to set it.

    If it is interrupted, it raises at once. Compilations that have begun end in the background.

    Args:
        name: what stderr calls a program.
    """
    pool = ThreadPoolExecutor(AT_ONCE if jax.process_count() == 1 else 1)
    running: dict[Future[Any], Name] = {}
    try:
        running |= {pool.submit(_noted, program): which for which, program in programs.items()}
        done, waiting = wait(running, PATIENCE)
        if waiting:
            with progress("compiled programs:", len(running), len(done)) as shown:
                left = [future for future in running if future in waiting]
                shown.show(len(done), name(running[left[0]]))
                for future in as_completed(waiting):
                    left.remove(future)
                    shown.done += 1
                    if left and shown.due():
                        shown.show(shown.done, name(running[left[0]]))
    except BaseException:  # Ctrl-C, or the end of a terminated command
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return {which: future.result() for future, which in running.items()}


def _noted(program: Callable[[], Any]) -> Any:
    _compiling.add(threading.get_ident())
    try:
        return program()
    finally:
        _compiling.discard(threading.get_ident())


def still_compiling() -> bool:
    """Whether `compile_all` compiles in any thread. Python waits for these threads before it exits."""
    return bool(_compiling)
