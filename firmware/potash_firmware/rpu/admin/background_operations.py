"""Device Self-test and Sanitize, which run in the background.

Source: NVM Express Base Specification 2.0, section 5.9 and 5.24.
"""

from nvme_spec.commands import DeviceSelfTest, Sanitize, SelfTestCode
from nvme_spec.logs import SelfTestResult
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.controller import Controller


def device_self_test(controller: Controller, command: Command) -> Result:
    """Start a test, which goes on after the command, or end the one at hand."""
    fields = DeviceSelfTest.decode(command.entry.cdws)
    tests = controller.self_tests
    if fields.stc == SelfTestCode.ABORT:
        tests.abort(SelfTestResult.ABORTED_BY_COMMAND)
    elif fields.stc in (SelfTestCode.SHORT, SelfTestCode.EXTENDED):
        tests.begin(SelfTestCode(fields.stc), command.entry.nsid)
    else:
        raise NvmeError(Status.INVALID_FIELD, f"self-test {fields.stc:#x} is not there")

    def remember() -> Steps:
        yield tests.save()
        return None

    return controller.tasks.command(remember(), exclusive=False)


def sanitize(controller: Controller, command: Command) -> Result:
    """Start an operation, which goes on after the command, or leave the failure mode."""
    fields = Sanitize.decode(command.entry.cdws)
    return controller.tasks.command(controller.sanitizing.command(fields, command.entry.cdw10))
