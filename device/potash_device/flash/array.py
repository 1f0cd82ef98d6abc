"""Operations of a drive's flash, each of which reserves its dies and buses, and returns its end."""

from potash_device.flash import state
from potash_device.flash.calendars import gap, interrupt, occupy, transfer
from potash_device.flash.errors import retry
from potash_device.flash.state import FlashState
from potash_device.vta.fast.compiling import Flag, Number, inlined, outlined


@inlined
def sense(f: FlashState, where: Number, pages: Number, ready: Number, host: Flag) -> Number:
    """The time at which pages of a row are in the drive's memory."""
    settings = f.settings
    index = where % settings[state.SUPERBLOCK]
    unit, inside = index // settings[state.UNIT_PAGES], index % settings[state.UNIT_PAGES]
    block = where // settings[state.SUPERBLOCK]
    die = die_of(f, block, unit)
    row = (
        unit // settings[state.GROUP_DIES] * settings[state.PROGRAM_PAGES]
        + inside // settings[state.ROW_PAGES]
    )
    times = f.short_read_ns if pages == 1 else f.read_ns
    duration, suspend = times[row % times.size], settings[state.SUSPEND_NS]
    if f.mode[block] == state.SLC:
        duration = settings[state.SLC_READ]
    elif f.rber.size:
        duration += retry(f, block)
    f.reads[block] += 1
    f.counters[state.SENSES] += 1
    if host and suspend >= 0:
        start = max(ready, f.reads_done[die])
        which = settings[state.CHANNELS] + 2 + die
        first, last = f.intervals[which, 0], f.intervals[which, 1]
        at = gap(f.begins[which], f.ends[which], first, last, start, duration)
        if at > first and f.ends[which, at - 1] > start:
            sensed = interrupt(f, die, start, duration)
        else:
            sensed = occupy(f, die, start, duration)
        f.reads_done[die] = sensed
    else:
        sensed = occupy(f, die, ready, duration)
    return transfer(f, die, sensed, pages)


@inlined
def die_of(f: FlashState, block: Number, unit: Number) -> Number:
    """The die of a program unit of a superblock."""
    dies = f.settings[state.GROUP_DIES]
    return f.order[block % f.settings[state.GROUPS] * dies + unit % dies]


@inlined
def in_memory(f: FlashState, where: Number, time: Number) -> Flag:
    return f.programmed[where // f.settings[state.UNIT_PAGES]] > time


@inlined
def program(f: FlashState, block: Number, unit: Number, ready: Number, pages: Number) -> Number:
    """Program a unit of a superblock, whose data are there at `ready`, so many pages over the bus;
    the time at which it is done."""
    settings = f.settings
    die, dies = die_of(f, block, unit), settings[state.GROUP_DIES]
    there = transfer(f, die, ready, pages)
    duration = f.program_ns[unit // dies % f.program_ns.size]
    if f.mode[block] == state.SLC:
        duration = settings[state.SLC_PROGRAM]
        f.counters[state.SLC_PROGRAMS] += 1
    index = block * (settings[state.SUPERBLOCK] // settings[state.UNIT_PAGES]) + unit
    before = f.erased[block] if unit < dies else f.programmed[index - dies]
    done = occupy(f, die, max(there, before), duration)
    f.programmed[index] = done
    if f.born[block] == state.NEVER:
        f.born[block] = done
    f.counters[state.PROGRAMS] += 1
    return done


@inlined
def has_failed(f: FlashState, block: Number, unit: Number) -> Flag:
    """True where the program of a unit has made a superblock grow bad."""
    units = f.settings[state.SUPERBLOCK] // f.settings[state.UNIT_PAGES]
    return f.erases[block] * units + unit >= f.failing[block]


@outlined
def erase(f: FlashState, block: Number, ready: Number) -> None:
    """Erase a superblock, after all else that its dies do; `erased` has the time of the end. Its
    cells may then get another mode. A bad one is not erased, but given up."""
    settings = f.settings
    duration = settings[state.SLC_ERASE if f.mode[block] == state.SLC else state.ERASE_NS]
    for unit in range(settings[state.GROUP_DIES] * (1 - f.bad[block])):
        die = die_of(f, block, unit)
        end = occupy(f, die, max(ready, f.last[die]), duration)
        f.erased[block] = max(f.erased[block], end)
    units = settings[state.SUPERBLOCK] // settings[state.UNIT_PAGES]
    f.programmed[block * units : (block + 1) * units] = state.NEVER
    f.mode[block] = state.NATIVE
    f.born[block] = state.NEVER
    f.reads[block] = 0
    f.erases[block] += 1 - f.bad[block]
    f.counters[state.ERASED] += 1 - f.bad[block]
