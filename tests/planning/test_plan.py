"""`jaxspec plan` where nothing is compiled: sizes by hand, the work of a round by hand, refusals, output."""

import dataclasses

import pytest

from jaxspec.planning import report
from jaxspec.planning.command import Plan
from jaxspec.planning.shapes import MODELS

CHIPS_OF_A_BOX = 8


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """EAGLE on LLaMA-2-7B, cut down to four layers so that it is traced soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "llama-2-7b", dataclasses.replace(MODELS["llama-2-7b"], num_layers=4))
        return report.plan(_settings(model="llama-2-7b", method="eagle+eagle2", tau="3.5"))


def _settings(**values) -> Plan:
    return Plan(**{"model": "builtin", "method": "plain", "device": f"h100-80g:{CHIPS_OF_A_BOX}", **values})


@pytest.mark.parametrize(
    ("name", "billions"), [("llama-2-7b", 6.738), ("llama-2-13b", 13.016), ("llama-2-70b", 68.977)]
)
def test_published_shapes_have_as_many_parameters_as_published(name: str, billions: float):
    c = MODELS[name]
    attention = 2 * c.hidden_size * (c.num_heads + c.num_kv_heads) * c.head_dim
    layer = attention + 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size
    total = c.num_layers * layer + 2 * c.vocab_size * c.hidden_size + c.hidden_size
    assert total / 1e9 == pytest.approx(billions, abs=0.001)
