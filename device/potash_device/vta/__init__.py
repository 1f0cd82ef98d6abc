"""The tensor accelerator: configuration, instructions, simulator and registers.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning" (Moreau et al., 2018); the encoding
and the constants are those of the VTA project's `hw_spec.h`. docs/vta.md is the guide.
"""
