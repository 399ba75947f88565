"""The loop as XLA compiles it for TPUs: only necessary collectives, and no cache or weight is gathered."""

import importlib.util
import re
from collections.abc import Iterator

import pytest

from jaxspec.builders import Eagle2, Pruned
from jaxspec.decoding.loop import DRAFTING, LEVEL
from jaxspec.methods.method import parse_method
from jaxspec.model import attention_kernel, sharding
from jaxspec.model.config import LlamaConfig
from jaxspec.planning.chips import Collective, parse_slice
from jaxspec.planning.estimate import KERNEL, operations
from jaxspec.planning.faults import find_faults
from jaxspec.planning.hlo import CompiledProgram
from jaxspec.planning.program import Compiled, PlacedProgram
from tests import loops
from tests.planning.placed import compiled, placed

WHERE = parse_slice("v5e:2x4")
CHIPS, ROWS, LAYERS = 8, 640, 2
CONFIG = LlamaConfig(
    vocab_size=1024, hidden_size=256, intermediate_size=768, num_layers=LAYERS, num_heads=16, num_kv_heads=4,
    head_dim=128,
)  # fmt: skip
PARTS = {  # of each chip, by hand: 4 KV heads over 8 chips, of which two share one; 2 of 16 query heads
    "models.target.embedding.value": (1024 // 8, 256),
    "models.target.lm_head.kernel.value": (256, 1024 // 8),
    "models.target.layers[0].attention.q.kernel.value": (256, 2 * 128),
    "models.target.layers[0].attention.k.kernel.value": (256, 128),
    "models.target.layers[0].attention.v.kernel.value": (256, 128),
    "models.target.layers[0].attention.o.kernel.value": (2 * 128, 256),
    "models.target.layers[0].mlp.gate.kernel.value": (256, 768 // 8),
    "models.target.layers[0].mlp.up.kernel.value": (256, 768 // 8),
    "models.target.layers[0].mlp.down.kernel.value": (768 // 8, 256),
    "state.cache[0].k": (1, 1, 128, ROWS),
    "state.cache[0].v": (1, 1, ROWS, 128),
}

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, which compiles for TPUs, is not installed"
)


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Heads are cut however small, and no program is taken for one that was traced under other rules."""
    monkeypatch.setattr(sharding, "REPLICATED_BELOW", 0)
    loops.forget()
    yield
    loops.forget()


def compiled_for(name: str, batch: int = 1, rows: int = ROWS) -> tuple[PlacedProgram, Compiled]:
    program = placed(CONFIG, str(WHERE), name, batch=batch, rows=rows)
    return program, compiled(program, WHERE)


def faults(program: PlacedProgram, found: Compiled) -> list[str]:
    """Those of the loop, and parts that are not what a chip should hold."""
    entry = found.program.computations[found.program.entry].parameters.values()
    names = ((re.search(r'op_name="([^"]+)"', each.line), each.results[0].shape) for each in entry)
    held = {name[1]: shape for name, shape in names if name}
    return find_faults(program, found) + [
        f"{name} of {held.get(name)}" for name, shape in PARTS.items() if held.get(name) != shape
    ]


@needs_libtpu
@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "eagle+eagle2,total=6,depth=2,width=2",
        pytest.param("early-exit+chain,length=2+cali-ts", marks=pytest.mark.soak),
        "dflash,block=3",
        pytest.param("eagle3+chain,length=2", marks=pytest.mark.soak),
        pytest.param("medusa+chain,length=5", marks=pytest.mark.soak),
        pytest.param("edd+pruned,cost=0.2,depth=2,total=6", marks=pytest.mark.soak),
        pytest.param("layer-skip+chain,length=2+adaptive", marks=pytest.mark.soak),
    ],
)
def test_the_loop_sends_what_the_cuts_demand_and_nothing_large(name: str):
    program, found = compiled_for(name)
    assert faults(program, found) == []
    sent = found.messages
    for phase, work in ((phase, work) for phase, work in program.parts.works.items() if work.collectives):
        ours = [each for each in sent.get(phase, ()) if _is_of_rows(each)]
        total = lambda messages: sum(each.count for each in messages)
        sizes = lambda messages: sum(each.count * each.bytes for each in messages)
        if total(ours) != total(work.collectives):  # XLA sends two messages that do not depend on each other as one
            assert total(ours) < total(work.collectives) and sizes(ours) == sizes(work.collectives), phase
        widest = max(each.bytes for each in work.collectives)
        assert max(each.bytes for each in ours) <= 2 * widest, phase  # where XLA widens it to float32
    # What is left are the logits of a drafted level, and the largest of logits.
    others = [each for several in sent.values() for each in several if not _is_of_rows(each)]
    builder = parse_method(name).builder
    expanded = builder.width if isinstance(builder, Eagle2 | Pruned) else 1
    assert max((each.bytes for each in others), default=0) <= 4 * CONFIG.vocab_size * expanded


def _is_of_rows(message: Collective) -> bool:
    """Whether it is of rows of the residual stream."""
    return message.kind == "all-reduce" and message.bytes % (2 * CONFIG.hidden_size) == 0


@needs_libtpu
def test_a_long_cache_is_read_by_the_kernel():
    """Once a layer, as it is: no scores, nothing copied, gathered or transposed for it."""
    program, found = compiled_for("plain", batch=4, rows=attention_kernel.LONG)
    assert find_faults(program, found) == []
    kernels = [
        each for each in found.operations if attention_kernel.NAME in each.instruction.path and each.kind == KERNEL
    ]
    assert [each.phase for each in kernels] == ["verify1"] * LAYERS
    a_layer = 2 * 4 * attention_kernel.LONG * CONFIG.head_dim * 2  # a KV head of each chip, keys and values
    queries = CONFIG.num_heads // CHIPS
    for each in kernels:
        assert each.flops == 4 * 4 * queries * (attention_kernel.LONG + 1) * CONFIG.head_dim
        assert each.bytes < 1.1 * a_layer
    assert not any(
        attention_kernel.LONG in buffer.shape and buffer.dtype == "f32"
        for each in found.operations
        for buffer in each.instruction.results
    )


PROGRAM = """
%small (p: f32[8]) -> f32[8] {
  ROOT %a = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, metadata={op_name="jit(f)/level"}
}

%large (p: f32[8]) -> f32[8] {
  %b = f32[8]{0} all-reduce(%p), replica_groups=[2,4]<=[8], metadata={op_name="jit(f)/level"}
  ROOT %c = f32[8]{0} all-reduce(%b), replica_groups=[2,4]<=[8], metadata={op_name="jit(f)/level"}
}

%body (p: f32[8]) -> f32[8] {
  %d = f32[8]{0} conditional(%i, %p, %p), branch_computations={%small, %large}, metadata={op_name="jit(f)/level/cond"}
  %e = (f32[8]{0}, f32[2,2]{1,0:T(8,128)}) all-reduce-start(%d, %x), metadata={op_name="jit(f)/draft"}
  %f = (f32[8]{0}, f32[2,2]{1,0:T(8,128)}) all-reduce-done(%e), metadata={op_name="jit(f)/draft"}
  %g = (bf16[4]{0}, bf16[16]{0}) all-gather-start(%y), replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}
  %k = bf16[16]{0} all-gather-done(%g)
  ROOT %h = f32[2]{0} reduce-scatter(%d), replica_groups=mesh['a'=2,'b'=4] {'a','b':(1)2}, metadata={op_name="jit(f)/x"}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %before = f32[8]{0} all-reduce(%p), replica_groups={}, metadata={op_name="jit(f)/draft"}
  ROOT %while = f32[8]{0} while(%before), condition=%until, body=%body
}
"""


def test_messages_by_hand():
    """Of branches the one that sends more; of what starts, the results; of a reduce-scatter, what goes in."""
    program = CompiledProgram.parse(PROGRAM)
    assert Compiled(program, operations(program, WHERE), None, WHERE).messages == {
        LEVEL: (Collective("all-reduce", 4 * 8, 2, 4),),
        DRAFTING: (Collective("all-reduce", 4 * 8 + 4 * 4, 1), Collective("all-gather", 2 * 16, 1, 4)),
        "commit": (Collective("reduce-scatter", 4 * 2 * 4, 1, 4),),
    }


@needs_libtpu
@pytest.mark.parametrize("rule", ["vocab", "heads", "kv_heads", "mlp"])
def test_without_a_rule_it_would_not_pass(rule: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sharding.DECODING, rule, ())
    found = faults(*compiled_for("plain"))
    assert found
