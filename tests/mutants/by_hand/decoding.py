"""Mutants of the decoding loop, of sampling, and of the verification rules."""

from tests.mutants.mutant import ByHand

GREEDY = "tests/lossless/test_greedy.py::TestGreedy"
CHAIN = "[draft-model+chain,length=4+threshold,gamma=0.2,confidence=token]"
AMONG = f"{GREEDY}::test_rows_draft_as_they_do_among_equals"
FIRST = "tests/lossless/test_first_round.py::test_first_drafts_do_not_depend_on_other_prompts"
GROWTH = "tests/lossless/test_growth.py"
FOLDER = "jaxspec/decoding"

DRIVERS = "tests/lossless/test_drivers.py"
HISTORY = "tests/lossless/test_history.py"
REFILLED = "tests/engine/test_continuous_batching.py"
EDGE = "test_prompts_that_end_or_part_at_a_chunks_edge"
ENGINE = "jaxspec/engine"

MUTANTS = (
    ByHand(
        "a-finished-text-is-overwritten-in-a-full-cache",
        f"{FOLDER}/decode_state.py",
        (f"{GROWTH}::test_a_cache_that_grows_shows_nowhere[draft-model+chain,length=8]",),
        'unique_indices=True, mode="drop")',
        'unique_indices=True, mode="clip")',
    ),
    ByHand(
        "drivers-overwrite-a-finished-text",
        f"{FOLDER}/decode_state.py",
        (f"{DRIVERS}::test_run",),
        'unique_indices=True, mode="drop")',
        'unique_indices=True, mode="clip")',
    ),
    ByHand(
        "a-stopped-row-takes-another-pass",
        f"{FOLDER}/loop.py",
        (f"{HISTORY}::test_where_all_rows_copy_the_head_is_not_asked",),
        "expand = reached.live & active[:, None]",
        "expand = reached.live",
    ),
    ByHand(
        "copied-levels-at-full-price",
        f"{FOLDER}/loop.py",
        (f"{HISTORY}::test_a_copy_teaches_the_controller_nothing",),
        "of_drafter(counts, copied)",
        "counts",
    ),
    ByHand(
        "copies-teach-the-controller",
        f"{FOLDER}/loop.py",
        (f"{HISTORY}::test_a_copy_teaches_the_controller_nothing",),
        "controller=select_rows(copied, state.controller, learnt)",
        "controller=learnt",
    ),
    ByHand(
        "refilled-rows-keep-the-feature",
        f"{FOLDER}/batch.py",
        (f"{REFILLED}::test_a_refilled_row_is_the_new_text_whole",),
        '"cache", "feature", "drafter"',
        '"cache", "drafter"',
    ),
    ByHand(
        "refilled-rows-keep-the-controllers-state",
        f"{FOLDER}/batch.py",
        (f"{REFILLED}::test_a_refilled_row_is_the_new_text_whole",),
        '*["controller"] * (fresh.controller is not None)',
        "",
    ),
    ByHand(
        "the-clock-of-a-refilled-row-is-the-batchs",
        f"{ENGINE}/generation.py",
        (f"{REFILLED}::test_prompts_that_fill_their_chunks_and_the_clock_of_their_row",),
        "session.decode_seconds - text.decoded_before",
        "session.decode_seconds",
    ),
    ByHand(
        "a-prompt-that-fills-its-chunks-begins-no-text",
        f"{FOLDER}/prefill.py",
        (f"{REFILLED}::test_prompts_that_fill_their_chunks_and_the_clock_of_their_row",),
        "(prompt.max() <= end)",
        "(prompt.max() < end)",
    ),
    ByHand(
        "a-prompt-that-fills-its-chunks-is-remembered-whole",
        f"{ENGINE}/prefix_cache.py",
        (f"tests/engine/test_prompt_memory.py::{EDGE}",),
        "(len(tokens) - 1) // chunk",
        "len(tokens) // chunk",
    ),
    ByHand(
        "prompts-share-a-chunk-whatever-comes-next",
        f"{ENGINE}/prefix_cache.py",
        (
            f"tests/engine/test_shared_prefix.py::{EDGE}",
            "tests/engine/test_shared_prefix.py::test_what_two_prompts_share",
        ),
        "one[at : at + chunk + 1] == other[at : at + chunk + 1]",
        "one[at : at + chunk] == other[at : at + chunk]",
    ),
    ByHand(
        "a-prefix-begins-prompts-whatever-comes-next",
        f"{ENGINE}/prefix_cache.py",
        (f"tests/engine/test_prompt_memory.py::{EDGE}",),
        "prompt[: len(self.tokens)] == self.tokens",
        "prompt[: self.position] == self.tokens[:-1]",
    ),
    ByHand(
        "margin-without-the-depth",
        f"{FOLDER}/decode_state.py",
        (GROWTH,),
        "return spec.builder.depth + 3",
        "return 3",
    ),
    ByHand(
        "room-of-the-shortest-row",
        f"{FOLDER}/decode_state.py",
        (GROWTH,),
        "jnp.where(state.done, 0, state.length).max()",
        "jnp.where(state.done, 0, state.length).min()",
    ),
    ByHand(
        "counts-lost-when-the-cache-grows",
        f"{FOLDER}/decode_state.py",
        (GROWTH,),
        "history, trace = _with_rounds((state.history, state.trace), rows, state.round)",
        "history, trace = _with_rounds((state.history, state.trace), rows, state.round * 0)",
    ),
    ByHand(
        "caches-of-drafters-zeroed-when-they-grow",
        f"{FOLDER}/drafter.py",
        (GROWTH,),
        "lambda leaf: enlarge((leaf,), rows)[0] if is_kv(leaf) else leaf",
        "lambda leaf: jax.tree.map(jnp.zeros_like, enlarge((leaf,), rows)[0]) if is_kv(leaf) else leaf",
    ),
    ByHand(
        "cache-of-the-target-zeroed-when-it-grows",
        f"{FOLDER}/decode_state.py",
        (GROWTH,),
        "cache=kv.enlarge(state.cache, rows)",
        "cache=jax.tree.map(jnp.zeros_like, kv.enlarge(state.cache, rows))",
    ),
    ByHand(
        "rows-written-one-late",
        f"{FOLDER}/loop.py",
        (f"{GREEDY}::test_equals_plain_decoding{CHAIN}",),
        "cache=kv.append(state.cache, verified.rows, state.length - 1,",
        "cache=kv.append(state.cache, verified.rows, state.length,",
    ),
    ByHand(
        "budget-exceeded-by-one",
        f"{FOLDER}/loop.py",
        (f"{GREEDY}::test_budget_cuts_inside_an_accepted_run{CHAIN}",),
        "room = jnp.where(state.done, 0, state.limit - state.length)",
        "room = jnp.where(state.done, 0, state.limit - state.length + 1)",
    ),
    ByHand(
        "end-of-text-cut-off",
        f"{FOLDER}/loop.py",
        (f"{GREEDY}::test_eos_cuts_inside_an_accepted_run{CHAIN}",),
        "ends.argmax(axis=1) + 1",
        "ends.argmax(axis=1)",
    ),
    ByHand(
        "end-of-text-among-rejected-drafts",
        f"{FOLDER}/loop.py",
        ("tests/decoding/test_loop.py",),
        "(offset <= accepted[:, None])",
        "(offset <= accepted[:, None] + 1)",
    ),
    ByHand(
        "log-probs-of-doubled-logits",
        f"{FOLDER}/sampling.py",
        ("tests/engine/test_engine.py::TestGenerate::test_log_probs_are_log_softmax_of_the_target",),
        "jax.nn.log_softmax(logits)",
        "jax.nn.log_softmax(2 * logits)",
    ),
    ByHand(
        "top-k-keeps-one-too-many",
        f"{FOLDER}/sampling.py",
        ("tests/decoding/test_top_p.py::test_as_sorting_has_it",),
        "jnp.clip(limit, 1, logits.shape[-1])",
        "jnp.clip(limit + 1, 1, logits.shape[-1])",
    ),
    ByHand(
        "top-p-before-top-k",
        f"{FOLDER}/sampling.py",
        ("tests/decoding/test_top_p.py::test_top_k_comes_before_top_p",),
        "    if sampling.top_k is not None:\n"
        "        scaled = keep_top_k(scaled, _per_row(sampling.top_k, logits))\n"
        "    return scaled if sampling.top_p is None else keep_top_p(scaled, _per_row(sampling.top_p, logits))\n",
        "    if sampling.top_p is not None:\n"
        "        scaled = keep_top_p(scaled, _per_row(sampling.top_p, logits))\n"
        "    return scaled if sampling.top_k is None else keep_top_k(scaled, _per_row(sampling.top_k, logits))\n",
    ),
    ByHand(
        "top-p-of-all-but-one",
        f"{FOLDER}/sampling.py",
        ("tests/decoding/test_top_p.py::test_as_sorting_has_it",),
        "& (share < 1)",
        "& (share > 1)",
    ),
    ByHand(
        "temperature-multiplied",
        f"{FOLDER}/sampling.py",
        ("tests/decoding/test_gumbel_coupling.py::test_temperature_comes_before_the_noise",),
        "logits.astype(jnp.float32) / jnp.where",
        "logits.astype(jnp.float32) * jnp.where",
    ),
    ByHand(
        "finished-prompts-read-on",
        f"{FOLDER}/prefill.py",
        (f"{AMONG}{CHAIN}",),
        "start=jnp.where(count > 0, at, prompt + 1)",
        "start=jnp.where(count > 0, at, at)",
        equivalent="our drafters write nothing there that they read, or the same again; others may rely on it",
    ),
    ByHand(
        "feature-of-another-chunk",
        f"{FOLDER}/prefill.py",
        (f"{FIRST}[eagle+eagle2,total=6,depth=2,width=3]",),
        "feature=jnp.where(ends[:, None], feature[:, 0], state.feature)",
        "feature=feature[:, 0]",
    ),
    ByHand(
        "first-token-ends-no-text",
        f"{FOLDER}/prefill.py",
        (f"{GREEDY}::test_eos_cuts_inside_an_accepted_run{CHAIN}",),
        "(first == state.eos).any(axis=1)",
        "(first == state.eos).all(axis=1)",
    ),
    ByHand(
        "refilled-rows-keep-the-drafters-state",
        f"{FOLDER}/batch.py",
        ("tests/engine/test_continuous_batching.py::test_each_is_as_alone_whatever_the_order",),
        '"feature", "drafter", "log_prob"',
        '"feature", "log_prob"',
    ),
    ByHand(
        "a-free-row-waits-for-the-next-texts-end",
        "jaxspec/engine/continuous_batching.py",
        ("tests/engine/test_continuous_batching.py::test_no_row_idles_while_prompts_wait",),
        "ahead.chunks_left > 1 or (ahead.chunks_left and len(session.texts) < rows)",
        "ahead.chunks_left > 1",
    ),
    ByHand(
        "refilled-rows-keep-their-key",
        f"{FOLDER}/batch.py",
        ("tests/engine/test_continuous_batching.py::test_sampled_texts_do_not_depend_on_the_rows",),
        '"done", "keys", "sampling"',
        '"done", "sampling"',
    ),
    ByHand(
        "nodes-do-not-see-their-parents",
        f"{FOLDER}/tree.py",
        ("tests/decoding/test_tree.py::test_growing_keeps_parents_depths_and_ancestors",),
        "own | (take(tree.ancestors, parent) & live[..., None])",
        "own",
    ),
    ByHand(
        "a-tree-that-just-fits-takes-the-next-size",
        f"{FOLDER}/tree.py",
        ("tests/decoding/test_tree.py::test_smallest_size_counts_up_to_the_last_live_node",),
        "(needed > jnp.array(offered))",
        "(needed >= jnp.array(offered))",
    ),
    ByHand(
        "levels-beyond-the-cut-are-counted",
        f"{FOLDER}/round_records.py",
        (f"{GREEDY}::test_budget_cuts_inside_an_accepted_run{CHAIN}", "tests/controllers/test_loop.py"),
        "depth = jnp.where(count <= accepted, jnp.minimum(levels(grown), count), levels(grown))",
        "depth = levels(grown)",
    ),
    ByHand(
        "confidence-of-the-first-expanded-node",
        f"{FOLDER}/controller.py",
        ("tests/controllers/test_threshold.py", "tests/decoding/test_controller.py"),
        "slot = (expanded.node == parent).argmax(axis=1)[:, None]",
        "slot = jnp.zeros_like(parent)",
    ),
    ByHand(
        "coverage-of-the-best-node-alone",
        f"{FOLDER}/controller.py",
        ("tests/controllers/test_expected_gain.py", "tests/decoding/test_controller.py"),
        "log_coverage=jax.nn.logsumexp(tree.log_confidence, axis=1, where=at_level)",
        "log_coverage=confidence",
    ),
    ByHand(
        "drafts-without-the-shared-noise",
        "jaxspec/rules/gumbel_coupling.py",
        ("tests/decoding/test_gumbel_coupling.py",),
        "kept_logits(drafts.logits, never_greedy(draws.sampling)) + shared",
        "kept_logits(drafts.logits, never_greedy(draws.sampling)) + 0 * shared",
    ),
    ByHand(
        "candidates-take-all-the-mass",
        "jaxspec/rules/gumbel_coupling.py",
        ("tests/decoding/test_gumbel_coupling.py",),
        " + log_mass(drafts)",
        "",
    ),
    ByHand(
        "noise-one-position-late",
        "jaxspec/rules/gumbel_coupling.py",
        ("tests/lossless/test_coupling.py::test_a_drafter_that_is_the_target_is_always_right",),
        "here = (tree.depth == level)[..., None]",
        "here = (tree.depth == level + 1)[..., None]",
    ),
    ByHand(
        "target-redrawn-after-a-rejection",
        "jaxspec/rules/rejection_sampling.py",
        ("tests/lossless/test_wrong_rules.py::test_right_rule_passes[rejection sampling without replacement]",),
        "jnp.maximum(p - q, 0.0)",
        "p",
    ),
    ByHand(
        "a-rejected-sibling-stays-in-q",
        "jaxspec/rules/rejection_sampling.py",
        ("tests/lossless/test_wrong_rules.py::test_right_rule_passes[rejection sampling without replacement]",),
        "jnp.where(reject, without(q, token), q)",
        "q",
    ),
)
