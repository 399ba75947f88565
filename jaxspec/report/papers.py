"""The papers' tables: ours first, then what was published."""

from collections.abc import Callable, Iterator, Sequence

from jaxspec.evaluate.runner import REFERENCE
from jaxspec.methods.method import Method
from jaxspec.report import published
from jaxspec.report.cells import CHANGE, MILLI, ONE, SHARE, TIMES, Number, derived, number
from jaxspec.report.runs import Run
from jaxspec.report.tables import (
    ACCEPTANCE,
    ACCURACY,
    DRAFTED,
    HM,
    PORTION,
    ROUGE,
    SCORE,
    SPEED,
    SPEEDUP,
    TAU,
    Measure,
    Table,
    builder,
    by_data,
    chain_lengths,
    chained,
    control,
    drafter,
    fixed_chain,
    pick,
    same_but,
)


def by_paper(runs: Sequence[Run]) -> list[tuple[str, list[Table]]]:
    """All tables, by paper."""
    return [
        ("EAGLE", list(eagle(runs))),
        ("EESD", list(eesd(runs))),
        ("EDD and PCT", list(edd(runs))),
        ("Draft & Verify", list(verify(runs))),
    ]


def overview(run: Run) -> Table:
    """All methods of a run."""
    measures: list[Measure] = [
        SPEED,
        ("±", lambda run, name: number(run, name, "tokens_per_second_deviation", form=ONE)),
        SPEEDUP,
        ("±", lambda run, name: number(run, name, "speedup_deviation")),
        ("modelled", lambda run, name: number(run, name, "modelled_speedup")),
        TAU,
        ("τ drafted", lambda run, name: number(run, name, "tau_drafted")),
        ACCEPTANCE,
        ("HM", lambda run, name: number(run, name, "harmonic_mean")),
        ("nodes", lambda run, name: number(run, name, "nodes_per_round")),
        ("depth", lambda run, name: number(run, name, "depth_per_round")),
        ("unexplained", lambda run, name: number(run, name, "unexplained_divergences")),
    ]
    rows = [[name, *(read(run, name) for _, read in measures)] for name in run.methods]
    return Table(run.title, "", (), ["method", *(title for title, _ in measures)], rows, [], "")


def eagle(runs: Sequence[Run]) -> Iterator[Table]:
    """Tables 1, 2, 5 and 7."""
    ours = lambda method: drafter(method) == "eagle"
    plain_ = lambda method: ours(method) and control(method) == "fixed"
    yield by_data(
        "Speedup and average acceptance length τ by data",
        "EAGLE, Table 1",
        runs,
        ours,
        (SPEEDUP, TAU),
        published.EAGLE_DATA,
        published.EAGLE_1,
        "--methods eagle+static eagle+chain",
    )
    chains = [(run, name) for run, name in pick(runs, lambda m: fixed_chain(m) and m.builder.depth >= 5)]
    position = lambda i: lambda run, name: number(run, name, "acceptance_by_position", i)
    positions: list[Measure] = [(f"{i}-α", position(i)) for i in range(5)]
    yield Table(
        "Acceptance by position n-α of chains",
        "EAGLE, Table 2",
        (),
        ["model", "method or data", "τ", *(title for title, _ in positions)],
        [[run.where(), name, TAU[1](run, name), *(read(run, name) for _, read in positions)] for run, name in chains],
        published.EAGLE_2,
        "--methods eagle+chain,length=5",
        "The published τ is that of the tree, ours that of the chain in the row.",
    )
    pairs = []
    for run in runs:
        chain = next((name for name, m in run.methods.items() if plain_(m) and chained(m) and m.builder.depth == 5), "")
        tree = next((name for name, m in run.methods.items() if plain_(m) and builder(m) == "static"), "")
        if chain and tree:
            both = TAU[1](run, chain), TAU[1](run, tree)
            assert isinstance(both[0], Number) and isinstance(both[1], Number)
            pairs.append([run.where(), f"{chain}, {tree}", *both, derived("difference", both[1], both[0], CHANGE)])
    yield Table(
        "τ of a chain and of the tree",
        "EAGLE, Table 5",
        (),
        ["model", "methods", "chain", "tree", "difference"],
        pairs,
        published.EAGLE_5,
        "--methods eagle+chain,length=5 eagle+static",
    )
    yield batches(runs, ours)


