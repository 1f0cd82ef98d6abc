"""Comparison of tensor accelerators for networks, by the scheduler and the timing model.

- `space`: the varied parameters, and the cores that result;
- `networks`: the networks, as shapes of convolutions and matrix products;
- `points`: the results of a core on a network, for which `fleet.workers` time its shapes, and the
  cores that are worth their costs.
"""
