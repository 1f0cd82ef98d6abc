"""The controller's registers: where they are, who may write what, and what their bits mean.

NVM Express Base Specification 2.0, section 3.1.3 (Controller Properties); NVM Express over PCIe
Transport Specification 1.0, section 3.1.2 (doorbells).
"""

from enum import Enum, IntEnum, IntFlag

from nvme_spec.words import Word, field

DOORBELL_BASE = 0x1000
DOORBELL_WIDTH = 4

VERSION_2_0 = 0x0002_0000
"""VS and Identify's VER: major in 31:16, minor in 15:8, tertiary in 7:0."""
SUBSYSTEM_RESET_KEY = 0x4E56_4D65
""" "NVMe": what written to NSSR.NSSRC resets the NVM subsystem."""

TIMEOUT_UNIT = 0.5
"""Seconds in one unit of CAP.TO."""
MINIMUM_PAGE_SHIFT = 12
"""CC.MPS, CAP.MPSMIN and CAP.MPSMAX: a page has 2 ** (12 + MPS) bytes."""

_BITS_32 = 0xFFFF_FFFF
_PAGE_ADDRESS = 0xFFFF_FFFF_FFFF_F000


class Access(Enum):
    """Effect of a host's write on the bits of a register that are accessible to it."""

    RO = "read only"
    RW = "read and write"
    RW1S = "read; writing 1 sets"
    RW1C = "read; writing 1 clears"
    WO = "written; reads as zero"


class Register(Enum):
    """Every register before the doorbells: offset, width in bytes, access, accessible bits, reset.

    Bits outside `mask` are read only for the host. A reset value of 0 also stands for "defined by
    the implementation", which fills in the read only ones.
    """

    def __init__(self, offset: int, width: int, access: Access, mask: int = 0, reset: int = 0):
        self.offset = offset
        self.width = width
        self.access = access
        self.mask = mask
        self.reset = reset

    CAP = (0x00, 8, Access.RO)
    VS = (0x08, 4, Access.RO, 0, VERSION_2_0)
    INTMS = (0x0C, 4, Access.RW1S, _BITS_32)
    INTMC = (0x10, 4, Access.RW1C, _BITS_32)
    CC = (0x14, 4, Access.RW, 0x01FF_FFF1)
    CSTS = (0x1C, 4, Access.RW1C, 0x0000_0010)
    NSSR = (0x20, 4, Access.WO, _BITS_32)
    AQA = (0x24, 4, Access.RW, 0x0FFF_0FFF)
    ASQ = (0x28, 8, Access.RW, _PAGE_ADDRESS)
    ACQ = (0x30, 8, Access.RW, _PAGE_ADDRESS)
    CMBLOC = (0x38, 4, Access.RO)
    CMBSZ = (0x3C, 4, Access.RO)
    BPINFO = (0x40, 4, Access.RO)
    BPRSEL = (0x44, 4, Access.RW, 0xBFFF_FFFF)
    BPMBL = (0x48, 8, Access.RW, _PAGE_ADDRESS)
    CMBMSC = (0x50, 8, Access.RW, 0xFFFF_FFFF_FFFF_F003)
    CMBSTS = (0x58, 4, Access.RO)
    CMBEBS = (0x5C, 4, Access.RO)
    CMBSWTP = (0x60, 4, Access.RO)
    NSSD = (0x64, 4, Access.RW, _BITS_32)
    CRTO = (0x68, 4, Access.RO)
    PMRCAP = (0xE00, 4, Access.RO)
    PMRCTL = (0xE04, 4, Access.RW, 0x0000_0001)
    PMRSTS = (0xE08, 4, Access.RO)
    PMREBS = (0xE0C, 4, Access.RO)
    PMRSWTP = (0xE10, 4, Access.RO)
    PMRMSCL = (0xE14, 4, Access.RW, 0xFFFF_F002)
    PMRMSCU = (0xE18, 4, Access.RW, _BITS_32)


_BY_DWORD = {
    dword: register
    for register in Register
    for dword in range(register.offset, register.offset + register.width, 4)
}


