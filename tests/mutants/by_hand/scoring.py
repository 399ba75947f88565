"""Mutants of how answers are read and scored, and of the numbers that evaluation prints."""

from tests.mutants.mutant import ByHand

EVALUATE, TESTS = "jaxspec/evaluate", "tests/evaluate"
QUALITY, TABLE = f"{EVALUATE}/quality.py", f"{EVALUATE}/table.py"
SUMMED = f"{TESTS}/test_evaluation.py::test_what_is_summed_and_printed"
TITLES = f"{TESTS}/test_table.py::test_each_number_stands_under_its_title"


def scored(name: str, old: str, new: str) -> ByHand:
    """A mutant of `quality.py`."""
    return ByHand(name, QUALITY, (f"{TESTS}/test_quality.py", "-k", "gsm8k or rouge or completions or means"), old, new)


def printed(name: str, file: str, test: str, old: str, new: str) -> ByHand:
    """A mutant of a number that is counted or printed."""
    return ByHand(name, file, (test,), old, new)


MUTANTS = (
    scored("the-last-number-after-the-hashes", "_STRICT.findall(answer)[:1]", "_STRICT.findall(answer)[-1:]"),
    scored("the-first-number-is-the-answer", "_FLEXIBLE.findall(answer)[-1:]", "_FLEXIBLE.findall(answer)[:1]"),
    scored("hashes-without-a-space", 'r"#### (-?[0-9.,]+)"', 'r"####\\s*(-?[0-9.,]+)"'),
    scored("hashes-before-a-dollar", 'r"#### (-?[0-9.,]+)"', 'r"#### \\$?(-?[0-9.,]+)"'),
    scored("signs-after-the-hashes-are-dropped", 'r"#### (-?[0-9.,]+)"', 'r"#### -?([0-9.,]+)"'),
    scored("any-digit-after-the-hashes", 'r"#### (-?[0-9.,]+)"', 'r"#### (-?[\\d.,]+)"'),
    scored("signs-of-the-last-number-are-dropped", 'r"-?[$0-9.,]{2,}|-?[0-9]+"', 'r"[$0-9.,]{2,}|[0-9]+"'),
    scored("a-dot-is-a-number", 'r"-?[$0-9.,]{2,}|-?[0-9]+"', 'r"-?[$0-9.,]+"'),
    scored("thousands-keep-their-commas", 're.sub(r"[,$]", "", number)', 're.sub(r"[$]", "", number)'),
    scored("amounts-keep-their-dollar", 're.sub(r"[,$]", "", number)', 're.sub(r"[,]", "", number)'),
    scored("the-dot-of-a-sentence-counts", '"", number).removesuffix(".")', '"", number)'),
    scored("all-dots-at-the-end-are-dropped", '.removesuffix(".")', '.rstrip(".")'),
    scored("the-next-question-is-read-too", '("Question:", "</s>", "<|im_end|>")', '("</s>", "<|im_end|>")'),
    scored("the-next-question-needs-a-line", '("Question:", "</s>"', '("\\nQuestion:", "</s>"'),
    scored(
        "the-two-readings-exchanged",
        '_STRICT.findall(answer)[:1], "exact_match_flexible": _FLEXIBLE.findall(answer)[-1:]',
        '_FLEXIBLE.findall(answer)[-1:], "exact_match_flexible": _STRICT.findall(answer)[:1]',
    ),
    scored("words-are-not-stemmed", "use_stemmer=True", "use_stemmer=False"),
    scored("precision-of-rouge", "found[name].fmeasure", "found[name].precision"),
    scored("recall-of-rouge", "found[name].fmeasure", "found[name].recall"),
    scored("rouge-by-sentences", 'ROUGE = ("rouge1", "rouge2", "rougeL")', 'ROUGE = ("rouge1", "rouge2", "rougeLsum")'),
    scored("the-last-summary-is-compared", "rouge.score(worked[0],", "rouge.score(worked[-1],"),
    scored("the-next-article-is-scored-too", '_before(answer.strip(), ["\\nArticle:"])', "answer.strip()"),
    scored("the-mean-of-all-answers", "sum(values) / len(values)", "sum(values) / max(map(len, found.values()))"),
    scored("only-python-in-small-letters", '"py" in block[2].lower()', '"py" in block[2]'),
    scored("only-python-in-full", '"py" in block[2].lower()', '"python" in block[2].lower()'),
    scored("any-block-is-code", "if not block[2].strip()]", "if block]"),
    scored("the-first-block-whatever-its-language", "in python or [", "in ["),
    scored("windows-lines-are-kept", 'text = text.replace("\\r\\n", "\\n")', "text = text"),
    scored("a-block-must-end", "(.*?)(?:\\2|\\Z)", "(.*?)(?:\\2)"),
    scored("a-block-ends-at-three-ticks", "(.*?)(?:\\2|\\Z)", "(.*?)(?:```|\\Z)"),
    scored("only-backticks", "(`{3,}|~{3,})", "(`{3,})"),
    scored("three-ticks-inside-a-line-begin-a-block", "(^[ \\t]*|(?<=[\\s:]))", "(^[ \\t]*|)"),
    scored("a-block-keeps-its-list's-indentation", 're.sub(f"^{indent}", "", code, flags=re.MULTILINE)', "code"),
    scored("blocks-before-code", "if _CODE_FROM_THE_START.match(text):", "if False:"),
    scored("code-goes-on-behind-a-fence", '_before(text, (*FUNCTION_ENDS, "```"))', "_before(text, FUNCTION_ENDS)"),
    scored("code-goes-on-behind-the-function", '_before(text, (*FUNCTION_ENDS, "```"))', '_before(text, ("```",))'),
    scored("the-last-end-counts", "text[: min((at for end in ends", "text[: max((at for end in ends"),
    *(
        scored(f"a-function-does-not-end-at-{end}", f'"\\n{end}"', '"\\n\\n\\n"')
        for end in ("class", "def", "#", "if", "print")
    ),
    ByHand(
        "marks-without-a-digit-are-gsm8ks",
        f"{EVALUATE}/questions.py",
        (f"{TESTS}/test_formats.py", "-k", "gsm8k"),
        "(-?[.,]*[0-9][0-9.,]*)",
        "(-?[0-9.,]+)",
    ),
    printed(
        "tau-with-the-token-of-prefill",
        f"{EVALUATE}/evaluation.py",
        SUMMED,
        'len(turn["tokens"]) - 1 for',
        'len(turn["tokens"]) for',
    ),
    printed(
        "tau-of-this-run-alone",
        f"{EVALUATE}/evaluation.py",
        SUMMED,
        "turns = [turn for line in lines for",
        "turns = [turn for line in timed for",
    ),
    printed(
        "speed-of-earlier-runs-too",
        f"{EVALUATE}/evaluation.py",
        SUMMED,
        'for line in timed for turn in line["turns"])',
        'for line in lines for turn in line["turns"])',
    ),
    printed(
        "scores-of-this-run-alone",
        f"{EVALUATE}/evaluation.py",
        SUMMED,
        'mean(line["quality"] for line in lines)',
        'mean(line["quality"] for line in timed)',
    ),
    printed("tau-drafted-printed-as-tau", TABLE, TITLES, '"tau": ("tau", ".2f")', '"tau": ("tau_drafted", ".2f")'),
    printed("draft-share-printed-as-acceptance", TABLE, TITLES, '("acceptance_rate", ".2f")', '("tau_drafted", ".2f")'),
    printed(
        "drafted-printed-as-verified",
        TABLE,
        TITLES,
        '"verified": ("nodes_per_round", ".1f")',
        '"verified": ("nodes_drafted_per_round", ".1f")',
    ),
    printed(
        "modelled-and-flat-exchanged",
        TABLE,
        TITLES,
        '"flat": ("flat_speedup", ".2f")',
        '"flat": ("modelled_speedup", ".2f")',
    ),
    printed(
        "the-papers-tau-has-the-bonus",
        TABLE,
        f"{TESTS}/test_table.py",
        '"tau drafted": ("tau_drafted", ".2f")',
        '"tau drafted": ("tau", ".2f")',
    ),
)
