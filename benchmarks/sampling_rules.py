"""τ of each sampling rule above temperature 0, on chains and on trees.

    python benchmarks/sampling_rules.py
    python benchmarks/sampling_rules.py --drafters eagle --builders chain,length=3 static --limit 10

Rejection sampling verifies children that the drafter sampled. Gumbel coupling gives the text that plain decoding gives
with the same seed. Both rules decode the same prompts with the builtin model. The 95 % intervals come from a bootstrap
over prompts; the bootstrap of the ratio is paired.
"""

import argparse
import dataclasses

import numpy as np

from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.engine.engine import Engine
from jaxspec.evaluate.questions import read_questions
from jaxspec.methods.method import parse_method
from jaxspec.rules import GumbelCoupling, RejectionSampling

DRAFTERS = ("eagle", "edd", "early-exit", "medusa", "draft-model@vdm")
BUILDERS = ("chain,length=3", "chain,length=5", "static", "uniform")
RULES = (RejectionSampling(), GumbelCoupling())
TEMPERATURES = (0.7, 1.0)
RESAMPLES = 2000


def counts(model: Checkpoint, prompts: list[str], method: str, new_tokens: int) -> np.ndarray:
    """Committed tokens and rounds of each prompt, int [rules, temperatures, prompts, 2]."""
    found = []
    for rule in RULES:
        engine = Engine(model, dataclasses.replace(parse_method(method), verification=rule))
        engine.tree_sizes = ()  # a single size for verification: nothing is timed
        for temperature in TEMPERATURES:
            options = {"max_new_tokens": new_tokens, "batch_size": len(prompts), "temperature": temperature}
            committed = [np.asarray(text.history.committed) for text in engine.generate(prompts, **options)]
            found.append([(each.sum(), (each > 0).sum()) for each in committed])
    return np.array(found).reshape(len(RULES), len(TEMPERATURES), len(prompts), 2)


def interval(tokens_and_rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """τ of each rule and the ratio of the two, [3]; and the lower and upper ends of their 95 % intervals, [3] each.

    Args:
        tokens_and_rounds: committed tokens and rounds, int [rules, prompts, 2].
    """
    prompts = tokens_and_rounds.shape[1]
    drawn = np.random.default_rng(0).integers(0, prompts, (RESAMPLES, prompts))

    def taus(picked: np.ndarray) -> np.ndarray:
        """τ of both rules and their ratio [..., 3], over the prompts with numbers `picked` [..., prompts]."""
        tokens, rounds = np.moveaxis(tokens_and_rounds[:, picked].sum(axis=-2), -1, 0)
        each = np.moveaxis(tokens / rounds, 0, -1)
        return np.concatenate([each, each[..., 1:] / each[..., :1]], axis=-1)

    low, high = np.percentile(taus(drawn), [2.5, 97.5], axis=0)
    return taus(np.arange(prompts)), low, high


def main() -> None:
    """Prints a table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--drafters", nargs="+", default=DRAFTERS)
    parser.add_argument("--builders", nargs="+", default=BUILDERS)
    parser.add_argument("--limit", type=int, default=16, help="number of prompts (default: 16)")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    asked = parser.parse_args()
    model = load("builtin", "float32")
    prompts = [each.turns[0] for each in read_questions("builtin")]
    prompts = prompts[:: max(1, len(prompts) // asked.limit)][: asked.limit]
    print("| method | temperature | rejection sampling | Gumbel coupling | ratio |\n|---|---|---|---|---|")
    for method in (f"{drafter}+{builder}" for drafter in asked.drafters for builder in asked.builders):
        by_temperature = np.moveaxis(counts(model, prompts, method, asked.max_new_tokens), 1, 0)
        for temperature, found in zip(TEMPERATURES, by_temperature, strict=True):
            cells = " | ".join(
                f"{tau:.2f} [{low:.2f}, {high:.2f}]" for tau, low, high in zip(*interval(found), strict=True)
            )
            print(f"| `{method}` | {temperature} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
