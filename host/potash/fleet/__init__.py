"""Fleets: many drives on the workers of a Dask cluster, and programs next to each part of the data.

- `drives`: which drives a fleet has, as a file describes them;
- `cluster`: the way to a Dask cluster, the user's or one within this process;
- `directory`: the files on a drive;
- `datasets`: the files of all drives, and what comes of jobs on them;
- `serving`, `work`: what runs in Dask's workers: drives, and jobs on them;
- `placement`: which worker serves which drive, also when workers die;
- `fleet`: the whole, as a program uses it.

Dask schedules, retries and gathers. A drive is a resource of the worker that serves it, and a job
needs its drive's resource.
"""

from potash.fleet.datasets import Dataset, Result, Totals
from potash.fleet.drives import Drive, FleetFile, read_fleet
from potash.fleet.fleet import Fleet

__all__ = ["Dataset", "Drive", "Fleet", "FleetFile", "Result", "Totals", "read_fleet"]
