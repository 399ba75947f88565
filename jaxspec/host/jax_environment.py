"""Environment variables that must be set before JAX looks for devices."""

import os
from pathlib import Path

THREADS = 4  # of XLA for each device
COMPILER = "compiler"  # beginning of the names of threads that compile, for which Python waits before it exits


def give_threads() -> None:
    """Gives XLA threads enough for the fake devices that the environment demands; call it before JAX finds devices."""
    # XLA makes as many threads as there are devices, or cores. A device that waits in a collective holds one, and the
    # others may need more than one each; then all wait, and XLA ends the process after 40 seconds.
    devices = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    if devices.isdecimal() and int(devices) > 1:
        os.environ.setdefault("NPROC", str(THREADS * int(devices)))  # XLA's name for the number of cores to use


DEVICES = Path("/sys/bus/pci/devices")
GOOGLE = "0x1ae0"  # of PCI devices: TPUs, and some network cards
ANY_CHIP = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_SKIP_MDS_QUERY": "1",  # do not search the network for the machine's description
}


def expect_no_chip() -> None:
    """Keeps libtpu from searching for a TPU machine if none is attached; call it before JAX finds devices."""
    vendors = DEVICES.glob("*/vendor")
    if not any(vendor.read_text(encoding="ascii").strip() == GOOGLE for vendor in vendors):
        for name, value in ANY_CHIP.items():
            os.environ.setdefault(name, value)
