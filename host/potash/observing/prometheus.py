"""Snapshots as metrics of Prometheus.

Source: Prometheus documentation, "Exposition formats" and "Metric and label naming".
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from potash_firmware.snapshot import (
    AcceleratorState,
    Histogram,
    ModelledTime,
    OtherController,
    Snapshot,
)

__all__ = ["CONTENT_TYPE", "METRICS", "text"]

Labels = Mapping[str, object]


class Sample(NamedTuple):
    """A number or a histogram, and the labels that tell it from the metric's others."""

    metric: str
    labels: Labels
    value: Any


METRICS = {
    "up": "1 if the device responds.",
    "controller_ready": "1 if the controller is ready.",
    "host_attached": "1 if a host is connected.",
    "session_ends_total": "Resets and disconnections.",
    "interrupts_total": "Interrupts sent to the host.",
    "commands_total": "Commands fetched, by queue and kind.",
    "latency_seconds": "Times that I/O commands took, by kind.",
    "command_errors_total": "Commands that ended with an error status.",
    "read_bytes_total": "Bytes read by hosts, over the drive's life.",
    "written_bytes_total": "Bytes written by hosts, over the drive's life.",
    "queue_waiting": "Commands in a queue that were not fetched yet.",
    "queue_outstanding": "Commands fetched and not completed yet.",
    "media_work_in_flight": "Media operations in progress.",
    "namespace_bytes": "Size of a namespace.",
    "apu_running": "1 if the APU is running.",
    "apu_starts_total": "Starts of the APU.",
    "mailbox_messages_total": "Messages between RPU and APU.",
    "mailbox_requests_in_flight": "Requests to the APU without a reply yet.",
    "accelerator_running": "1 while the accelerator runs a job.",
    "jobs_started_total": "Jobs started.",
    "jobs_total": "Jobs that have ended, by result.",
    "job_seconds_total": "Total run time of finished jobs.",
    "job_input_bytes_total": "Bytes of input of jobs.",
    "job_output_bytes_total": "Bytes of output of jobs.",
    "models_total": "Runs of models.",
    "vta_streams_total": "Instruction streams that the tensor accelerator executed.",
    "vta_instructions_total": "Instructions in these streams.",
    "vta_modelled_cycles_total": "Modelled cycles of these streams.",
    "lateness_seconds": "Delay of completions after their modelled times.",
    "frozen_seconds_total": "Time for which the guest was stopped.",
    "stops_total": "Stops of the guest, by cause.",
    "stop_seconds_total": "Time for which stops of the guest were wanted, by cause.",
    "flash_pages_total": "Pages of 4 KiB programmed, by cause.",
    "flash_operations_total": "Operations of the flash, by kind.",
    "mapping_accesses_total": "Accesses to the mapping's cache.",
    "busy_seconds_total": "Busy time of the modelled drive's resources, by kind.",
    "resources": "Number of resources of a kind.",
    "percentage_used": "Percentage Used, as in SMART.",
    "available_spare": "Available Spare, as in SMART.",
    "superblocks": "Superblocks, by state.",
    "superblock_erases": "Quantiles of the superblocks' erase counts.",
    "grown_bad_superblocks": "Superblocks of which a program has failed.",
    "slc_superblocks": "Superblocks in SLC mode.",
    "slc_programs_total": "Programs of units in SLC mode.",
    "folded_pages_total": "Pages of 4 KiB relocated from the SLC cache, or that of zones.",
    "flash_read_retries_total": "Retries of reads of the flash.",
    "flash_uncorrectable_reads_total": "Reads of the flash with too many errors.",
    "lost_pages_total": "Pages of 4 KiB that could not be read when they were relocated.",
    "refreshed_pages_total": "Pages of 4 KiB relocated as they were old, or were read often.",
    "copied_back_pages_total": "Pages of 4 KiB relocated within their dies (copy back).",
    "values_stored_bytes_total": "Bytes of values that hosts stored by keys.",
    "values_flash_bytes_total": "Bytes of pages written to flash for values, or their index.",
    "placement_host_bytes_total": "Bytes that hosts wrote by a placement handle.",
    "placement_media_bytes_total": "Bytes written to flash for a placement handle, by reason.",
    "read_cache_accesses_total": "Reads of pages on flash, by the result in the read cache.",
}
"""Metrics by name, without `potash_`."""


