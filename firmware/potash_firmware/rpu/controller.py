"""The whole controller: what the firmware knows, and what goes on in it by itself.

That is what it keeps over power cycles, the operations that take long (self-tests, sanitizing), and
what it says of itself when something has gone wrong.
"""

from collections.abc import Callable

from nvme_spec.logs import NoticeEvent
from nvme_spec.persistent_events import HardwareError, HardwareErrorCode, PowerOnOrReset
from potash_device.board import Board
from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.core import CommandSupport, Core
from potash_firmware.rpu.features.persistence import Keeper
from potash_firmware.rpu.logs.telemetry import Telemetry
from potash_firmware.rpu.logs.telemetry_areas import areas
from potash_firmware.rpu.operations.sanitize import Sanitizing
from potash_firmware.rpu.operations.self_test import SelfTests
from potash_firmware.rpu.settings import RpuSettings


class Controller(Core):
    """One NVMe controller, as the handlers of commands get it."""

    def __init__(
        self,
        board: Board,
        settings: RpuSettings,
        apu: ApuLink,
        support: CommandSupport,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(board, settings, apu, support, clock)
        self.telemetry = Telemetry(board.sidecar, lambda: areas(self))
        self.keeper = Keeper(board.sidecar, board.executor, self, self.telemetry, self.began, clock)
        self.persistent_events.on_add = self.keeper.hurry
        self.self_tests = SelfTests(self, clock)
        self.sanitizing = Sanitizing(self, self.self_tests)
        self._news = True
        """There was a reset, or power has come, since the controller was last ready."""
        self._activated = False

    def reset(self, *, next_host: bool) -> None:
        """As `Core.reset`, and what a reset means to what goes on."""
        before = self.firmware.active
        super().reset(next_host=next_host)
        if next_host:
            self.telemetry.forget_host()
        self.self_tests.reset()
        self._news = True
        self._activated |= self.firmware.active != before

    def began(self) -> None:
        """Power has come, or a reset is over: an event, but for the first use after power came."""
        if self._news:
            self.persistent_events.add(
                PowerOnOrReset(
                    revision=self.firmware.revision,
                    firmware_activation=self._activated,
                    power_cycle=self.health.power_cycles,
                    power_on_milliseconds=self.health.power_on_seconds * 1000,
                    timestamp=self.timestamp(),
                )
            )
        self._news = self._activated = False

    def internal_fault(self, reason: str) -> None:
        """The firmware has gone wrong: keep what it was at, for whoever looks for the mistake."""
        if self.telemetry.capture(reason):
            self.keeper.hurry()
            self.alerts.notice(NoticeEvent.TELEMETRY_LOG_CHANGED)

    def failed(self) -> None:
        """Controller fatal status."""
        self.persistent_events.add(HardwareError(code=HardwareErrorCode.CONTROLLER_FATAL_STATUS))
        self.internal_fault("controller fatal status")
