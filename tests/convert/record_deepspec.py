"""Records what DeepSpec's own code computes for tiny EAGLE-3, DFlash and DSpark heads.

    git clone https://github.com/deepseek-ai/DeepSpec && git -C DeepSpec checkout afdfa7c
    PYTHONPATH=DeepSpec python -m tests.convert.record_deepspec

It writes deepspec_logits.json, which test_recorded_logits.py compares with. The heads are those of published_heads.py.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.published_heads import (
    BLOCK,
    DEEPSPEC,
    DFLASH_TAPS,
    DSPARK_TERMS,
    EAGLE3_DEEPSPEC,
    MASK,
    VOCABULARY,
    WIDTH,
    dspark,
    eagle3,
)
from tests.convert.record_speculators import COUNT, LENGTH, STEPS, hidden_of, tables, text

RECORD = Path(__file__).parent / "deepspec_logits.json"
EAGLE3_TAPS = [layer + 1 for layer in EAGLE3_DEEPSPEC["target_layer_ids"]]
"""The layers whose inputs the EAGLE-3 head reads."""
BLOCKS: dict[str, dict[str, Any]] = {  # what differs from DEEPSPEC
    "dflash": {},
    "dspark": DSPARK_TERMS,
    "dspark, confidence without the token": {**DSPARK_TERMS, "confidence_head_with_markov": False},
}


def block_config(name: str) -> dict[str, Any]:
    """config.json of a block head."""
    return DEEPSPEC | BLOCKS[name]


def block_head(name: str) -> dict[str, np.ndarray]:
    """Tensors of a block head."""
    terms = BLOCKS[name]
    found = dspark(with_markov=terms.get("confidence_head_with_markov", False))
    kept = {key: array for key, array in found.items() if terms or not key.startswith(("markov", "confidence"))}
    return kept | tables()


def eagle3_head() -> dict[str, np.ndarray]:
    """Tensors of an EAGLE-3 head."""
    embedding = np.random.default_rng(5).standard_normal((VOCABULARY, WIDTH))
    return eagle3(layer="layers.0", drafted=VOCABULARY, taps=len(EAGLE3_TAPS), qk_norm=True, embedding=embedding)


def built(kind: Any, config: dict[str, Any], found: dict[str, np.ndarray]) -> Any:
    """A model of DeepSpec's with these tensors."""
    import torch
    from transformers import Qwen3Config

    shape = Qwen3Config(**{key: value for key, value in config.items() if key != "architectures"})
    shape._attn_implementation = "eager"
    model = kind(shape)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in found.items()})
    return model.float().eval()


def recorded_block(name: str) -> dict[str, list]:
    """DeepSpec's logits of a block after COUNT - 1 tokens, [rows, V], and for DSpark its confidences, [rows].

    The token before each row is that of the text.
    """
    import torch
    from deepspec.modeling.dspark.qwen3.modeling import Qwen3DSparkModel  # pyright: ignore[reportMissingImports]

    model = built(Qwen3DSparkModel, block_config(name), block_head(name))
    tokens, hidden = text()
    anchor = COUNT - 1
    taps = np.concatenate([hidden_of(hidden, tap)[:anchor] for tap in DFLASH_TAPS], axis=-1)
    before = torch.from_numpy(tokens[anchor : anchor + BLOCK])[None]
    block = torch.tensor([[int(tokens[anchor]), *[MASK] * (BLOCK - 1)]])
    with torch.no_grad():
        out = model._forward_backbone(
            position_ids=torch.arange(anchor + BLOCK)[None],
            noise_embedding=model.embed_tokens(block),
            target_hidden_states=torch.from_numpy(taps)[None],
        )
        logits = model.compute_logits(out)
        if model.markov_head is not None:
            logits = model.markov_head.apply_block_logits(logits, token_ids=before, hidden_states=out)
        odds = model.predict_confidence_step(out, before)
    return {"logits": logits[0].tolist(), **({} if odds is None else {"odds": odds.reshape(-1).tolist()})}


def recorded_eagle3() -> list[list[float]]:
    """DeepSpec's logits after the committed tokens, and after one and two drafts, which are the text's."""
    import torch
    from deepspec.modeling.eagle3.qwen3.modeling import Qwen3Eagle3Model  # pyright: ignore[reportMissingImports]
    from transformers import DynamicCache

    model = built(Qwen3Eagle3Model, EAGLE3_DEEPSPEC, eagle3_head())
    tokens, hidden = text()
    taps = np.concatenate([hidden_of(hidden, tap)[: COUNT - 1] for tap in EAGLE3_TAPS], axis=-1)
    cache, found = DynamicCache(), []
    given, features = torch.from_numpy(tokens[1:COUNT])[None], torch.from_numpy(taps)[None]
    with torch.no_grad():
        for step in range(STEPS):
            first = 0 if step == 0 else COUNT - 2 + step
            at = torch.arange(first, first + given.shape[1])[None]
            features = model.extend_draft_cache(features, given, at, cache)
            found.append(model.compute_logits(features)[0, -1].tolist())
            given = torch.from_numpy(tokens[COUNT + step : COUNT + step + 1])[None]
    return found


if __name__ == "__main__":
    assert LENGTH >= COUNT + STEPS
    found = {
        "commit": "afdfa7c",
        "eagle3": recorded_eagle3(),
        "blocks": {name: recorded_block(name) for name in BLOCKS},
    }
    rounded = json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 6))
    RECORD.write_text(json.dumps(rounded) + "\n")
    print(f"wrote {RECORD}")
