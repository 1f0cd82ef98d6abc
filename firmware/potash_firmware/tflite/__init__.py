"""TensorFlow Lite on the application processor: models, and the delegate that gives them the VTA.

`runtime` runs a model; `delegate` claims its nodes; `operators` says which and how; `quantization`
is the arithmetic, `capi` the C interface. This package imports nothing by itself: TensorFlow Lite is
loaded by whoever imports `runtime`.
"""
