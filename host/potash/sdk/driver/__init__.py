"""An NVMe driver in user space: a PCI function, its controller, its queues.

It does what a virtual machine and its guest's driver do with a vfio-user device.
"""
