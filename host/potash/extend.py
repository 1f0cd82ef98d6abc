"""Interface for extensions of a drive (`potash serve --extend FILE`); see docs/extend.md."""

from potash_firmware.extensions import *
