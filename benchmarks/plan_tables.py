"""Tables of `jaxspec plan`: estimates of the compiled loop, kept in results/plans.json; see tables.py."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
PLAN = (
    *("settings", "device", "versions", "bytes_per_chip", "tau", "levels_per_round", "seconds_per_round"),
    *("break_even_tau", "speedup", "estimated_seconds_per_round", "estimated_speedup"),
    *("scheduled_seconds_per_round", "scheduled_speedup", "floor_seconds", "nodes_per_round"),
)
"""The keys of a plan that are kept."""


def keep(files: Sequence[Path]) -> None:
    """Puts the needed keys of some `jaxspec plan --json` into results/plans.json; a plan replaces its older one."""
    what = lambda plan: (json.dumps(plan["settings"]), json.dumps(plan["device"]["mesh"]))
    found = {what(plan): plan for plan in [*result("plans"), *(json.loads(file.read_text("utf-8")) for file in files)]}
    lines = ",\n".join(json.dumps({key: plan[key] for key in PLAN}) for plan in found.values())
    (RESULTS / "plans.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def result(name: str) -> Any:
    """A committed result."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def markdown(header: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """A table in Markdown."""
    first, *others = (f"| {' | '.join(cells)} |\n" for cells in (header, *rows))
    return "".join([first, f"|{'---|' * len(header)}\n", *others])


def with_interval(values: dict[str, Any], key: str) -> str:
    """`1.56 [1.44, 1.69]`."""
    low, high = values[f"{key}_interval"]
    return f"{values[key]:.2f}" + ("" if low == high else f" [{low:.2f}, {high:.2f}]")


def plans() -> str:
    """The table of plans."""
    header = (
        *("`--method`", "`--topology`", "`--tau`", "`--levels`", "target, GB", "head", "KV", "temporaries"),
        *("of a chip", "draft, ms", "verify, ms", "break-even tau", "speedup by floors", "estimated round, ms"),
        "estimated speedup",
    )
    ms = lambda seconds: f"{1e3 * seconds:.1f}"

    def cells(plan: dict[str, Any]) -> Iterator[str]:
        settings, memory, floors = plan["settings"], plan["bytes_per_chip"], plan["seconds_per_round"]
        yield from (f"`{settings['method']}`", f"`{settings['topology']}`")
        yield from (f"{plan['tau']:g}", f"{plan['levels_per_round']:g}")
        yield from (f"{memory[key] / 1e9:.2f}" for key in ("weights", "head_weights", "kv", "temporaries"))
        yield f"{memory['total'] / 1e9:.1f} of {memory['limit'] / 1e9:.0f}"
        yield from (f"{1e3 * floors[phase]:.2f}" for phase in ("draft", "verify"))
        drafts = settings["method"] != "plain"
        yield from (f"{plan[key]:.2f}" if drafts else "–" for key in ("break_even_tau", "speedup"))
        parts = [each for each in plan["estimated_seconds_per_round"].values() if each is not None]
        scheduled = sum(filter(None, plan["scheduled_seconds_per_round"].values()))
        yield f"{ms(sum(low for low, _ in parts))} to {ms(sum(high for _, high in parts))}; {ms(scheduled)}"
        low, high = plan["estimated_speedup"]
        yield f"{low:.2f} to {high:.2f}; {plan['scheduled_speedup']:.2f}" if drafts else "–"

    return markdown(header, ([*cells(plan)] for plan in planned("llama-2-70b"))) + f"\nMade with {compilers()}.\n"


def planned(model: str, options: bool = False) -> list[dict[str, Any]]:
    """The kept plans of a model, compiled with or without the options for TPUs."""
    settings = {"model": model, "tpu_options": options}
    return [plan for plan in result("plans") if plan["settings"].items() >= settings.items()]


def compilers() -> str:
    """Those of the plans."""
    (found,) = {tuple(plan["versions"][name] for name in ("jax", "libtpu")) for plan in result("plans")}
    return "jax {}, libtpu {}".format(*found)


def over_floor(options: bool = False) -> Iterator[tuple[str, float, float]]:
    """What is planned for the v5e, with the upper end of its estimate and the time as scheduled, in floors."""
    for plan in planned("llama-2-70b", options):
        method, estimated = plan["settings"]["method"], plan["estimated_seconds_per_round"]
        if plan["settings"]["topology"] != "v5e:4x4":
            continue
        scheduled, floor = plan["scheduled_seconds_per_round"], plan["floor_seconds"]
        ratios = {
            phase: (estimated[phase][1] / floor[phase], scheduled[phase] / floor[phase])
            for phase in ("draft", "verify")
            if estimated[phase] is not None
        }
        if method == "plain":
            yield "`plain`", *ratios["verify"]
        if method == "early-exit+chain+cali-ts":
            yield f"verification of 8 nodes (`{method}`)", *ratios["verify"]
        if method == "eagle+eagle2":
            yield f"verification of {plan['nodes_per_round']:g} nodes", *ratios["verify"]
            yield f"EAGLE-2's draft, {plan['levels_per_round']:g} levels", *ratios["draft"]
            both = sum(floor[phase] for phase in ratios)
            upper = sum(estimated[phase][1] for phase in ratios)
            yield f"a whole round of `{method}`", upper / both, sum(scheduled[phase] for phase in ratios) / both


def over_floors() -> str:
    """The table of estimates over floors."""
    rows = ([what, f"{upper:.2f}", f"{scheduled:.2f}"] for what, upper, scheduled in over_floor())
    return markdown(("", "upper end", "as scheduled"), rows)


def with_options() -> str:
    """The table of estimates over floors without and with the options for TPUs."""
    off, on = ({what: f"{upper:.2f}, {by:.2f}" for what, upper, by in over_floor(options)} for options in (False, True))
    return markdown(("", "without options", "with options"), ([what, off[what], on[what]] for what in on))


def of_verification(plan: dict[str, Any]) -> list[str]:
    """Floor and estimate of a plan's verification in ms, and the estimate over the floor."""
    floor = plan["floor_seconds"]["verify"]
    low, high = plan["estimated_seconds_per_round"]["verify"]
    scheduled = plan["scheduled_seconds_per_round"]["verify"]
    ms = lambda seconds: f"{1e3 * seconds:.2f}"
    return [ms(floor), f"{ms(low)} to {ms(high)}", f"{high / floor:.2f}", f"{scheduled / floor:.2f}"]


