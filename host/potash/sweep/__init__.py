"""Which tensor accelerator for which network: configurations tried on the scheduler and the clock.

- `space`: what is varied, and the cores that this makes;
- `networks`: what they are tried on, as shapes of convolutions and matrix products;
- `workers`: a shape on a core, by this machine's processors or a Dask cluster;
- `points`: what becomes of a core on a network, and which cores are worth what they cost.
"""
