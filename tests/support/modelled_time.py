"""A small drive of flash and a core for tests of modelled time, and when commands of a host
complete."""

from potash_device.cores import CoreProfile, Price, Work
from potash_device.flash.profile import Profile, Rate
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.policies import Policies
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.jobs import JobTime
from potash_firmware.rpu.timing.modelled import ModelledTime, TimeSettings
from support.nvme_host import Host, Queue

PROFILE = Profile(
    channels=2,
    dies=2,
    planes=1,
    blocks=20,
    pages=8,
    page_bytes=4096,
    program_pages=1,
    capacity=1 << 20,
    read_ns=(50_000, 70_000),
    program_ns=(400_000,),
    erase_ns=2_000_000,
    bus=Rate(400, 1000),
    link=Rate(4000, 1000),
    submission_ns=500,
    completion_ns=700,
    cores=1,
    read_command_ns=2000,
    write_command_ns=3000,
    other_command_ns=1000,
    buffer_bytes=64 << 10,
)
"""A MiB: 256 pages on 20 superblocks of 32."""

SECOND = 10**9
CORE = CoreProfile(dispatch_ns=1000, clock_hz=1_000_000_000)
PRICE = Price(CORE)
WORK = Work((5000, 0, 0, 0, 0, 0, 0, 2), helpers=1)
LONG = Work((100 * SECOND,) + (0,) * 7)
"""Of 100 s."""


def modelled(
    profile: Profile = PROFILE, factor: int = 1, policies: Policies | None = None
) -> RpuSettings:
    return RpuSettings(time=TimeSettings(Drive(profile, policies), factor))


def with_core(factor: int = 1) -> TimeSettings:
    """Of the drive and its core."""
    return TimeSettings(Drive(PROFILE), factor, CORE)


def job_time(host: Host) -> JobTime:
    found = host.rpu.controller.job_time
    assert found is not None
    return found


def timing_of(host: Host) -> ModelledTime:
    timing = host.rpu.controller.timing
    assert timing is not None
    return timing


def flash_of(timing: ModelledTime) -> Drive:
    """The drive, which has the built-in flash translation layer."""
    assert isinstance(timing.drive, Drive)
    return timing.drive


def drive_of(host: Host) -> Drive:
    return flash_of(timing_of(host))


def completions(host: Host, *queues: Queue, status: int = 0) -> dict[int, int]:
    """When each command completes, by its identifier, once the media have done what they are asked;
    a nanosecond before it does not."""
    found: dict[int, int] = {}
    while host.executor.waiting:
        host.executor.run_all()
        host.service()
    while (due := host.deadline) is not None:
        host.now = (due - 1) / 1e9
        host.service()
        assert not any(host.reap(queue) for queue in queues)
        host.now = due / 1e9
        host.service()
        done = [one for queue in queues for one in host.reap(queue)]
        assert done
        assert all(one.status == status for one in done)
        found.update(dict.fromkeys((one.cid for one in done), due))
    return found


def model() -> Drive:
    """Another drive, to ask what is expected."""
    return Drive(PROFILE)