OF_VERIFICATION = ("floor, ms", "estimate, ms", "upper end", "as scheduled")


def small_models() -> str:
    """Verification by smaller models, and with quantised weights."""
    found = [plan for model in ("llama-2-7b", "llama-3.1-8b") for plan in planned(model)]
    rows = ([*of_whom(plan), *of_verification(plan)] for plan in found)
    return markdown(("model", "weights", *OF_VERIFICATION), rows)


def of_whom(plan: dict[str, Any]) -> tuple[str, str]:
    """Model and dtype of its weights."""
    settings = plan["settings"]
    return settings["model"], settings["quantize"] or settings["dtype"]


def split_rows() -> str:
    """Verification with the rows of the cache over devices and without."""
    rows = (
        [
            ",".join(f"{axis}={size}" for axis, size in plan["device"]["mesh"].items() if size > 1),
            f"{plan['bytes_per_chip']['kv'] / 1e9:.2f}",
            *of_verification(plan),
        ]
        for plan in planned("llama-3.1-70b")
        if plan["settings"]["prompt"] is None
    )
    return markdown(("`--mesh`", "keys and values, GB of a chip", *OF_VERIFICATION), rows)


MACHINES = {"v5e:4x4": "v5e-16", "v5p:2x2x1": "v5p-8"}


def evaluation() -> str:
    """GB of a chip while a head of a 70B is trained, by training_memory.py, and while prompts are read and answered."""
    rows, header = list[list[str]](), ("target", "head", "optimizer", "keys and values", "temporaries", "in all")
    evaluated = {plan["settings"]["topology"]: plan for plan in planned("llama-3.1-70b") if plan["settings"]["prompt"]}
    for trained in result("training_memory"):
        where = trained["topology"]
        training, both = trained["bytes_per_chip"], evaluated[where]["bytes_per_chip"]
        for what, held, keys in (
            (f"**{MACHINES[where]}**: training", training, ("target", "head", "optimizer", None, "temporaries")),
            ("evaluation: prompts", both, ("weights", "head_weights", None, "kv", "prefill_temporaries")),
            ("evaluation: rounds", both, ("weights", "head_weights", None, "kv", "temporaries")),
        ):
            total = sum(held[key] for key in keys if key) + held.get("state", 0)
            cells = [f"{held[key] / 1e9:.2f}" if key else "" for key in keys]
            rows.append([what, *cells, f"{total / 1e9:.1f} of {held['limit'] / 1e9:.0f}"])
    return markdown(("", *header), iter(rows))
