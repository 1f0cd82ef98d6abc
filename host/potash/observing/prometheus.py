"""Snapshots as metrics of Prometheus.

Source: Prometheus documentation, "Exposition formats" and "Metric and label naming".
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from potash_firmware.snapshot import AcceleratorState, Histogram, ModelledTime, Snapshot

__all__ = ["CONTENT_TYPE", "METRICS", "text"]

Labels = Mapping[str, object]

HISTOGRAM = ("_bucket", "_sum", "_count")
"""Endings of a histogram's samples."""


class Metric(NamedTuple):
    """What a metric is called, what kind it is, and what it says."""

    name: str
    kind: str
    help: str


class Sample(NamedTuple):
    """A number, and the labels that tell it from the metric's others."""

    metric: str
    labels: Labels
    value: float


METRICS = (
    Metric("potash_up", "gauge", "Whether the device has answered."),
    Metric("potash_controller_ready", "gauge", "Whether a host has made the controller ready."),
    Metric("potash_host_attached", "gauge", "Whether a host has plugged the device in."),
    Metric("potash_session_ends_total", "counter", "Sessions that a reset has ended."),
    Metric("potash_interrupts_total", "counter", "Interrupts that the host was sent."),
    Metric("potash_commands_total", "counter", "Commands fetched, by queue and kind."),
    Metric("potash_latency_seconds", "histogram", "How long I/O commands took, by kind."),
    Metric("potash_command_errors_total", "counter", "Commands that ended with an error status."),
    Metric(
        "potash_read_bytes_total", "counter", "Bytes that hosts have read, in the drive's life."
    ),
    Metric("potash_written_bytes_total", "counter", "Bytes that hosts have written, likewise."),
    Metric("potash_queue_waiting", "gauge", "Commands in a queue that were not fetched yet."),
    Metric("potash_queue_outstanding", "gauge", "Commands fetched and not answered yet."),
    Metric("potash_media_work_in_flight", "gauge", "Pieces of work that the media have."),
    Metric("potash_namespace_bytes", "gauge", "Size of a namespace."),
    Metric("potash_apu_running", "gauge", "Whether the application processor is there."),
    Metric("potash_apu_starts_total", "counter", "How often the APU was started."),
    Metric("potash_mailbox_messages_total", "counter", "Messages between RPU and APU."),
    Metric("potash_mailbox_requests_in_flight", "gauge", "Requests that the APU has to answer."),
    Metric("potash_accelerator_running", "gauge", "Whether a job has the accelerator."),
    Metric("potash_jobs_started_total", "counter", "Jobs that were started."),
    Metric("potash_jobs_total", "counter", "Jobs that have ended, by how."),
    Metric("potash_job_seconds_total", "counter", "Time of jobs that have ended."),
    Metric("potash_job_input_bytes_total", "counter", "Bytes that jobs were given."),
    Metric("potash_job_output_bytes_total", "counter", "Bytes that jobs have made."),
    Metric("potash_models_total", "counter", "Runs of models."),
    Metric("potash_vta_streams_total", "counter", "Streams that the tensor accelerator has run."),
    Metric("potash_vta_instructions_total", "counter", "Instructions in these streams."),
    Metric(
        "potash_vta_modelled_cycles_total", "counter", "Cycles that a chip would take for them."
    ),
    Metric(
        "potash_lateness_seconds", "histogram", "How much later than modelled commands completed."
    ),
    Metric("potash_frozen_seconds_total", "counter", "Time that the guest stood still."),
    Metric("potash_flash_pages_total", "counter", "Pages of 4 KiB programmed, by why."),
    Metric("potash_flash_operations_total", "counter", "Operations of the flash, by kind."),
    Metric("potash_mapping_accesses_total", "counter", "Accesses to the mapping's cache."),
    Metric("potash_busy_seconds_total", "counter", "Busy time of resources, by kind."),
    Metric("potash_resources", "gauge", "How many resources of a kind there are."),
    Metric("potash_percentage_used", "gauge", "Wear of the flash, as in SMART."),
    Metric("potash_available_spare", "gauge", "Spare of the flash in percent, as in SMART."),
    Metric("potash_superblocks", "gauge", "Superblocks, by state."),
    Metric("potash_superblock_erases", "gauge", "Quantiles of erase counts."),
)


def text(snapshot: Snapshot | None) -> bytes:
    """The page. Without a snapshot it says that the device is not up."""
    return generate_latest(_Page(snapshot))


