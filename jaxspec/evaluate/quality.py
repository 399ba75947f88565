"""Scores of the answers, which the papers report beside the speed. Lossless decoding must not change them.

| score | of | source |
|---|---|---|
| `exact_match` | GSM8K | the last number of the answer equals that after #### (arXiv:2110.14168, section 2) |
| `rouge1`, `rouge2`, `rougeL` | XSum, CNN/DM | F-measures, stemmed (Lin 2004; Draft & Verify, Tables 1 and 17) |

HumanEval's tests run code that a model wrote, so jaxspec does not run them. It writes the answers in the format that
HumanEval's scorer reads (arXiv:2107.03374; `evaluate_functional_correctness SAMPLES.jsonl`).
"""

import functools
import importlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxspec.host.json_lines import to_line

SUMMARIES = ("xsum", "cnn-dm")
CODE = "humaneval"
ROUGE = ("rouge1", "rouge2", "rougeL")
FUNCTION_ENDS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Strings that end a completion of HumanEval (arXiv:2107.03374, section 2.3)."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_FENCE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)


def score(suite: str | None, answer: str, worked: tuple[str, ...]) -> dict[str, float]:
    """Scores of one answer, from 0 to 1, by name; empty if its suite has none, or rouge-score is not installed.

    Args:
        worked: the suite's own answers; the first is used.
    """
    if suite == "gsm8k":
        given = number(answer.partition("\nQuestion:")[0])
        return {"exact_match": float(given is not None and given == number(worked[0]))}
    if suite in SUMMARIES and (rouge := _rouge()) is not None:
        found = rouge.score(worked[0], answer.strip().partition("\nArticle:")[0])
        return {name: found[name].fmeasure for name in ROUGE}
    return {}


def has_rouge() -> bool:
    """Whether rouge-score is installed."""
    return _rouge() is not None


def mean(scores: Iterable[Mapping[str, float]]) -> dict[str, float] | None:
    """Mean of each score over the answers that have it; None without any score."""
    found: dict[str, list[float]] = {}
    for each in scores:
        for name, value in each.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()} or None


def number(text: str) -> float | None:
    """The result in an answer to a GSM8K question: the number after ####, else the last number; None without any."""
    found = _NUMBER.findall(text.rpartition("####")[2]) or _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def completion(text: str) -> str:
    """The code in an answer to HumanEval: its first fenced block, else the text up to the end of the function."""
    if fenced := _FENCE.search(text):
        return fenced[1]
    ends = [at for end in FUNCTION_ENDS if (at := text.find(end)) >= 0]
    return text[: min(ends, default=len(text))]


def samples(answers: Iterable[tuple[Any, str]]) -> str:
    """The input file of HumanEval's scorer for (id, text) of each answer: one {"task_id", "completion"} per line."""
    return "".join(to_line({"task_id": name, "completion": completion(text)}) for name, text in answers)


@functools.cache
def _rouge() -> Any:
    try:
        scorer: Any = importlib.import_module("rouge_score.rouge_scorer")
    except ImportError:
        return None
    return scorer.RougeScorer(list(ROUGE), use_stemmer=True)
