"""Mutants of training: losses that teach something a little off, which decoding shows by its acceptance alone."""

from tests.mutants.mutant import ByHand

FOLDER, TESTS = "train/methods", "tests/train/methods"
LOSS = "test_loss_is_the_papers"

MUTANTS = (
    ByHand(
        "early-exit-predicts-its-own-token",
        f"{FOLDER}/early_exit.py",
        (f"{TESTS}/test_early_exit.py::{LOSS}",),
        "cross_entropy(logits, batch)",
        "cross_entropy(jnp.roll(logits, -1, axis=1), batch)",
    ),
    ByHand(
        "agreement-of-the-tokens-before",
        f"{FOLDER}/early_exit.py",
        (f"{TESTS}/test_early_exit.py::{LOSS}",),
        "jnp.asarray(batch.counted)[:, 1:]",
        "jnp.asarray(batch.counted)[:, :-1]",
    ),
    ByHand(
        "mask-shifted-by-one",
        "train/run/losses.py",
        (f"{TESTS}/test_early_exit.py::{LOSS}",),
        "counted = jnp.asarray(batch.counted)[:, 1:]",
        "counted = jnp.asarray(batch.counted)[:, :-1]",
    ),
    ByHand(
        "teacher-without-its-temperature",
        "train/run/losses.py",
        (f"{TESTS}/test_edd.py",),
        "says / objective.teacher_temperature",
        "says",
    ),
    ByHand(
        "documents-see-each-other",
        "train/run/packed.py",
        (f"{TESTS}/test_lm.py", "-k", "documents"),
        "return before & (segment[:, start:end, None] == segment[:, None, :end])",
        "return before & (segment[:, start:end, None] >= segment[:, None, :end])",
    ),
    ByHand(
        "eagle-learns-the-feature-it-was-given",
        f"{FOLDER}/eagle.py",
        (f"{TESTS}/test_eagle.py::{LOSS}",),
        "given, goal = features[:, :-2], features[:, 1:-1]",
        "given, goal = features[:, :-2], features[:, :-2]",
    ),
    ByHand(
        "eagle-counts-one-token-early",
        f"{FOLDER}/eagle.py",
        (f"{TESTS}/test_eagle.py::{LOSS}",),
        "jnp.asarray(batch.counted)[:, 2:]",
        "jnp.asarray(batch.counted)[:, 1:-1]",
    ),
    ByHand(
        "eagle3-steps-weigh-the-same",
        f"{FOLDER}/eagle3.py",
        (f"{TESTS}/test_eagle3.py::{LOSS}",),
        "total += objective.decay**k * lost",
        "total += lost",
    ),
    ByHand(
        "eagle3-learns-the-token-before",
        f"{FOLDER}/eagle3.py",
        (f"{TESTS}/test_eagle3.py::{LOSS}",),
        "of_step(out, ahead(drafted, 1 + k),",
        "of_step(out, ahead(drafted, k),",
    ),
    ByHand(
        "eagle3-steps-stand-at-one-position",
        f"{FOLDER}/eagle3.py",
        (f"{TESTS}/test_eagle3.py::test_trains_what_decodes",),
        "*rotary(head.config, at + k)",
        "*rotary(head.config, at)",
    ),
    ByHand(
        "medusa-heads-one-token-early",
        f"{FOLDER}/medusa.py",
        (f"{TESTS}/test_medusa.py::{LOSS}",),
        "[shift(k + 2) for k in range(count)]",
        "[shift(k + 1) for k in range(count)]",
    ),
    ByHand(
        "medusa-heads-weigh-the-same",
        f"{FOLDER}/medusa.py",
        (f"{TESTS}/test_medusa.py::{LOSS}",),
        "lost.sum(axis=0) @ decay ** jnp.arange(count)",
        "lost.sum(axis=0) @ jnp.ones(count)",
    ),
    ByHand(
        "a-block-sees-the-hidden-state-of-its-root",
        f"{FOLDER}/dual_block.py",
        (f"{TESTS}/test_dual_block.py",),
        "verified = (hidden < begins)",
        "verified = (hidden <= begins)",
    ),
    ByHand(
        "dflash-sees-its-anchors-context",
        f"{FOLDER}/dflash.py",
        (f"{TESTS}/test_dflash.py::test_trains_what_decodes",),
        "jnp.arange(segment.shape[1]) < begins",
        "jnp.arange(segment.shape[1]) <= begins",
    ),
    ByHand(
        "dflash-sees-earlier-blocks",
        f"{FOLDER}/dflash.py",
        (f"{TESTS}/test_dflash.py::test_trains_what_decodes",),
        "query // width == key // width",
        "query // width >= key // width",
    ),
    ByHand(
        "dflash-has-the-teacher-of-the-next-token",
        f"{FOLDER}/dflash.py",
        (f"{TESTS}/test_dflash.py::{LOSS}",),
        "(features, inside - 1)",
        "(features, inside)",
    ),
    ByHand(
        "markov-term-learns-from-the-token-itself",
        f"{FOLDER}/dflash.py",
        (f"{TESTS}/test_dflash.py::test_a_markov_term_is_trained_on_the_token_before",),
        "pick(tokens, inside - 1)",
        "pick(tokens, inside)",
    ),
    ByHand(
        "dflash-levels-weigh-the-same",
        f"{FOLDER}/dflash.py",
        (f"{TESTS}/test_dflash.py::{LOSS}",),
        "valid * jnp.exp(-jnp.arange(levels) / objective.scale(levels + 1))",
        "valid * jnp.ones(levels)",
    ),
    ByHand(
        "the-rejected-draft-was-not-compared",
        f"{FOLDER}/acceptance_labels.py",
        (f"{TESTS}/test_acceptance_predictor.py::test_labels_are_what_decoding_saw",),
        "compared=level <= accepted",
        "compared=level < accepted",
    ),
    ByHand(
        "tokens-that-touch-a-span-count",
        "train/data/loss_mask.py",
        ("tests/train/data/test_encoding.py", "tests/train/data/test_records.py"),
        "(offsets[:, 1] > start)",
        "(offsets[:, 1] >= start)",
    ),
)
