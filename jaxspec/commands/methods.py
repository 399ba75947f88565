"""`jaxspec methods`: the strategies with their settings, and what a checkpoint can run."""

from rich.console import Console
from rich.table import Table

from jaxspec.builders import BUILDERS
from jaxspec.checkpoint import config_json
from jaxspec.checkpoint.builtin import locate
from jaxspec.commands.settings import Methods
from jaxspec.controllers import CONTROLLERS
from jaxspec.decoding.drafter import Drafter
from jaxspec.drafters import DRAFTERS
from jaxspec.methods.method import HISTORY, default_method, runnable
from jaxspec.methods.settings import describe_settings


def run(settings: Methods) -> None:
    """Prints them."""
    heads: tuple[str, ...] = ()
    if settings.target is not None:
        folder = locate(settings.target)
        config_json.read_config(folder)
        heads = config_json.head_names(folder)
    table = Table("part", "name", "settings and defaults", "what it is", box=None, pad_edge=False)
    for part, kinds in (("drafter", DRAFTERS), ("builder", BUILDERS), ("controller", CONTROLLERS)):
        for name, kind in kinds.items():
            settings_of = [describe_settings(kind), *[f"{HISTORY}=0"] * (issubclass(kind, Drafter) and kind.has_head)]
            table.add_row(part, name, ", ".join(filter(None, settings_of)), (kind.__doc__ or "").split("\n")[0])
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print("\nA method is DRAFTER[@HEAD][+BUILDER][+CONTROLLER], such as ngram+chain,length=6.")
    if settings.target is None:
        return
    ready = [name for name, can_run in runnable(heads) if can_run]
    console.print(f"{settings.target} can run: {', '.join(ready)}")
    console.print(f"heads found: {', '.join(heads) or 'none'}")
    console.print(f"without --method: {default_method(heads)}")
