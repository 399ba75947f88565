"""What every config.json has that speculators and vLLM load, whichever kind of head it is of."""

from pathlib import Path
from typing import Any

from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.convert import hf_config
from jaxspec.host.terminal import say

_VERSION = "0.9.0"
"""Of speculators, whose format is written."""


def common(
    kind: str, layers: dict[str, Any], goal: CheckpointConfig, target: Path, verifier: str | None, drafted: int
) -> dict[str, Any]:
    """Kind, version, layers, and what is drafted for which target.

    Args:
        kind: of the head, as speculators name it.
        layers: config.json of the head's layers as a model.
        goal: config of the target.
        target: folder of the target.
        verifier: what the target is to be called, a hub id or a folder; None: the target's folder, which is said.
        drafted: tokens that vLLM is to draft a round unless told otherwise.
    """
    if verifier is None:
        verifier = target.resolve().name
        say(f"the target is called {verifier} there; --verifier gives the id or folder that vLLM loads")
    return {
        "speculators_model_type": kind,
        "speculators_version": _VERSION,
        "torch_dtype": layers["torch_dtype"],
        "transformer_layer_config": {key: value for key, value in layers.items() if key != "architectures"},
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": drafted}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier, "architectures": [hf_config.ARCHITECTURES[goal.family]]},
        },
    }
