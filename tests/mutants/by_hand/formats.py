"""Mutants of converters and of what evaluation reports."""

from tests.mutants.mutant import ByHand

METRICS, EVALUATE, TESTS = "tests/evaluate/test_metrics.py", "jaxspec/evaluate", "tests/evaluate"

MUTANTS = (
    ByHand(
        "metas-rotary-order-is-kept",
        "convert/meta.py",
        ("tests/convert/test_meta.py::test_same_as_hugging_face",),
        "return halves(whole, heads[rotary]) if rotary in heads else whole",
        "return whole",
    ),
    ByHand(
        "keys-turned-as-if-they-were-queries",
        "convert/meta.py",
        ("tests/convert/test_meta.py::test_same_as_hugging_face",),
        '{"q": heads, "k": kv_heads}',
        '{"q": heads, "k": heads}',
    ),
    ByHand(
        "gate-and-up-exchanged",
        "convert/names.py",
        ("tests/convert/test_meta.py::test_same_as_hugging_face",),
        '"model.layers.{}.mlp.up_proj", "layers.{}.feed_forward.w3"',
        '"model.layers.{}.mlp.up_proj", "layers.{}.feed_forward.w1"',
    ),
    ByHand(
        "small-models-scaled-as-large-ones",
        "convert/meta.py",
        ("tests/convert/test_meta.py::test_scaling_factor_is_told_by_width",),
        "in (2048, 3072) else 8.0",
        "in (2048,) else 8.0",
    ),
    ByHand(
        "only-the-first-end-of-text-counts",
        "convert/hf_config.py",
        ("tests/convert/test_round_trip.py::test_end_of_sequence_ids_of_both_configs_count",),
        '"eos": tuple(dict.fromkeys(eos))',
        '"eos": tuple(eos[:1])',
    ),
    ByHand(
        "biases-of-qwen2-are-dropped",
        "convert/hf_config.py",
        ("tests/convert/test_round_trip.py::test_every_family",),
        'qkv_bias=biased or kind == "qwen2"',
        "qkv_bias=biased",
    ),
    ByHand(
        "d2t-holds-ids",
        "convert/draft_maps.py",
        ("tests/convert/test_eagle3_export.py", "tests/convert/test_eagle3.py"),
        '{"d2t": ids - np.arange(len(ids)),',
        '{"d2t": ids,',
    ),
    ByHand(
        "d2t-is-read-as-ids",
        "convert/draft_maps.py",
        ("tests/convert/test_eagle3.py::test_every_tensor_has_its_place",),
        "ids = offsets.astype(np.int64) + np.arange(drafted)",
        "ids = np.unique(offsets.astype(np.int64))",
    ),
    ByHand(
        "every-embedding-is-the-targets",
        "convert/head_parts.py",
        ("tests/convert/test_head.py::test_own_embedding_is_kept_and_said",),
        "tensor.dtype == dtype and is_targets(tensor, target, theirs)",
        "tensor.dtype == dtype",
    ),
    ByHand(
        "medusas-blocks-exchanged",
        "convert/medusa.py",
        ("tests/convert/test_medusa.py::test_computes_what_pytorch_does",),
        'return f"{number}.1.weight" if part == "head"',
        'return f"{number}.0.weight" if part == "head"',
    ),
    ByHand(
        "eagle3s-norms-exchanged",
        "convert/eagle3.py",
        ("tests/convert/test_eagle3_oracle.py",),
        'return f"{layer}.hidden_norm.weight"',
        'return f"{layer}.input_layernorm.weight"',
    ),
    ByHand(
        "tau-of-drafts-alone",
        "jaxspec/engine/statistics.py",
        (METRICS,),
        "return ratio(self.tokens, self.rounds)",
        "return ratio(self.accepted, self.rounds)",
    ),
    ByHand(
        "acceptance-at-positions-that-were-not-drafted",
        "jaxspec/engine/statistics.py",
        (METRICS,),
        "(rounds.accepted >= i) & (rounds.levels > i)",
        "(rounds.accepted >= i)",
    ),
    ByHand(
        "whole-rounds-are-cut-too",
        "jaxspec/decoding/round_counts.py",
        (
            "tests/lossless/test_greedy.py::TestGreedy::"
            "test_budget_cuts_inside_an_accepted_run[draft-model+chain,length=4+threshold,gamma=0.2,confidence=token]",
        ),
        "uncut=seen(verdict.accepted + 1)",
        "uncut=seen(count)",
    ),
    ByHand(
        "verified-in-a-size-too-small-for-the-root",
        f"{EVALUATE}/cost_model.py",
        (f"{TESTS}/test_modelled.py",),
        "if size > nodes), default",
        "if size >= nodes), default",
    ),
    ByHand(
        "twice-the-noise-explains-it",
        f"{EVALUATE}/divergence.py",
        (f"{TESTS}/test_results.py::test_the_gap_decides",),
        "self.behind <= 2 * noise",
        "self.behind <= 4 * noise",
    ),
    ByHand(
        "verdicts-beyond-the-end-of-the-text",
        f"{EVALUATE}/reliability.py",
        (f"{TESTS}/test_reliability.py",),
        '& (depth <= len(tree["committed"]))',
        "& (depth >= 0)",
    ),
    ByHand(
        "orphans-are-judged",
        f"{EVALUATE}/reliability.py",
        (f"{TESTS}/test_reliability.py",),
        "(parent >= 0) & accepted[parent]",
        "(parent >= 0)",
    ),
    ByHand(
        "questions-drawn-apart",
        f"{EVALUATE}/uncertainty.py",
        (f"{TESTS}/test_uncertainty.py::test_resampling_is_paired",),
        "paired=True",
        "paired=False",
    ),
    ByHand(
        "the-first-number-is-the-answer",
        f"{EVALUATE}/quality.py",
        (f"{TESTS}/test_quality.py",),
        'float(found[-1].replace(",", ""))',
        'float(found[0].replace(",", ""))',
    ),
)
