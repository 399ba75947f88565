"""How much of what a head drafts is accepted: chains along the target's own greedy text, on held-out prompts."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxspec.builders.chain import Chain
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.drafter import Drafter
from jaxspec.engine.engine import Engine
from jaxspec.engine.statistics import statistics_of
from jaxspec.methods.method import Method
from jaxspec.train.data.text import Windows

PROMPTS = 16
PROMPT_TOKENS = 128
NEW_TOKENS = 64
CHAIN = 5


def measure_chain(model: Checkpoint, drafter: Drafter, held_out: Windows) -> Callable[[Any], dict[str, Any]]:
    """Weights of a drafter → tau and n-α (EAGLE, Table 2) of a chain of 5, decoded by the engine itself.

    The prompts begin at the beginnings of held-out windows; the same ones each time.
    """
    rows = np.unique(np.linspace(0, len(held_out.tokens) - 1, PROMPTS).astype(int))
    room = min(model.config.model.usable_length - CHAIN - 1, held_out.tokens.shape[1])
    length = max(1, min(PROMPT_TOKENS, room // 2))
    prompts = [held_out.tokens[row][:length].tolist() for row in rows]
    method = Method(drafter, Chain(length=CHAIN))

    def measure(weights: Any) -> dict[str, Any]:
        texts = Engine(model, method, draft=weights).generate(prompts, max_new_tokens=min(NEW_TOKENS, room - length))
        found = statistics_of([each.history for each in texts])
        return {"tau": found.tau, "acceptance": list(found.acceptance_by_position)}

    return measure
