"""Several fake devices on one CPU (JAX_NUM_CPU_DEVICES), to try a mesh without accelerators."""

import os

THREADS = 4  # of XLA for each device


def give_threads() -> None:
    """Gives XLA threads enough for the fake devices that the environment asks for.

    XLA makes as many threads as there are devices, or cores. A device that waits in a collective holds one, and while
    it waits the others may need more than one each: then nobody goes on, and XLA ends the process after 40 seconds. To
    be called before JAX looks for devices. What the user has set stays.
    """
    devices = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    if devices.isdecimal() and int(devices) > 1:
        os.environ.setdefault("NPROC", str(THREADS * int(devices)))  # XLA's name for the number of cores to use
