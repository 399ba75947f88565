"""The papers' tables: this run's numbers first, then the published ones."""

from collections.abc import Callable, Iterator, Sequence

from jaxspec.evaluate.runner import REFERENCE
from jaxspec.methods.method import Method
from jaxspec.report.runs import Run
from jaxspec.report.tables import (
    CHANGE,
    HUNDREDTHS,
    NOTHING,
    ONE,
    PARTS,
    SHARE,
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
    of_paper,
    pick,
    same_but,
)

SPEEDUP = measure("speedup", "speedup")
TAU = measure("τ", "tau")
DRAFTED = measure("τ", "tau_drafted")
ACCEPTANCE = measure("α", "acceptance_rate")
ACCURACY = measure("v_d", "draft_accuracy")
PORTION = measure("r_d", "draft_share")
SPEED = measure("tok/s", "tokens_per_second")
HM = measure("HM", "harmonic_mean", form=HUNDREDTHS)  # as EESD prints it
ROUGE = measure("ROUGE-2", "quality", "rouge2")
SCORE = measure("score", "quality", "exact_match")


def by_paper(runs: Sequence[Run]) -> list[tuple[str, list[Table]]]:
    """All tables by paper."""
    papers = {"EAGLE": eagle, "EAGLE-3": eagle3, "EESD": eesd, "EDD and PCT": edd, "Draft & Verify": verify}
    return [(name, list(tables(runs))) for name, tables in papers.items()]


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
    ours = drafted_by("eagle")
    positions = [measure(f"{i}-α", "acceptance_by_position", i) for i in range(5)]
    long_chains = pick(runs, lambda m: fixed_chain(m) and m.builder.depth >= 5)
    yield by_data("EAGLE, Table 1", runs, ours, (SPEEDUP, TAU))
    yield by_method("EAGLE, Tables 2, 3 and 8", long_chains, (SPEEDUP, TAU, *positions), names="method or data")
    yield by_method("EAGLE, Table 4", pick(quantised(runs), drafted_by("eagle", REFERENCE)), (SPEED,))
    pairs = []
    for run in runs:
        of_run = [name for _, name in pick([run], ours)]
        chain = [n for n in of_run if fixed_chain(run.methods[n]) and run.methods[n].builder.depth == 5]
        tree = [n for n in of_run if is_fixed(run.methods[n]) and run.methods[n].builder.name == "static"]
        if chain and tree:
            before, after = number(run, chain[0], "tau"), number(run, tree[0], "tau")
            more = derived("difference", after, before, CHANGE)
            pairs.append([run.where(), f"{chain[0]}, {tree[0]}", before, after, more])
    yield of_paper("EAGLE, Table 5", ["model", "methods", "chain", "tree", "difference"], pairs)
    yield by_method("EAGLE, Table 6", several_heads(runs, ours), (SPEEDUP, TAU), names="method or data")
    yield batches(runs, ours)


def eagle3(runs: Sequence[Run]) -> Iterator[Table]:
    """Table 1."""
    yield by_data("EAGLE-3, Table 1", runs, drafted_by("eagle3"), (SPEEDUP, TAU))


def batches(runs: Sequence[Run], wanted: Callable[[Method], bool]) -> Table:
    """Speedup by batch size, and the ratio of the best throughputs, of runs that differ in nothing else."""
    sizes = sorted({run.settings["batch_size"] for run in runs} | {1, 2, 3, 4})  # the paper's too
    rows = []
    for alike in same_but(runs, "batch_size"):
        by_size = {run.settings["batch_size"]: run for run in alike}
        if len(by_size) < 2:
            continue
        for _, name in pick(alike[:1], wanted):
            if all(name in run.methods for run in alike):
                cells = [number(by_size[size], name, "speedup") if size in by_size else NOTHING for size in sizes]
                throughput = derived("ratio", best_speed(alike, name), best_speed(alike, REFERENCE), TIMES)
                rows.append([alike[0].where(batch=False), name, *cells, throughput])
    return of_paper("EAGLE, Table 7", ["model", "method", *(f"batch {size}" for size in sizes), "throughput"], rows)


def best_speed(runs: Sequence[Run], name: str) -> Number:
    """The most tokens per second of a method."""
    return max((number(run, name, "tokens_per_second") for run in runs), key=lambda speed: speed.value or 0)


def eesd(runs: Sequence[Run]) -> Iterator[Table]:
    """Tables 1 to 3 as one, 5, 7, 8, and 10 to 13 as one."""
    rival = drafted_by("early-exit", "medusa", "draft-model", "layer-skip")
    early = pick(runs, lambda m: sampled(m) or m.drafter.name == "early-exit")
    yield by_data("EESD, Tables 1 to 3", runs, rival, (HM, SPEEDUP))
    yield by_method("EESD, Tables 10 to 13", pick(runs, rival), (ACCURACY, PORTION, HM, SPEED, SPEEDUP))
    yield stopped(runs)
    yield branched(runs)
    yield by_method("EESD, Table 8", early, [(part, a_question(part)) for part in PARTS])


