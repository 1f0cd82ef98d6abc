"""Random commands on zones, against a small model of the standard's state machine.

Source: NVM Express Zoned Namespace Command Set Specification 1.1, sections 2.1.1.3 and 3.4.3.1.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from support.zones import (
    APPEND,
    BLOCKS,
    BOUNDARY,
    CAPACITY,
    CLOSE,
    CLOSED,
    EMPTY,
    EXPLICIT,
    FINISH,
    FULL,
    IMPLICIT,
    INVALID_TRANSITION,
    INVALID_WRITE,
    IS_FULL,
    OPEN,
    RESET,
    powered,
    report,
    send,
    write,
)

ZONES = 3
ALLOWED = {
    CLOSE: ({IMPLICIT, EXPLICIT, CLOSED}, CLOSED),
    FINISH: ({EMPTY, IMPLICIT, EXPLICIT, CLOSED, FULL}, FULL),
    OPEN: ({EMPTY, IMPLICIT, EXPLICIT, CLOSED}, EXPLICIT),
    RESET: ({EMPTY, IMPLICIT, EXPLICIT, CLOSED, FULL}, EMPTY),
}
COMMANDS = st.tuples(
    st.sampled_from([1, 1, APPEND, APPEND, *[(one,) for one in ALLOWED]]),
    st.integers(0, ZONES - 1),
    st.integers(0, 2),
    st.integers(1, 2),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(COMMANDS, max_size=40))
def test_zones_are_as_the_model_has_them(commands: list[tuple[object, int, int, int]]) -> None:
    model = [(EMPTY, 0)] * ZONES
    with powered(zones=ZONES) as host:
        for what, number, ahead, count in commands:
            state, pointer = model[number]
            if isinstance(what, tuple):
                taken, after = ALLOWED[what[0]]
                wanted = 0 if state in taken else INVALID_TRANSITION
                found = send(host, what[0], number * BLOCKS)
                if not wanted:
                    model[number] = (after, 0 if what[0] == RESET else pointer)
            else:
                append = what == APPEND
                ahead = 0 if append or ahead > 1 else ahead
                wanted = 0
                if state == FULL:
                    wanted = IS_FULL
                elif ahead:
                    wanted = INVALID_WRITE
                elif pointer + count > CAPACITY:
                    wanted = BOUNDARY
                at = number * BLOCKS + (0 if append else pointer + ahead)
                done = write(host, at, count, opcode=APPEND if append else 1)
                found = done.status
                if not wanted:
                    assert not append or done.dw0 == number * BLOCKS + pointer
                    pointer += count
                    opened = EXPLICIT if state == EXPLICIT else IMPLICIT
                    model[number] = (FULL if pointer == CAPACITY else opened, pointer)
            assert found == wanted
        for zone, (state, pointer) in zip(report(host)[1], model, strict=True):
            assert zone.state == state
            assert state == FULL or zone.pointer == zone.first + pointer
