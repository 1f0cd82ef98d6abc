"""Drives of flash without a guest: how long a list of requests would take on a modelled drive.

```python
from potash import timing

drive = timing.drive("tlc")
timing.precondition(drive, fill=1.0, overwrites=2.0)
requests = timing.read_trace(Path("trace.csv"), drive.profile)
completions = drive.run(requests)  # nanoseconds
```
"""

from potash.timing.drives import (
    TimingError,
    closed_loop,
    drive,
    policies,
    precondition,
    profile,
    read_trace,
    restored,
    save,
)
from potash.timing.steady import Window, steady
from potash_device.timing.drive import Drive
from potash_device.timing.policies import Policies, PolicyError, Superblocks
from potash_device.timing.profile import Profile
from potash_device.timing.requests import REQUEST, WORN, Op, RequestError

__all__ = [
    "REQUEST",
    "WORN",
    "Drive",
    "Op",
    "Policies",
    "PolicyError",
    "Profile",
    "RequestError",
    "Superblocks",
    "TimingError",
    "Window",
    "closed_loop",
    "drive",
    "policies",
    "precondition",
    "profile",
    "read_trace",
    "restored",
    "save",
    "steady",
]
