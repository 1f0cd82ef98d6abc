"""The structures that Identify returns, and the numbers by which they are asked for.

NVM Express Base Specification 2.0, section 5.17 (Identify command) and figure 275 (Identify
Controller data structure); NVM Command Set Specification 1.0, section 4.1.5 (Identify Namespace
data structure, I/O command set specific structures).
"""

from enum import IntEnum

from nvme_spec.identify.lists import IDENTIFY_SIZE
from nvme_spec.layout import Structure, bits, raw, table, text, u8, u16, u32, u64, u128, uint, uints

MAX_LBA_FORMATS = 64
MAX_POWER_STATES = 32
MAX_COMBINATIONS = 512


class Cns(IntEnum):
    """Controller or Namespace Structure, CDW10 bits 7:0 (section 5.17.1)."""

    NAMESPACE = 0x00
    CONTROLLER = 0x01
    ACTIVE_NAMESPACE_LIST = 0x02
    NAMESPACE_IDENTIFICATION_DESCRIPTORS = 0x03
    NVM_SET_LIST = 0x04
    COMMAND_SET_NAMESPACE = 0x05
    COMMAND_SET_CONTROLLER = 0x06
    COMMAND_SET_ACTIVE_NAMESPACE_LIST = 0x07
    COMMAND_SET_INDEPENDENT_NAMESPACE = 0x08
    NAMESPACE_USER_DATA_FORMAT = 0x09
    COMMAND_SET_NAMESPACE_USER_DATA_FORMAT = 0x0A
    ALLOCATED_NAMESPACE_LIST = 0x10
    ALLOCATED_NAMESPACE = 0x11
    NAMESPACE_CONTROLLER_LIST = 0x12
    CONTROLLER_LIST = 0x13
    PRIMARY_CONTROLLER_CAPABILITIES = 0x14
    SECONDARY_CONTROLLER_LIST = 0x15
    NAMESPACE_GRANULARITY_LIST = 0x16
    UUID_LIST = 0x17
    DOMAIN_LIST = 0x18
    ENDURANCE_GROUP_LIST = 0x19
    COMMAND_SET_ALLOCATED_NAMESPACE_LIST = 0x1A
    COMMAND_SET_ALLOCATED_NAMESPACE = 0x1B
    COMMAND_SETS = 0x1C
    COMMAND_SET_INDEPENDENT_ALLOCATED_NAMESPACE = 0x1F


class PowerStateDescriptor(Structure):
    """Figure 276, 32 bytes: power in 0.01 W (or 0.0001 W with MXPS), latencies in microseconds."""

    SIZE = 32
    mp = u16(0)
    mxps = bits(3, 1, 0, 0)
    nops = bits(3, 1, 1, 1)
    enlat = u32(4)
    exlat = u32(8)
    rrt = bits(12, 1, 0, 4)
    rrl = bits(13, 1, 0, 4)
    rwt = bits(14, 1, 0, 4)
    rwl = bits(15, 1, 0, 4)
    idlp = u16(16)
    ips = bits(18, 1, 6, 7)
    actp = u16(20)
    apw = bits(22, 1, 0, 2)
    aps = bits(22, 1, 6, 7)


class IdentifyController(Structure):
    """CNS 01h, figure 275."""

    SIZE = IDENTIFY_SIZE
    vid = u16(0)
    ssvid = u16(2)
    sn = text(4, 20)
    mn = text(24, 40)
    fr = text(64, 8)
    rab = u8(72)
    ieee = uint(73, 3)
    cmic = u8(76)
    mdts = u8(77)
    cntlid = u16(78)
    ver = u32(80)
    rtd3r = u32(84)
    rtd3e = u32(88)
    oaes = u32(92)
    ctratt = u32(96)
    rrls = u16(100)
    cntrltype = u8(111)
    fguid = raw(112, 16)
    crdt1 = u16(128)
    crdt2 = u16(130)
    crdt3 = u16(132)
    crcap = u8(134)
    nvmsr = u8(253)
    vwci = u8(254)
    mec = u8(255)
    oacs = u16(256)
    acl_z = u8(258)
    aerl_z = u8(259)
    frmw = u8(260)
    lpa = u8(261)
    elpe_z = u8(262)
    npss_z = u8(263)
    avscc = u8(264)
    apsta = u8(265)
    wctemp = u16(266)
    cctemp = u16(268)
    mtfa = u16(270)
    hmpre = u32(272)
    hmmin = u32(276)
    tnvmcap = u128(280)
    unvmcap = u128(296)
    rpmbs = u32(312)
    edstt = u16(316)
    dsto = u8(318)
    fwug = u8(319)
    kas = u16(320)
    hctma = u16(322)
    mntmt = u16(324)
    mxtmt = u16(326)
    sanicap = u32(328)
    hmminds = u32(332)
    hmmaxd = u16(336)
    nsetidmax = u16(338)
    endgidmax = u16(340)
    anatt = u8(342)
    anacap = u8(343)
    anagrpmax = u32(344)
    nanagrpid = u32(348)
    pels = u32(352)
    domain_identifier = u16(356)
    megcap = u128(368)
    sqes = u8(512)
    cqes = u8(513)
    maxcmd = u16(514)
    nn = u32(516)
    oncs = u16(520)
    fuses = u16(522)
    fna = u8(524)
    vwc = u8(525)
    awun_z = u16(526)
    awupf_z = u16(528)
    icsvscc = u8(530)
    nwpc = u8(531)
    acwu_z = u16(532)
    copy_formats = u16(534)
    sgls = u32(536)
    mnan = u32(540)
    maxdna = u128(544)
    maxcna = u32(560)
    subnqn = text(768, 256, pad=b"\0")
    psd = table(2048, PowerStateDescriptor, MAX_POWER_STATES)
    vs = raw(3072, 1024)


