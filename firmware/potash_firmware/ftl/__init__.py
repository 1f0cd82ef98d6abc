"""The flash translation layer: where a drive's firmware puts data on flash, and what that takes.

`drive` serves requests, in nanoseconds: it has the state of `state` and the page-mapped FTL of
`page`, which drives the flash (`potash_device.flash`) and asks `policies`. Nothing here reads a
clock or waits, or knows the commands of NVMe, which come to `potash_firmware.rpu.timing`.
"""
