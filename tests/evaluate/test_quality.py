"""Scores of answers, and the files that HumanEval's own scorer reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jaxspec.checkpoint.builtin import FOLDER
from jaxspec.checkpoint.tokenizer import load_tokenizer
from jaxspec.evaluate import bench, comparison, quality
from jaxspec.evaluate.all_methods import all_methods
from jaxspec.evaluate.comparison import differences, read, show
from jaxspec.evaluate.runlog import log_of, pieces_of, word_of
from jaxspec.methods.method import parse_method
from jaxspec.options.by_command import Bench, Compare
from jaxspec.report import runs as finished
from tests.report import made_up

# What lm-evaluation-harness 0.4.13 gives for its task gsm8k (tasks/gsm8k/gsm8k.yaml): strict-match, flexible-extract.
# GSM8K's own reader (openai/grade-school-math, dataset.py) agrees with the first, but where `dot` is noted.
GSM8K = [
    ("Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 18", 1, 1),
    ("The answer is 18", 0, 1),
    ("no idea", 0, 0),
    ("", 0, 0),
    ("#### 18\n#### 9", 1, 0),  # the first after ####, and the last of all
    ("#### 9\n#### 18", 0, 1),
    ("#### x\n#### 18", 1, 1),
    ("####18", 0, 1),
    ("####  18", 0, 1),
    ("#### 18 clips, of 48", 1, 0),
    ("#### 18.", 1, 1),  # dot
    ("So it is 18.", 0, 1),
    ("So it is 18..", 0, 0),
    ("#### 18.0", 0, 0),
    ("#### 18.00", 0, 0),
    ("#### 1.8e1", 0, 0),
    ("#### 18e3", 1, 0),
    ("#### 18-5", 1, 0),
    ("#### 5-18", 0, 0),  # the last is -18
    ("#### \u221218", 0, 1),  # U+2212 is no sign
    ("#### -18", 0, 0),
    ("#### $18", 0, 1),
    ("#### $18.00", 0, 0),
    ("#### 18%", 1, 1),
    ("#### 18$", 1, 1),
    ("#### 1,8", 1, 1),
    ("#### ,18,", 1, 1),
    ("#### 018", 0, 0),
    ("#### +18", 0, 1),
    ("#### \u0661\u0668", 0, 0),  # other digits than ASCII's
    ("#### 18\u0661", 1, 1),
    ("It is 18 .", 0, 1),
    ("**18**", 0, 1),
    ("\\boxed{18}", 0, 1),
    ("18, as I said ...", 0, 0),
    ("18\n\nQuestion: 5?\nAnswer: 9", 0, 1),  # what a base model goes on with
    ("#### 18 Question: 9", 1, 1),
    ("18</s>9", 0, 1),
    ("18<|im_end|>9", 0, 1),
]


@pytest.mark.parametrize(("answer", "strict", "flexible"), GSM8K)
def test_gsm8k_is_read_as_by_lm_evaluation_harness(answer: str, strict: int, flexible: int):
    scores = {"exact_match": strict, "exact_match_flexible": flexible}
    assert quality.score("gsm8k", answer, ("3 * 6 = <<3*6=18>>18\n#### 18",)) == scores
    assert quality.score("gsm8k", answer, ("9 + 9\n####18. \n", "#### 9")) == scores


@pytest.mark.parametrize(
    ("expected", "answer", "strict", "flexible"),
    [
        ("1,800", "#### 1800", 1, 1),
        ("1800", "It is $1,800.", 0, 1),
        ("0.5", "#### $.50", 0, 0),
        (".50", "#### $.50", 0, 1),
        ("-3", "#### -3", 1, 1),
        ("-5", "#### 3-5", 0, 1),
        ("3", "#### 3-5", 1, 0),
        ("3", "#### 1.5e3", 0, 1),
    ],
)
def test_other_numbers_of_gsm8k(expected: str, answer: str, strict: int, flexible: int):
    scores = {"exact_match": strict, "exact_match_flexible": flexible}
    assert quality.score("gsm8k", answer, (f"so\n#### {expected}",)) == scores


def test_rouge_by_hand():
    """Of three words two are found, in order: unigrams 2/3, bigrams 1/2, the longest common subsequence 2/3."""
    found = quality.score("xsum", "the cat slept", ("the cat sat",))
    assert found == pytest.approx({"rouge1": 2 / 3, "rouge2": 1 / 2, "rougeL": 2 / 3})
    assert quality.score("xsum", "the cat sat\nArticle: more", ("the cat sat",))["rougeL"] == 1
    assert quality.score(None, "a", ()) == quality.score("humaneval", "a", ()) == {}


@pytest.mark.parametrize("suite", ["xsum", "cnn-dm"])
def test_options_of_rouge(suite: str):
    """Stems, small letters and no punctuation, as in Draft & Verify's evaluate_sum.ipynb; F of unequal P and R.

    The answer's 4 words are ran, house, cat, run; the summary's 6 are the, cat, run, to, the, hous. Three are in both
    (cat, run, hous), one bigram (cat run), and the longest common subsequence is cat, run.
    """
    found = quality.score(
        suite, " Ran-HOUSES; cats running!", ("The cat runs\nto the house.", "Ran houses cats running")
    )
    f = lambda precision, recall: 2 * precision * recall / (precision + recall)
    assert found == pytest.approx({"rouge1": f(3 / 4, 3 / 6), "rouge2": f(1 / 3, 1 / 5), "rougeL": f(2 / 4, 2 / 6)})


MATH = "It is $1 + 1 = \\boxed{\\frac{4}{2}}$ in all."
MATH_ANSWERS = [
    ("so $\\boxed{2}$.", 1.0),
    ("The final answer is $2.0$. I hope it is correct.", 1.0),
    ("so $\\boxed{3}$", 0.0),
    ("", 0.0),
    ("so $\\boxed{2}$.\n\nProblem:\n$\\boxed{9}$", 1.0),  # what a base model goes on with
]


@pytest.mark.parametrize(("answer", "score"), MATH_ANSWERS)
def test_math_by_math_verify(answer: str, score: float):
    pytest.importorskip("math_verify")
    assert quality.score("math", answer, (MATH,)) == {"math_verify": score}


def test_math_gives_the_worked_answer_first(monkeypatch: pytest.MonkeyPatch):
    class Package:
        parse = staticmethod(lambda text: text)
        verify = staticmethod(lambda gold, answer: (gold, answer) == (MATH, "so"))

    monkeypatch.setattr(quality, "_module", lambda name: Package)
    assert quality.score("math", "so\nProblem: x", (MATH,)) == {"math_verify": 1.0}
    assert quality.missing("math") is None


def test_a_scorer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    assert quality._module("no_such_package") is None
    monkeypatch.setattr(quality, "_module", lambda name: None)
    monkeypatch.setattr(quality, "rouge_scorer", lambda: None)
    assert quality.score("math", "2", (MATH,)) == quality.score("xsum", "2", ("2",)) == {}
    assert "pip install 'math-verify" in (quality.missing("math") or "")
    assert "pip install rouge-score" in (quality.missing("cnn-dm") or "")
    assert quality.missing("gsm8k") is quality.missing(None) is None


def test_means():
    assert quality.mean([{"a": 1.0}, {}, {"a": 0.0}]) == {"a": 0.5}
    assert quality.mean([{"a": 1.0}, {"b": 0.5}, {"a": 0.0}]) == {"a": 0.5, "b": 0.5}  # of two suites in one file
    assert quality.mean([{}, {}]) is None


CODE = "def f():\n    return 1\n"
PRECEDING = (
    "\n\n", "import math\n\n", "from typing import (\n    List,\n)\n# f\nN = 1\n\n", "@cache\n", "@a(1)\nasync ",
    "class A:\n    pass\n\n",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("    return 1\n\ndef g():\n    pass", "    return 1\n"),
        ("    return 1\nprint(f())", "    return 1"),
        ("    return 1\nif f():\n", "    return 1"),
        ("    return 1\nclass A:\n", "    return 1"),
        ("    return 1\n# done\n", "    return 1"),
        ("\n    return 1  # done\n    print(2)", "\n    return 1  # done\n    print(2)"),
        ("    return 1", "    return 1"),
        ("", ""),
        # A function with what precedes it.
        *((f"{before}{CODE}\n\nprint(f())", f"{before}{CODE}\n") for before in PRECEDING),
        (f"{CODE}\ndef g():\n    pass", CODE),
        ("\n    return 1\n\ndef g():\n    pass", "\n    return 1\n"),
        ("import math\n```\nThen:\n```\ndef f():", "import math\n"),
        ("    return 1\r\n\r\ndef g():", "    return 1\n"),
        # Code that goes on behind a fence, or in a block of its own.
        ("    return 1\n```\n\nIt returns 1.", "    return 1\n"),
        (f"{CODE}```\nIt returns 1.", CODE),
        ("    return 1\n\n# Try it:\n```python\nprint(f())\n```", "    return 1\n"),
    ],
)
def test_completions_that_are_code(text: str, code: str):
    assert quality.completion(text) == code


@pytest.mark.parametrize(
    "text",
    [
        *(f"Sure:\n```{name}\n{CODE}```\nDone." for name in ("", "py", "python", "Python", "PYTHON3", " python x=1")),
        f"Sure:\n```{{.python}}\n{CODE}```",
        f"Sure:\n```python\n{CODE}",  # the budget ended
        f"Sure:\n```\n{CODE}",
        f"Sure:\n```python\n{CODE}```\nDone.".replace("\n", "\r\n"),
        f"```python\n{CODE}```\n```python\nprint(f())\n```",
        f"````python\n{CODE}````",
        f"~~~py\n{CODE}~~~",
        f"  Sure:```python\n{CODE}```",
        f"Use ```f``` of\n```python\n{CODE}```",
        f"```bash\npip install f\n```\nThen:\n```\n{CODE}```",
        f"It prints\n```\n1\n```\nfor\n```python\n{CODE}```",
        f"<think>\n```python\nreturn 2\n```\n</think>\n\n```python\n{CODE}```",
        "1. Like this:\n   ```python\n   def f():\n       return 1\n   ```\n",
    ],
)
def test_completions_in_a_fenced_block(text: str):
    assert quality.completion(text) == CODE


def test_completions_of_programs_end_before_any_function():
    assert quality.completion("import math\n[DONE]\n\ndef g():", quality.PROGRAM_ENDS) == "import math\n"


def test_completions_in_a_block_keep_their_indentation():
    assert quality.completion("The body: ```python\n    return 1\n```") == "    return 1\n"
    assert quality.completion("```js\nlet x\n```\ndef f():") == "```js\nlet x\n```"  # not Python


def test_samples_of_a_run(tmp_path: Path):
    methods = made_up.METHODS[:2]
    out = made_up.write(tmp_path / "out.json", methods, suite="humaneval")
    found = bench.samples_of(out, {"settings": {"suite": "humaneval"}, "methods": dict.fromkeys(methods)})
    assert [file.name for file in found] == [f"out.{name.replace(',', '_')}.samples.jsonl" for name in methods]
    lines = [json.loads(line) for line in found[next(iter(found))].splitlines()]
    assert [line.keys() for line in lines] == [{"task_id", "completion"}] * 3
    assert bench.samples_of(out, {"settings": {"suite": None}, "methods": {}}) == {}


def test_samples_of_others_stay(tmp_path: Path):
    (tmp_path / "out.plain.samples.jsonl").write_text("mine")
    settings = Bench(target=FOLDER, methods=("plain",), prompts=tmp_path / "none", json=tmp_path / "out.json")
    vars(settings)["json"] = str(settings.json)  # as from Python; types are checked in tests only
    with pytest.raises(ValueError, match=r"out.plain.samples.jsonl exists already, and out.json.jsonl, "):
        bench.run(settings)


TWO = "import math\n\ndef g(x):\n    return x\n\ndef f(x):\n    return g(x)\n"


@pytest.mark.parametrize(
    "text", [f"\n{TWO}[DONE]\n\n[BEGIN]", f"{TWO}```\nIt works.", f"Sure:\n```python\n{TWO}```\n```\nprint(f(1))\n```"]
)
def test_programs_keep_all_their_functions(text: str):
    for name in (11, "Mbpp/11"):  # of MBPP and of MBPP+
        (line,) = quality.samples("mbpp", [(name, text)]).splitlines()
        found = json.loads(line)
        assert (found["task_id"], found["solution"].strip()) == ("Mbpp/11", TWO.strip())


def test_texts_of_tokens():
    tokenizer: Any = load_tokenizer(FOLDER)
    text = "def f(x):\n    return 'é → 🙂' + x  # naïve"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(tokenizer, [], tokens)
    assert len(pieces) == len(tokens) and "".join(pieces) == tokenizer.decode(tokens)
    assert not any("\ufffd" in piece for piece in pieces)
    (token,) = tokenizer.encode(" return", add_special_tokens=False)[-1:]
    assert word_of(tokenizer, token).strip() in " return"


def test_all_methods_of_a_checkpoint():
    found = all_methods(FOLDER)
    parsed = [parse_method(name) for name in found]
    assert found[0] == "plain" and len(set(found)) == len(found)
    assert {"eagle+chain,length=5", "draft-model@vdm+chain,length=5", "dflash+pruned", "dflash,history=5+chain"} <= set(
        found
    )
    assert "dflash+chain,length=2" in found and "dflash+chain,length=8" not in found  # its blocks hold five drafts
    assert "early-exit+chain+cali-ts" in found and "dflash+chain+cali-ts" not in found  # which has no predictor
    assert {type(method.builder).__name__ for method in parsed} >= {"Chain", "Static", "Eagle2", "Cape", "Budgeted"}


def results(path: Path, device: str, **methods: float) -> Path:
    of = lambda speed: {"tokens_per_second": speed, "speedup": speed / 10, "tau": 2.0}
    found = {"device": device, "dtype": "float32", "settings": {"seed": 0}, "versions": {"jax": "1"}}
    path.write_text(json.dumps({**found, "methods": {name: of(speed) for name, speed in methods.items()}}))
    return path


def test_two_results_side_by_side(tmp_path: Path):
    first = read(results(tmp_path / "a.json", "H100", plain=10.0, eagle=20.0))
    second = read(results(tmp_path / "b.json", "H200", plain=10.0, eagle=30.0, edd=40.0))
    console = Console(record=True, width=120)
    show(first, second, console)
    printed = console.export_text()
    assert any(line.split() == ["eagle", "20.0", "30.0", "1.50", "2.00", "3.00", "1.50", "2.00", "2.00", "1.00"]
               for line in printed.splitlines())  # fmt: skip
    assert "device: H100 → H200" in printed and "only in the second: edd" in printed
    assert differences(first, first) == {}
    with pytest.raises(ValueError, match="no method in common"):
        show(first, {**second, "methods": {}}, console)


def run_of(path: Path, faster: float = 1.0, questions: int = 8, **settings: int) -> Path:
    """Results of `plain` and of a method that is so many times as fast as usual, and their log."""
    made_up.write(path, ("plain", "eagle+static"), questions, **settings)
    lines = [json.loads(line) for line in log_of(path).read_text(encoding="utf-8").splitlines()]
    for line in lines[1:-1]:
        speed = faster if line["method"] != "plain" else 1.0
        for turn in line["turns"]:
            turn["decode_seconds"] = [seconds / speed for seconds in turn["decode_seconds"]]
    log_of(path).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    path.write_text(json.dumps(finished.read([path])[0].found))
    return path


def compared(capsys: pytest.CaptureFixture, first: Path, second: Path) -> tuple[str, dict[str, str]]:
    """The printed comparison, and the last row of each method."""
    comparison.run(Compare(compare=(first, second)))
    printed = capsys.readouterr().out
    rows = (" ".join(line.split()).partition(" ") for line in printed.splitlines())
    return printed, {name: row for name, _, row in rows}


def test_two_runs_are_tested_question_by_question(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Of 8 questions, all of them faster: p is 2 / 2^8."""
    first, second = run_of(tmp_path / "a.json"), run_of(tmp_path / "b.json", faster=1.25)
    printed, rows = compared(capsys, first, second)
    assert "over the 8 questions of both" in printed
    assert rows["plain"] == "the same 1.000 the same 1.000 the same 1.000"
    assert rows["eagle+static"] == "25 % higher .008 25 % higher .008 the same 1.000"
    _, rows = compared(capsys, second, first)
    assert rows["eagle+static"].startswith("20 % lower .008")


def test_only_questions_of_both_runs_are_tested(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Five questions in batches of four are two batches, of which one test can say nothing."""
    first = run_of(tmp_path / "a.json")
    printed, rows = compared(capsys, first, run_of(tmp_path / "b.json", 2.0, questions=5, batch_size=4))
    assert "over the 5 questions of both" in printed
    assert rows["eagle+static"].startswith("unclear .500 unclear .500")
    none = run_of(tmp_path / "none.json")
    log_of(none).write_text(log_of(none).read_text(encoding="utf-8").replace("Say something", "Say nothing"))
    assert "the runs share no question" in compared(capsys, first, none)[0]
    log_of(none).unlink()
    assert "not tested: there is no" in compared(capsys, first, none)[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no results"),
        ('{"methods": {"a": {}}}', "holds no results"),
        ('{"methods": {"a": {"tokens_per_second": 1, "speedup": null, "tau": 2}}}', "holds no results"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_result_is_refused(text: str | None, says: str, tmp_path: Path):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=says):
        read(tmp_path / "a.json")
