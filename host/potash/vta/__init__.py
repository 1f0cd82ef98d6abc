"""What is known of the tensor accelerator's clock, for people: layers, rooflines, traces."""
