"""How the processes of one command find each other. This module does not import JAX, so `--help` is fast."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxspec.host import shared_exit

AUTO = "auto"
LAST_TO_END = 60  # seconds that a process which is done waits for the others
SILENT = 30  # seconds without a sign of life after which a process counts as dead, and JAX ends the others
_NUMBER = {"SLURM_STEP_NUM_TASKS": "SLURM_PROCID", "TPU_WORKER_HOSTNAMES": "TPU_WORKER_ID"}  # of this process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosts:
    """How this process finds the other processes of the same command."""

    coordinator: str | None = None
    """On several hosts: HOST:PORT of the first process, or `auto` to read it from the environment. Under SLURM and on a
    TPU pod, `auto` is the default."""
    processes: int | None = None
    """With --coordinator HOST:PORT: the number of processes."""
    process_id: int | None = None
    """With --coordinator HOST:PORT: the number of this process, counted from 0."""

    def join(self, *, several: bool = True) -> None:
        """Connects to the other processes, if any, before anything is computed. Then only the first process prints.

        Raises ValueError for options that contradict each other, and if the command cannot run as `several` processes.
        """
        import jax
        from jax._src import distributed  # the store of keys and values that all processes see is not public

        are_others = self.coordinator is not None or neighbours() is not None
        if are_others and not several:
            raise ValueError(
                "this command runs in one process, on as many devices as that has, and cannot be spread over several "
                "hosts"
            )
        self._check()
        if are_others and not jax.distributed.is_initialized():
            jax.config.update("jax_enable_preemption_service", False)  # which would swallow SIGTERM
            jax.distributed.initialize(
                None if self.coordinator == AUTO else self.coordinator,  # None: all three are in the environment
                self.processes,
                self.process_id,
                heartbeat_timeout_seconds=SILENT,
                shutdown_timeout_seconds=LAST_TO_END,
            )
            if jax.process_count() > 1:
                shared_exit.begin(distributed.global_state.client, jax.process_index(), jax.process_count())
        if jax.process_index():
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115

    def place(self) -> tuple[int, int]:
        """The number of this process, from 0, and that of all, for work without communication. Raises as `join`."""
        self._check()
        if self.processes is not None and self.process_id is not None:
            return self.process_id, self.processes
        if (found := neighbours()) is None:
            return 0, 1
        variable, count = found
        if not (number := os.environ.get(_NUMBER[variable], "")).isdecimal():
            raise ValueError(
                f"{variable} stands for {count} processes, and {_NUMBER[variable]} does not give the number of this "
                "one; name it with --coordinator HOST:PORT --processes N --process-id I"
            )
        return int(number), count

    def _check(self) -> None:
        """Raises ValueError for options that do not fit one another."""
        if self.coordinator in (None, AUTO):
            if self.processes is not None or self.process_id is not None:
                raise ValueError("--processes and --process-id need --coordinator HOST:PORT")
        elif self.processes is None or self.process_id is None:
            raise ValueError(
                f"--coordinator {self.coordinator} needs --processes N and --process-id I, or write auto instead"
            )
        elif not 0 <= self.process_id < self.processes:
            raise ValueError(f"--process-id must be from 0 to {self.processes - 1}, not {self.process_id}")


def neighbours() -> tuple[str, int] | None:
    """The variable of SLURM or of a TPU pod that gives several tasks, and their number; None if there is none."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks.isdecimal() and int(tasks) > 1:
        return "SLURM_STEP_NUM_TASKS", int(tasks)
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").count(",") + 1
    return ("TPU_WORKER_HOSTNAMES", hosts) if hosts > 1 else None


def check_alone(command: Sequence[str], missing: Sequence[str] = ("--mesh", "model=N")) -> None:
    """Raises ValueError if there are other processes, of which each would run the whole command by itself.

    The error repeats the command as typed, program first, with the options of a mesh that are `missing`.
    """
    if (found := neighbours()) is None:
        return
    variable, count = found
    typed = shlex.join([Path(command[0]).name, *command[1:]])
    raise ValueError(
        f"{variable} means that this is one of {count} processes, and without a mesh each would run all of this by "
        f"itself. To share the work run on all of them: {typed} {' '.join(missing)}, where N is the number of all "
        f"their devices. To run on this host alone: env -u {variable} {typed}"
    )
