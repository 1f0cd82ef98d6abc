"""Creating and deleting I/O queues, and Doorbell Buffer Config.

Source: NVM Express Base Specification 2.0, section 5.4 to 5.8.
"""

from nvme_spec.commands import CreateIoCompletionQueue, CreateIoSubmissionQueue, DeleteIoQueue
from nvme_spec.status import NvmeError, Status
from potash_device.board import MAX_QUEUE_ENTRIES
from potash_device.controller.dma import PAGE_SIZE, transfer_error
from potash_device.controller.queues import CompletionQueue, Interrupt, SubmissionQueue
from potash_device.controller.shadow import ShadowDoorbells
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.scheduler import Wait, never
from pyvfio_user.memory import AccessFault


def create_completion(controller: Controller, command: Command) -> Result:
    fields = CreateIoCompletionQueue.decode(command.entry.cdws)
    queues = controller.board.queues
    _require_free(controller, fields.qid, fields.qid in queues.completions)
    _require_memory(command, fields.qsize_z, fields.pc)
    if fields.iv >= controller.board.interrupts.vectors:
        raise NvmeError(
            Status.INVALID_INTERRUPT_VECTOR,
            f"there are {controller.board.interrupts.vectors} interrupt vectors",
        )
    queue = CompletionQueue(
        controller.board.dma,
        fields.qid,
        command.entry.prp1,
        fields.qsize_z + 1,
        Interrupt(fields.iv, fields.ien),
    )
    try:
        queues.add_completion(queue)
    except AccessFault as fault:
        raise transfer_error(fault, dnr=True) from None
    return None


def create_submission(controller: Controller, command: Command) -> Result:
    fields = CreateIoSubmissionQueue.decode(command.entry.cdws)
    queues = controller.board.queues
    _require_free(controller, fields.qid, fields.qid in queues.submissions)
    if not 1 <= fields.cqid <= controller.board.settings.queue_pairs:
        raise NvmeError(
            Status.INVALID_QUEUE_IDENTIFIER,
            f"{fields.cqid} is no I/O completion queue's identifier",
        )
    completions = queues.completions.get(fields.cqid)
    if completions is None:
        raise NvmeError(
            Status.COMPLETION_QUEUE_INVALID, f"there is no completion queue {fields.cqid}"
        )
    _require_memory(command, fields.qsize_z, fields.pc)
    queue = SubmissionQueue(
        controller.board.dma, fields.qid, command.entry.prp1, fields.qsize_z + 1, completions
    )
    try:
        queues.add_submission(queue)
    except AccessFault as fault:
        raise transfer_error(fault, dnr=True) from None
    return None


def delete_submission(controller: Controller, command: Command) -> Steps:
    """Delete I/O Submission Queue: its commands are aborted, or end before it where they must."""
    qid = DeleteIoQueue.decode(command.entry.cdws).qid
    queue = controller.board.queues.submissions.get(qid)
    if qid == 0 or queue is None or queue.closed:
        raise _no_queue(qid)
    queue.closed = True
    # What one of them has ended may begin something else, so this asks again.
    while begun := controller.outstanding.abort_queue(qid):
        yield Wait(begun, never)
    controller.board.queues.remove_submission(qid)
    return None


def delete_completion(controller: Controller, command: Command) -> Result:
    """Delete I/O Completion Queue, which no submission queue may use any more."""
    qid = DeleteIoQueue.decode(command.entry.cdws).qid
    queue = controller.board.queues.completions.get(qid)
    if qid == 0 or queue is None:
        raise _no_queue(qid)
    if queue.submission_queues:
        raise NvmeError(
            Status.INVALID_QUEUE_DELETION,
            f"{queue.submission_queues} submission queues use completion queue {qid}",
        )
    del controller.board.queues.completions[qid]
    return None


def doorbell_buffer_config(controller: Controller, command: Command) -> Result:
    """Follow the doorbells in the page at PRP1; leave event indexes in the page at PRP2."""
    shadow, event_index = command.entry.prp1, command.entry.prp2
    if shadow % PAGE_SIZE or event_index % PAGE_SIZE:
        raise NvmeError(Status.INVALID_FIELD, "a doorbell buffer does not start on a page")
    try:
        controller.board.queues.use_shadow(
            ShadowDoorbells(controller.board.dma, shadow, event_index)
        )
    except AccessFault as fault:
        raise transfer_error(fault, dnr=True) from None
    return None


def _require_free(controller: Controller, qid: int, taken: bool) -> None:
    if not 1 <= qid <= controller.board.settings.queue_pairs or taken:
        raise NvmeError(
            Status.INVALID_QUEUE_IDENTIFIER, f"queue identifier {qid} is taken or too large"
        )


def _require_memory(command: Command, qsize_z: int, contiguous: bool) -> None:
    """Raise NvmeError for queues that CAP excludes: they have at least 2 entries, at most MQES, and
    are contiguous (CAP.CQR)."""
    if not 1 <= qsize_z < MAX_QUEUE_ENTRIES:
        raise NvmeError(Status.INVALID_QUEUE_SIZE, f"a queue of {qsize_z + 1} entries")
    if not contiguous:
        raise NvmeError(Status.INVALID_FIELD, "queues must be physically contiguous")
    if command.entry.prp1 % PAGE_SIZE:
        raise NvmeError(Status.INVALID_PRP_OFFSET, "a queue does not start on a page")


def _no_queue(qid: int) -> NvmeError:
    return NvmeError(Status.INVALID_QUEUE_IDENTIFIER, f"there is no I/O queue {qid}")