def text(snapshot: Snapshot | None) -> bytes:
    """The page. Without a snapshot it says that the device is not up."""
    return generate_latest(_Page(snapshot))


class _Page(Collector):
    def __init__(self, snapshot: Snapshot | None) -> None:
        self._found = list(_samples(snapshot)) if snapshot else [Sample("up", {}, 0)]

    def collect(self) -> Iterator[Family]:
        for key, help in METRICS.items():
            name = f"potash_{key}"
            found = [one for one in self._found if one.metric == key]
            histogram = any(isinstance(one.value, dict) for one in found)
            kind = "histogram" if histogram else "counter" if key.endswith("_total") else "gauge"
            family = Family(name.removesuffix("_total"), help, kind)
            for sample in found:
                labels = {label: str(one) for label, one in sample.labels.items()}
                if histogram:
                    _add_histogram(family, labels, sample.value)
                else:
                    family.add_sample(name, labels, sample.value)
            if found:
                yield family


def _add_histogram(family: Family, labels: dict[str, str], given: Histogram) -> None:
    below = 0
    for bucket in given["buckets"]:
        below += bucket["commands"]
        family.add_sample(f"{family.name}_bucket", {**labels, "le": str(bucket["most"])}, below)
    family.add_sample(f"{family.name}_bucket", {**labels, "le": "+Inf"}, given["commands"])
    family.add_sample(f"{family.name}_sum", labels, given["seconds"])
    family.add_sample(f"{family.name}_count", labels, given["commands"])


def _samples(given: Snapshot) -> Iterator[Sample]:
    mailbox = given["mailbox"]
    yield from _of_controller(given, {})
    for other in given["others"]:
        yield from _of_controller(other, {"controller": other["id"]})
    for name, value in (
        ("up", True),
        ("read_bytes_total", given["bytes"]["read"]),
        ("written_bytes_total", given["bytes"]["written"]),
        ("media_work_in_flight", given["media"]["work_in_flight"]),
        ("apu_running", mailbox["apu_running"]),
        ("apu_starts_total", mailbox["apu_starts"]),
        ("mailbox_requests_in_flight", mailbox["requests_in_flight"]),
    ):
        yield Sample(name, {}, value)
    for way in ("sent", "received"):
        yield Sample("mailbox_messages_total", {"direction": way}, mailbox[way])
    for namespace in given["namespaces"]:
        yield Sample("namespace_bytes", {"nsid": namespace["nsid"]}, namespace["bytes"])
    for accelerator in given["accelerators"]:
        yield from _of_accelerator(accelerator)
    for number, handle in enumerate(given["placement"]):
        labels = {"handle": number}
        yield Sample("placement_host_bytes_total", labels, handle["host"])
        moved, padding = handle["moved"], handle["padding"]
        reasons = {"host": handle["media"] - moved - padding, "moved": moved, "padding": padding}
        for reason, size in reasons.items():
            yield Sample("placement_media_bytes_total", {**labels, "reason": reason}, size)
    if given["modelled"] is not None:
        yield from _of_modelled(given["modelled"])


def _of_controller(given: Snapshot | OtherController, of: Labels) -> Iterator[Sample]:
    """The samples of one controller, with labels for one that is not the first."""
    controller = given["controller"]
    yield Sample("controller_ready", of, controller["state"] == "ready")
    yield Sample("host_attached", of, controller["host_attached"])
    yield Sample("session_ends_total", of, controller["session_ends"])
    yield Sample("interrupts_total", of, controller["interrupts"])
    for queue in given["queues"]:
        labels = {**of, "queue": queue["qid"]}
        yield Sample("queue_waiting", labels, queue["waiting"])
        yield Sample("queue_outstanding", labels, queue["outstanding"])
        for command, count in queue["commands"].items():
            yield Sample("commands_total", {**labels, "command": command}, count)
    for error in given["errors"]:
        described = {**of, "status": f"{error['status']:03x}", "meaning": error["meaning"]}
        yield Sample("command_errors_total", described, error["commands"])
    for kind, latency in given["latencies"].items():
        yield Sample("latency_seconds", {**of, "kind": kind}, latency)


