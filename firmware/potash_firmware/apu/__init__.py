"""The application processor: the accelerator subsystem, in a process of its own."""
