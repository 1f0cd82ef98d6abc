"""Experiments: a program in the drive against a baseline on the host, with varied parameters.

- `plan`: the file that describes an experiment, and its points;
- `point`: what the experiment's functions get;
- `runs`: a point on its drives, measured;
- `results`: the files that the results become;
- `plot`: a picture of them.
"""

from potash.experiment.point import Point

__all__ = ["Point"]
