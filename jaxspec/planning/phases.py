"""The parts of a round by the scopes that `loop` gives them, in traced and in compiled programs alike."""

import re
from collections.abc import Mapping

from jaxspec.decoding.loop import DRAFTING, LEVEL, VERIFICATION
from jaxspec.planning.work import Parts, Work

COMMIT = "commit"
Phase = str  # DRAFTING, LEVEL, COMMIT, or VERIFICATION followed by the number of nodes

_SCOPE = re.compile(rf"(?:^|/)({DRAFTING}|{LEVEL}|{VERIFICATION}\d+)(?=/|$)")


def phase_of(path: str) -> Phase:
    """The innermost scope of a path such as `jit(decode)/while/body/draft/while/body/level/dot_general`."""
    found = _SCOPE.findall(path)
    return found[-1] if found else COMMIT


def gather(works: Mapping[Phase, Work]) -> Parts:
    """The parts of a round out of what each phase does."""
    sizes = {int(phase.removeprefix(VERIFICATION)): work for phase, work in works.items() if phase[-1].isdigit()}
    of = lambda phase: works.get(phase, Work())
    return Parts(draft=of(DRAFTING), level=of(LEVEL), verify=dict(sorted(sizes.items())), commit=of(COMMIT))
