"""What telemetry says of a controller: what it is, how it is doing, and what it was asked last."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from nvme_spec.registers import Register
from potash_firmware.rpu.telemetry import Areas

if TYPE_CHECKING:
    from potash_firmware.rpu.controller import Controller


def areas(controller: Controller) -> Areas:
    """The three data areas, as what JSON can say."""
    return (_configuration(controller), _state(controller), _recent(controller))


def _configuration(controller: Controller) -> dict[str, object]:
    board = controller.board.settings
    return {
        "identity": dataclasses.asdict(controller.settings.identity),
        "firmware": {
            "active": controller.firmware.active,
            "next": controller.firmware.next,
            "revisions": controller.firmware.revisions,
        },
        "board": {
            "pci": dataclasses.asdict(board.identity),
            "queue_pairs": board.queue_pairs,
            "ready_timeout": board.ready_timeout,
            "vta": dict(board.vta.to_mapping()),
        },
        "namespaces": {
            nsid: {"blocks": namespace.blocks, "block_size": namespace.block_size}
            for nsid, namespace in controller.namespaces.items()
        },
        "features": [
            {"fid": fid, "selector": selector, "nsid": nsid, "value": value.dword,
             "data": value.data.hex()}
            for (fid, selector, nsid), value in controller.features.values.items()
        ],
    }  # fmt: skip


def _state(controller: Controller) -> dict[str, object]:
    queues, registers = controller.board.queues, controller.board.registers
    return {
        "registers": {
            name: registers.read(register)
            for name, register in (
                ("CC", Register.CC), ("CSTS", Register.CSTS), ("AQA", Register.AQA)
            )
        },
        "health": controller.health.state(controller.errors),
        "critical_warning": int(controller.critical_warning),
        "outstanding": len(controller.outstanding),
        "unfinished_media_work": len(controller.unfinished),
        "shadow_doorbells": queues.shadow is not None,
        "submission_queues": [
            {"qid": one.qid, "size": one.size, "head": one.head, "tail": one.tail,
             "completions": one.completions.qid}
            for one in queues.submissions.values()
        ],
        "completion_queues": [
            {"qid": one.qid, "size": one.size, "head": one.head, "tail": one.tail,
             "vector": one.interrupt.vector}
            for one in queues.completions.values()
        ],
        "media": {
            nsid: {
                "size": namespace.media.size,
                "writable": namespace.media.writable,
                "lost": namespace.media.lost is not None,
                "commands_in_flight": bool(namespace.in_flight),
            }
            for nsid, namespace in controller.namespaces.items()
        },
    }  # fmt: skip


def _recent(controller: Controller) -> dict[str, object]:
    return {
        "recent": [
            {"time": one.time, "point": one.point, "qid": one.qid, "cid": one.cid, "what": one.what}
            for one in controller.board.trace.recent
        ]
    }