def stopped(runs: Sequence[Run]) -> Table:
    """The best fixed length of chains beside the lengths that Thompson sampling chooses."""
    rows = []
    for run, name in pick(runs, lambda m: sampled(m) and m.builder.is_chain):
        head = drafts_by(run.methods[name])
        others = [other for other, m in run.methods.items() if fixed_chain(m) and drafts_by(m) == head]
        if others:
            best = max(others, key=lambda other: run.value(other, "speedup"))
            rows.append([f"{run.where()}; {best}", name, number(run, best, "speedup"), number(run, name, "speedup")])
    return of_paper("EESD, Table 5", ["model; best fixed method", "method", "fixed K", "Thompson sampling"], rows)


def branched(runs: Sequence[Run]) -> Table:
    """Chains and trees under the same Thompson sampling."""
    alike = lambda method: (drafts_by(method), method.controller.name)
    rows = [
        [f"{run.where()}; {chain}", tree, number(run, chain, "speedup"), number(run, tree, "speedup")]
        for run, chain in pick(runs, lambda m: sampled(m) and m.builder.is_chain)
        for tree, method in run.methods.items()
        if not method.builder.is_chain and alike(method) == alike(run.methods[chain])
    ]
    return of_paper("EESD, Table 7", ["model; chain", "method", "chain", "tree"], rows)


def a_question(part: str) -> Callable[[Run, str], Number]:
    """Seconds of a part of decoding, mean over the questions."""

    def read(run: Run, name: str) -> Number:
        whole, questions = number(run, name, "breakdown", part), len({answer.question for answer in run.answers})
        mean = None if whole.value is None else whole.value / questions
        return Number(mean, SHARE, ["a question", *whole.of])

    return read


def edd(runs: Sequence[Run]) -> Iterator[Table]:
    """Tables 1 to 3."""
    measures = (SPEEDUP, ACCEPTANCE, DRAFTED)
    yield by_data("EDD, Table 1", runs, lambda method: fixed_chain(method) and method.builder.depth == 5, measures)
    yield by_data("EDD, Table 2", runs, lambda method: is_fixed(method) and method.builder.name != "chain", measures)
    pruned = pick(runs, lambda method: is_fixed(method) and method.builder.name == "pruned")
    yield by_method("EDD, Table 3", pruned, measures)


def verify(runs: Sequence[Run]) -> Iterator[Table]:
    """Tables 1 and 5; as one each, 2 and 14, 3 with 4, 6 and 11, 8 to 10, and 12 and 13."""
    own, stops = drafted_by("layer-skip"), controlled_by("threshold", "adaptive")
    lossless = lambda method: own(method) or stops(method) or method.drafter.name == "plain"
    on = lambda *data: [run for run in runs if run.data in data]
    yield by_data("Draft & Verify, Table 1", on("CNN/DM", "XSum"), lossless, (ROUGE, SPEEDUP))
    answers = pick(on("GSM8K", "HumanEval"), lossless)
    yield by_method("Draft & Verify, Tables 2 and 14", answers, (SCORE, SPEEDUP))
    lengths = []
    for run in runs:
        for names in (names for names in chains(run) if len(names) > 1):
            head = run.methods[names[0]].head
            lengths += [(run, name) for name in names] + pick([run], lambda m, head=head: stops(m) and m.head == head)
    yield by_method("Draft & Verify, Tables 3, 4, 6 and 11", lengths, (ACCEPTANCE, SPEEDUP))
    each = lambda title, *keys: (title, lambda run, name: a_token(run, name, *keys))
    parts = {"drafting": "drafting", "verification": "verification", "γ update": "control"}
    times = (*(each(title, "breakdown", part) for title, part in parts.items()), each("in all", "decode_seconds"))
    yield by_method("Draft & Verify, Table 5", pick(runs, lambda m: stops(m) or own(m)), times)
    yield by_method("Draft & Verify, Tables 8 to 10", several_heads(runs, own), (ACCEPTANCE, SPEEDUP))
    measures = (ACCEPTANCE, each("ms a token", "decode_seconds"), SPEEDUP)
    yield by_method("Draft & Verify, Tables 12 and 13", pick(quantised(runs), own), measures)


def drafted_by(*names: str) -> Callable[[Method], bool]:
    """Whether a method has one of these drafters."""
    return lambda method: method.drafter.name in names


def controlled_by(*names: str) -> Callable[[Method], bool]:
    """Whether a method has one of these controllers."""
    return lambda method: method.controller.name in names


is_fixed = controlled_by("fixed")
sampled = controlled_by("beta-ts", "cali-ts")  # Thompson sampling


def quantised(runs: Sequence[Run]) -> list[Run]:
    """The runs whose targets have integer weights."""
    return [run for run in runs if run.settings.get("quantize")]


def several_heads(runs: Sequence[Run], wanted: Callable[[Method], bool]) -> list[tuple[Run, str]]:
    """The wanted methods in runs that compare two or more heads."""
    found = pick(runs, wanted)
    heads = {run.number: {each.methods[name].head for each, name in found if each is run} for run in runs}
    return [(run, name) for run, name in found if len(heads[run.number]) > 1]
