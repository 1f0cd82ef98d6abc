"""A model of reservations on one namespace, and commands for them by literal numbers.

Written from NVM Express Base Specification 2.0, section 8.19, and its figures of the behaviour of
commands; from the NVM Command Set Specification 1.0, figure 136; the Zoned Namespace Command Set
Specification 1.1, figure 52; and the Key Value Command Set Specification 1.0d, figure 42.
"""

import struct
from dataclasses import dataclass, field
from typing import Any

from support.nvme_host import DATA, Cqe, Host

REGISTER, REPORT, ACQUIRE, RELEASE = 0x0D, 0x0E, 0x11, 0x15
SUCCESS, INVALID_FIELD, INCONSISTENT, PREEMPT_ABORTED, CONFLICT = 0, 0x02, 0x18, 0x1B, 0x83
REGISTRATION_PREEMPTED, RESERVATION_RELEASED, RESERVATION_PREEMPTED = 1, 2, 3

TYPES = {
    0: "none",
    1: "write exclusive",
    2: "exclusive access",
    3: "write exclusive, registrants only",
    4: "exclusive access, registrants only",
    5: "write exclusive, all registrants",
    6: "exclusive access, all registrants",
}
BEHAVIOUR = {
    # Columns: a host that is not a registrant, a registrant that does not hold it, a holder.
    # A is allowed, C is a conflict.
    ("read", "write exclusive"): "AAA",
    ("read", "exclusive access"): "CCA",
    ("read", "write exclusive, registrants only"): "AAA",
    ("read", "exclusive access, registrants only"): "CAA",
    ("read", "write exclusive, all registrants"): "A-A",
    ("read", "exclusive access, all registrants"): "C-A",
    ("write", "write exclusive"): "CCA",
    ("write", "exclusive access"): "CCA",
    ("write", "write exclusive, registrants only"): "CAA",
    ("write", "exclusive access, registrants only"): "CAA",
    ("write", "write exclusive, all registrants"): "C-A",
    ("write", "exclusive access, all registrants"): "C-A",
}

IO_KINDS: dict[int, dict[str, tuple[int, ...]]] = {
    0: {
        "read": (0x02, 0x05, 0x0C),
        "write": (0x00, 0x01, 0x04, 0x08, 0x09, 0x19),
        "other": (0x0E,),
    },
    1: {"read": (0x02,), "write": (0x00, 0x01, 0x10), "other": (0x06, 0x14, 0x0E)},
    2: {
        "read": (0x02, 0x05, 0x0C, 0x7A),
        "write": (0x00, 0x01, 0x04, 0x08, 0x09, 0x19, 0x79, 0x7D),
        "other": (0x0E,),
    },
}
"""The opcodes of I/O commands by kind, for each command set."""
ADMIN_KINDS: dict[str, tuple[int, ...]] = {
    "write": (0x0D, 0x15, 0x80, 0x84),
    "other": (0x02, 0x06, 0x09, 0x0A, 0x14, 0x86),
}
"""Namespace Management (here: delete) and Attachment, Format NVM and Sanitize; and others."""


