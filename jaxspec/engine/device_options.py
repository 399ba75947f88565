"""The options that say which devices and hosts a command runs on. Kept apart from the work, so that `--help` need not
load JAX."""

import dataclasses
import os
import sys
from typing import TYPE_CHECKING

from tyro import conf

if TYPE_CHECKING:
    from jax.sharding import Mesh


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosts:
    """The other processes, each of which runs the same command."""

    coordinator: str | None = None
    """On several hosts: HOST:PORT of the first process; or `auto`, to find it in the environment, which is tried in any
    case under SLURM and on a TPU pod."""
    processes: int | None = None
    """With --coordinator HOST:PORT: how many processes there are."""
    process_id: int | None = None
    """With --coordinator HOST:PORT: which of them this is, from 0."""

    @property
    def named(self) -> bool:
        """Whether one of the options was given."""
        return self != Hosts()

    def join(self, *, several: bool = True) -> None:
        """Joins the other processes, where there are any. From then on only the first one prints, remarks too.

        Args:
            several: whether the command can run as several processes.

        Raises:
            ValueError: options that do not fit each other.
        """
        from jaxspec.host import processes

        processes.join(self.coordinator, self.processes, self.process_id, allowed=several)
        if not processes.is_first():
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """Where a model lies."""

    mesh: str | None = None
    """Spread it over devices, such as data=2,model=4: `model` cuts the weights and `data` the batch; one device if not
    given. On several hosts the same command runs on each, all their devices count, and the first one writes."""
    hosts: conf.OmitArgPrefixes[Hosts] = Hosts()

    def open(self, *, several: bool = False) -> "Mesh | None":
        """Joins the other processes, where there are any, and makes the mesh; None where one device is enough.

        Args:
            several: whether the command can run as several processes.

        Raises:
            ValueError: options that do not fit each other or the devices, or no mesh where there are other processes.
        """
        from jaxspec.host import processes

        if self.mesh is None:
            if self.hosts.named:
                raise ValueError("--coordinator, --processes and --process-id go with --mesh, such as --mesh data=2")
            processes.check_alone(os.environ, sys.argv)
            return None
        from jaxspec.model.mesh import parse_mesh

        self.hosts.join(several=several)
        return parse_mesh(self.mesh)
