"""Device time by phases: of a program that a CPU ran under the profiler, and of profiles written by hand."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.profiler import ProfileData

from jaxspec.decoding.loop import DRAFTING, VERIFICATION
from jaxspec.planning import profile
from jaxspec.planning.hlo import CompiledProgram
from jaxspec.planning.phases import phases_by_name
from jaxspec.planning.profile import Event
from jaxspec.planning.work import COMMIT

Lines = Mapping[str, Sequence[tuple[str, int, str, str]]]

PROGRAM = CompiledProgram.parse("""HloModule jit_decode, is_scheduled=true

%more (c: (f32[8])) -> pred[] {
  %c = (f32[8]) parameter(0)
  ROOT %on = pred[] custom-call(%c), custom_call_target="More"
}

%small (p: f32[8]) -> f32[8] {
  %p = f32[8] parameter(0)
  ROOT %judged = f32[8] add(%p, %p), metadata={op_name="jit(decode)/while/body/verify8/add"}
}

%body (q: (f32[8])) -> (f32[8]) {
  %q = (f32[8]) parameter(0)
  %x = f32[8] get-tuple-element(%q), index=0
  %first = f32[8] copy(%x)
  %drafted.1 = f32[8] add(%x, %first), metadata={op_name="jit(decode)/while/body/draft/add"}
  %moved = f32[8] copy(%drafted.1)
  %either = f32[8] conditional(%moved, %moved), branch_computations={%small}, metadata={op_name="jit(decode)/cond"}
  ROOT %out = (f32[8]) tuple(%either)
}

ENTRY %main (p: f32[8]) -> (f32[8]) {
  %given = f32[8] parameter(0)
  %before = f32[8] copy(%given)
  %start = (f32[8]) tuple(%before)
  ROOT %while.3 = (f32[8]) while(%start), condition=%more, body=%body, metadata={op_name="jit(decode)/while"}
}
""")


def written(plane: str, lines: Lines) -> Any:
    """A profile of events given as name, microseconds, and `hlo_op` and `hlo_module`, which may be empty."""
    names = sorted({event[0] for events in lines.values() for event in events})
    text = "".join(
        f"event_metadata {{ key: {number} value {{ id: {number} name: {json.dumps(name)} }} }}"
        for number, name in enumerate(names)
    )
    for number, name in enumerate(("hlo_op", "hlo_module")):
        text += f'stat_metadata {{ key: {number} value {{ id: {number} name: "{name}" }} }}'
    for line, events in lines.items():
        text += f'lines {{ name: "{line}" '
        for name, microseconds, *about in events:
            pairs = [(number, value) for number, value in enumerate(about) if value]
            stats = "".join(f'stats {{ metadata_id: {number} str_value: "{value}" }}' for number, value in pairs)
            text += f"events {{ metadata_id: {names.index(name)} duration_ps: {microseconds * 10**6} {stats} }}"
        text += "}"
    others = f'planes {{ name: "/host:CPU" }} planes {{ name: "{plane} SparseCore 0" }}'
    proto = ProfileData.text_proto_to_serialized_xspace(f'{others} planes {{ name: "{plane}" {text} }}')
    return ProfileData.from_serialized_xspace(proto)


def seen(plane: str, lines: Lines) -> list[tuple[str, int]]:
    """Names and microseconds of what counts of such a profile."""
    return [(each.name, round(1e6 * each.seconds)) for each in profile.events(written(plane, lines), "jit_decode")]


def test_what_the_compiler_added_belongs_to_the_phase_before():
    found = phases_by_name(PROGRAM)
    assert PROGRAM.module == "jit_decode"
    assert found["first"] == COMMIT
    assert found["drafted.1"] == found["moved"] == DRAFTING
    assert found["judged"] == "verify8"
    assert found["on"] == COMMIT
    assert "before" not in found


def test_times_are_added_up_by_phase():
    ran = [("drafted.1", 3.0), ("moved", 0.5), ("judged", 7.0), ("either", 7.0), ("while.3", 50.0), ("first", 0.25)]
    ran += [("drafted.1", 1.0), ("before", 2.0), ("fusion.9", 4.0)]
    found = profile.by_phase([Event(name, seconds) for name, seconds in ran], PROGRAM)
    assert found.phases == {DRAFTING: 4.5, "verify8": 7.0, COMMIT: 0.25}
    assert found.outside == 2.0
    assert found.unknown == 4.0
    assert found.to_json()["unnamed_share"] == 4.0 / 17.75


def test_a_tpus_operations_are_called_by_their_lines():
    operations = [("%drafted.1 = f32[8] add(%x, %first)", 3, "", ""), ("%while.3 = (f32[8]) while(%start)", 9, "", "")]
    lines = {"XLA Ops": operations, "Async XLA Ops": [("%moved = f32[8] copy(%x)", 5, "", "")]}
    assert seen("/device:TPU:0", lines) == [("drafted.1", 3), ("while.3", 9)]


def test_a_gpus_kernels_carry_the_name_of_their_operation():
    kernels = [
        ("loop_add_fusion", 3, "drafted.1", "jit_decode"),
        ("loop_add_fusion", 4, "drafted.1", "jit_other"),
        ("MemcpyD2D", 1, "", ""),
    ]
    lines = {"Stream #7(Compute)": kernels, "XLA Ops": [("drafted.1", 3, "drafted.1", "jit_decode")]}
    assert seen("/device:GPU:0", lines) == [("drafted.1", 3), ("MemcpyD2D", 1)]


def test_a_profile_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="no operations of jit_decode"):
        seen("/device:TPU:0", {"XLA Ops": []})


def test_a_program_on_the_device_at_hand():
    size = 300

    @jax.jit
    def rounds(x):
        def body(carry):
            at, x = carry
            with jax.named_scope(DRAFTING):
                x = jnp.sin(x)
            with jax.named_scope(f"{VERIFICATION}8"):
                x = jnp.sort(x @ x, axis=0) / size
            return at + 1, x

        return jax.lax.while_loop(lambda carry: carry[0] < 4, body, (0, x))[1]

    compiled = rounds.lower(jnp.ones((size, size))).compile()
    program, given = CompiledProgram.parse(compiled.as_text() or ""), jnp.ones((size, size))
    jax.block_until_ready(compiled(given))
    result, data = profile.record(lambda: compiled(given))
    assert result.shape == (size, size)
    found = profile.by_phase(profile.events(data, program.module), program)
    assert 0 < found.phases[DRAFTING] < found.phases["verify8"]  # an element each, beside a product and a sort
    assert found.unknown == 0
