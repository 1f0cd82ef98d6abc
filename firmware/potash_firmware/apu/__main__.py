"""`python -m potash_firmware.apu --parent PID …`: what the board starts as its APU, `main`.

Importing it takes a second. If its device ends meanwhile, this process ends, too.
"""

import gc
import sys

from potash_firmware.apu.process import die_with_parent

if __name__ == "__main__":
    if sys.argv[1:2] == ["--parent"]:
        die_with_parent(int(sys.argv[2]))
        del sys.argv[1:3]
    gc.disable()  # what modules create is never released
    from potash_firmware.apu.main import main

    gc.freeze()
    gc.enable()
    code = main()
    gc.freeze()  # no garbage has to be found when this process ends
    sys.exit(code)
