"""What holds for all tests.

No example may fail because the machine was busy. And an interrupt is heard: a shell starts what it
puts in the background with SIGINT ignored, and every process that a test starts would inherit that.
"""

import signal

from hypothesis import settings

settings.register_profile("potash", deadline=None, print_blob=True)
settings.load_profile("potash")

signal.signal(signal.SIGINT, signal.default_int_handler)
