"""The log page on modelled time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from csd_spec.timing import TimingLog

if TYPE_CHECKING:  # it takes NumPy
    from potash_firmware.rpu.timing.modelled import ModelledTime


def timing_log(timing: ModelledTime) -> TimingLog:
    """Lateness, frozen time, and the modelled flash."""
    drive, lateness, profile = timing.drive, timing.lateness, timing.drive.profile
    erases = drive.spread
    return TimingLog(
        modelled=1,
        factor=timing.factor,
        guest_ns=timing.clock.now(),
        frozen_ns=timing.clock.behind,
        commands=lateness.count,
        late_ns=lateness.total,
        late_p50_ns=lateness.percentile(0.5),
        late_p99_ns=lateness.percentile(0.99),
        late_most_ns=lateness.largest,
        **drive.counters._asdict(),
        dies=profile.total_dies,
        channels=profile.channels,
        cores=profile.cores,
        **drive.wear._asdict(),
        superblocks=profile.superblocks,
        erases=erases.total,
        erases_least=erases.min,
        erases_p50=erases.p50,
        erases_p90=erases.p90,
        erases_p99=erases.p99,
        erases_most=erases.max,
        executions=timing.executions,
        execution_ns=timing.execution_ns,
    )
