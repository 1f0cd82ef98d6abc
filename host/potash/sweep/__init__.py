"""Comparison of tensor accelerators for networks, by the scheduler and the timing model.

- `space`: the varied parameters, and the cores that result;
- `networks`: the networks, as shapes of convolutions and matrix products;
- `tasks`: a shape on a core, which `fleet.workers` carry out;
- `points`: the results of a core on a network, and the cores that are worth their costs.
"""
