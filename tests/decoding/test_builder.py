"""What every tree builder says of its trees."""

import pytest

from jaxspec.methods.method import parse_method


@pytest.mark.parametrize(
    ("builder", "is_chain"),
    [
        ("chain,length=4", True),
        ("static,paths=0:00:000", True),
        ("static,paths=0:1:00", False),
        ("eagle2,total=8,depth=3,width=2", False),
        ("pruned,width=1,depth=3,cost=0.1", True),
    ],
)
def test_a_chain_has_a_node_for_each_level(builder: str, is_chain: bool):
    assert parse_method(f"eagle+{builder}").builder.is_chain == is_chain