def _of_modelled(given: ModelledTime) -> Iterator[Sample]:
    wear, logs = given["wear"], given["values"]
    yield Sample("lateness_seconds", {}, given["lateness"])
    yield Sample("frozen_seconds_total", {}, given["frozen_seconds"])
    for cause, stops in (
        ("jobs", given["stops"]["jobs"]),
        ("commands", given["stops"]["commands"]),
    ):
        yield Sample("stops_total", {"cause": cause}, stops["number"])
        yield Sample("stop_seconds_total", {"cause": cause}, stops["seconds"])
    free, retired, erases = wear["free"], wear["retired"], wear["erases"]
    states = {"free": free, "used": wear["superblocks"] - free - retired, "retired": retired}
    quantiles = dict(
        zip(
            (0.0, 0.5, 0.9, 0.99, 1.0),
            (erases["least"], erases["p50"], erases["p90"], erases["p99"], erases["most"]),
            strict=True,
        )
    )
    labelled: Iterable[tuple[str, str, Mapping[Any, Any]]] = (
        ("flash_pages_total", "reason", given["pages"]),
        ("flash_operations_total", "operation", given["operations"]),
        ("mapping_accesses_total", "result", given["mapping"]),
        ("read_cache_accesses_total", "result", given["read_cache"]),
        ("busy_seconds_total", "resource", _each(given["busy"], "seconds")),
        ("resources", "resource", _each(given["busy"], "number")),
        ("superblocks", "state", states),
        ("superblock_erases", "quantile", quantiles),
        ("values_flash_bytes_total", "kind", {"log": logs["written"], "index": logs["index"]}),
    )
    for metric, label, values in labelled:
        for key, value in values.items():
            yield Sample(metric, {label: key}, value)
    yield Sample("percentage_used", {}, wear["percentage_used"])
    yield Sample("available_spare", {}, wear["available_spare"])
    yield Sample("grown_bad_superblocks", {}, wear["grown_bad"])
    yield Sample("slc_superblocks", {}, given["slc"]["superblocks"])
    yield Sample("slc_programs_total", {}, given["slc"]["programs"])
    yield Sample("copied_back_pages_total", {}, given["copied_back"])
    yield Sample("folded_pages_total", {}, given["slc"]["folded"])
    yield Sample("values_stored_bytes_total", {}, logs["stored"])
    errors = given["errors"]
    yield Sample("flash_read_retries_total", {}, errors["retries"])
    yield Sample("flash_uncorrectable_reads_total", {}, errors["uncorrectable"])
    yield Sample("lost_pages_total", {}, errors["lost"])
    yield Sample("refreshed_pages_total", {}, errors["refreshed"])


def _each(resources: Mapping[str, Any], what: str) -> dict[str, float]:
    return {kind: resource[what] for kind, resource in resources.items()}


def _of_accelerator(given: AcceleratorState) -> Iterator[Sample]:
    labels: Labels = {"accelerator": given["id"]}
    jobs, vta = given["jobs"], given["vta"]
    for result in ("done", "failed", "stopped"):
        yield Sample("jobs_total", {**labels, "result": result}, jobs[result])
    for name, value in (
        ("accelerator_running", given["running_for"] is not None),
        ("jobs_started_total", jobs["started"]),
        ("job_seconds_total", given["seconds"]),
        ("job_input_bytes_total", given["bytes"]["input"]),
        ("job_output_bytes_total", given["bytes"]["output"]),
        ("models_total", given["models"]),
        ("vta_streams_total", vta["streams"]),
        ("vta_instructions_total", vta["instructions"]),
        ("vta_modelled_cycles_total", vta["modelled_cycles"]),
    ):
        yield Sample(name, labels, value)
