"""Defaults and texts of guests' options, for commands that boot no guest."""

MEMORY = 512
"""Default memory of a guest, in MiB."""
CPUS = 1

STILL_LIMIT = 300
"""Seconds that a stop may last; then the guest continues, even if it is still held."""

MIRROR_VARIABLE = "POTASH_DEBIAN_MIRROR"
MIRROR_HELP = (
    "Debian archive to install the guest from (default: the one that apt is configured with)."
)
"""The help of --debian-mirror."""
