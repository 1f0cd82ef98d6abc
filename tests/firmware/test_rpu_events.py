"""Asynchronous events: what raises each, what lets it through, and when it is told again.

NVMe Base 2.0, section 5.2 (Asynchronous Event Request) and 5.27.1.8 (Asynchronous Event
Configuration). An event is dword 0: type in 2:0, information in 15:8, log page in 23:16.
"""

import pytest

from nvme_spec.logs import ErrorEvent, NoticeEvent
from potash_device.media.errors import MediaError
from potash_device.media.store import MemoryMedia
from support.nvme_host import DATA, Cqe, Host

GET_LOG, IDENTIFY, SET_FEATURES, EVENT_REQUEST, COMMIT, DOWNLOAD = 2, 6, 9, 0xC, 0x10, 0x11
RAE = 1 << 15
ERROR_PAGE, SMART_PAGE, FIRMWARE_PAGE, CHANGED_PAGE, TELEMETRY_PAGE = 1, 2, 3, 4, 8

RELIABILITY = SMART_PAGE << 16 | 0 << 8 | 1
TEMPERATURE = SMART_PAGE << 16 | 1 << 8 | 1
NAMESPACE_CHANGED = CHANGED_PAGE << 16 | 0 << 8 | 2
ACTIVATION_STARTING = FIRMWARE_PAGE << 16 | 1 << 8 | 2
TELEMETRY_CHANGED = TELEMETRY_PAGE << 16 | 2 << 8 | 2
BAD_DOORBELL = ERROR_PAGE << 16 | 0 << 8 | 0
TRANSIENT_ERROR = ERROR_PAGE << 16 | 4 << 8 | 0

EVERYTHING = 0x7FF
KELVIN = 313


def ask(host: Host, *cids: int) -> None:
    for cid in cids:
        host.place(host.admin, EVENT_REQUEST, cid)
    host.ring(host.admin)
    host.service()


def told(host: Host) -> list[tuple[int, int]]:
    """The events that have come, by the identifier of their request."""
    host.service()
    found: list[Cqe] = host.reap(host.admin)
    assert all(one.status == 0 for one in found)
    return [(one.cid, one.dw0) for one in found]


def configure(host: Host, value: int, *, fid: int = 0x0B) -> None:
    assert command(host, SET_FEATURES, (fid, value)) == 0


def read_log(host: Host, page: int, *, retain: bool = False) -> None:
    length = 127 if page == SMART_PAGE else 15
    assert command(host, GET_LOG, (length << 16 | RAE * retain | page,)) == 0


def command(host: Host, opcode: int, cdws: tuple[int, ...]) -> int:
    """The status of a command that brings no event with it."""
    completion = host.command(host.admin, opcode, 0x77, cdws=cdws)
    return completion.status


def test_a_temperature_is_told_once_and_again_after_it_was_normal(host: Host) -> None:
    ask(host, 1, 2)
    host.place(host.admin, SET_FEATURES, 9, cdws=(4, KELVIN))
    host.ring(host.admin)
    assert told(host) == [(9, 0), (1, TEMPERATURE)]
    read_log(host, SMART_PAGE)
    assert told(host) == []  # It is still as warm: no second event.
    configure(host, 343, fid=4)
    host.place(host.admin, SET_FEATURES, 10, cdws=(4, KELVIN - 5))
    host.ring(host.admin)
    assert told(host) == [(10, 0), (2, TEMPERATURE)]


def test_a_thermometer_that_rises_is_told(host: Host) -> None:
    ask(host, 1)
    host.rpu.controller.thermal.changed(343)
    host.rpu.controller.alerts.health()
    assert told(host) == [(1, TEMPERATURE)]


def test_a_warning_that_is_masked_is_in_the_log_and_no_event(host: Host) -> None:
    configure(host, 0xFF & ~2)
    ask(host, 1)
    configure(host, KELVIN, fid=4)
    assert told(host) == []
    read_log(host, SMART_PAGE)
    assert host.data(1)[0] & 2
    # Asking for it is told of what is there.
    host.place(host.admin, SET_FEATURES, 9, cdws=(0x0B, 0xFF))
    host.ring(host.admin)
    assert told(host) == [(9, 0), (1, TEMPERATURE)]


def test_a_host_that_begins_anew_is_told_what_still_deserves_a_warning() -> None:
    media = MemoryMedia.create(1 << 20)
    media.read_only = True
    with Host({1: media}) as host:
        for _ in range(2):
            host.enable()
            ask(host, 1)
            assert told(host) == [(1, RELIABILITY)]
            host.disable()


def test_media_that_have_lost_data_are_told(host: Host) -> None:
    ask(host, 1)
    queue = host.create_io_queue()
    media = host.media[1]
    media.lost = MediaError(5, "gone")
    assert host.command(queue, 0x01, nsid=1, cdws=(0, 0, 0)).status == 0x280
    assert told(host) == [(1, RELIABILITY)]


NOTICES = [
    (NoticeEvent.NAMESPACE_ATTRIBUTE_CHANGED, 1 << 8, NAMESPACE_CHANGED),
    (NoticeEvent.FIRMWARE_ACTIVATION_STARTING, 1 << 9, ACTIVATION_STARTING),
    (NoticeEvent.TELEMETRY_LOG_CHANGED, 1 << 10, TELEMETRY_CHANGED),
]


