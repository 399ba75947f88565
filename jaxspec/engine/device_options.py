"""Options for devices and hosts. This module does not import JAX, so `--help` is fast."""

import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Annotated

from tyro import conf

if TYPE_CHECKING:
    from jax.sharding import Mesh


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

    @property
    def named(self) -> bool:
        """Whether any of the options was given."""
        return self != Hosts()

    def join(self, *, several: bool = True) -> None:
        """Connects to the other processes, if there are any. From then on only the first process prints.

        Args:
            several: whether the command can run as several processes.

        Raises:
            ValueError: options that contradict each other.
        """
        from jaxspec.host import processes

        processes.join(self.coordinator, self.processes, self.process_id, allowed=several)
        if not processes.is_first():
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """Devices that hold the model."""

    mesh: str | None = None
    """Shard over several devices, as in data=2,model=4: `model` shards the weights, `data` the batch. `rows` shards the
    weights too, and the rows of the KV cache, where there are more devices than KV heads. Default: one device. On
    several hosts, run the same command on each; the mesh uses the devices of all hosts, and the first host writes."""
    hosts: Annotated[conf.OmitArgPrefixes[Hosts], conf.arg(name="")] = Hosts()  # the same box of --help

    def open(self, *, several: bool = False) -> "Mesh | None":
        """Connects to the other processes, if there are any, and makes the mesh; None for a single device.

        Args:
            several: whether the command can run as several processes.

        Raises:
            ValueError: options that contradict each other or the devices; several processes without a mesh.
        """
        from jaxspec.host import processes

        if self.mesh is None:
            if self.hosts.named:
                raise ValueError("--coordinator, --processes and --process-id need --mesh, such as --mesh data=2")
            processes.check_alone(os.environ, sys.argv)
            return None
        from jaxspec.model.sharding import parse_mesh

        self.hosts.join(several=several)
        return parse_mesh(self.mesh)
