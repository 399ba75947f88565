"""Device time by phase of a round, from the profiler's operations and the scopes in the compiled text.

The profiler names operations as the compiled text does, and this name is all that is needed. It appears on a TPU's line
of operations, on a GPU's streams, where kernels carry their operation's name, and in the threads of a CPU.
"""

import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData, ProfileOptions

from jaxspec.planning.hlo import CompiledProgram
from jaxspec.planning.phases import phases_by_name
from jaxspec.planning.work import Phase

HOLDS_OTHERS = {"while", "conditional", "call"}
"""Operations that contain others. The profiler shows those too, so these are not counted."""

_DEVICE = re.compile(r"^/device:(TPU|GPU):(\d+)$")  # planes such as `/device:TPU:0 SparseCore 1` are parts of a device
_NAME = re.compile(r"%?([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Event:
    """One run of an operation."""

    name: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class DeviceTime:
    """Measured seconds of a program's operations.

    Attributes:
        phases: seconds of each phase of the loop; of the whole program if it has no loop.
        outside: seconds before and after the loop.
        unknown: seconds of operations that the compiled text does not contain.
    """

    phases: Mapping[Phase, float]
    outside: float
    unknown: float

    def to_json(self) -> dict[str, Any]:
        """The fields for JSON, and `unnamed_share`, the share of `unknown` in the total."""
        total = sum(self.phases.values()) + self.outside + self.unknown
        return {**dataclasses.asdict(self), "unnamed_share": self.unknown / total if total else 0.0}


def record(run: Callable[[], Any]) -> tuple[Any, Any]:
    """Runs a function under the profiler, to its end. Returns its result and the recorded `ProfileData`."""
    options = ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            result = jax.block_until_ready(run())
        (path,) = Path(folder).rglob("*.xplane.pb")
        return result, ProfileData.from_serialized_xspace(path.read_bytes())


def events(data: Any, module: str) -> list[Event]:
    """Operations that the first device ran. Operations known to belong to other modules are left out.

    Raises:
        ValueError: the profiler recorded no operation of this module.
    """
    planes = {(int(match[2]), match[1]): plane for plane in data.planes if (match := _DEVICE.match(plane.name))}
    if planes:
        kind, plane = min(planes)[1], planes[min(planes)]
        wanted = "XLA Ops" if kind == "TPU" else "Stream"  # the other lines summarise these
        lines = [line for line in plane.lines if (line.name or "").startswith(wanted)]
        found = [each for line in lines for each in _of_line(line, module, named=False)]
    else:
        host = [plane for plane in data.planes if plane.name == "/host:CPU"]
        found = [each for plane in host for line in plane.lines for each in _of_line(line, module, named=True)]
    if not found:
        raise ValueError(
            f"the profiler recorded no operations of {module}, but {[plane.name for plane in data.planes]}"
        )
    return found


def _of_line(line: Any, module: str, named: bool) -> Iterator[Event]:
    """Events of a line. `named`: only events that name an operation, because a CPU's lines have others too."""
    for event in line.events:
        stats = dict(event.stats)
        operation, of = stats.get("hlo_op"), stats.get("hlo_module", module)
        if of == module and (operation or not named):
            # On a TPU the name of an event is its whole line of the compiled text.
            name = _NAME.match(str(operation or event.name))
            yield Event(name[1] if name else event.name, event.duration_ns / 1e9)


def by_phase(found: Iterable[Event], program: CompiledProgram) -> DeviceTime:
    """Adds up the events by the phases of a compiled program."""
    known = {each.name: each.opcode for of in program.computations.values() for each in of.instructions}
    phases = phases_by_name(program)
    total: dict[Phase, float] = {}
    outside = unknown = 0.0
    for each in found:
        if known.get(each.name) in HOLDS_OTHERS:
            continue
        if each.name in phases:
            total[phases[each.name]] = total.get(phases[each.name], 0.0) + each.seconds
        elif each.name in known:
            outside += each.seconds
        else:
            unknown += each.seconds
    return DeviceTime(total, outside, unknown)
