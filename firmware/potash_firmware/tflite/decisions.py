"""The delegate's decision about a node, as commands report it."""

from typing import Annotated, Literal, NamedTuple

from csd_spec.reporting import Count, Positive


class NodeReport(NamedTuple):
    """A node of a model."""

    graph: Annotated[Count, "Number of the node's subgraph."]
    node: Annotated[Count, "Number of the node in the subgraph."]
    operator: Annotated[str, "The operator, by TensorFlow Lite's name."]
    version: Annotated[Positive, "The operator's version."]
    on: Annotated[Literal["vta", "cpu"], "The target that runs the node."]
    reason: Annotated[str | None, "The reason why the VTA does not run it; null if it does."]

    @property
    def claimed(self) -> bool:
        """True if the VTA runs the node."""
        return self.on == "vta"
