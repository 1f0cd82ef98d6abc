"""Our own NVMe driver, in user space: a PCI function, its controller, its queues.

It does to a vfio-user device what a virtual machine and the guest's driver in it do together. It
keeps one command at a time in flight, which is all that a synchronous program can use, and beside it
an Asynchronous Event Request once somebody wants to be told of events.
"""
