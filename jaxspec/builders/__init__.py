"""Tree builders, one file each. To add one, add a file here and a line below."""

from jaxspec.builders.budgeted import Budgeted
from jaxspec.builders.cape import Cape
from jaxspec.builders.chain import Chain
from jaxspec.builders.eagle2 import Eagle2
from jaxspec.builders.pruned import Pruned
from jaxspec.builders.static import Static
from jaxspec.builders.uniform import Uniform
from jaxspec.decoding.builder import TreeBuilder

BUILDERS: dict[str, type[TreeBuilder]] = {
    kind.name: kind for kind in (Chain, Static, Uniform, Cape, Eagle2, Pruned, Budgeted)
}
