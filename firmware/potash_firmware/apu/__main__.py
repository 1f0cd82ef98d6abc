"""`python -m potash_firmware.apu --parent PID …`: what the board starts as its APU, `main`.

Importing it takes a second, in which its device may end: it must not outlive that even then.
"""

import gc
import sys

from potash_firmware.apu.process import die_with_parent

if __name__ == "__main__":
    if sys.argv[1:2] == ["--parent"]:
        die_with_parent(int(sys.argv[2]))
        del sys.argv[1:3]
    gc.disable()  # what modules make stays
    from potash_firmware.apu.main import main

    gc.freeze()
    gc.enable()
    code = main()
    gc.freeze()  # nor does it have to be looked for when this process ends
    sys.exit(code)
