"""Drafters, one file each. To add one, add a file here and a line below."""

from jaxspec.decoding.drafter import Drafter
from jaxspec.drafters.dflash import Dflash
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.drafters.eagle import Eagle
from jaxspec.drafters.eagle3 import Eagle3
from jaxspec.drafters.early_exit import EarlyExit
from jaxspec.drafters.edd import Edd
from jaxspec.drafters.layer_skip import LayerSkip
from jaxspec.drafters.medusa import Medusa
from jaxspec.drafters.ngram import Ngram
from jaxspec.drafters.plain import Plain

DRAFTERS: dict[str, type[Drafter]] = {
    kind.name: kind for kind in (Plain, DraftModel, Ngram, Dflash, Eagle, Eagle3, EarlyExit, Edd, Medusa, LayerSkip)
}
"""Drafters by the name that users type."""
