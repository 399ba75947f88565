"""`jaxspec verify` passes lossless methods and fails others, resumes after a kill, and repeats a case."""

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxspec.decoding import sampling
from jaxspec.decoding.rule import Draws, Rule, Verdict
from jaxspec.decoding.tree import DraftTree, path_to
from jaxspec.rules import Greedy, GumbelCoupling, RejectionSampling, gumbel_coupling, rejection_sampling
from jaxspec.verify.cases import Case, Checker, Result
from tests.verify.conftest import Command, verdict

TREE, CHAIN = "draft-model+static,paths=0:1:00:01", "draft-model+chain,length=3"
METHODS = ("--methods", TREE, CHAIN, "--minutes", 0)
pytestmark = pytest.mark.usefixtures("small", "forgetful")


def one_too_many(verify: Callable[..., Verdict]) -> Callable[..., Verdict]:
    """A rule's verification that also accepts the first child of the last node that it should accept."""

    def wrong(self: Rule, draws: Draws, tree: DraftTree, logits: Any, depth: int) -> Verdict:
        right = verify(self, draws, tree, logits, depth)
        last = jnp.take_along_axis(right.path, right.accepted[:, None], axis=1)
        children = tree.live & (tree.parent == last)
        further = children.any(axis=1)
        node = jnp.where(further, children.argmax(axis=1), last[:, 0])
        after = jnp.take_along_axis(logits, node[:, None, None], axis=1)[:, 0]
        hot = sampling.sample(sampling.fold(draws.keys, 9), sampling.probabilities(after, draws.sampling))
        return Verdict(
            path=path_to(tree, node, depth + 1),
            accepted=right.accepted + further,
            next_token=jnp.where(further, hot, right.next_token),
        )

    return wrong


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same at twice the temperature."""

    def wrong(logits: Any, how: sampling.Sampling) -> Any:
        return function(logits, dataclasses.replace(how, temperature=2 * how.temperature))

    return wrong


def test_what_is_lossless_passes(verify: Command, tmp_path: Path) -> None:
    out = tmp_path / "verdict.json"
    code, page, _ = verify(*METHODS, "--json", out)
    found = verdict(out)
    assert code == 0 and found["passed"] and found["failures"] == []
    assert found["verdict"] == "not enough" and "NOT ENOUGH" in page
    assert set(found["methods"]) == {"plain", TREE, CHAIN}
    assert found["unexplained_divergences"] == 0 and 0 < found["noise"] < 1e-2
    for name, values in found["methods"].items():
        assert values["greedy_tokens"] > 20 and values["sampled_tokens"] > 20
        assert (values["p_value"] is None) == (name == TREE), "its text is compared, not its distribution"
    assert found["tokens_needed"] > found["sampled_tokens"]


# For `Greedy`, see `test_a_failure_is_repeated_by_its_command`.
BROKEN = {GumbelCoupling: (f"{TREE}/sampled/0", "differs from plain decoding's text"),
          RejectionSampling: (f"{CHAIN}/distribution/0", "not the target's distribution")}  # fmt: skip


@pytest.mark.usefixtures("noise_known")
@pytest.mark.parametrize("rule", [pytest.param(GumbelCoupling, marks=pytest.mark.soak), RejectionSampling])
def test_one_token_too_many_fails(rule: type[Rule], verify: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    case, says = BROKEN[rule]
    monkeypatch.setattr(rule, "verify", one_too_many(rule.verify))
    code, page, _ = verify("--only", case)
    assert code == 1 and says in page and "FAIL: not lossless here" in page


@pytest.mark.usefixtures("noise_known")
@pytest.mark.parametrize(
    ("module", "name", "case"),
    [
        pytest.param(rejection_sampling, "probabilities", f"{CHAIN}/distribution/0", marks=pytest.mark.soak),
        # Plain decoding draws as a coupled tree does, and so their texts agree: its distribution tells.
        (gumbel_coupling, "kept_logits", "plain/distribution/0"),
    ],
)
def test_a_doubled_temperature_fails(
    module: Any, name: str, case: str, verify: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, doubled(getattr(module, name)))
    code, page, _ = verify("--only", case)
    assert code == 1 and "FAIL: not lossless here" in page


@pytest.mark.usefixtures("noise_known")
def test_a_failure_is_repeated_by_its_command(verify: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, check, case = tmp_path / "verdict.json", Checker.check, f"{TREE}/greedy/0"
    right = lambda asked: Result(asked, tokens=50)  # of all other cases
    monkeypatch.setattr(
        Checker, "check", lambda self, asked: check(self, asked) if str(asked) == case else right(asked)
    )
    with monkeypatch.context() as broken:
        broken.setattr(Greedy, "verify", one_too_many(Greedy.verify))
        assert verify("--methods", TREE, "--minutes", 0, "--seed", 3, "--json", out)[0] == 1
        found = verdict(out)
        assert found["verdict"] == "fail" and not found["passed"] and found["unexplained_divergences"] > 0
        (failure,) = found["failures"]
        assert (failure["method"], failure["cases"]) == (TREE, case)
        words = shlex.split(failure["command"])
        assert words[:4] == ["jaxspec", "verify", "--target", found["settings"]["target"]]
        code, page, _ = verify(*words[4:])
        assert code == 1 and failure["command"] in page and "differs from plain decoding's text" in page
    jax.clear_caches()
    assert verify(*words[4:])[0] == 0


@pytest.mark.usefixtures("noise_known")
def test_killed_and_resumed_gives_the_same(verify: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, out, ran = tmp_path / "whole.json", tmp_path / "out.json", list[Case]()

    def until_killed(self: Checker, case: Case) -> Result:
        """What it finds is made up: how it goes on is what counts."""
        ran.append(case)
        if len(ran) == 6 + 3:
            raise KeyboardInterrupt
        tenths = tuple(100 + case.number + i for i in range(10)) if case.kind == "distribution" else ()
        return Result(case, tokens=sum(tenths) or 50, tenths=tenths)

    monkeypatch.setattr(Checker, "check", until_killed)
    assert verify(*METHODS, "--json", whole)[0] == 0 and len(ran) == 7
    ran.pop()
    assert verify(*METHODS, "--json", out)[0] == 130
    with (tmp_path / "out.json.jsonl").open("a") as file:
        file.write('{"case": {"method": "plain", "ki')  # a line that the kill has torn
    assert not out.exists()
    code, _, remarks = verify(*METHODS, "--json", out)
    assert code == 0 and "cases of an earlier run: 2" in remarks
    assert len(ran) == 6 + 8, "nothing is run twice but for the case that was killed"
    assert out.read_bytes() == whole.read_bytes()
    assert verify(*METHODS, "--json", out)[0] == 0 and out.read_bytes() == whole.read_bytes()
    assert verify(*METHODS, "--greedy", "--json", tmp_path / "greedy.json")[0] == 0
    assert [case.kind for case in ran[-3:]] == ["greedy"] * 3 and ran[-4].kind == "distribution"
    code, _, said = verify(*METHODS, "--json", out, "--seed", 1)
    assert code == 2 and "belongs to a run with other settings (seed is 0 there and 1 here)" in said.splitlines()[-1]


@pytest.mark.usefixtures("noise_known")
def test_what_a_method_raises_is_a_failure(verify: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(RejectionSampling, "verify", broken)
    code, page, _ = verify("--only", f"{CHAIN}/distribution/0-1")
    assert code == 1 and page.count("RuntimeError: out of memory") == 2, "the second case is tried too"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--minutes", "-1"), "minutes must be 0 or above"),
        (("--minutes", "inf"), "minutes must be at most 10,000,000, not inf"),
        (("--seed", "-1"), "seed must be 0 or above"),
        (("--methods", "foo"), "there is no drafter 'foo'"),
        (("--methods", "eagle"), "no head 'eagle'"),
        (("--only", "plain"), "a case is METHOD/KIND/NUMBER"),
        (("--only", "plain/greedy/9-3"), "the range 9-3 is empty; write 3-9"),
        (("--only", f"{CHAIN}/sampled/0"), "has the kinds greedy, distribution"),
        (("--only", "plain/greedy/0", "--json", "x.json"), "--json has no effect with --only: leave out one"),
        (("--only", "plain/greedy/0", "--minutes", "1"), "--minutes has no effect with --only: leave out one"),
        (("--json", "x.jsonl"), "--json names a file of JSON"),
        (("--prompts", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("--prompts", "surrogate.jsonl"), "prompt 0 holds U+D83D at 10, which is no character"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...], says: str, verify: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("surrogate.jsonl").write_text('{"prompt": "cut emoji \\ud83d"}')
    code, out, remarks = verify(*arguments)
    assert (code, out) == (2, "")
    assert says in remarks.splitlines()[-1] and "Traceback" not in remarks
