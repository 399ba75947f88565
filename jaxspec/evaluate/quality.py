"""Scores of the answers, as docs/measuring.md explains them: GSM8K's by lm-evaluation-harness (strict-match and
flexible-extract), MATH's by math-verify, ROUGE of summaries (Lin 2004), and the input of the scorers of HumanEval
(arXiv:2107.03374) and MBPP (EvalPlus). No code of an answer is run.
"""

import functools
import importlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxspec.evaluate.questions import FINAL
from jaxspec.host.json_lines import to_line

SUMMARIES = ("xsum", "cnn-dm")
CODE = ("humaneval", "mbpp")
ROUGE = ("rouge1", "rouge2", "rougeL")
FUNCTION_ENDS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")  # of HumanEval (arXiv:2107.03374, section 2.3)
PROGRAM_ENDS = ("[DONE]", "[BEGIN]")  # of MBPP, whose answers may have several functions
GSM8K_ENDS = ("Question:", "</s>", "<|im_end|>")  # as in lm-evaluation-harness
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_CODE_FROM_THE_START = re.compile(r"\s*?^(?: {4}|\t|(?:async )?def |class |from \S+ import |import |@)", re.MULTILINE)
# Not of an indented body, nor behind code that uses the function.
_TO_OWN_DEF = re.compile(r"\s*?^(?=\S)(?:(?!^(?:if|print)).)*?^(?:async )?def ", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"(^[ \t]*|(?<=[\s:]))(`{3,}|~{3,})([^\n`]*)\n(.*?)(?:\2|\Z)", re.DOTALL | re.MULTILINE)
"""A fenced block: the indentation of its fence, the fence, its language, the code. The text may end first."""


def score(suite: str | None, answer: str, worked: tuple[str, ...]) -> dict[str, float]:
    """Scores of one answer, from 0 to 1, by name, against the first of the suite's own answers, `worked`.

    Empty if its suite has no scores, or its scorer is not installed.
    """
    if suite == "gsm8k":
        answer, expected = _before(answer, GSM8K_ENDS), _digits(FINAL.findall(worked[0])[-1])
        given = {"exact_match": _STRICT.findall(answer)[:1], "exact_match_flexible": _FLEXIBLE.findall(answer)[-1:]}
        return {name: float([expected] == [_digits(number) for number in one]) for name, one in given.items()}
    if suite == "math" and (math := _module("math_verify")) is not None:
        answer = _before(answer, ["\nProblem:"])
        return {"math_verify": float(math.verify(math.parse(worked[0]), math.parse(answer)))}
    if suite in SUMMARIES and (rouge := rouge_scorer()) is not None:
        found = rouge.score(worked[0], _before(answer.strip(), ["\nArticle:"]))
        return {name: found[name].fmeasure for name in ROUGE}
    return {}


def mean(scores: Iterable[Mapping[str, float]]) -> dict[str, float] | None:
    """Mean of each score over the answers that have it; None without any score."""
    found: dict[str, list[float]] = {}
    for each in scores:
        for name, value in each.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()} or None


def completion(text: str, ends: Iterable[str] = FUNCTION_ENDS) -> str:
    """The code in an answer to HumanEval; with PROGRAM_ENDS, in one to MBPP.

    A text that begins with code goes up to the end of the function, or to a fence. Of others, the first block fenced as
    Python counts, or else the first without a language; without any, the text up to the end of the function. What a
    model reasons before `</think>` is no part of the answer.
    """
    text = text.replace("\r\n", "\n").rpartition("</think>")[2]
    if _CODE_FROM_THE_START.match(text):
        text = _before(text, ("```",))
        own = _TO_OWN_DEF.match(text) if ends is FUNCTION_ENDS else None
        begin = own.end() if own else 0  # an import or a decorator may precede the function, and its def ends nothing
        return text[:begin] + _before(text[begin:], ends)
    blocks = _BLOCK.findall(text)
    python = [block for block in blocks if "py" in block[2].lower()]
    for indent, _, _, code in python or [block for block in blocks if not block[2].strip()]:
        return re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
    return _before(text, ends)


def samples(suite: str, answers: Iterable[tuple[Any, str]]) -> str:
    """The input file of a suite's scorer for (id, text) of each answer.

    HumanEval's has {"task_id", "completion"} per line, and MBPP's {"task_id": "Mbpp/ID", "solution"}, as EvalPlus.
    """
    if suite == "mbpp":
        of = lambda name: f"Mbpp/{str(name).removeprefix('Mbpp/')}"  # ids of MBPP+ have the prefix already
        lines = ({"task_id": of(name), "solution": completion(text, PROGRAM_ENDS)} for name, text in answers)
    else:
        lines = ({"task_id": name, "completion": completion(text)} for name, text in answers)
    return "".join(map(to_line, lines))


def _before(text: str, ends: Iterable[str]) -> str:
    """The text up to the first of the strings `ends`."""
    return text[: min((at for end in ends if (at := text.find(end)) >= 0), default=len(text))]


def _digits(number: str) -> str:
    """A number of GSM8K as lm-evaluation-harness compares it."""
    return re.sub(r"[,$]", "", number).removesuffix(".")


def missing(suite: str | None) -> str | None:
    """A sentence on the package that the scores of a suite lack; None if they lack none."""
    if suite in SUMMARIES and rouge_scorer() is None:
        return "no ROUGE: rouge-score is not installed (pip install rouge-score)"
    if suite == "math" and _module("math_verify") is None:
        return "no scores of MATH: math-verify is not installed (pip install 'math-verify[antlr4_13_2]')"
    return None


@functools.cache
def rouge_scorer() -> Any:
    """The scorer of summaries; None if rouge-score is not installed."""
    scorer = _module("rouge_score.rouge_scorer")
    return scorer and scorer.RougeScorer(list(ROUGE), use_stemmer=True)


@functools.cache
def _module(name: str) -> Any:
    """The module; None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
