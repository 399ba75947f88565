"""At temperature 0 every method gives the tokens of plain greedy decoding, whatever the batch, EOS and budget."""

import jax
import pytest

from jaxspec.methods.method import Method, parse_method
from tests.lossless import combinations
from tests.lossless.harness import NEW, check_texts, requests, run, run_refilled, speculation, with_kept_blocks


@pytest.mark.parametrize("method", combinations.greedy(), scope="class")  # so each is traced once
class TestGreedy:
    def test_equals_plain_decoding(self, method: Method, target, prompts, plain):
        history = check_texts(speculation(method, True), target, requests(prompts, NEW), plain)
        assert (history.committed.sum(axis=1) == NEW - 1).all()  # the first token is prefill's

    def test_rows_do_not_see_each_other(self, method: Method, target, prompts, plain):
        for others in ([[5], [7, 7, 7]], [list(range(20)), [0] * 9]):  # other neighbours, at other places in the batch
            batch = [others[0], prompts[3], others[1], prompts[0]]
            texts, _ = run(speculation(method, True), target, requests(batch, NEW))
            assert [texts[1], texts[3]] == [plain[3], plain[0]]

    def test_rows_draft_as_they_do_among_equals(self, method: Method, target, prompts):
        """Whatever the lengths of its neighbours' prompts, a row drafts and accepts the same."""
        spec, asked = speculation(method, True), requests(prompts, NEW)
        if spec.controller.depends_on_batch:
            return
        _, mixed = run(spec, target, asked)
        for row in (1, 2):  # prompts of one chunk, and of one and a half
            _, equals = run(spec, target, [asked[row]] * 4)
            for field in ("committed", "accepted", "levels", "drafted"):
                one, other = (getattr(counts, field)[row] for counts in (mixed, equals))
                assert one[one.cumsum() < one.sum()].tolist() == other[other.cumsum() < other.sum()].tolist()

    def test_budget_cuts_inside_an_accepted_run(self, method: Method, target, prompts, plain):
        _, free = run(speculation(method, True), target, requests(prompts, NEW))
        for budget in range(1, 9):
            texts, history = run(speculation(method, True), target, requests(prompts, budget))
            assert texts == [text[:budget] for text in plain]
            assert (history.committed.sum(axis=1) == budget - 1).all()
            assert (history.accepted <= history.committed).all()
            assert (history.accepted <= history.levels).all()
            assert history.uncut is not None
            assert budget == 1 or (history.uncut[:, 0] == free.committed[:, 0]).all()  # as if nothing cut the round

    def test_eos_cuts_inside_an_accepted_run(self, method: Method, target, prompts, plain):
        for at in (0, 5, 17):  # 0: prefill's own token ends the text
            eos = [plain[2][at], plain[3][at]]
            ends = [next((i + 1 for i, token in enumerate(text) if token in eos), NEW) for text in plain]
            texts, history = run(speculation(method, True), target, requests(prompts, NEW), eos)
            assert texts == [text[:end] for text, end in zip(plain, ends, strict=True)]
            assert history.committed.sum(axis=1).tolist() == [end - 1 for end in ends]
            assert history.uncut is not None and (history.uncut >= history.committed).all()


@pytest.mark.parametrize("method", combinations.refilled(coupled=False))
def test_rows_of_continuous_batching(method: Method, target, prompts, plain):
    each = [(0, NEW), (1, 7), (2, 1), (3, 23), (1, NEW), (0, 12), (3, 5), (2, NEW), (0, 3)]
    asked = [request for i, budget in each for request in requests([prompts[i]], budget)]
    eos = [plain[2][17]]
    ends = [next((i + 1 for i, token in enumerate(text) if token in eos), NEW) for text in plain]
    expected = [plain[i][: min(ends[i], budget)] for i, budget in each]
    assert run_refilled(speculation(method, True), target, asked, eos) == expected


def test_every_size_of_verification_that_a_cpu_has(target, prompts, plain):
    """Each round verifies the smallest size that holds its tree. Other tests compile two sizes."""
    spec = parse_method("eagle+pruned,width=3,depth=4,leaf=0.02,cost=0.1,total=12").speculation(
        greedy=True, tree_sizes=(1, 2, 4, 6, 8, 16, 32, 64)
    )
    assert spec.verify_sizes == (1, 2, 4, 6, 8, 12)
    check_texts(spec, target, requests(prompts, NEW), plain)


@pytest.mark.parametrize("name", combinations.WITH_KEPT_BLOCKS)
def test_a_skip_set_with_weights_of_its_own(name: str, target, prompts, plain):
    check_texts(speculation(parse_method(name), True), with_kept_blocks(target), requests(prompts, NEW), plain)


@pytest.mark.parametrize("name", ["ngram+chain,length=4", "eagle+eagle2,total=8,depth=3,width=2"])
def test_attention_in_the_kernel_for_tpus(name: str, target, prompts, plain, attention_in_kernel):
    check_texts(speculation(parse_method(name), True), target, requests(prompts, NEW), plain)


def test_a_wrong_draft_never_shows(target, prompts, plain):
    """The worst draft model slows decoding down and changes no token."""
    broken = type(target)(
        target=target.target, draft={k: jax.tree.map(lambda x: -x, v) for k, v in target.draft.items()}
    )
    for method in ("+".join(combinations.BY_MUTANTS[0][:3]), "eagle+eagle2,total=8,depth=3,width=2"):
        texts, _ = run(speculation(parse_method(method), True), broken, requests(prompts, NEW))
        assert texts == plain
