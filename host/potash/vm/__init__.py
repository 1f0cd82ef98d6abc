"""A real machine in front of the drive: stock QEMU, stock Linux, downloaded and built without root.

`images.prepare` downloads QEMU, the kernel and the guest's packages from the Debian archive and
builds the guest's file system; `guest.Guest` runs it and runs commands in it. The modules:

- `cache`: one folder of the user's, filled atomically, keyed by content;
- `packages`: which archive, which packages; checked by apt, unpacked beside the system;
- `kernel`, `rootfs`, `images`: from unpacked packages to what QEMU boots;
- `qemu`, `qmp`, `machine`, `parent_death`, `snapshot`: the virtual machine and its process;
- `frames`, `agent`, `channel`: the stream between host and guest, and its two ends;
- `guest`, `terminal`, `drive`, `progress`: what a user holds;
- `system`: somebody else's system in the guest's place.
"""
