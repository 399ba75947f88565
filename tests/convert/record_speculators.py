"""Records what speculators' own code computes for tiny EAGLE-3, DFlash and DSpark heads.

    pip install speculators==0.9.0 && python -m tests.convert.record_speculators

It writes speculators_logits.json, which test_recorded_logits.py compares with. The package is not a dependency of
the tests: it brings a second PyTorch stack. The heads are those of published_heads.py, under every flag.
"""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.published_heads import (
    BLOCK,
    DFLASH_SHAPE,
    DFLASH_SPECULATORS,
    DFLASH_TAPS,
    DRAFTED,
    DSPARK_TERMS,
    EAGLE,
    TAPS,
    VOCABULARY,
    WIDTH,
    dflash,
    dspark,
    eagle3,
)

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


BLOCKS: dict[str, dict[str, Any]] = {  # what differs from the configs of published_heads.py
    "dflash": {},
    "dflash, anchor rows": {"sample_from_anchor": True},
    "dspark": {"speculators_model_type": "dspark", "sample_from_anchor": True, **DSPARK_TERMS},
    "dspark, own rows, causal": {
        "speculators_model_type": "dspark", "sample_from_anchor": False, **DSPARK_TERMS,
        "transformer_layer_config": {
            **DFLASH_SHAPE, "layer_types": ["sliding_attention"] * 2, "sliding_window": 64, "use_sliding_window": True,
        },
    },
}  # fmt: skip


def block_config(name: str) -> dict[str, Any]:
    """config.json of a block head."""
    return {**DFLASH_SPECULATORS, "architectures": None, **BLOCKS[name]}


def block_head(name: str) -> dict[str, np.ndarray]:
    """Tensors of a block head, with an embedding and an LM head of its own."""
    return (dspark() if "markov_rank" in BLOCKS[name] else dflash()) | tables()


def tables() -> dict[str, np.ndarray]:
    """An embedding and an LM head."""
    rng = np.random.default_rng(9)
    found = {f"{part}.weight": rng.standard_normal((VOCABULARY, WIDTH)) for part in ("embed_tokens", "lm_head")}
    return {part: 0.2 * table.astype(np.float32) for part, table in found.items()}


def recorded_block(name: str) -> dict[str, list]:
    """speculators' logits of a block after COUNT - 1 tokens, [rows, V], and for DSpark its confidences, [rows].

    The token before each row is that of the text.
    """
    import torch
    from speculators.models.dflash.config import DFlashSpeculatorConfig  # pyright: ignore[reportMissingImports]
    from speculators.models.dflash.core import DFlashDraftModel  # pyright: ignore[reportMissingImports]
    from speculators.models.dspark.config import DSparkSpeculatorConfig  # pyright: ignore[reportMissingImports]
    from speculators.models.dspark.core import DSparkDraftModel  # pyright: ignore[reportMissingImports]
    from transformers import Qwen3Config

    config = block_config(name)
    of_dspark = "markov_rank" in config
    shape = Qwen3Config(**config.pop("transformer_layer_config"))
    shape._attn_implementation = "eager"
    settings = {key: value for key, value in config.items() if key not in ("architectures", "speculators_model_type")}
    kinds = (DSparkSpeculatorConfig, DSparkDraftModel) if of_dspark else (DFlashSpeculatorConfig, DFlashDraftModel)
    model = kinds[1](kinds[0](transformer_layer_config=shape, **settings))
    found = {name: torch.from_numpy(array) for name, array in block_head(name).items()}
    missing, unexpected = model.load_state_dict(found, strict=False)
    assert not unexpected and all(name.startswith("verifier_") for name in missing), (missing, unexpected)
    tokens, hidden = text()
    taps, anchor = np.concatenate([hidden_of(hidden, tap) for tap in DFLASH_TAPS], axis=-1), COUNT - 1
    mask = torch.zeros((1, LENGTH))
    mask[0, anchor] = 1
    with torch.no_grad():
        out, logits, *_ = model.float().eval()._backbone_forward(
            torch.from_numpy(taps)[None], torch.from_numpy(tokens)[None], mask, torch.zeros((1, LENGTH, WIDTH)),
            torch.zeros((1, LENGTH), dtype=torch.long), max_anchors=1,
        )  # fmt: skip
        if not of_dspark:
            return {"logits": logits[0].tolist()}
        before = torch.from_numpy(tokens[anchor : anchor + BLOCK] if settings["sample_from_anchor"] else
                                  tokens[[anchor, *range(anchor, anchor + BLOCK - 1)]])[None]  # fmt: skip
        prev = model.markov_head.prev_embeddings(before)
        logits = logits + model.markov_head.block_bias(prev_token_ids=before, hidden_states=out, prev_emb=prev)
        odds = model.confidence_head(torch.cat([out, prev], dim=-1))
        return {"logits": logits[0].tolist(), "odds": odds.reshape(-1).tolist()}


def hidden_of(hidden: list[np.ndarray], tap: int) -> np.ndarray:
    """A layer's hidden states; the text has as many as EAGLE-3's layers need."""
    return hidden[tap % len(hidden)]


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
    blocks = {name: recorded_block(name) for name in BLOCKS}
    rounded = json.loads(json.dumps(blocks), parse_float=lambda text: round(float(text), 6))
    found = {"speculators": metadata.version("speculators"), "logits": logits, "blocks": rounded}
    RECORD.write_text(json.dumps(found) + "\n")
    print(f"wrote {RECORD}")