def batches(runs: Sequence[Run], wanted: Callable[[Method], bool]) -> Table:
    """Speedup by batch size, and the ratio of the best throughputs, over runs that differ in nothing else."""
    sizes = sorted({run.settings["batch_size"] for run in runs} | set(published.EAGLE_7_SIZES))
    rows = []
    for alike in same_but(runs, "batch_size"):
        by_size = {run.settings["batch_size"]: run for run in alike}
        if len(by_size) < 2:
            continue
        for name, method in alike[0].methods.items():
            if wanted(method) and all(name in run.methods for run in alike):
                best = max((number(run, name, "tokens_per_second") for run in alike), key=lambda n: n.value or 0)
                plain = max((number(run, REFERENCE, "tokens_per_second") for run in alike), key=lambda n: n.value or 0)
                cells = [number(by_size[size], name, "speedup") if size in by_size else "–" for size in sizes]
                rows.append([alike[0].where(batch=False), name, *cells, derived("ratio", best, plain, TIMES)])
    fill = lambda row: [*row[:2], *(row[2 + at] if (at := _index(size)) >= 0 else "–" for size in sizes), row[-1]]
    return Table(
        "Speedup by batch size, and throughput",
        "EAGLE, Table 7",
        (),
        ["model", "method", *(f"batch {size}" for size in sizes), "throughput"],
        rows,
        [fill(row) for row in published.EAGLE_7],
        "--batch-sizes 1 2 4",
        "Throughput: the most tokens a second over all batch sizes, against plain decoding's most.",
    )


def _index(size: int) -> int:
    return published.EAGLE_7_SIZES.index(size) if size in published.EAGLE_7_SIZES else -1


def eesd(runs: Sequence[Run]) -> Iterator[Table]:
    """Tables 1 to 3 as one, 5, 7, 8, and 10 to 13 as one."""
    rivals = ("early-exit", "medusa", "draft-model", "layer-skip")
    yield by_data(
        "Harmonic mean of v_d and r_d, and speedup, by data",
        "EESD, Tables 1 to 3",
        runs,
        lambda method: drafter(method) in rivals,
        (HM, SPEEDUP),
        published.EESD_DATA,
        published.EESD_1,
        "--methods early-exit+chain+beta-ts early-exit+chain+cali-ts medusa draft-model",
    )
    found = pick(runs, lambda method: drafter(method) in rivals)
    measures = (ACCURACY, PORTION, HM, SPEED, SPEEDUP)
    yield Table(
        "What the harmonic mean is made of",
        "EESD, Tables 10 to 13",
        (),
        ["model", "method", *(title for title, _ in measures)],
        [[run.where(), name, *(read(run, name) for _, read in measures)] for run, name in found],
        published.EESD_10,
        "--methods early-exit+chain+beta-ts early-exit+chain+cali-ts",
    )
    yield stopped(runs)
    yield branched(runs)
    parts = ("drafting", "verification", "control", "other")
    yield Table(
        "Where the seconds of a question go",
        "EESD, Table 8",
        (),
        ["model", "method", *parts],
        [
            [run.where(), name, *(a_question(run, name, part) for part in parts)]
            for run, name in pick(runs, lambda m: sampled(m) or (drafter(m) == "early-exit"))
        ],
        published.EESD_8,
        "--methods early-exit+chain+beta-ts early-exit+chain+cali-ts",
        "Seconds a question, all its turns together; the paper's are means over 200 texts of XSum, of 512 tokens each. "
        "Ours is made of pieces that were timed alone, times how often the run had them; other is what is left, and "
        "noise can make it negative. The paper calls control sampling.",
    )


def sampled(method: Method) -> bool:
    """Whether Thompson sampling says when to stop drafting."""
    return control(method) in ("beta-ts", "cali-ts")


def stopped(runs: Sequence[Run]) -> Table:
    """Chains of the best fixed length, and those whose length Thompson sampling chooses."""
    rows = []
    for run, name in pick(runs, lambda m: sampled(m) and chained(m)):
        others = [other for other, m in run.methods.items() if fixed_chain(m) and _same_head(m, run.methods[name])]
        if others:
            best = max(others, key=lambda other: run.value(other, "speedup"))
            rows.append([f"{run.where()}; {best}", name, number(run, best, "speedup"), number(run, name, "speedup")])
    return Table(
        "Thompson sampling in place of a fixed length K",
        "EESD, Table 5",
        (),
        ["model; best fixed method", "method", "fixed K", "Thompson sampling"],
        rows,
        published.EESD_5,
        "--methods eagle+chain eagle+chain+beta-ts",
    )