@pytest.mark.parametrize(("what", "bit", "event"), NOTICES)
def test_a_notice_comes_when_its_bit_is_set_and_never_else(
    host: Host, what: NoticeEvent, bit: int, event: int
) -> None:
    alerts = host.rpu.controller.alerts
    ask(host, 1)
    assert not alerts.notice(what)  # By default there are none.
    configure(host, EVERYTHING & ~bit)
    assert not alerts.notice(what)
    assert told(host) == []
    configure(host, bit)
    assert told(host) == []  # What happened before is not told afterwards.
    assert alerts.notice(what)
    assert told(host) == [(1, event)]


@pytest.mark.parametrize(("what", "bit", "event"), NOTICES)
def test_an_event_waits_for_a_request_and_is_not_kept_twice(
    host: Host, what: NoticeEvent, bit: int, event: int
) -> None:
    configure(host, bit)
    alerts = host.rpu.controller.alerts
    assert [alerts.notice(what) for _ in range(3)] == [True, False, False]
    host.service()
    ask(host, 1, 2)
    assert told(host) == [(1, event)]


def test_a_notice_that_waits_is_dropped_when_it_is_masked(host: Host) -> None:
    configure(host, EVERYTHING)
    for what, _, _ in NOTICES:
        assert host.rpu.controller.alerts.notice(what)
    configure(host, 1 << 9)
    configure(host, EVERYTHING)
    ask(host, 1, 2)
    assert told(host) == [(1, ACTIVATION_STARTING)]


def test_one_event_of_a_type_at_a_time_until_its_page_is_read(host: Host) -> None:
    configure(host, EVERYTHING)
    alerts = host.rpu.controller.alerts
    ask(host, 1, 2, 3)
    assert alerts.notice(NoticeEvent.FIRMWARE_ACTIVATION_STARTING)
    assert told(host) == [(1, ACTIVATION_STARTING)]
    assert alerts.notice(NoticeEvent.TELEMETRY_LOG_CHANGED)
    assert told(host) == []
    # Another type is not held back.
    host.write32(0x1000 + 8 * 3, 1)
    assert told(host) == [(2, BAD_DOORBELL)]
    read_log(host, FIRMWARE_PAGE, retain=True)
    assert told(host) == []
    read_log(host, ERROR_PAGE)
    assert told(host) == []
    host.place(host.admin, GET_LOG, 9, cdws=(15 << 16 | FIRMWARE_PAGE,))
    host.ring(host.admin)
    assert told(host) == [(9, 0), (3, TELEMETRY_CHANGED)]


def test_an_event_of_a_page_that_is_read_meanwhile_is_over(host: Host) -> None:
    """The page already says it: it is not told again for having happened before the reading."""
    configure(host, EVERYTHING)
    alerts = host.rpu.controller.alerts
    ask(host, 1, 2)
    assert alerts.notice(NoticeEvent.FIRMWARE_ACTIVATION_STARTING)
    assert told(host) == [(1, ACTIVATION_STARTING)]
    assert alerts.notice(NoticeEvent.FIRMWARE_ACTIVATION_STARTING)
    read_log(host, FIRMWARE_PAGE)
    assert told(host) == []
    assert alerts.notice(NoticeEvent.FIRMWARE_ACTIVATION_STARTING)
    assert told(host) == [(2, ACTIVATION_STARTING)]


def test_activating_firmware_at_once_is_a_notice(host: Host) -> None:
    configure(host, 1 << 9)
    ask(host, 1)
    host.put(b"image".ljust(4096, b"\0"))
    assert command(host, DOWNLOAD, (1023, 0)) == 0
    host.place(host.admin, COMMIT, 9, cdws=(3 << 3 | 2,))
    host.ring(host.admin)
    host.service()
    assert host.reap(host.admin) == []
    host.executor.run_all()
    assert told(host) == [(9, 0), (1, ACTIVATION_STARTING)]


def test_a_mistake_of_ours_is_a_transient_internal_error(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(host, 1)

    def broken() -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(host.rpu.controller.keep_alive, "restart", broken)
    host.place(host.admin, 0x18, 9)
    host.ring(host.admin)
    host.service()
    found = [(one.cid, one.status, one.dnr, one.dw0) for one in host.reap(host.admin)]
    assert found == [(9, 0x006, False, 0), (1, 0, False, TRANSIENT_ERROR)]
    read_log(host, ERROR_PAGE)
    assert host.data(8) == (1).to_bytes(8, "little")  # One entry, the command's.


def test_an_error_event_has_its_entry_once(host: Host) -> None:
    alerts = host.rpu.controller.alerts
    assert alerts.error(ErrorEvent.DIAGNOSTIC_FAILURE, 0x006)
    assert not alerts.error(ErrorEvent.DIAGNOSTIC_FAILURE, 0x006)
    read_log(host, ERROR_PAGE)
    assert host.data(8) == (1).to_bytes(8, "little")


def test_requests_beyond_the_limit_are_refused(host: Host) -> None:
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
    limit = host.data(1, DATA + 259)[0] + 1
    ask(host, *range(1, limit + 2))
    found = [(one.cid, one.status, one.dnr) for one in host.reap(host.admin)]
    assert found == [(limit + 1, 0x105, True)]


def test_a_reset_forgets_events_and_requests(host: Host) -> None:
    configure(host, EVERYTHING)
    ask(host, 1)
    alerts = host.rpu.controller.alerts
    assert alerts.notice(NoticeEvent.TELEMETRY_LOG_CHANGED)
    host.disable()
    host.enable()
    ask(host, 2)
    assert told(host) == []


def test_the_configuration_may_ask_for_what_never_comes(host: Host) -> None:
    configure(host, 0xFFFFFFFF)
    assert host.command(host.admin, 0x0A, cdws=(0x0B,)).dw0 == 0x80E_FFFF
