"""Variables of a model, which keep a tensor from one run to the next: which operators make, read
and set them, and whether they are read as large as they are (`accesses`), which of them the
accelerator can keep (`plan`), and what a delegate makes of these (`claims`)."""
