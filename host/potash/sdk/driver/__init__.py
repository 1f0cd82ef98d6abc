"""An NVMe driver in user space: a PCI function, its controller, its queues.

It does to a vfio-user device what a virtual machine and the guest's driver in it do together.
"""