def branched(runs: Sequence[Run]) -> Table:
    """Chains and trees under the same Thompson sampling."""
    rows = []
    for run, name in pick(runs, lambda m: sampled(m) and chained(m)):
        method = run.methods[name]
        alike = lambda m, of=method: _same_head(m, of) and control(m) == control(of) and not chained(m)
        rows += [
            [f"{run.where()}; {name}", tree, number(run, name, "speedup"), number(run, tree, "speedup")]
            for _, tree in pick([run], alike)
        ]
    return Table(
        "A chain and a tree under Thompson sampling",
        "EESD, Table 7",
        (),
        ["model; chain", "method", "chain", "tree"],
        rows,
        published.EESD_7,
        "--methods early-exit+chain+cali-ts early-exit+uniform+cali-ts",
    )


def a_question(run: Run, name: str, part: str) -> Number:
    """Seconds that a part of decoding took, mean over the questions."""
    whole, questions = number(run, name, "breakdown", part), len({answer.question for answer in run.answers})
    return Number((whole.value or 0) / questions, SHARE, ["a question", *whole.of])


def _same_head(method: Method, other: Method) -> bool:
    return (method.drafter, method.head) == (other.drafter, other.head)


def edd(runs: Sequence[Run]) -> Iterator[Table]:
    """Tables 1 and 2."""
    measures = (SPEEDUP, ACCEPTANCE, DRAFTED)
    yield by_data(
        "Drafters, each with a chain of five",
        "EDD, Table 1",
        runs,
        lambda method: fixed_chain(method) and method.builder.depth == 5,
        measures,
        published.EDD_DATA,
        published.EDD_1,
        "--methods edd+chain,length=5 eagle+chain,length=5",
        "τ here leaves out the bonus token (tau_drafted).",
    )
    yield by_data(
        "Trees",
        "EDD, Table 2",
        runs,
        lambda method: builder(method) != "chain" and control(method) == "fixed",
        measures,
        published.EDD_DATA,
        published.EDD_2,
        "--methods edd+uniform edd+cape edd+eagle2 edd+pruned",
        "τ here leaves out the bonus token; the published trees all grow from EDD's drafts. VCT is our uniform, PCT "
        "our pruned.",
    )


def verify(runs: Sequence[Run]) -> Iterator[Table]:
    """Tables 1, 3 and 4 as one, 5, and 2 and 14 as one."""
    own = lambda method: drafter(method) == "layer-skip"
    stops = lambda method: control(method) in ("threshold", "adaptive")
    lossless = lambda method: own(method) or stops(method) or drafter(method) == "plain"
    yield by_data(
        "Quality of summaries, and speedup",
        "Draft & Verify, Table 1",
        [run for run in runs if run.data in published.VERIFY_DATA],
        lossless,
        (ROUGE, SPEEDUP),
        published.VERIFY_DATA,
        published.VERIFY_1,
        "--prompts of XSum or CNN/DM",
    )
    tasks = [run for run in runs if run.data in ("GSM8K", "HumanEval")]
    yield Table(
        "Quality of answers and code, and speedup",
        "Draft & Verify, Tables 2 and 14",
        (),
        ["model", "method", "score", "speedup"],
        [[run.where(), name, SCORE[1](run, name), SPEEDUP[1](run, name)] for run, name in pick(tasks, lossless)],
        published.VERIFY_14,
        "--prompts of GSM8K or HumanEval",
        "GSM8K: exact match. HumanEval's samples lie beside the results, for its own scorer: nothing here runs code "
        "that a model wrote.",
    )
    lengths = [
        (run, name)
        for alike in chain_lengths(runs)
        for run, name in [*alike, *pick([alike[0][0]], lambda m, of=alike[0]: stops(m) and m.head == _head(of))]
    ]
    yield Table(
        "Draft lengths K and thresholds γ",
        "Draft & Verify, Tables 3 and 4",
        (),
        ["model", "method", "α", "speedup"],
        [[run.where(), name, ACCEPTANCE[1](run, name), SPEEDUP[1](run, name)] for run, name in lengths],
        published.VERIFY_3,
        "--methods eagle+chain,length=2 eagle+chain,length=4 eagle+chain+adaptive",
    )
    each = lambda run, name, *keys: derived("ratio", number(run, name, *keys), number(run, name, "tokens"), MILLI)
    yield Table(
        "Where the time of a token goes",
        "Draft & Verify, Table 5",
        (),
        ["model", "method", "drafting", "verification", "γ update", "in all"],
        [
            [
                run.where(),
                name,
                *(each(run, name, "breakdown", part) for part in ("drafting", "verification", "control")),
                each(run, name, "decode_seconds"),
            ]
            for run, name in pick(runs, lambda m: stops(m) or own(m))
        ],
        published.VERIFY_5,
        "--methods layer-skip+chain+adaptive",
        "Milliseconds a token.",
    )


def _head(each: tuple[Run, str]) -> str | None:
    run, name = each
    return run.methods[name].head
