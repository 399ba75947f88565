"""The part of config.json that heads of every kind share in the format of speculators and vLLM."""

from pathlib import Path
from typing import Any

from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.convert import hf_config
from jaxspec.host.terminal import say

_VERSION = "0.9.0"
"""The version of speculators whose format is written."""


def common(
    kind: str, layers: dict[str, Any], goal: CheckpointConfig, target: Path, verifier: str | None, drafted: int
) -> dict[str, Any]:
    """The common entries: kind, version, layers, target, and number of drafted tokens.

    Args:
        kind: the kind of head, in speculators' terms.
        layers: the config.json of the head's layers as a model.
        goal: config of the target.
        target: folder of the target.
        verifier: the target's name in the config, a hub id or a folder; None: the target's folder, with a message.
        drafted: default number of tokens that vLLM drafts per round.
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
