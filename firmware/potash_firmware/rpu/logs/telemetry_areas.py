"""What telemetry says of a controller: what it is, how it is doing, and what it was asked last."""

from __future__ import annotations

import dataclasses

from nvme_spec.registers import Register
from potash_firmware.rpu.core import Core
from potash_firmware.rpu.logs.telemetry import Areas


def areas(core: Core) -> Areas:
    """The three data areas, as what JSON can say."""
    return (_configuration(core), _state(core), _recent(core))


def _configuration(core: Core) -> dict[str, object]:
    board = core.board.settings
    return {
        "identity": dataclasses.asdict(core.settings.identity),
        "firmware": {
            "active": core.firmware.active,
            "next": core.firmware.next,
            "revisions": core.firmware.revisions,
        },
        "board": {
            "pci": dataclasses.asdict(board.identity),
            "queue_pairs": board.queue_pairs,
            "ready_timeout": board.ready_timeout,
            "vta": dict(board.vta.to_mapping()),
        },
        "namespaces": {
            nsid: {"blocks": namespace.blocks, "block_size": namespace.block_size}
            for nsid, namespace in core.namespaces.items()
        },
        "features": [
            {"fid": fid, "selector": selector, "nsid": nsid, "value": value.dword,
             "data": value.data.hex()}
            for (fid, selector, nsid), value in core.features.values.items()
        ],
    }  # fmt: skip


def _state(core: Core) -> dict[str, object]:
    queues, registers = core.board.queues, core.board.registers
    return {
        "registers": {
            name: registers.read(register)
            for name, register in (
                ("CC", Register.CC), ("CSTS", Register.CSTS), ("AQA", Register.AQA)
            )
        },
        "health": core.health.state(core.errors),
        "critical_warning": int(core.critical_warning),
        "outstanding": len(core.outstanding),
        "unfinished_media_work": len(core.unfinished),
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
            for nsid, namespace in core.namespaces.items()
        },
    }  # fmt: skip


def _recent(core: Core) -> dict[str, object]:
    return {
        "recent": [
            {"time": one.time, "point": one.point, "qid": one.qid, "cid": one.cid, "what": one.what}
            for one in core.board.trace.recent
        ]
    }
