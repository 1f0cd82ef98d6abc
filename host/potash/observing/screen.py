"""The screen of `potash top`: a device's queues and accelerators, and their rates."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from csd_spec.text import plain
from potash.observing.rates import Rates
from potash.tables import columns
from potash.units import human
from potash_firmware.snapshot import Queue, Snapshot, StopsByCause

Row = Sequence[str]

MOST_USED = 4
"""Commands of a queue that are named, those that came most often."""


def microseconds(seconds: float) -> str:
    """A latency for people."""
    return f"{_scaled(seconds * 1e6, 1000, (' µs', ' ms', ' s'))}"


def lines(place: Path, snapshot: Snapshot, rates: Rates) -> list[str]:
    """The screen as text, for a terminal of any width."""
    rows = list(queues(snapshot, rates))
    shown = [
        f"{place}  process {snapshot['pid']}",
        *summary(snapshot, rates),
        "",
        *columns(rows, ">" * (len(rows[0]) - 1) + "<"),
        "",
        *columns(list(accelerators(snapshot, rates)), ">>>>>>>>><"),
        *(["", *columns(list(extensions(snapshot)), "<<>><")] if snapshot["extensions"] else ()),
        *modelled(snapshot, rates),
        *placement(snapshot),
        *errors(snapshot),
    ]
    return [plain(line) for line in shown]


def number(value: float) -> str:
    """A rate for people."""
    return _scaled(value, 1000, ("", "k", "M", "G"))


def human_rate(size: float) -> str:
    """Bytes a second for people."""
    return f"{human_size(size)}/s"


def human_size(size: float) -> str:
    """Bytes for people."""
    return _scaled(size, 1024, (" B", " KiB", " MiB", " GiB"))


def _scaled(value: float, step: int, units: Sequence[str]) -> str:
    power = 0
    while value >= step and power < len(units) - 1:
        value, power = value / step, power + 1
    return f"{value:.{1 if power else 0}f}{units[power]}"


def summary(snapshot: Snapshot, rates: Rates) -> Iterable[str]:
    """The device as a whole, a few lines."""
    controller, mailbox = snapshot["controller"], snapshot["mailbox"]
    host = "a host is attached" if controller["host_attached"] else "no host"
    shadow = ", shadow doorbells" if controller["shadow_doorbells"] else ""
    shadow += ", memory by messages" if controller["memory_by_messages"] else ""
    sizes = ", ".join(
        f"{namespace['nsid']}: {human(namespace['bytes'])}" for namespace in snapshot["namespaces"]
    )
    yield f"controller {controller['state']}, {host}{shadow}; namespaces {sizes or 'none'}"
    for other in snapshot["others"]:
        host = "a host is attached" if other["controller"]["host_attached"] else "no host"
        yield (
            f"controller {other['id']}: {other['controller']['state']}, {host},"
            f" {number(rates['others'].get(other['id'], 0.0))} commands/s"
        )
    yield (
        f"{number(rates['commands'])} commands/s   read {human_rate(rates['read_bytes'])}"
        f"   written {human_rate(rates['written_bytes'])}"
        f"   {number(rates['interrupts'])} interrupts/s   {number(rates['errors'])} errors/s"
    )
    read, write = rates["latencies"]["read"], rates["latencies"]["write"]
    yield (
        f"latency of reads {microseconds(read['p50'])} (median),"
        f" {microseconds(read['p99'])} (99 %);"
        f" of writes {microseconds(write['p50'])}, {microseconds(write['p99'])}"
    )
    yield (
        f"APU {'runs' if mailbox['apu_running'] else 'is down'}"
        f" (started {mailbox['apu_starts']} times), {number(rates['messages'])} messages/s,"
        f" {mailbox['requests_in_flight']} requests in flight;"
        f" {snapshot['media']['work_in_flight']} pieces of media work"
    )


def queues(snapshot: Snapshot, rates: Rates) -> Iterable[Row]:
    """A table's rows, the heads first, with the controller of each queue if there are several."""
    others = snapshot["others"]
    heads = ("queue", "size", "waiting", "outstanding", "commands/s", "in all", "most")
    yield ("controller", *heads) if others else heads
    for row in _queues(snapshot["queues"], rates["queues"]):
        yield ("0", *row) if others else row
    for other in others:
        for row in _queues(other["queues"], rates["queues_of_others"].get(other["id"], {})):
            yield str(other["id"]), *row


def _queues(found: Iterable[Queue], rates: Mapping[int, float]) -> Iterable[Row]:
    """The rows of a controller's queues."""
    for queue in found:
        commands = sorted(queue["commands"].items(), key=lambda one: -one[1])
        most = ", ".join(f"{name} {count}" for name, count in commands[:MOST_USED])
        yield (
            str(queue["qid"]) if queue["qid"] else "admin",
            str(queue["size"]) if queue["size"] else "gone",
            str(queue["waiting"]),
            str(queue["outstanding"]),
            number(rates.get(queue["qid"], 0.0)),
            str(sum(queue["commands"].values())),
            most,
        )


