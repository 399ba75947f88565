"""Bytes of a target's weights, and how many of them one forward reads: what bounds decoding on an accelerator."""

from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.model.llama import Llama
from jaxspec.model.quantization import leaf_bytes


def weights(target: Llama) -> dict[str, int]:
    """`bytes` of all parameters, and `read_bytes` of those that a forward reads, whatever the number of tokens.

    Of an embedding that is not the LM head too, a token reads one row, which is not counted. Experts are all counted,
    though a forward over few tokens reads fewer: `expert_bytes` are theirs.
    """
    sizes = {name: leaf_bytes(array.shape, array.dtype) for name, array in module_to_dict(target).items()}
    total = sum(sizes.values())
    unread = 0 if target.head is None else sizes["embedding"]
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    return {"bytes": total, "read_bytes": total - unread, "expert_bytes": experts}
