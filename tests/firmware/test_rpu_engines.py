"""Executions on their way from the RPU to an APU, which the test plays."""

import os
from collections.abc import Iterator

import pytest

from potash_firmware.mailbox import ApuPort, SharedBuffers, pair
from potash_firmware.mailbox.execution import (
    Cancel,
    CheckProgram,
    CloseEngine,
    Execute,
    Executed,
    Forget,
    MemoryRange,
    OpenEngine,
    Outcome,
    ProgramChecked,
    ShareMemory,
    ShareProgram,
)
from potash_firmware.mailbox.messages import ToApu
from potash_firmware.rpu import ApuLink
from potash_firmware.rpu.accelerators.engines import MOST_IN_FLIGHT, Shared, sealed

LENGTH = 8192


@pytest.fixture
def link() -> Iterator[ApuLink]:
    with SharedBuffers.create({}) as buffers:
        link = ApuLink(buffers)
        yield link
        link.disconnect()


@pytest.fixture
def apu(link: ApuLink) -> Iterator[ApuPort]:
    rpu, apu = pair()
    with apu:
        link.connect(rpu)
        yield apu


@pytest.fixture
def memory(link: ApuLink) -> Shared:
    return shared(link)


def shared(link: ApuLink) -> Shared:
    descriptor = sealed("memory", bytes(LENGTH))
    try:
        return link.engines.memory(descriptor, LENGTH)
    finally:
        os.close(descriptor)


def heard(apu: ApuPort) -> list[ToApu]:
    """What the APU has been sent; its descriptors are closed."""
    found: list[ToApu] = []
    while (message := apu.receive()) is not None:
        if isinstance(message, ShareMemory | ShareProgram | Execute) and message.descriptor >= 0:
            os.close(message.descriptor)
        found.append(message)
    return found


def test_what_an_execution_names_is_shared_once(
    link: ApuLink, apu: ApuPort, memory: Shared
) -> None:
    engines = link.engines
    program = engines.program(b"an object file")
    first = engines.execute(3, program, [(memory, 4096, 4096)], (1, 2))
    second = engines.execute(3, program, [(memory, 0, 4096)])
    assert heard(apu) == [
        ShareProgram(program.serial, 14),
        ShareMemory(memory.serial, LENGTH),
        Execute(first, 3, program.serial, (1, 2), (MemoryRange(memory.serial, 4096, 4096),)),
        Execute(second, 3, program.serial, (0, 0), (MemoryRange(memory.serial, 0, 4096),)),
    ]
    assert program.serial != memory.serial
    for tag in (second, first):
        apu.send(Executed(tag, Outcome.RETURNED, tag))
    assert list(link.messages()) == [
        Executed(second, Outcome.RETURNED, second),
        Executed(first, Outcome.RETURNED, first),
    ]
    assert not list(engines.executions)


def test_data_goes_by_a_descriptor(link: ApuLink, apu: ApuPort) -> None:
    tag = link.engines.execute(3, 2, data=b"pattern")
    message = apu.receive()
    assert message == Execute(tag, 3, 2, data_length=7)
    assert isinstance(message, Execute)
    assert os.pread(message.descriptor, 100, 0) == b"pattern"
    with pytest.raises(PermissionError):
        os.write(message.descriptor, b"changed")
    os.close(message.descriptor)


def test_a_program_is_checked(link: ApuLink, apu: ApuPort) -> None:
    program = link.engines.program(b"an object file")
    tag = link.engines.check(3, program)
    assert heard(apu) == [ShareProgram(program.serial, 14), CheckProgram(tag, 3, program.serial)]
    apu.send(ProgramChecked(tag, True))
    assert list(link.messages()) == [ProgramChecked(tag, True)]


def test_what_is_forgotten_is_told_where_it_was_known(
    link: ApuLink, apu: ApuPort, memory: Shared
) -> None:
    other = shared(link)
    link.engines.execute(3, 0, [(memory, 0, LENGTH)])
    heard(apu)
    for one in (memory, other, memory):
        link.engines.forget(one)
    assert heard(apu) == [Forget(memory.serial)]
    tag = link.engines.execute(3, 0, [(other, 0, LENGTH)])
    assert list(link.messages()) == [Executed(tag, Outcome.CANCELLED)]


def test_the_loss_of_the_apu_ends_executions_and_the_next_one_learns_all(
    link: ApuLink, apu: ApuPort, memory: Shared
) -> None:
    engines = link.engines
    engines.open(3)
    tag = engines.execute(3, 0, [(memory, 0, LENGTH)])
    checked = engines.check(3, engines.program(b"x"))
    apu.close()
    list(link.messages())
    assert link.lost
    link.disconnect()
    assert link.due
    assert list(link.messages()) == [Executed(tag, Outcome.LOST), ProgramChecked(checked, False)]
    without = engines.execute(3, 0)
    assert list(link.messages()) == [Executed(without, Outcome.LOST)]

    rpu, second = pair()
    with second:
        link.connect(rpu)
        again = engines.execute(3, 0, [(memory, 0, LENGTH)])
        assert heard(second) == [
            OpenEngine(3),
            ShareMemory(memory.serial, LENGTH),
            Execute(again, 3, 0, ranges=(MemoryRange(memory.serial, 0, LENGTH),)),
        ]


def test_more_executions_than_fit_wait_for_their_turn(link: ApuLink, apu: ApuPort) -> None:
    engines = link.engines
    tags = [engines.execute(3, 0, user=number) for number in range(MOST_IN_FLIGHT + 2)]
    assert [one.tag for one in engines.executions] == tags
    assert len(heard(apu)) == MOST_IN_FLIGHT
    engines.cancel(tags[-1])
    assert list(link.messages()) == [Executed(tags[-1], Outcome.CANCELLED)]
    apu.send(Executed(tags[5], Outcome.FAULTED))
    assert list(link.messages()) == [Executed(tags[5], Outcome.FAULTED)]
    assert heard(apu) == [Execute(tags[-2], 3, 0)]
    engines.cancel(tags[0])
    assert heard(apu) == [Cancel(tags[0])]


def test_a_closed_engine_and_a_reset_end_what_waits(link: ApuLink, apu: ApuPort) -> None:
    engines = link.engines
    engines.open(3)
    for _ in range(MOST_IN_FLIGHT):
        engines.execute(3, 0)
    waiting = engines.execute(3, 0)
    heard(apu)
    engines.close(3)
    assert heard(apu) == [CloseEngine(3)]
    assert list(link.messages()) == [Executed(waiting, Outcome.CANCELLED)]
    engines.execute(4, 0)
    link.reset()
    assert len(list(engines.executions)) == MOST_IN_FLIGHT
    assert list(link.messages()) == []


def test_an_answer_that_nobody_asked_for_is_dropped(link: ApuLink, apu: ApuPort) -> None:
    apu.send(Executed(77, Outcome.RETURNED, 1))
    assert list(link.messages()) == []


def test_an_apu_that_owes_an_execution_is_asked_whether_it_is_there(
    link: ApuLink, apu: ApuPort
) -> None:
    assert link.timeout is None
    link.engines.execute(3, 0)
    assert link.timeout is not None
