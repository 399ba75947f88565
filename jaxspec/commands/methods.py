"""`jaxspec methods`: the strategies with their settings and defaults, and what a checkpoint can run."""

from rich.console import Console
from rich.table import Table

from jaxspec.builders import BUILDERS
from jaxspec.checkpoint import config_json
from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.loading import compute_dtype
from jaxspec.commands.help_texts import summary
from jaxspec.controllers import CONTROLLERS
from jaxspec.costs.calibration import dtype_of
from jaxspec.decoding.drafter import Drafter
from jaxspec.drafters import DRAFTERS
from jaxspec.engine.default_method import default_at
from jaxspec.engine.head_weights import heads_of
from jaxspec.host import environment
from jaxspec.methods.method import HISTORY
from jaxspec.methods.settings import describe_settings
from jaxspec.options.by_command import Methods


def run(settings: Methods) -> None:
    """Prints the strategies and, with --target, what that checkpoint can run."""
    heads: tuple[str, ...] = ()
    if settings.target is not None:
        folder = locate(settings.target)
        config = config_json.read_config(folder)
        heads = config_json.head_names(folder)
    console = Console(highlight=False, markup=False)
    for part, kinds in (("drafters", DRAFTERS), ("builders", BUILDERS), ("controllers", CONTROLLERS)):
        table = Table(box=None, pad_edge=False, show_header=False)
        for name, kind in kinds.items():
            own = [describe_settings(kind), *[f"{HISTORY}=0"] * (issubclass(kind, Drafter) and kind.has_head)]
            described = ", ".join(filter(None, own))
            table.add_row(f"  {name:13}", "\n".join(filter(None, (summary(kind), described))))
        console.print(part)
        console.print(table)
    console.print("\nA method is DRAFTER[@HEAD][+BUILDER][+CONTROLLER], such as ngram+chain,length=6.")
    if settings.target is None:
        return
    ready = [name for name, kind in DRAFTERS.items() if not kind.has_head]
    usable, _ = heads_of(folder)
    console.print(f"{settings.target} can run: {', '.join([*ready, *usable.values()])}")
    console.print(f"heads found: {', '.join(heads) or 'none'}")
    dtype = dtype_of(str(compute_dtype(None)), config.quantize)
    console.print(f"without --method: {default_at(folder, heads, dtype=dtype, device=environment.device())}")
