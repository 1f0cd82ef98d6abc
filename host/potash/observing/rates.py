"""What happened between two snapshots of a device."""

from collections.abc import Callable, Mapping
from typing import Any

from potash.observing.snapshot import ModelledTime, Rates, Snapshot


def between(before: Snapshot, after: Snapshot) -> Rates:
    """The rates from one snapshot to a later one of the same device."""
    seconds: float = max(after["time"] - before["time"], 1e-9)
    if before["pid"] != after["pid"]:  # another device at the same place: there is no before
        before = after

    def rate(count: Callable[[Snapshot], int]) -> float:
        return max(0.0, (count(after) - count(before)) / seconds)

    first, second = _by_queue(before), _by_queue(after)
    busy_before, busy_after = _busy(before), _busy(after)
    return {
        "seconds": seconds,
        "commands": rate(lambda one: sum(_by_queue(one).values())),
        "read_bytes": rate(lambda one: one["bytes"]["read"]),
        "written_bytes": rate(lambda one: one["bytes"]["written"]),
        "interrupts": rate(lambda one: one["controller"]["interrupts"]),
        "messages": rate(lambda one: one["mailbox"]["sent"] + one["mailbox"]["received"]),
        "errors": rate(lambda one: sum(item["commands"] for item in one["errors"])),
        "jobs": rate(lambda one: sum(item["jobs"]["started"] for item in one["accelerators"])),
        "queues": {
            qid: max(0.0, (count - first.get(qid, 0)) / seconds) for qid, count in second.items()
        },
        "accelerators": {
            one: min(1.0, max(0.0, (busy - busy_before.get(one, 0.0)) / seconds))
            for one, busy in busy_after.items()
        },
        "busy": _shares(before["modelled"], after["modelled"]),
    }


def _shares(before: ModelledTime | None, after: ModelledTime | None) -> dict[str, float]:
    """Of the guest's time in which resources of the modelled drive were busy."""
    if before is None or after is None:
        return {}
    seconds = max(after["guest_seconds"] - before["guest_seconds"], 1e-9)
    then: Mapping[str, Any] = before["busy"]
    now: Mapping[str, Any] = after["busy"]
    return {
        kind: max(0.0, one["seconds"] - then[kind]["seconds"]) / seconds / one["number"]
        for kind, one in now.items()
        if one["number"]
    }


def _by_queue(snapshot: Snapshot) -> dict[int, int]:
    return {queue["qid"]: sum(queue["commands"].values()) for queue in snapshot["queues"]}


def _busy(snapshot: Snapshot) -> dict[int, float]:
    """Seconds that accelerators have had jobs, the present one included."""
    return {
        one["id"]: one["seconds"] + (one["running_for"] or 0.0) for one in snapshot["accelerators"]
    }
