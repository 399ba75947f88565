"""`jaxspec env`: versions, devices and cache folders."""

import jax

from jaxspec.checkpoint import memory
from jaxspec.costs import calibration
from jaxspec.host import compilation, environment
from jaxspec.options.by_command import Env


def run(settings: Env) -> None:
    """Prints versions, devices, and where things are kept."""
    for name, version in environment.versions().items():
        print(f"{name:10} {version}")
    for device in jax.devices():
        free = memory.available_bytes(device) / 1e9
        print(f"{'device':10} {device.platform}:{device.id} {device.device_kind}, {free:.1f} GB free")
    print(f"{'processor':10} {environment.device()}")
    print(f"{'cache':10} {environment.cache_folder()}")
    print(f"{'costs':10} {calibration.folder()}")
    print(f"{'compiled':10} {compilation.keep_compilations() or 'not kept'}")