def accelerators(snapshot: Snapshot, rates: Rates) -> Iterable[Row]:
    """A table's rows, the heads first."""
    heads = ("accelerator", "state", "busy", "jobs", "done", "failed", "stopped")
    yield *heads, "models", "streams", "job"
    for one in snapshot["accelerators"]:
        jobs, running = one["jobs"], one["running_for"]
        yield (
            str(one["id"]),
            one["state"],
            f"{rates['accelerators'].get(one['id'], 0.0):.0%}",
            *(str(jobs[name]) for name in ("started", "done", "failed", "stopped")),
            str(one["models"]),
            str(one["vta"]["streams"]),
            f"for {running:.1f} s" if running is not None else "",
        )


def extensions(snapshot: Snapshot) -> Iterable[Row]:
    """A table's rows, the heads first."""
    yield "extension", "kind", "calls", "failures", "file"
    for one in snapshot["extensions"]:
        number = "" if one["number"] is None else f" {one['number']:02X}h"
        counts = ("" if count is None else str(count) for count in (one["calls"], one["failures"]))
        yield one["name"], one["kind"] + number, *counts, one["source"]


def placement(snapshot: Snapshot) -> Iterable[str]:
    """The placement handles that the host has written by, if there are any."""
    rows = [
        (
            str(number),
            *(human_size(handle[name]) for name in ("host", "media", "moved")),
            f"{handle['write_amplification']:.2f}",
        )
        for number, handle in enumerate(snapshot["placement"])
        if handle["host"] or handle["media"]
    ]
    if rows:
        heads = ("placement handle", "host", "flash", "moved", "write amplification")
        yield from ("", *columns([heads, *rows]))


def modelled(snapshot: Snapshot, rates: Rates) -> Iterable[str]:
    """The modelled drive, if there is one."""
    found = snapshot["modelled"]
    if found is None:
        return
    late, wear = found["lateness"], found["wear"]
    busy = ", ".join(f"{kind} {share:.0%}" for kind, share in rates["busy"].items())
    cached = "".join(
        f", {what} cached {cache['hits'] / (cache['hits'] + cache['misses']):.0%}"
        for what, cache in (("mapping", found["mapping"]), ("reads", found["read_cache"]))
        if cache["hits"] or cache["misses"]
    )
    factor = f" times {found['factor']}" if found["factor"] > 1 else ""
    yield ""
    yield (
        f"modelled time{factor}: {late['commands']} commands, late by"
        f" {late['p50'] * 1e6:.0f} µs (median), {late['p99'] * 1e6:.0f} µs (99 %),"
        f" {late['most'] * 1e3:.1f} ms (most); the guest stood still"
        f" {found['frozen_seconds']:.2f} s{_causes(found['stops'])}"
    )
    copied = f", {found['copied_back']} pages copied back" if found["copied_back"] else ""
    yield f"busy: {busy}; write amplification {found['write_amplification']:.2f}{copied}{cached}"
    yield (
        f"wear: {wear['percentage_used']} % used, {wear['available_spare']} % spare, erases"
        f" {wear['erases']['least']} to {wear['erases']['most']}, {wear['free']} of"
        f" {wear['superblocks']} superblocks free"
        + (f", {wear['grown_bad']} grown bad" if wear["grown_bad"] else "")
    )
    if any(found["slc"].values()):
        slc = found["slc"]
        yield (
            f"SLC cache: {slc['superblocks']} superblocks, {slc['programs']} programs, "
            f"{slc['folded']} pages folded"
        )
    if any(found["errors"].values()):
        yield "bit errors: " + ", ".join(f"{n} {what}" for what, n in found["errors"].items())


def _causes(stops: StopsByCause) -> str:
    """The causes of stops of the guest, in brackets."""
    causes = ("jobs", stops["jobs"]), ("commands", stops["commands"])
    said = [
        f"{cause['number']} × for {name}, {cause['seconds']:.2f} s"
        for name, cause in causes
        if cause["number"]
    ]
    return f" ({'; '.join(said)})" if said else ""


def errors(snapshot: Snapshot) -> list[str]:
    """Statuses with which commands have failed."""
    found = [f"{error['commands']} × {error['meaning']}" for error in snapshot["errors"]]
    for other in snapshot["others"]:
        found += [
            f"{error['commands']} × {error['meaning']} (controller {other['id']})"
            for error in other["errors"]
        ]
    return ["", *found] if found else []