def register_at(offset: int) -> Register | None:
    """The register that owns the dword at byte `offset`; None for a reserved one."""
    return _BY_DWORD.get(offset & ~3)


def doorbell_offset(qid: int, completion: bool, dstrd: int = 0) -> int:
    """Byte offset of a queue's tail (submission) or head (`completion`) doorbell."""
    return DOORBELL_BASE + (2 * qid + completion) * (DOORBELL_WIDTH << dstrd)


class CommandSets(IntFlag):
    """CAP.CSS (section 3.1.3.1)."""

    NVM = 1 << 0
    IO_COMMAND_SETS = 1 << 6
    ADMIN_ONLY = 1 << 7


class CommandSetSelected(IntEnum):
    """CC.CSS (section 3.1.3.5)."""

    NVM = 0
    ALL_SUPPORTED = 6
    ADMIN_ONLY = 7


class ShutdownNotification(IntEnum):
    """CC.SHN (section 3.1.3.5)."""

    NONE = 0
    NORMAL = 1
    ABRUPT = 2


class ShutdownStatus(IntEnum):
    """CSTS.SHST (section 3.1.3.6)."""

    NORMAL_OPERATION = 0
    OCCURRING = 1
    COMPLETE = 2


class Capabilities(Word):
    """CAP, section 3.1.3.1. MQES is 0's based; TO counts `TIMEOUT_UNIT`s."""

    WIDTH = 8
    mqes_z = field(0, 15)
    cqr = field(16)
    ams = field(17, 18)
    to = field(24, 31)
    dstrd = field(32, 35)
    nssrs = field(36)
    css = field(37, 44)
    bps = field(45)
    cps = field(46, 47)
    mpsmin = field(48, 51)
    mpsmax = field(52, 55)
    pmrs = field(56)
    cmbs = field(57)
    nsss = field(58)
    crms = field(59, 60)


class ControllerConfiguration(Word):
    """CC, section 3.1.3.5."""

    en = field(0)
    css = field(4, 6)
    mps = field(7, 10)
    ams = field(11, 13)
    shn = field(14, 15)
    iosqes = field(16, 19)
    iocqes = field(20, 23)
    crime = field(24)


class ControllerStatus(Word):
    """CSTS, section 3.1.3.6."""

    rdy = field(0)
    cfs = field(1)
    shst = field(2, 3)
    nssro = field(4)
    pp = field(5)
    st = field(6)


class CmbUse(IntFlag):
    """Permitted contents of the controller memory buffer: bits 4:0 of CMBSZ (section 3.1.3.12)."""

    SQS = 1 << 0
    """Submission queues."""
    CQS = 1 << 1
    """Completion queues."""
    LISTS = 1 << 2
    """PRP lists and SGL segments."""
    RDS = 1 << 3
    """Data of commands that transfer it from the controller to the host."""
    WDS = 1 << 4
    """Data of commands that transfer it from the host to the controller."""


class CmbLocation(Word):
    """CMBLOC, section 3.1.3.11. OFST counts CMBSZ's units."""

    bir = field(0, 2)
    cqmms = field(3)
    cqpds = field(4)
    cdpmls = field(5)
    cdpcils = field(6)
    cdmmms = field(7)
    cqda = field(8)
    ofst = field(12, 31)


class CmbSize(Word):
    """CMBSZ, section 3.1.3.12. SZ counts units of 4 KiB << 4 * SZU; `uses` is a `CmbUse`."""

    uses = field(0, 4)
    szu = field(8, 11)
    sz = field(12, 31)


class CmbMemorySpaceControl(Word):
    """CMBMSC, section 3.1.3.16. CBA has the upper 52 bits of the address."""

    WIDTH = 8
    cre = field(0)
    cmse = field(1)
    cba = field(12, 63)


class CmbStatus(Word):
    """CMBSTS, section 3.1.3.17."""

    cbai = field(0)


class AdminQueueAttributes(Word):
    """AQA, section 3.1.3.8. Both sizes are 0's based."""

    asqs_z = field(0, 11)
    acqs_z = field(16, 27)
