"""The telemetry of a controller: its identity, its state, and its latest commands."""

import dataclasses
from typing import Protocol

from nvme_spec.registers import Register
from potash_device.board import Board
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.logs.telemetry import Areas
from potash_firmware.rpu.media_work import MediaWork
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.operations.firmware_slots import FirmwareSlots
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.reports import Reports
from potash_firmware.rpu.settings import RpuSettings


class TelemetrySource(Protocol):
    """The parts of a controller that telemetry is collected from."""

    settings: RpuSettings
    board: Board
    firmware: FirmwareSlots
    namespaces: Namespaces
    features: Features
    reports: Reports
    outstanding: Outstanding
    media_work: MediaWork


def collect(source: TelemetrySource) -> Areas:
    """The three data areas, as what JSON can say."""
    return (_configuration(source), _state(source), _recent(source))


def _configuration(source: TelemetrySource) -> dict[str, object]:
    board = source.board.settings
    return {
        "identity": dataclasses.asdict(source.settings.identity),
        "firmware": {
            "active": source.firmware.active,
            "next": source.firmware.next,
            "revisions": source.firmware.revisions,
        },
        "board": {
            "pci": dataclasses.asdict(board.identity),
            "queue_pairs": board.queue_pairs,
            "ready_timeout": board.ready_timeout,
            "vta": dict(board.vta.to_mapping()),
        },
        "namespaces": {
            nsid: {"blocks": namespace.blocks, "block_size": namespace.block_size}
            for nsid, namespace in source.namespaces.attached_blocks.items()
        },
        "features": [
            {"fid": fid, "selector": selector, "nsid": nsid, "value": value.dword,
             "data": value.data.hex()}
            for (fid, selector, nsid), value in source.features.values.items()
        ],
    }  # fmt: skip


def _state(source: TelemetrySource) -> dict[str, object]:
    queues, registers = source.board.queues, source.board.registers
    return {
        "registers": {
            name: registers.read(register)
            for name, register in (
                ("CC", Register.CC), ("CSTS", Register.CSTS), ("AQA", Register.AQA)
            )
        },
        "health": source.reports.health.save(),
        "critical_warning": int(source.reports.critical_warning()),
        "outstanding": len(source.outstanding),
        "unfinished_media_work": len(source.media_work.unfinished),
        "shadow_doorbells": queues.shadow is not None,
        "submission_queues": [
            {"qid": queue.qid, "size": queue.size, "head": queue.head, "tail": queue.tail,
             "completions": queue.completions.qid}
            for queue in queues.submissions.values()
        ],
        "completion_queues": [
            {"qid": queue.qid, "size": queue.size, "head": queue.head, "tail": queue.tail,
             "vector": queue.interrupt.vector}
            for queue in queues.completions.values()
        ],
        "media": {
            nsid: {
                "size": namespace.media.size,
                "writable": namespace.media.writable,
                "lost": namespace.media.lost is not None,
                "commands_in_flight": namespace.in_flight.busy,
            }
            for nsid, namespace in source.namespaces.attached_stored.items()
        },
    }  # fmt: skip


def _recent(source: TelemetrySource) -> dict[str, object]:
    return {"recent": [note._asdict() for note in source.board.trace.recent]}
