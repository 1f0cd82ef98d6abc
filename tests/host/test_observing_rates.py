"""Rates are differences between snapshots of a device, and are shown to people."""

from pathlib import Path
from typing import Any, cast

import pytest

from potash.observing import rates, screen
from potash_firmware.snapshot import Snapshot

NO_TIMES = {
    "commands": 0, "seconds": 0.0, "p50": 0.0, "p99": 0.0, "most": 0.0, "buckets": [],
}  # fmt: skip


def snapshot(moment: float, **changes: Any) -> Snapshot:
    found = {
        "pid": 1,
        "time": moment,
        "controller": {
            "interrupts": 0, "state": "ready", "host_attached": True, "shadow_doorbells": True,
            "memory_by_messages": False,
        },
        "bytes": {"read": 0, "written": 0},
        "namespaces": [],
        "mailbox": {
            "sent": 0, "received": 0, "apu_running": True, "apu_starts": 1, "requests_in_flight": 0
        },
        "media": {"work_in_flight": 0},
        "queues": [],
        "errors": [],
        "latencies": dict.fromkeys(("read", "write", "other"), NO_TIMES),
        "accelerators": [],
        "modelled": None,
        "extensions": [],
        "placement": [],
        "log": [],
        "others": [],
    }  # fmt: skip
    return cast(Snapshot, found | changes)


def queue(qid: int, **commands: int) -> dict[str, Any]:
    return {"qid": qid, "size": 64, "waiting": 0, "outstanding": 0, "commands": commands}


def accelerator(seconds: float, running_for: float | None) -> dict[str, Any]:
    jobs = {"started": 3, "done": 1, "failed": 0, "stopped": 0}
    state = "running" if running_for is not None else "done"
    return {
        "id": 5, "state": state, "seconds": seconds, "running_for": running_for, "jobs": jobs,
        "models": 0, "vta": {"streams": 0},
    }  # fmt: skip


def test_rates_are_differences_over_time() -> None:
    found = rates.between(
        snapshot(100.0, queues=[queue(1, read=10)], accelerators=[accelerator(2.0, 0.5)]),
        snapshot(
            102.0,
            queues=[queue(1, read=110, write=20), queue(2, read=8)],
            bytes={"read": 4096, "written": 8192},
            errors=[{"status": 1, "meaning": "x", "commands": 4}],
            accelerators=[accelerator(3.0, 0.5)],
        ),
    )
    assert found["queues"] == {1: 60.0, 2: 4.0}
    assert (found["commands"], found["read_bytes"], found["written_bytes"]) == (
        64.0,
        2048.0,
        4096.0,
    )
    assert (found["errors"], found["jobs"]) == (2.0, 0.0)
    assert found["accelerators"] == {5: 0.5}


def test_another_device_at_the_same_place_has_no_rates_yet() -> None:
    found = rates.between(
        snapshot(100.0, queues=[queue(1, read=100)]),
        snapshot(1.0, pid=2, queues=[queue(1, read=7)]),
    )
    assert found["commands"] == 0.0


def test_times_of_commands_are_those_that_have_come_since() -> None:
    def times(fast: int, slow: int, seconds: float) -> Any:
        buckets = [{"most": 1e-5, "commands": fast}, {"most": 1e-3, "commands": slow}]
        return {**NO_TIMES, "commands": fast + slow, "seconds": seconds, "buckets": buckets}

    found = rates.since(times(100, 7, 1.0), times(103, 8, 1.5))
    assert (found["commands"], found["seconds"]) == (4, 0.5)
    assert [one["commands"] for one in found["buckets"]] == [3, 1]
    assert (found["p50"], found["p99"], found["most"]) == (1e-5, 1e-3, 1e-3)


def test_the_screen_says_what_the_snapshot_says() -> None:
    last = snapshot(
        1.0,
        queues=[queue(0), queue(1, read=7, flush=2, write=30, verify=1, copy=1)],
        errors=[{"status": 1, "meaning": "Invalid Opcode", "commands": 4}],
        accelerators=[accelerator(3.0, 0.5)],
    )
    shown = "\n".join(screen.lines(Path("x"), last, rates.between(last, last)))
    for text in ("admin", "write 30, read 7, flush 2, ", "for 0.5 s", "4 × Invalid Opcode"):
        assert text in shown


def test_several_controllers_have_their_queues_and_errors_on_the_screen() -> None:
    def times(commands: int) -> dict[str, Any]:
        bucket = {"most": 1e-5, "commands": commands}
        return {**NO_TIMES, "commands": commands, "seconds": 1.0, "buckets": [bucket]}

    def both(first: int, second: int) -> Snapshot:
        others = {"read": times(second), "write": times(0), "other": times(0)}
        return snapshot(
            float(first),
            queues=[queue(1, read=first)],
            latencies={"read": times(first), "write": times(0), "other": times(0)},
            others=[
                {
                    "id": 1,
                    "controller": snapshot(0.0)["controller"],
                    "queues": [queue(3, read=second)],
                    "latencies": others,
                    "errors": [{"status": 1, "meaning": "Invalid Opcode", "commands": 4}],
                }
            ],
        )

    before, after = both(1, 10), both(3, 70)
    found = rates.between(before, after)
    assert (found["others"], found["queues_of_others"]) == ({1: 30.0}, {1: {3: 30.0}})
    assert found["latencies"]["read"]["commands"] == 62
    shown = screen.lines(Path("x"), after, found)
    rows = [line.split() for line in shown]
    assert ["0", "1", "64", "0", "0", "1", "3", "read", "3"] in rows
    assert ["1", "3", "64", "0", "0", "30", "70", "read", "70"] in rows
    assert "4 × Invalid Opcode (controller 1)" in shown


@pytest.mark.parametrize(
    ("rate", "said"), [(0, "0"), (999, "999"), (1500, "1.5k"), (2_500_000, "2.5M"), (3e9, "3.0G")]
)
def test_rates_for_people(rate: float, said: str) -> None:
    assert screen.number(rate) == said


@pytest.mark.parametrize(
    ("rate", "said"),
    [(0, "0 B/s"), (1536, "1.5 KiB/s"), (3 << 20, "3.0 MiB/s"), (5 << 30, "5.0 GiB/s")],
)
def test_bytes_for_people(rate: float, said: str) -> None:
    assert screen.human_rate(rate) == said
