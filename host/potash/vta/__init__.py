"""Reports of the tensor accelerator's timing model: layers, rooflines, traces."""
