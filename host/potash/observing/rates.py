"""Rates of a device between two of its snapshots."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypedDict

from csd_spec.reporting import Amount, Share
from potash_firmware.snapshot import (
    Bucket,
    Histogram,
    Latencies,
    ModelledTime,
    OtherController,
    Snapshot,
)

_Numbers = dict[int, float]


class Rates(TypedDict):
    """Rates per second since the previous snapshot."""

    seconds: Annotated[Amount, "Seconds between the two snapshots."]
    commands: Annotated[Amount, "Commands of all queues, of all controllers."]
    read_bytes: Annotated[Amount, "Bytes read by hosts."]
    written_bytes: Annotated[Amount, "Bytes written by hosts."]
    interrupts: Annotated[Amount, "Interrupts sent."]
    messages: Annotated[Amount, "Messages of the mailbox, in both directions."]
    errors: Annotated[Amount, "Commands that failed."]
    jobs: Annotated[Amount, "Jobs started."]
    queues: Annotated[
        Mapping[int, Amount], "Commands by queue identifier, of the first controller."
    ]
    latencies: Annotated[
        Latencies,
        "Times that I/O commands of all controllers took in between; all but sums are upper"
        " bounds.",
    ]
    accelerators: Annotated[
        Mapping[int, Share], "Share of the time in which an accelerator ran a job, by ID."
    ]
    busy: Annotated[
        Mapping[str, Amount],
        "Share of the guest's time in which the modelled drive's resources were busy, by kind;"
        " above 1 if they are reserved for commands in progress.",
    ]
    others: Annotated[
        Mapping[int, Amount], "Commands by identifier, of controllers behind the first one."
    ]
    queues_of_others: Annotated[
        Mapping[int, Mapping[int, Amount]], "Their commands by controller and queue identifier."
    ]


class Interval(Snapshot):
    """The state of a running device at the end of an interval, and the rates; one line for each."""

    rates: Annotated[Rates, "Rates per second since the previous snapshot."]


def between(before: Snapshot, after: Snapshot) -> Rates:
    """The rates from one snapshot to a later one of the same device."""
    seconds: float = max(after["time"] - before["time"], 1e-9)
    if before["pid"] != after["pid"]:  # another device at the same place: there is no before
        before = after

    def rate(count: Callable[[Snapshot], int]) -> float:
        return max(0.0, (count(after) - count(before)) / seconds)

    def by_queue(then: Snapshot | OtherController, now: Snapshot | OtherController) -> _Numbers:
        first = _by_queue(then)
        return {
            qid: max(0.0, (count - first.get(qid, 0)) / seconds)
            for qid, count in _by_queue(now).items()
        }

    queues_of_others = {
        now["id"]: by_queue(then, now)
        for then, now in zip(before["others"], after["others"], strict=True)
    }
    busy_before, busy_after = _busy(before), _busy(after)
    return {
        "seconds": seconds,
        "commands": rate(lambda drive: sum(map(_all, _controllers(drive)))),
        "read_bytes": rate(lambda drive: drive["bytes"]["read"]),
        "written_bytes": rate(lambda drive: drive["bytes"]["written"]),
        "interrupts": rate(
            lambda drive: sum(each["controller"]["interrupts"] for each in _controllers(drive))
        ),
        "messages": rate(lambda drive: drive["mailbox"]["sent"] + drive["mailbox"]["received"]),
        "errors": rate(
            lambda drive: sum(
                error["commands"] for each in _controllers(drive) for error in each["errors"]
            )
        ),
        "jobs": rate(lambda drive: sum(item["jobs"]["started"] for item in drive["accelerators"])),
        "queues": by_queue(before, after),
        "accelerators": {
            number: min(1.0, max(0.0, (busy - busy_before.get(number, 0.0)) / seconds))
            for number, busy in busy_after.items()
        },
        "latencies": {
            "read": since(_times(before, "read"), _times(after, "read")),
            "write": since(_times(before, "write"), _times(after, "write")),
            "other": since(_times(before, "other"), _times(after, "other")),
        },
        "busy": _shares(before["modelled"], after["modelled"]),
        "others": {number: sum(rates.values()) for number, rates in queues_of_others.items()},
        "queues_of_others": queues_of_others,
    }


def _times(drive: Snapshot, kind: Literal["read", "write", "other"]) -> Histogram:
    """The times of commands of all controllers."""
    every = [controller["latencies"][kind] for controller in _controllers(drive)]
    return {
        **every[0],
        "commands": sum(each["commands"] for each in every),
        "seconds": sum(each["seconds"] for each in every),
        "most": max(each["most"] for each in every),
        "buckets": [
            {"most": same[0]["most"], "commands": sum(bucket["commands"] for bucket in same)}
            for same in zip(*(each["buckets"] for each in every), strict=True)
        ],
    }


def since(before: Histogram, after: Histogram) -> Histogram:
    """The times that have come to a histogram; percentiles and the greatest are upper bounds."""
    buckets: list[Bucket] = [
        {"most": one["most"], "commands": max(0, one["commands"] - then["commands"])}
        for one, then in zip(after["buckets"], before["buckets"], strict=True)
    ]
    commands = max(0, after["commands"] - before["commands"])

    def bound(share: float) -> float:
        found = 0
        for bucket in buckets:
            found += bucket["commands"]
            if found >= share * commands:
                return bucket["most"]
        return after["most"]

    return {
        "commands": commands,
        "seconds": max(0.0, after["seconds"] - before["seconds"]),
        "p50": bound(0.5) if commands else 0.0,
        "p99": bound(0.99) if commands else 0.0,
        "most": bound(1.0) if commands else 0.0,
        "buckets": buckets,
    }


def _shares(before: ModelledTime | None, after: ModelledTime | None) -> dict[str, float]:
    """Shares of the guest's time in which the modelled drive's resources were busy."""
    if before is None or after is None:
        return {}
    seconds = max(after["guest_seconds"] - before["guest_seconds"], 1e-9)
    then: Mapping[str, Any] = before["busy"]
    now: Mapping[str, Any] = after["busy"]
    return {
        kind: max(0.0, resource["seconds"] - then[kind]["seconds"]) / seconds / resource["number"]
        for kind, resource in now.items()
        if resource["number"]
    }


def _controllers(drive: Snapshot) -> tuple[Snapshot | OtherController, ...]:
    """All controllers, of which the snapshot itself has the first one."""
    return (drive, *drive["others"])


def _all(controller: Snapshot | OtherController) -> int:
    """The commands of a controller."""
    return sum(_by_queue(controller).values())


def _by_queue(snapshot: Snapshot | OtherController) -> dict[int, int]:
    return {queue["qid"]: sum(queue["commands"].values()) for queue in snapshot["queues"]}


def _busy(snapshot: Snapshot) -> dict[int, float]:
    """Seconds that accelerators have had jobs, the present one included."""
    return {
        one["id"]: one["seconds"] + (one["running_for"] or 0.0) for one in snapshot["accelerators"]
    }
