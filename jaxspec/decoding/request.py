"""A prompt with its settings, checked."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt, ready to run."""

    tokens: list[int]
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    index: int  # in the call; the prompt draws from fold_in(key(seed), index)
