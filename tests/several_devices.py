"""Programs of the tests that need several devices, and so a process of their own."""

import os
import subprocess
import sys

from jaxspec.host.jax_environment import THREADS


def environment(devices: int) -> dict[str, str]:
    """The environment of a process that has this many CPU devices."""
    threads = str(THREADS * devices)
    return {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu", "NPROC": threads}


def output(*arguments: str, timeout: int = 3000) -> str:
    """What a Python program prints on eight devices; it must succeed."""
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, env=environment(8), capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
