"""On a mesh of eight devices every drafter gives the tokens of one device, with sharded weights and cache.

Above temperature 0 that holds under Gumbel coupling, where the text does not depend on what is drafted.
"""

import json

import pytest

from tests import several_devices
from tests.lossless import combinations

MESHES = ("8x1x1", "4x2x1", "2x4x1", "1x8x1")
SPLIT_ROWS = ("2x2x2", "1x2x4", "1x4x2")  # query heads of a KV head: split by rows, not split, split by `model` only
METHODS = (  # one combination a drafter; usually seven of them run, each on another mesh
    "plain",
    "ngram+chain,length=4",
    "draft-model+static,paths=0:1:2:00:01:10:000",
    "dflash+budgeted,width=2,depth=4,cost=0.1,verify=1:1/2:1.2/4:1.4/8:1.6,total=8",
    "eagle+eagle2,total=12,depth=4,width=3",
    "early-exit+chain,length=4+cali-ts",
    "edd+pruned,width=3,depth=4,leaf=0.02,cost=0.1,total=12",
    "medusa+cape,depth=3",
    "layer-skip+chain,length=4+adaptive,gamma=0.3,alpha=0.5,epsilon=1.0",
    "eagle3+eagle2,total=12,depth=4,width=3",
)
COUPLED = [method for method in METHODS if combinations.is_coupled(method)]
SAMPLED = "0.8"  # a temperature
TRUNCATED = "0.8,12,0.9"  # with top-k and top-p
EVERY = MESHES + SPLIT_ROWS
HOW = ("0", "0", "0", TRUNCATED, "0", SAMPLED, "0")  # a mesh: coupled texts with KV heads that devices share, and rows
SPREAD = [f"{method}@{mesh}@{how}" for method, mesh, how in zip(METHODS[1:], EVERY, HOW, strict=False)]
PRODUCT = [f"{method}@{mesh}@0" for method in METHODS for mesh in EVERY]
PRODUCT += [f"{method}@{mesh}@{how}" for method in COUPLED for mesh in EVERY for how in (SAMPLED, TRUNCATED)]


def found(cases: list[str], *options: str) -> list[dict]:
    """The output of `on_meshes.py` for each case, from a process with eight devices."""
    printed = several_devices.output("-m", "tests.lossless.on_meshes", *options, *cases)
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize("cases", [SPREAD, pytest.param(PRODUCT, marks=pytest.mark.soak)], ids=["spread", "product"])
def test_meshes_change_no_token(cases: list[str]):
    results = found(cases)
    assert [one["case"] for one in results] == cases
    assert [one["case"] for one in results if not one["tokens"]] == []
    drafting = [one for one in results if not one["case"].startswith("plain")]
    assert [one["case"] for one in drafting if not one["accepted"]] == [], "nothing was accepted, so nothing was tested"
    for one in results:  # two KV heads: the cache is cut in two at most along `model`, and along `rows`
        data, model, rows = map(int, one["case"].split("@")[-2].split("x"))
        assert one["cache"] == 1 / (data * min(model, 2) * rows)
        least = 1 / (model * rows)
        assert least <= one["weights"] < least + 0.15  # norms, and heads that devices share, are whole


@pytest.mark.soak
@pytest.mark.parametrize("mesh", ["2x4x1", "2x2x2"])
def test_the_kernel_of_attention_on_a_mesh(mesh: str):
    """Each device attends with its own query heads: of 4 that share 2 KV heads, where the mesh cuts both.

    Where it splits rows instead, each device attends to its own.
    """
    (one,) = found([f"ngram+chain,length=4@{mesh}@0"], "--kernel")
    assert one["tokens"] and one["accepted"]
