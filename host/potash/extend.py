"""What extensions of a drive are written with (`potash serve --extend FILE`); docs/extend.md."""

from potash_firmware.extensions import *
