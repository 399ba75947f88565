"""Records what speculators' own code computes for tiny EAGLE-3 heads.

    pip install speculators==0.9.0 && python -m tests.convert.record_speculators

It writes speculators_logits.json, which test_speculators_logits.py compares with. The package is not a dependency of
the tests: it brings a second PyTorch stack. The heads are those of published_heads.py, under every norm flag.
"""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.published_heads import DRAFTED, EAGLE, TAPS, VOCABULARY, WIDTH, eagle3

RECORD = Path(__file__).parent / "speculators_logits.json"
LENGTH, COUNT, STEPS = 14, 9, 3
"""Tokens of the text, those that are committed, and drafting steps; the drafts are the text's own tokens."""
FLAGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "most": {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
}


def head(flags: dict[str, bool]) -> dict[str, np.ndarray]:
    """Tensors of a head with these flags, its embedding included."""
    tap_norm = "all" if flags.get("norm_before_fc") else "each" if flags.get("fc_norm") else "none"
    embedding = np.random.default_rng(5).standard_normal((VOCABULARY, WIDTH))
    return eagle3(layer="layers.0", tap_norm=tap_norm, embedding=embedding)


def text() -> tuple[np.ndarray, list[np.ndarray]]:
    """Tokens, [LENGTH], and the hidden states of every layer up to the last tap, each [LENGTH, WIDTH]."""
    rng = np.random.default_rng(11)
    tokens = rng.integers(0, VOCABULARY, LENGTH)
    return tokens, [rng.standard_normal((LENGTH, WIDTH)).astype(np.float32) for _ in range(max(TAPS) + 1)]


def recorded(flags: dict[str, bool]) -> list[list[float]]:
    """speculators' logits over the draft vocabulary after the committed tokens, and after one and two drafts."""
    import torch
    from speculators.models.eagle3 import Eagle3SpeculatorConfig  # pyright: ignore[reportMissingImports]
    from speculators.models.eagle3.core import Eagle3DraftModel  # pyright: ignore[reportMissingImports]
    from transformers import LlamaConfig

    shape = LlamaConfig(**{key: value for key, value in EAGLE.items() if key not in ("architectures", "torch_dtype")})
    shape._attn_implementation = "eager"
    settings: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": list(TAPS), **flags}
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(transformer_layer_config=shape, draft_vocab_size=DRAFTED, **settings)
    )
    found = {name: torch.from_numpy(array) for name, array in head(flags).items()}
    missing, unexpected = model.load_state_dict(found, strict=False)
    assert not unexpected and all(name.startswith("verifier_") for name in missing), (missing, unexpected)
    said: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, logits: said.append(logits))
    tokens, hidden = text()
    taps = np.concatenate([hidden[tap][:-1] for tap in TAPS], axis=-1)
    with torch.no_grad():
        model.float().eval()(
            hidden_states=torch.from_numpy(taps)[None],
            input_ids=torch.from_numpy(tokens[1:])[None],
            document_ids=torch.zeros((1, LENGTH - 1), dtype=torch.long),
            ttt_steps=STEPS,
        )
    return [[round(float(x), 6) for x in logits[0, COUNT - 2]] for logits in said]


if __name__ == "__main__":
    logits = {name: recorded(flags) for name, flags in FLAGS.items()}
    RECORD.write_text(json.dumps({"speculators": metadata.version("speculators"), "logits": logits}) + "\n")
    print(f"wrote {RECORD}")
