"""Compiles programs in parallel before their first use, and shows the progress."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import Any, TypeVar

import jax

from jaxspec.host.progress import progress

AT_ONCE = 2  # Python traces one at a time, and the compiler itself has several threads
PATIENCE = 1.0  # seconds of which nothing is said: what is compiled already takes less

Name = TypeVar("Name")


def compile_all(programs: Mapping[Name, Callable[[], Any]], name: Callable[[Name], str] = str) -> dict[Name, Any]:
    """Calls what compiles each of some programs, two at a time, and returns what they return.

    One at a time where there are several processes: what such a call runs besides must come in the same order in all.

    What JAX compiles under, such as the precision of products, is a thread's own: each call has to set it.

    Args:
        name: what stderr calls a program.
    """
    with ThreadPoolExecutor(AT_ONCE if jax.process_count() == 1 else 1) as pool:
        running = {pool.submit(program): which for which, program in programs.items()}
        try:
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
        finally:
            pool.shutdown(cancel_futures=True)  # of the others, where one fails or Ctrl-C comes
    return {which: future.result() for future, which in running.items()}
