"""TensorFlow Lite on the application processor: models, and the delegate that runs them on the VTA.

`runtime` runs a model; `delegate` claims its nodes; `operators` lowers them, and `partition` makes
streams of them; `quantization` is the arithmetic, `capi` the C interface. This package itself
imports nothing: importing `runtime` loads TensorFlow Lite.
"""

OPERATOR_GROUP = "potash.operators"
"""The entry points of operators that other packages add (`operators.added`)."""
