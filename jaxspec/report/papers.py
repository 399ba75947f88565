"""The papers' tables: this run's numbers first, then the published ones."""

from collections.abc import Callable, Iterator, Sequence

from jaxspec.evaluate.runner import REFERENCE
from jaxspec.methods.method import Method
from jaxspec.report.runs import Run
from jaxspec.report.tables import (
    ACCEPTANCE,
    ACCURACY,
    CHANGE,
    DRAFTED,
    HM,
    NOTHING,
    ONE,
    PARTS,
    PORTION,
    ROUGE,
    SCORE,
    SHARE,
    SPEED,
    SPEEDUP,
    TAU,
    TIMES,
    Number,
    Table,
    a_token,
    by_data,
    by_method,
    chains,
    derived,
    drafts_by,
    fixed_chain,
    measure,
    number,
    pick,
    same_but,
)


def by_paper(runs: Sequence[Run]) -> list[tuple[str, list[Table]]]:
    """All tables, by paper."""
    return [
        ("EAGLE", list(eagle(runs))),
        ("EAGLE-3", list(eagle3(runs))),
        ("EESD", list(eesd(runs))),
        ("EDD and PCT", list(edd(runs))),
        ("Draft & Verify", list(verify(runs))),
    ]


def overview(run: Run) -> Table:
    """All methods of a run."""
    measures = (
        SPEED,
        measure("±", "tokens_per_second_deviation", form=ONE),
        SPEEDUP,
        measure("±", "speedup_deviation"),
        measure("of the fastest", "against_fastest", "ratio"),
        measure("p", "against_fastest", "p_value", form=SHARE),
        measure("modelled", "modelled_speedup"),
        TAU,
        measure("τ uncut", "tau_uncut"),
        measure("τ drafted", "tau_drafted"),
        ACCEPTANCE,
        measure("HM", "harmonic_mean"),
        measure("nodes", "nodes_per_round"),
        measure("depth", "depth_per_round"),
        measure("unexplained", "unexplained_divergences"),
    )
    rows = [[name, *(read(run, name) for _, read in measures)] for name in run.methods]
    return Table(run.title, "", ["method", *(title for title, _ in measures)], rows)


def eagle(runs: Sequence[Run]) -> Iterator[Table]:
    """Table 1, Tables 2, 3 and 8 as one, and Tables 4 to 7."""

    def ours(method):
        return method.drafter.name == "eagle"

    yield by_data(
        "Speedup and average acceptance length τ by data",
        "EAGLE, Table 1",
        runs,
        ours,
        (SPEEDUP, TAU),
        "--methods eagle+static eagle+chain",
    )
    yield by_method(
        "Acceptance by position n-α of chains",
        "EAGLE, Tables 2, 3 and 8",
        pick(runs, lambda m: fixed_chain(m) and m.builder.depth >= 5),
        (SPEEDUP, TAU, *(measure(f"{i}-α", "acceptance_by_position", i) for i in range(5))),
        "--methods eagle+chain,length=5",
        "The published speedup and τ are those of the tree, ours those of the chain in the row.",
        names="method or data",
    )
    yield by_method(
        "Tokens a second with quantised weights",
        "EAGLE, Table 4",
        pick(quantised(runs), lambda m: ours(m) or m.drafter.name == REFERENCE),
        (SPEED,),
        "--quantize int4 --methods plain eagle+static",
    )
    pairs = []
    for run in runs:

        def first(wanted, run=run):
            return next((name for name, method in run.methods.items() if wanted(method)), None)

        chain = first(lambda m: ours(m) and fixed_chain(m) and m.builder.depth == 5)
        tree = first(lambda m: ours(m) and m.builder.name == "static" and m.controller.name == "fixed")
        if chain and tree:
            before, after = number(run, chain, "tau"), number(run, tree, "tau")
            more = derived("difference", after, before, CHANGE)
            pairs.append([run.where(), f"{chain}, {tree}", before, after, more])
    yield Table(
        "τ of a chain and of the tree",
        "EAGLE, Table 5",
        ["model", "methods", "chain", "tree", "difference"],
        pairs,
        "--methods eagle+chain,length=5 eagle+static",
    )
    yield by_method(
        "Heads that were trained on other data",
        "EAGLE, Table 6",
        several_heads(runs, ours),
        (SPEEDUP, TAU),
        "--methods eagle@NAME+chain eagle@OTHER+chain",
        names="method or data",
    )
    yield batches(runs, ours)


def quantised(runs: Sequence[Run]) -> list[Run]:
    """The runs whose targets have integer weights."""
    return [run for run in runs if run.settings.get("quantize")]


def several_heads(runs: Sequence[Run], wanted: Callable[[Method], bool]) -> list[tuple[Run, str]]:
    """The wanted methods in runs that compare two or more heads."""
    found = pick(runs, wanted)
    heads = {run.number: {each.methods[name].head for each, name in found if each is run} for run in runs}
    return [(run, name) for run, name in found if len(heads[run.number]) > 1]


