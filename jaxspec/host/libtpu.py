"""libtpu on a machine without a TPU: used as a compiler, without its warnings."""

import os
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")
GOOGLE = "0x1ae0"  # of PCI devices: TPUs, and some network cards
ANY_CHIP = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_SKIP_MDS_QUERY": "1",  # do not search the network for the machine's description
}


def expect_no_chip() -> None:
    """Keeps libtpu from searching for a TPU machine and printing errors, where none is attached.

    To be called before JAX looks for devices. What the user has set stays.
    """
    vendors = DEVICES.glob("*/vendor")
    if not any(vendor.read_text(encoding="ascii").strip() == GOOGLE for vendor in vendors):
        for name, value in ANY_CHIP.items():
            os.environ.setdefault(name, value)
