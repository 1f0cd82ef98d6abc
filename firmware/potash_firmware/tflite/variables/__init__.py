"""Variables of a model, which keep a tensor from one run to the next: which operators make, read
and set them (`accesses`), and whether they are read as large as they are (`sizes`)."""
