"""The mean round of a method, from the options of `plan` or a file of `jaxspec bench --json`."""

import dataclasses
import json
from pathlib import Path

from jaxspec.decoding.speculation import Speculation
from jaxspec.methods.method import Method
from jaxspec.options.by_command import PlanSettings


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Means over rounds: committed tokens, drafted levels, and verified nodes with the root; None: not given."""

    tau: float | None
    levels: int | float
    nodes: int | float | None = None

    def verified(self, spec: Speculation) -> int | float:
        """Verified nodes, the root included. If not given: levels + 1 for a chain, the largest size for a tree."""
        if self.nodes is not None:
            return self.nodes
        return self.levels + 1 if spec.builder.is_chain else max(spec.verify_sizes)


def expected_rounds(settings: PlanSettings, method: Method) -> Rounds:
    """The means of a method's rounds. Raises ValueError if they are impossible, or the file has none for the method."""
    depth = method.builder.depth
    levels = depth if settings.levels is None else settings.levels
    if not 0 <= levels <= depth:
        raise ValueError(f"--levels {levels}: {settings.method} drafts 0 to {depth} levels a round")
    if settings.tau is None:
        return Rounds(None, levels)
    try:
        tau = float(settings.tau)
    except ValueError:
        return _benched(settings, method)
    if not 0 < tau <= levels + 1:
        raise ValueError(
            f"--tau {settings.tau}: a round of {settings.method} that drafts {levels:g} levels commits {levels + 1:g} "
            "tokens at most"
        )
    return Rounds(tau, levels)


def _benched(settings: PlanSettings, method: Method) -> Rounds:
    """The means from a file of `bench --json`."""
    if settings.levels is not None:
        raise ValueError(f"--levels needs a number as --tau; the file {settings.tau} has its own number of levels")
    try:
        methods = json.loads(Path(settings.tau or "").read_text(encoding="utf-8"))["methods"]
        found = {values["resolved"]: values for values in methods.values()} | methods
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"--tau {settings.tau!r} is neither a number nor a file of `jaxspec bench --json`") from error
    values = found.get(settings.method) or found.get(str(method))
    if values is None:
        raise ValueError(f"--tau {settings.tau}: the file has no method {settings.method!r}, only {', '.join(methods)}")
    try:
        return Rounds(float(values["tau"]), float(values["depth_per_round"]), float(values["nodes_per_round"]) + 1)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"--tau {settings.tau}: {settings.method} in it lacks tau, depth_per_round or nodes_per_round"
        ) from error
