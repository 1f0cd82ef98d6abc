"""Windows on images along one axis: how many there are, and their padding.

Source: `ComputeOutSize` and `ComputePaddingWithOffset` of `tflite/kernels/padding.h`.
"""


def count(extent: int, size: int, stride: int, dilation: int = 1, *, same: bool) -> int:
    """Number of windows of `size` taps on an axis of `extent` pixels, with the padding SAME or
    VALID; below 1 if a window of VALID is larger than the image."""
    return -(-extent // stride) if same else (extent - reach(size, dilation)) // stride + 1


def same_padding(extent: int, size: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Pixels before and after an axis for SAME: as many as its windows need, an odd one after."""
    windows = count(extent, size, stride, same=True)
    total = max((windows - 1) * stride + reach(size, dilation) - extent, 0)
    return total // 2, total - total // 2


def reach(size: int, dilation: int) -> int:
    """Pixels from a window's first tap to its last one."""
    return (size - 1) * dilation + 1
