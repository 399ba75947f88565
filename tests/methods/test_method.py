"""What users type for a method."""

import pytest

from jaxspec.builders.chain import Chain
from jaxspec.builders.static import Static
from jaxspec.controllers import CONTROLLERS
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.drafters.ngram import Ngram
from jaxspec.methods.method import default_method, parse_method
from jaxspec.rules.greedy import Greedy
from jaxspec.rules.gumbel_coupling import GumbelCoupling
from jaxspec.rules.rejection_sampling import RejectionSampling


def test_settings_and_defaults():
    method = parse_method("ngram,longest=5,sharpness=2.5+chain,length=7")
    assert method.drafter == Ngram(longest=5, sharpness=2.5)
    assert method.builder == Chain(length=7)
    assert method.head is None
    assert parse_method("ngram").builder == Chain()
    assert parse_method("ngram+static,paths=0:1:00").builder == Static(paths=((0,), (1,), (0, 0)))


def test_heads():
    assert parse_method("draft-model").head == "draft-model"
    assert parse_method("draft-model@small").head == "small"
    assert parse_method("draft-model@small").drafter == DraftModel()


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "ngram",
        "draft-model@small+static+fixed",
        "ngram,longest=2+static,paths=0:1:00+fixed",
        "eagle+pruned",
        "eagle+pruned,cost=0.0001",
        "eagle+budgeted",
        "ngram+budgeted,cost=0.1,verify=1:1/8:1.25/64:12.5",
        "ngram+cape,depth=2",
        "ngram+uniform,total=9",
    ],
)
def test_resolved_form_is_read_back(text):
    method = parse_method(text)
    assert parse_method(str(method)) == method
    assert str(parse_method(str(method))) == str(method)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("eagel", "there is no drafter 'eagel'; there are plain"),
        ("", "there is no drafter ''"),
        ("eagle@+chain", "no head follows the @; name one, or leave the @ out"),
        ("ngram+chian", "there is no builder or controller 'chian'; builders are chain"),
        ("ngram+chain,length=3,length=4", "chain has length twice"),
        ("ngram+chain,lenght=3", "chain has no setting 'lenght=3'; write KEY=VALUE with one of: length"),
        ("ngram+chain,length=x", "length must be a whole number, not 'x'"),
        ("ngram+chain,length=-1", "length must be at least 0, not -1"),
        ("ngram,longest=3,shortest=4", "1 <= shortest <= longest"),
        ("ngram@head", "ngram has no weights"),
        ("ngram+fixed+chain", "each once, in order"),
        ("ngram+chain+chain", "each once, in order"),
        ("plain+chain", "plain drafts nothing"),
        ("ngram+static,paths=00", "has no parent"),
        ("ngram+static,paths=a", "paths are child ranks"),
        ("ngram+static,paths=0:0", "distinct"),
        ("ngram+pruned,cost=dear", "a cost is a number such as 0.05, or measured, not 'dear'"),
        ("ngram+pruned,cost=-1", "a cost is a number such as 0.05"),
        ("ngram+budgeted,verify=1/2", "costs are given as 1:1.0/8:1.9/64:6.0 or measured"),
        ("ngram+static,paths=0.:0.-1", r"static: the smallest rank in path \(0, -1\) must be at least 0, not -1"),
        ("ngram+uniform,width=0", "width must be at least 1"),
        ("ngram+uniform,depth=0", "uniform: depth must be at least 1"),
        ("ngram+cape,depth=0", "cape: depth must be at least 1"),
        ("ngram+budgeted,width=0", "budgeted: width must be at least 1"),
        ("ngram+budgeted,power=0", "budgeted: power must be above 0"),
        ("ngram+budgeted,greedy_power=inf", "budgeted: greedy_power must be above 0"),
        ("ngram+pruned,width=0", "pruned: width must be at least 1"),
        ("ngram+pruned,total=1", "total must be at least 2"),
        ("ngram+pruned,leaf=1.5", "leaf must be a probability"),
        ("ngram+pruned,leaf=0,total=9", "leaf=0 verifies every drafted node, so total=9 has no meaning"),
        ("ngram+pruned,power=0", "pruned: power must be above 0"),
        ("ngram+pruned,greedy_power=inf", "pruned: greedy_power must be above 0"),
        ("ngram+threshold,gamma=1.5", "gamma must be a probability, from 0 to 1, not 1.5"),
        ("ngram+adaptive,gamma=-1", "gamma must be a probability"),
        ("ngram+threshold,confidence=other", "confidence must be one of largest, token, not 'other'"),
        ("ngram+adaptive,confidence=other", "adaptive: confidence must be one of"),
        ("ngram+adaptive,alpha=2", "alpha must be from 0 to 1, not 2.0"),
        ("ngram+adaptive,beta1=-0.5", "beta1 must be from 0 to 1"),
        ("ngram+adaptive,epsilon=0", "epsilon must be above 0"),
        ("ngram+beta-ts,reading=other", "reading must be one of compared, printed, bonus, not 'other'"),
        ("ngram+beta-ts,prior_alpha=0", "prior_alpha must be at least 0.01"),
        ("ngram+beta-ts,prior_beta=nan", "prior_beta must be at least 0.01"),
        ("ngram+cali-ts,estimate=other", "estimate must be one of compared, printed, not 'other'"),
        ("ngram+cali-ts,prediction=other", "prediction must be one of both, model, sampled, not 'other'"),
        ("ngram+cali-ts,sigma_model=0", "sigma_model must be above 0"),
        ("ngram+cali-ts,prior=1.5", "prior must be a probability"),
        ("ngram+length-ts,prior_beta=inf", "length-ts: prior_beta must be at least 0.01, and finite, not inf"),
        ("ngram+length-ts,cost=-1", "a cost is a number such as 0.05, or measured, not '-1'"),
        ("ngram+length-ts,verify=4:1/2:1", "length-ts: verify gives each number of nodes once, in rising order"),
        ("ngram+budgeted,verify=0:1/4:1.2", "verify gives each number of nodes once, in rising order, from 1"),
        ("ngram+expected-gain,verify=1:0/2:1", "with a cost above 0, as in 1:1.0/8:1.9; not 1:0.0/2:1"),
        ("ngram+expected-gain,gamma=1", "has no setting 'gamma=1'; write KEY=VALUE with one of: cost, verify"),
    ],
)
def test_refusals_say_what_is_wrong(text, says):
    with pytest.raises(ValueError, match=says):
        parse_method(text)


def test_the_rule_follows_from_temperature_builder_and_controller():
    assert parse_method("ngram+chain").rule(greedy=True) == Greedy()
    for name in ("ngram+chain", "ngram+chain,length=1+threshold", "ngram+static,paths=0:00", "ngram+uniform,width=1"):
        assert parse_method(name).rule(greedy=False) == RejectionSampling()
    for name in ("plain", "ngram+static", "ngram+uniform", "ngram+cape", "ngram+eagle2", "ngram+pruned"):
        assert parse_method(name).rule(greedy=False) == GumbelCoupling()
    assert parse_method("ngram+eagle2,width=1,depth=3,total=4").rule(greedy=False) == GumbelCoupling()  # it prunes
    for name, kind in CONTROLLERS.items():
        method = parse_method(f"ngram+chain+{name}" + (",prediction=sampled" if name == "cali-ts" else ""))
        assert method.rule(greedy=False) == (GumbelCoupling() if kind.depends_on_batch else RejectionSampling())
    assert {name for name, kind in CONTROLLERS.items() if kind.depends_on_batch} == {"length-ts", "expected-gain"}


def test_the_best_head_is_the_default():
    assert parse_method("draft-model") == default_method(["draft-model"])
    assert default_method([]).drafter == Ngram()