def eagle3(runs: Sequence[Run]) -> Iterator[Table]:
    """Table 1."""
    yield by_data(
        "Speedup and average acceptance length τ by data",
        "EAGLE-3, Table 1",
        runs,
        lambda method: method.drafter.name == "eagle3",
        (SPEEDUP, TAU),
        "--methods eagle3+eagle2,total=60,depth=8,width=10",
        "Of the published rows, drafted by trees of 60 nodes, T = 1 has τ alone.",
    )


def batches(runs: Sequence[Run], wanted: Callable[[Method], bool]) -> Table:
    """Speedup by batch size, and the ratio of the best throughputs, over runs that differ in nothing else."""
    sizes = sorted({run.settings["batch_size"] for run in runs} | {1, 2, 3, 4})  # the paper's too
    rows = []
    for alike in same_but(runs, "batch_size"):
        by_size = {run.settings["batch_size"]: run for run in alike}
        if len(by_size) < 2:
            continue
        for name, method in alike[0].methods.items():
            if wanted(method) and all(name in run.methods for run in alike):
                cells = [number(by_size[size], name, "speedup") if size in by_size else NOTHING for size in sizes]
                throughput = derived("ratio", best_speed(alike, name), best_speed(alike, REFERENCE), TIMES)
                rows.append([alike[0].where(batch=False), name, *cells, throughput])
    return Table(
        "Speedup by batch size, and throughput",
        "EAGLE, Table 7",
        ["model", "method", *(f"batch {size}" for size in sizes), "throughput"],
        rows,
        "--batch-sizes 1 2 4",
        "Throughput: the most tokens a second over all batch sizes, against plain decoding's most.",
    )


def best_speed(runs: Sequence[Run], name: str) -> Number:
    """The most tokens per second of a method."""
    return max((number(run, name, "tokens_per_second") for run in runs), key=lambda speed: speed.value or 0)


def eesd(runs: Sequence[Run]) -> Iterator[Table]:
    """Tables 1 to 3 as one, 5, 7, 8, and 10 to 13 as one."""

    def rival(method):
        return method.drafter.name in ("early-exit", "medusa", "draft-model", "layer-skip")

    yield by_data(
        "Harmonic mean of v_d and r_d, and speedup, by data",
        "EESD, Tables 1 to 3",
        runs,
        rival,
        (HM, SPEEDUP),
        "--methods early-exit+chain+beta-ts early-exit+chain+cali-ts medusa draft-model",
    )
    yield by_method(
        "What the harmonic mean is made of",
        "EESD, Tables 10 to 13",
        pick(runs, rival),
        (ACCURACY, PORTION, HM, SPEED, SPEEDUP),
        "--methods early-exit+chain+beta-ts early-exit+chain+cali-ts",
    )
    yield stopped(runs)
    yield branched(runs)
    yield by_method(
        "Where the seconds of a question go",
        "EESD, Table 8",
        pick(runs, lambda m: sampled(m) or m.drafter.name == "early-exit"),
        [(part, a_question(part)) for part in PARTS],
        "--methods early-exit+chain+beta-ts early-exit+chain+cali-ts",
        "Seconds per question, over all its turns. The paper's are means over 200 texts of XSum, of 512 tokens each. "
        "Ours are predicted from the costs of the pieces of a round. `Other` is the rest of the measured time; noise "
        "can make it negative. The paper's word for control is sampling.",
    )


def sampled(method: Method) -> bool:
    """Whether Thompson sampling says when to stop drafting."""
    return method.controller.name in ("beta-ts", "cali-ts")


def stopped(runs: Sequence[Run]) -> Table:
    """Chains of the best fixed length, and those whose length Thompson sampling chooses."""
    rows = []
    for run, name in pick(runs, lambda m: sampled(m) and m.builder.is_chain):
        head = drafts_by(run.methods[name])
        others = [other for other, m in run.methods.items() if fixed_chain(m) and drafts_by(m) == head]
        if others:
            best = max(others, key=lambda other: run.value(other, "speedup"))
            rows.append([f"{run.where()}; {best}", name, number(run, best, "speedup"), number(run, name, "speedup")])
    return Table(
        "Thompson sampling in place of a fixed length K",
        "EESD, Table 5",
        ["model; best fixed method", "method", "fixed K", "Thompson sampling"],
        rows,
        "--methods eagle+chain eagle+chain+beta-ts",
    )


def branched(runs: Sequence[Run]) -> Table:
    """Chains and trees under the same Thompson sampling."""

    def alike(method):
        return (drafts_by(method), method.controller.name)

    return Table(
        "A chain and a tree under Thompson sampling",
        "EESD, Table 7",
        ["model; chain", "method", "chain", "tree"],
        [
            [f"{run.where()}; {chain}", tree, number(run, chain, "speedup"), number(run, tree, "speedup")]
            for run, chain in pick(runs, lambda m: sampled(m) and m.builder.is_chain)
            for tree, method in run.methods.items()
            if not method.builder.is_chain and alike(method) == alike(run.methods[chain])
        ],
        "--methods early-exit+chain+cali-ts early-exit+uniform+cali-ts",
    )


