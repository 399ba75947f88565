"""Processes that join one another over gloo and run the same commands (`multihost_program.py`)."""

import json
import socket
import subprocess
import sys
from collections.abc import Sequence

from tests import several_devices

Command = Sequence[object]


def start(
    commands: Sequence[Command], processes: int = 2, devices: int = 4, **environment: str
) -> list[subprocess.Popen]:
    """Starts them, each with this many devices, and with these variables besides."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = []
    for i in range(processes):
        join = ("--coordinator", place, "--processes", processes, "--process-id", i) if processes > 1 else ()
        arguments = [json.dumps([*map(str, (*command, *join))]) for command in commands]
        program = [sys.executable, "-m", "tests.host.multihost_program", *arguments]
        around = {**several_devices.environment(devices), **environment}
        running.append(subprocess.Popen(program, env=around, **pipes))
    return running


def all_ended(running: Sequence[subprocess.Popen]) -> list[str]:
    """Output of each process at its end; all must succeed."""
    outputs = [process.communicate(timeout=900) for process in running]
    for process, (_, err) in zip(running, outputs, strict=True):
        assert process.returncode == 0, err[-3000:]
    return [out for out, _ in outputs]
