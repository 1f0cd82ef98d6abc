"""Linux guests with the drive: stock QEMU, stock Linux, downloaded and built without root.

`images.prepare` downloads QEMU, the kernel and the guest's packages from the Debian archive and
builds the guest's file system; `guest.Guest` runs it and runs commands in it. The modules:

- `cache`: one folder of the user's, filled atomically, keyed by content;
- `packages`: Debian packages, verified by apt and unpacked into the cache;
- `kernel`, `rootfs`, `images`: the files that QEMU boots, made from unpacked packages;
- `qemu`, `qmp`, `machine`, `parent_death`, `snapshot`: the virtual machine and its process;
- `standstill`, `stoppable`, `watch`: stops of guests while the emulation of their drive is late;
- `frames`, `agent`, `channel`: the control channel between host and guest, and its two ends;
- `guest`, `terminal`, `drive`: the guest, its terminal, and its drives;
- `system`: a custom system in the guest's place.
"""
