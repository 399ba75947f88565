"""All mutants: those written by hand, and those generated, with the tests that must notice them."""

from tests.mutants import by_hand, generated
from tests.mutants.mutant import ROOT, Mutant

BATTERY = "tests/lossless/test_greedy.py::TestGreedy::test_equals_plain_decoding"
CHAIN = "[draft-model+chain,length=4+threshold,gamma=0.2,confidence=token]"
TREE = "[eagle3+eagle2,total=12,depth=4,width=3+fixed]"
COUPLED = "tests/lossless/test_coupling.py::TestCoupled::test_equals_plain_decoding"
BUDGET = "tests/lossless/test_greedy.py::TestGreedy::test_budget_cuts_inside_an_accepted_run"
HISTORY = "copied or copy or copies or counts or average or compared or weight or pads"
"""The tests of history that are not about the text."""

CALIBRATE, ROUND_TRIP = "tests/evaluate/test_calibrate.py", "tests/convert/test_round_trip.py"
TESTS = {  # besides the test file of the same name
    "jaxspec/decoding/top_k.py": ("tests/decoding/test_top_p.py", "tests/decoding/test_top_k.py"),
    "jaxspec/decoding/decode_state.py": ("tests/lossless/test_growth.py",),
    "jaxspec/decoding/loop.py": (
        f"{BATTERY}{CHAIN}",
        f"{BUDGET}{CHAIN}",
        f"{BATTERY}{TREE}",
        "tests/drafters/test_early_exit.py::test_all_nodes_after_the_root_may_be_leaves",
        f"{COUPLED}[draft-model+uniform,width=2,depth=3,total=8+fixed]",
    ),
    "jaxspec/decoding/builder.py": ("tests/decoding/test_builder.py", f"{BATTERY}{CHAIN}", f"{BATTERY}{TREE}"),
    "jaxspec/decoding/drafter.py": ("tests/drafters/test_edd.py", f"{BATTERY}{CHAIN}"),
    "jaxspec/decoding/prefill.py": (
        "tests/engine/test_continuous_batching.py",
        "tests/lossless/test_first_round.py",
        "-k",
        "alone or log_probs",
    ),
    "jaxspec/decoding/sampling.py": ("tests/decoding/test_top_p.py", "tests/decoding/test_gumbel_coupling.py"),
    "jaxspec/decoding/batch.py": ("tests/engine/test_continuous_batching.py", "-k", "alone"),
    "jaxspec/rules/greedy.py": ("tests/decoding/test_rule.py",),
    "jaxspec/rules/rejection_sampling.py": (
        "tests/decoding/test_rejection_sampling.py",
        "tests/lossless/test_wrong_rules.py::test_right_rule_passes",
    ),
    "jaxspec/drafters/eagle_state.py": (f"{BATTERY}{TREE}", "tests/drafters/test_trees.py"),
    "jaxspec/drafters/history.py": ("tests/lossless/test_history.py", "-k", HISTORY),
    "jaxspec/drafters/ngram.py": ("tests/drafters/test_suffix_match.py",),
    "jaxspec/drafters/eagle3.py": (
        "tests/convert/test_eagle3.py::test_official_taps",
        "tests/convert/test_eagle3.py::test_taps",
        "tests/convert/test_eagle3_oracle.py",
    ),
    "jaxspec/decoding/strategy.py": (
        "tests/controllers/test_round_cost.py",
        "tests/controllers/test_length_ts.py",
        "tests/controllers/test_expected_gain.py",
        f"{CALIBRATE}::test_costs_of_longer_texts_are_kept_and_tables_without_them_mean_what_they_did",
    ),
    "jaxspec/drafters/early_exit.py": ("tests/train/methods/test_early_exit.py::test_trains_what_decodes",),
    "jaxspec/builders/top_paths.py": ("tests/builders/test_eagle2.py", "tests/builders/test_pruned.py"),
    "jaxspec/controllers/posterior_update.py": (
        "tests/controllers/test_beta_ts.py",
        "tests/controllers/test_length_ts.py",
    ),
    "train/run/trainer.py": ("tests/train/run/test_held_out.py",),
    "train/methods/skip_search.py": ("tests/train/methods/test_skip_suggestion.py",),
    "convert/folders.py": ("tests/convert/test_refusals.py",),
    "convert/transfer.py": (ROUND_TRIP, "tests/convert/test_refusals.py"),
    "convert/hf_config.py": (ROUND_TRIP, "tests/convert/test_refusals.py"),
    "convert/dflash.py": ("tests/convert/test_dflash.py", "tests/convert/test_kinds.py"),
    "convert/head_kinds.py": ("tests/convert/test_kinds.py", "tests/convert/test_head_settings.py"),
    "convert/head_parts.py": ("tests/convert/test_eagle3.py",),
    "convert/heads.py": ("tests/convert/test_eagle.py",),
    "convert/llama.py": (ROUND_TRIP, "tests/convert/test_refusals.py"),
    "jaxspec/evaluate/divergence.py": ("tests/evaluate/test_results.py", "tests/verify/test_explanation.py"),
    "jaxspec/evaluate/cost_model.py": ("tests/evaluate/test_modelled.py",),
}
EQUIVALENT: dict[str, str] = {
    "jaxspec/decoding/loop.py:one_round:compare:b2cda5": "a compacted tree of the only size has the same live nodes",
    "convert/llama.py:_match:compare:741899": "with a tensor a layer some are missing, which is refused next",
}
"""Generated mutants that no test can notice, and why."""


def mutants() -> list[Mutant]:
    """Every mutant, those written by hand first. Raises StaleError where the lists no longer fit the library."""
    return [*by_hand.MUTANTS, *generated.drawn(tests_of, EQUIVALENT)]


def tests_of(file: str) -> tuple[str, ...]:
    """The tests that must notice any change to a file: those of its own name, and those listed for it."""
    folder, _, name = file.removeprefix("jaxspec/").rpartition("/")
    own = f"tests/{folder}/test_{name}"
    return tuple(dict.fromkeys((*((own,) if (ROOT / own).exists() else ()), *TESTS.get(file, ()))))
