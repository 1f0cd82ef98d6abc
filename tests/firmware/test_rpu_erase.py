"""User data beside the blocks: what accelerators hold is erased too, and no next host reads it."""

import pytest

from potash_firmware.mailbox import ApuPort
from potash_firmware.mailbox.messages import (
    CONTROLLER_RESET,
    ERASE,
    NEXT_HOST,
    Reply,
    Request,
    Reset,
    ResetDone,
)
from potash_firmware.mailbox.shared import SLOTS
from support.namespaces import FORMAT, SANITIZE, begin, finish, powered
from support.nvme_host import Host

BLOCK_ERASE = 2
SEND_DATA = 0x81


def resets(apu: ApuPort) -> list[Reset]:
    """Those that the APU has been sent since the last call."""
    found = []
    while (message := apu.receive()) is not None:
        if isinstance(message, Reset):
            found.append(message)
    return found


def statuses(host: Host) -> list[int]:
    return [one.status for one in host.reap(host.admin)]


@pytest.mark.parametrize("lbaf", [0, 1])
def test_a_secure_erase_is_complete_when_the_accelerators_hold_nothing(lbaf: int) -> None:
    with powered() as host:
        apu = host.connect_apu()
        begin(host, host.admin, FORMAT, nsid=1, cdws=(lbaf | 1 << 9,))
        finish(host)
        (reset,) = resets(apu)
        assert reset.scope == ERASE
        assert statuses(host) == []
        apu.send(ResetDone(reset.tag))
        host.service()
        finish(host)
        assert statuses(host) == [0]


def test_a_format_without_a_secure_erase_leaves_the_accelerators_alone() -> None:
    with powered() as host:
        apu = host.connect_apu()
        begin(host, host.admin, FORMAT, nsid=1, cdws=(1,))
        finish(host)
        assert resets(apu) == []
        assert statuses(host) == [0]


def test_a_sanitize_operation_succeeds_when_the_accelerators_hold_nothing() -> None:
    with powered() as host:
        apu = host.connect_apu()
        begin(host, host.admin, SANITIZE, cdws=(BLOCK_ERASE,))
        finish(host)
        (reset,) = resets(apu)
        assert reset.scope == ERASE
        sanitizing = host.rpu.controller.sanitizing
        assert sanitizing.state.name == "IN_PROGRESS"
        apu.send(ResetDone(reset.tag))
        host.service()
        finish(host)
        assert sanitizing.state.name == "SUCCEEDED"


def test_an_apu_that_is_lost_meanwhile_is_followed_by_one_that_erases_first() -> None:
    with powered() as host:
        apu = host.connect_apu()
        begin(host, host.admin, FORMAT, nsid=1, cdws=(1 | 1 << 9,))
        finish(host)
        assert len(resets(apu)) == 1
        apu.close()
        host.link.disconnect()
        host.service()
        finish(host)
        assert statuses(host) == [0]
        assert [one.scope for one in resets(host.connect_apu())] == [ERASE]
        host.disable()
        host.link.disconnect()
        assert [one.scope for one in resets(host.connect_apu())] == [NEXT_HOST], "both of them"


def test_a_function_level_reset_is_for_the_next_host_and_a_controller_reset_is_not() -> None:
    with powered() as host:
        apu = host.connect_apu()
        host.disable()
        (reset,) = resets(apu)
        assert reset.scope == CONTROLLER_RESET
        host.board.reset()
        host.service()
        assert [one.scope for one in resets(apu)] == [NEXT_HOST], "though one is unanswered"
        host.board.reset()
        host.service()
        assert resets(apu) == []
        apu.send(ResetDone(reset.tag))  # the older one's
        host.service()
        assert host.link.resetting is not None


def test_no_transfer_slot_holds_the_data_of_a_former_host() -> None:
    with powered() as host:
        queue = host.create_io_queue()
        apu = host.connect_apu()
        host.put(b"of a former host")
        begin(host, queue, SEND_DATA, nsid=1, cdws=(4,))
        (request,) = (one for one in iter(apu.receive, None) if isinstance(one, Request))
        held = host.buffers.slot(request.slot)
        assert bytes(held[:16]) == b"of a former host"
        for slot in range(SLOTS):
            host.buffers.slot(slot)[:16] = b"of a former host"
        host.board.reset()
        host.service()
        filled = [slot for slot in range(SLOTS) if any(host.buffers.slot(slot)[:16])]
        assert filled == [request.slot], "the APU may still be reading it"
        apu.send(Reply(request.tag, 0))
        host.service()
        assert not any(held)