class _Page(Collector):
    def __init__(self, snapshot: Snapshot | None) -> None:
        self._found = list(_samples(snapshot)) if snapshot else [Sample("potash_up", {}, 0)]

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
            for name, labels, value in self._found:
                part = name.removeprefix(metric.name)
                if not part or (part in HISTOGRAM and metric.kind == "histogram"):
                    family.add_sample(name, {key: str(one) for key, one in labels.items()}, value)
            if family.samples:
                yield family


def _samples(given: Snapshot) -> Iterator[Sample]:
    controller, mailbox = given["controller"], given["mailbox"]
    for name, value in (
        ("up", True),
        ("controller_ready", controller["state"] == "ready"),
        ("host_attached", controller["host_attached"]),
        ("session_ends_total", controller["session_ends"]),
        ("interrupts_total", controller["interrupts"]),
        ("read_bytes_total", given["bytes"]["read"]),
        ("written_bytes_total", given["bytes"]["written"]),
        ("media_work_in_flight", given["media"]["work_in_flight"]),
        ("apu_running", mailbox["apu_running"]),
        ("apu_starts_total", mailbox["apu_starts"]),
        ("mailbox_requests_in_flight", mailbox["requests_in_flight"]),
    ):
        yield Sample(f"potash_{name}", {}, value)
    for way in ("sent", "received"):
        yield Sample("potash_mailbox_messages_total", {"direction": way}, mailbox[way])
    for queue in given["queues"]:
        labels = {"queue": queue["qid"]}
        yield Sample("potash_queue_waiting", labels, queue["waiting"])
        yield Sample("potash_queue_outstanding", labels, queue["outstanding"])
        for command, count in queue["commands"].items():
            yield Sample("potash_commands_total", {**labels, "command": command}, count)
    for error in given["errors"]:
        described = {"status": f"{error['status']:03x}", "meaning": error["meaning"]}
        yield Sample("potash_command_errors_total", described, error["commands"])
    for namespace in given["namespaces"]:
        yield Sample("potash_namespace_bytes", {"nsid": namespace["nsid"]}, namespace["bytes"])
    for accelerator in given["accelerators"]:
        yield from _of_accelerator(accelerator)
    for kind, latency in (
        ("read", given["latencies"]["read"]),
        ("write", given["latencies"]["write"]),
        ("other", given["latencies"]["other"]),
    ):
        yield from _of_histogram("potash_latency_seconds", {"kind": kind}, latency)
    if given["modelled"] is not None:
        yield from _of_modelled(given["modelled"])


def _of_histogram(name: str, labels: Labels, given: Histogram) -> Iterator[Sample]:
    below = 0
    for bucket in given["buckets"]:
        below += bucket["commands"]
        yield Sample(f"{name}_bucket", {**labels, "le": bucket["most"]}, below)
    yield Sample(f"{name}_bucket", {**labels, "le": "+Inf"}, given["commands"])
    yield Sample(f"{name}_sum", labels, given["seconds"])
    yield Sample(f"{name}_count", labels, given["commands"])


def _of_modelled(given: ModelledTime) -> Iterator[Sample]:
    wear = given["wear"]
    yield from _of_histogram("potash_lateness_seconds", {}, given["lateness"])
    yield Sample("potash_frozen_seconds_total", {}, given["frozen_seconds"])
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
        ("busy_seconds_total", "resource", _each(given["busy"], "seconds")),
        ("resources", "resource", _each(given["busy"], "number")),
        ("superblocks", "state", states),
        ("superblock_erases", "quantile", quantiles),
    )
    for metric, label, values in labelled:
        for key, value in values.items():
            yield Sample(f"potash_{metric}", {label: key}, value)
    yield Sample("potash_percentage_used", {}, wear["percentage_used"])
    yield Sample("potash_available_spare", {}, wear["available_spare"])


def _each(resources: Mapping[str, Any], what: str) -> dict[str, float]:
    return {kind: one[what] for kind, one in resources.items()}


def _of_accelerator(given: AcceleratorState) -> Iterator[Sample]:
    labels: Labels = {"accelerator": given["id"]}
    jobs, vta = given["jobs"], given["vta"]
    for result in ("done", "failed", "stopped"):
        yield Sample("potash_jobs_total", {**labels, "result": result}, jobs[result])
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
        yield Sample(f"potash_{name}", labels, value)
