"""`bench`'s sentence about the fastest method."""

from jaxspec.evaluate.table import fastest

VALUES = {"depth_per_round": 4.0, "draft_cost": 0.1, "nodes_per_round": 4.0, "verify_cost": 1.3, "tau": 2.5}


def test_the_fastest_method_is_named_or_plain_decoding_where_that_is():
    found = {"ngram+chain": {**VALUES, "speedup": 1.5}, "eagle+eagle2": {**VALUES, "speedup": 0.7}}
    assert fastest(found).startswith("Fastest: ngram+chain, 1.50x plain. Each round drafts 4.0 levels")
    found["ngram+chain"]["speedup"] = 0.9
    said = fastest(found)
    assert said.startswith("Fastest: plain decoding. The best method that drafts is ngram+chain, 0.90x plain. Each")