@dataclass
class ReservationModel:
    """Registrants by host, with their keys; hosts are numbers."""

    keys: dict[int, int] = field(default_factory=dict)
    type: int = 0
    owner: int | None = None
    generation: int = 0
    persists: int = 0
    told: dict[int, list[int]] = field(default_factory=dict)
    """The notifications of each host, in their order."""

    def holders(self) -> list[int]:
        if TYPES[self.type].endswith("all registrants"):
            return [*self.keys]
        return [] if self.owner is None else [self.owner]

    def conflicts(self, host: int, kind: str) -> bool:
        if kind == "other" or not self.type:
            return False
        column = 2 if host in self.holders() else 1 if host in self.keys else 0
        return BEHAVIOUR[kind, TYPES[self.type]][column] == "C"

    def _end(self) -> None:
        self.type, self.owner = 0, None

    def _hold(self, host: int, rtype: int) -> None:
        self.type = rtype
        self.owner = None if TYPES[rtype].endswith("all registrants") else host

    def _tell(self, hosts: Any, what: int, but: int) -> None:
        for host in hosts:
            if host != but:
                self.told.setdefault(host, []).append(what)

    def _drop(self, host: int) -> None:
        last = self.holders() == [host]
        del self.keys[host]
        if last:
            self._end()

    def register(
        self, host: int, action: int, old: int, new: int, ignore: int = 0, persistence: int = 0
    ) -> int:
        if action > 2 or persistence == 1:
            return INVALID_FIELD
        own = self.keys.get(host)
        if action == 0:
            if own is not None and own != new:
                return CONFLICT
            self.keys[host] = new
        else:
            if not ignore and (own is None or own != old):
                return CONFLICT
            if action == 2:
                self.keys[host] = new
            elif own is not None:
                before = self.type
                self._drop(host)
                if before in (3, 4) and not self.type:
                    self._tell(self.keys, RESERVATION_RELEASED, host)
        self.generation += 1
        if persistence:
            self.persists = persistence - 2
        return SUCCESS

    def acquire(self, host: int, action: int, own: int, other: int, rtype: int) -> int:
        if action > 2 or not 1 <= rtype <= 6:
            return INVALID_FIELD
        if self.keys.get(host) != own:
            return CONFLICT
        if action == 0:
            if not self.type:
                self._hold(host, rtype)
            elif host not in self.holders() or self.type != rtype:
                return CONFLICT
            return SUCCESS
        victims = [each for each, key in self.keys.items() if key == other]
        before, everybody = self.type, self.owner is None and self.type
        replaces = False
        if everybody:
            if other == 0:
                victims, replaces = [*self.keys], True
            elif not victims:
                return CONFLICT
        elif self.type and self.keys[self.holders()[0]] == other:
            replaces = True
        elif self.type and other == 0:
            return INVALID_FIELD
        for victim in victims:
            if not (replaces and victim == host):
                self._drop(victim)
        self._tell(victims, REGISTRATION_PREEMPTED, host)
        if replaces:
            self._hold(host, rtype)
            if before != rtype:
                self._tell(self.keys, RESERVATION_RELEASED, host)
        self.generation += 1
        return SUCCESS

    def release(self, host: int, action: int, own: int, rtype: int) -> int:
        if action > 1:
            return INVALID_FIELD
        if self.keys.get(host) != own:
            return CONFLICT
        if action == 1:
            self._tell(self.keys, RESERVATION_PREEMPTED, host)
            self.keys.clear()
            self._end()
            self.generation += 1
        elif host in self.holders():
            if rtype != self.type:
                return INVALID_FIELD
            if self.type > 2:
                self._tell(self.keys, RESERVATION_RELEASED, host)
            self._end()
        return SUCCESS

    def power_loss(self) -> None:
        """Forget what does not persist."""
        if not self.persists:
            self.keys.clear()
            self._end()
            self.generation = 0


# Commands.


def register(
    host: Host,
    action: int,
    old: int = 0,
    new: int = 0,
    ignore: int = 0,
    persistence: int = 0,
    nsid: int = 1,
) -> int:
    host.put(struct.pack("<QQ", old, new))
    cdw10 = action | ignore << 3 | persistence << 30
    return _command(host, REGISTER, nsid, cdw10).status


def acquire(
    host: Host,
    action: int,
    own: int,
    other: int = 0,
    rtype: int = 1,
    ignore: int = 0,
    nsid: int = 1,
) -> int:
    host.put(struct.pack("<QQ", own, other))
    return _command(host, ACQUIRE, nsid, action | ignore << 3 | rtype << 8).status


def release(
    host: Host, action: int, own: int, rtype: int = 1, ignore: int = 0, nsid: int = 1
) -> int:
    host.put(struct.pack("<Q", own))
    return _command(host, RELEASE, nsid, action | ignore << 3 | rtype << 8).status


def _command(host: Host, opcode: int, nsid: int, *cdws: int) -> Cqe:
    return host.command(host.io[1], opcode, nsid=nsid, cdws=cdws)


@dataclass
class Report:
    """The Reservation Status data structure: `listed` are controller, status, host and key."""

    generation: int
    type: int
    persists: int
    listed: list[tuple[int, int, bytes, int]]


def report(host: Host, extended: int = 0, nsid: int = 1, size: int = 4096) -> Report | int:
    """The decoded structure, or the status of a command that fails."""
    host.clear(DATA, 4096)
    done = _command(host, REPORT, nsid, size // 4 - 1, extended)
    if done.status:
        return done.status
    data = host.data(4096)
    generation, rtype, count, persists = struct.unpack_from("<IBHxxB", data)
    at, listed = (64, []) if extended else (24, [])
    for _ in range(count):
        if extended:
            cntlid, status, key, hostid = struct.unpack_from("<HB5xQ16s", data, at)
        else:
            cntlid, status, hostid, key = struct.unpack_from("<HB5x8sQ", data, at)
        listed.append((cntlid, status, hostid, key))
        at += 64 if extended else 24
    return Report(generation, rtype, persists, listed)


def set_host(host: Host, identifier: bytes) -> int:
    """Set Features, Host Identifier, of 8 or 16 bytes."""
    host.put(identifier)
    extended = len(identifier) == 16
    return host.command(host.admin, 0x09, cdws=(0x81, int(extended))).status


def become(host: Host, identifier: bytes | None) -> None:
    """Have another host use the controller, after a reset; None sets no identifier."""
    host.disable()
    host.enable()
    if identifier is not None:
        assert set_host(host, identifier) == 0
    host.create_io_queue()