def a_question(part: str) -> Callable[[Run, str], Number]:
    """Seconds that a part of decoding took, mean over the questions."""

    def read(run: Run, name: str) -> Number:
        whole, questions = number(run, name, "breakdown", part), len({answer.question for answer in run.answers})
        mean = None if whole.value is None else whole.value / questions
        return Number(mean, SHARE, ["a question", *whole.of])

    return read


def edd(runs: Sequence[Run]) -> Iterator[Table]:
    """Tables 1 to 3."""
    measures = (SPEEDUP, ACCEPTANCE, DRAFTED)
    yield by_data(
        "Drafters, each with a chain of five",
        "EDD, Table 1",
        runs,
        lambda method: fixed_chain(method) and method.builder.depth == 5,
        measures,
        "--methods edd+chain,length=5 eagle+chain,length=5",
        "τ here leaves out the bonus token (tau_drafted).",
    )
    yield by_data(
        "Trees",
        "EDD, Table 2",
        runs,
        lambda method: method.builder.name != "chain" and method.controller.name == "fixed",
        measures,
        "--methods edd+uniform edd+cape edd+eagle2 edd+pruned",
        "τ here leaves out the bonus token; the published trees all grow from EDD's drafts. VCT is our uniform, PCT "
        "our pruned.",
    )
    yield by_method(
        "PCT with and without its parts",
        "EDD, Table 3",
        pick(runs, lambda method: method.builder.name == "pruned" and method.controller.name == "fixed"),
        measures,
        "--methods edd+pruned edd+pruned,leaf=0 draft-model@vdm+pruned",
        "τ here leaves out the bonus token. Without encoding results the drafter is VDM. Other training gives another "
        "head.",
    )


def verify(runs: Sequence[Run]) -> Iterator[Table]:
    """Tables 1 and 5; as one each, 2 and 14, 3 with 4, 6 and 11, 8 to 10, and 12 and 13."""

    def own(method):
        return method.drafter.name == "layer-skip"

    def stops(method):
        return method.controller.name in ("threshold", "adaptive")

    def lossless(method):
        return own(method) or stops(method) or method.drafter.name == "plain"

    yield by_data(
        "Quality of summaries, and speedup",
        "Draft & Verify, Table 1",
        [run for run in runs if run.data in ("CNN/DM", "XSum")],
        lossless,
        (ROUGE, SPEEDUP),
        "--prompts of XSum or CNN/DM",
    )
    yield by_method(
        "Quality of answers and code, and speedup",
        "Draft & Verify, Tables 2 and 14",
        pick([run for run in runs if run.data in ("GSM8K", "HumanEval")], lossless),
        (SCORE, SPEEDUP),
        "--prompts of GSM8K or HumanEval",
        "GSM8K: exact match of the first number after ####; `exact_match_flexible` in the JSON reads the last number "
        "of an answer instead. HumanEval's samples lie beside the results, for its own scorer: nothing here runs code "
        "that a model wrote.",
    )
    lengths = []
    for run in runs:
        for names in (names for names in chains(run) if len(names) > 1):
            head = run.methods[names[0]].head
            lengths += [(run, name) for name in names] + pick([run], lambda m, head=head: stops(m) and m.head == head)
    yield by_method(
        "Draft lengths K, thresholds γ and target acceptance rates α",
        "Draft & Verify, Tables 3, 4, 6 and 11",
        lengths,
        (ACCEPTANCE, SPEEDUP),
        "--methods eagle+chain,length=2 eagle+chain,length=4 eagle+chain+adaptive",
    )

    def each(title, *keys):
        return (title, lambda run, name: a_token(run, name, *keys))

    yield by_method(
        "Where the time of a token goes",
        "Draft & Verify, Table 5",
        pick(runs, lambda m: stops(m) or own(m)),
        (
            each("drafting", "breakdown", "drafting"),
            each("verification", "breakdown", "verification"),
            each("γ update", "breakdown", "control"),
            each("in all", "decode_seconds"),
        ),
        "--methods layer-skip+chain+adaptive",
        "Milliseconds a token.",
    )
    yield by_method(
        "Skip sets",
        "Draft & Verify, Tables 8 to 10",
        several_heads(runs, own),
        (ACCEPTANCE, SPEEDUP),
        "--methods layer-skip+adaptive layer-skip@NAME+adaptive",
        "jaxspec-train skip-search prints the best set of the first trials, and compares sets of other choices.",
    )
    yield by_method(
        "Layer skipping with quantised weights",
        "Draft & Verify, Tables 12 and 13",
        pick(quantised(runs), own),
        (ACCEPTANCE, ("ms a token", lambda run, name: a_token(run, name, "decode_seconds")), SPEEDUP),
        "--quantize int8 --methods plain layer-skip+adaptive",
        "Speedup is over plain decoding with the same weights. jaxspec does not make weights sparse.",
    )