class LbaFormat(Structure):
    """LBA Format (NVM Command Set 1.0, figure 98): a block has 2 ** `lbads` bytes."""

    SIZE = 4
    ms = u16(0)
    lbads = u8(2)
    rp = bits(3, 1, 0, 1)


class IdentifyNamespace(Structure):
    """CNS 00h for the NVM command set (NVM Command Set 1.0, figure 97)."""

    SIZE = IDENTIFY_SIZE
    nsze = u64(0)
    ncap = u64(8)
    nuse = u64(16)
    nsfeat = u8(24)
    nlbaf_z = u8(25)
    format_index = bits(26, 1, 0, 3)
    metadata_extended = bits(26, 1, 4, 4)
    format_index_upper = bits(26, 1, 5, 6)
    mc = u8(27)
    dpc = u8(28)
    dps = u8(29)
    nmic = u8(30)
    rescap = u8(31)
    fpi = u8(32)
    dlfeat = u8(33)
    nawun_z = u16(34)
    nawupf_z = u16(36)
    nacwu_z = u16(38)
    nabsn_z = u16(40)
    nabo = u16(42)
    nabspf_z = u16(44)
    noiob = u16(46)
    nvmcap = u128(48)
    npwg_z = u16(64)
    npwa_z = u16(66)
    npdg_z = u16(68)
    npda_z = u16(70)
    nows_z = u16(72)
    mssrl = u16(74)
    mcl = u32(76)
    msrc_z = u8(80)
    nulbaf = u8(82)
    anagrpid = u32(92)
    nsattr = u8(99)
    nvmsetid = u16(100)
    endgid = u16(102)
    nguid = raw(104, 16)
    eui64 = raw(120, 8)
    lbaf = table(128, LbaFormat, MAX_LBA_FORMATS)
    lbstm = u64(384)
    vs = raw(392, 3704)

    @property
    def block_size(self) -> int:
        """Bytes of a logical block in the current format."""
        index = self.format_index_upper << 4 | self.format_index
        return 1 << self.lbaf[index].lbads


class IndependentNamespace(Structure):
    """CNS 08h and 1Fh: what any command set says of a namespace (Base 2.0, figure 280; 2.2,
    320)."""

    SIZE = IDENTIFY_SIZE
    nsfeat = u8(0)
    nmic = u8(1)
    rescap = u8(2)
    fpi = u8(3)
    anagrpid = u32(4)
    nsattr = u8(8)
    nvmsetid = u16(10)
    endgid = u16(12)
    nstat = u8(14)
    rgrpid = u32(20)


class NvmCommandSetController(Structure):
    """CNS 06h with CSI 00h: size limits of commands (NVM Command Set 1.0, section 4.1.5.4).

    The first four are powers of two in units of the minimum memory page size; 0 is no limit.
    """

    SIZE = IDENTIFY_SIZE
    vsl = u8(0)
    wzsl = u8(1)
    wusl = u8(2)
    dmrl = u8(3)
    dmrsl = u32(4)
    dmsl = u64(8)


class ExtendedLbaFormat(Structure):
    """Extended LBA Format (NVM Command Set 1.0, figure 101): storage tag size, guard."""

    SIZE = 4
    sts = bits(0, 4, 0, 6)
    pif = bits(0, 4, 7, 8)


class NvmCommandSetNamespace(Structure):
    """CNS 05h with CSI 00h (NVM Command Set 1.0, section 4.1.5.3)."""

    SIZE = IDENTIFY_SIZE
    lbstm = u64(0)
    pic = u8(8)
    elbaf = table(12, ExtendedLbaFormat, MAX_LBA_FORMATS)


class CommandSetCombinations(Structure):
    """CNS 1Ch: up to 512 combinations of I/O command sets, each a mask of CSIs; 0 ends the list."""

    SIZE = IDENTIFY_SIZE
    combinations = uints(0, 8, MAX_COMBINATIONS)
