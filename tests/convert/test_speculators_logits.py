"""EAGLE-3 in NumPy, to which our drafter is held, computes what speculators' own code computed."""

import json
from typing import Any

import numpy as np
import pytest

from tests.convert.record_speculators import COUNT, FLAGS, RECORD, STEPS, TAPS, head, text
from tests.convert.test_eagle3_oracle import Case, Setup, expected


@pytest.mark.parametrize("name", FLAGS)
def test_logits_are_those_that_speculators_computed(name: str):
    flags, found = FLAGS[name], head(FLAGS[name])
    case = Case(
        config={},
        taps=tuple(TAPS),
        tap_norm="all" if flags.get("norm_before_fc") else "each" if flags.get("fc_norm") else "none",
        normed_residual=flags.get("norm_before_residual", False),
        fed_back_normed=flags.get("norm_output", False),
    )
    tokens, hidden = text()
    nothing: Any = None  # the rendering reads the published tensors alone
    setup = Setup(case, nothing, found, tokens, hidden, ())
    for step, logits in enumerate(json.loads(RECORD.read_text())["logits"][name]):
        path = tokens[COUNT : COUNT + step].tolist()
        wanted = np.array(logits) - np.log(np.exp(logits).sum())
        np.testing.assert_allclose(expected(setup, COUNT, path), wanted, rtol=0, atol=1e-4)
    assert step == STEPS - 1
