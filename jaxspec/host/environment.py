"""The environment of a run: device, versions, and the user's cache folder."""

import os
import platform
import resource
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from jaxspec.host.buckets import to_path

# By what they are imported as; on PyPI `jaxspec` is a library of X-ray astronomy.
PACKAGES = {"jaxspec": "jax-specdec", "jax": "jax", "jaxlib": "jaxlib", "flax": "flax", "numpy": "numpy"}


def default_device() -> Any:
    """The device of arrays without a place: `jax_default_device`, otherwise the first of this process."""
    chosen = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    return jax.local_devices(backend=chosen)[0] if chosen is None or isinstance(chosen, str) else chosen


def device() -> str:
    """The default device in words, such as `NVIDIA H100` or `cpu: AMD EPYC 7B13, 2 cores`."""
    first = default_device()
    if first.platform != "cpu":
        return first.device_kind
    return f"cpu: {_processor()}, {_cores()} cores"


def versions() -> dict[str, str]:
    """Python and the packages that decoding runs on."""
    return {"python": platform.python_version(), **{name: _version(of) for name, of in PACKAGES.items()}}


def cache_folder() -> Path:
    """The folder of compiled programs and cost tables: `$JAXSPEC_CACHE`, otherwise `jaxspec` in the user's cache folder
    (`$XDG_CACHE_HOME` or ~/.cache). Without a home folder, as in some containers, it is in the temporary folder."""
    if chosen := os.environ.get("JAXSPEC_CACHE"):
        return to_path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxspec"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"jaxspec-{os.getuid()}"


def peak_memory() -> int:
    """The most bytes of RAM that this process has held."""
    try:  # unlike getrusage, without what the parent held when it forked
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _version(distribution: str) -> str:
    """The version of a distribution; `checkout` for one that is on the path without being installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "checkout"


def _cores() -> int | None:
    """Number of cores that this process may use; on systems other than Linux, of the machine."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count()


def _processor() -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
