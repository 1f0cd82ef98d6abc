"""Flash of a drive as hardware: what its operations take, and when its parts are free.

`profile` is what a drive is built of, `state` the arrays of its flash, `calendars` reserve the
time of dies, buses and the link, and `array` has the operations: sense, program, erase. They are
pure functions of a state; nothing here reads a clock or waits, or knows where data go, which is
the flash translation layer's decision (`potash_firmware.ftl`).
"""
