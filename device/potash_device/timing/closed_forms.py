"""What a drive does in its steady state by formulas, which know nothing of the model.

Sources: P. Desnoyers, "Analytic Modeling of SSD Write Performance", SYSTOR 2012; L. Xiang and B. M.
Kurkoski, "An Improved Analytical Expression for Write Amplification in NAND Flash", 2011.
"""

import math


def lambert(x: float) -> float:
    """The principal branch of the W function, where x = W e^W, by Newton's method; for x between
    -1/e and 0."""
    w = -0.5
    for _ in range(100):
        w -= (w * math.exp(w) - x) / (math.exp(w) * (w + 1))
    return w


def fifo_amplification(alpha: float) -> float:
    """Write amplification of random writes where superblocks are collected in the order in which
    they were filled; also for greedy where they are large. `alpha` is physical over logical size,
    above 1."""
    return alpha / (alpha + lambert(-alpha * math.exp(-alpha)))


def greedy_amplification(alpha: float, pages: int) -> float:
    """The same where those with the fewest valid pages are collected, of so many pages each."""
    k = 1 + 1 / (2 * pages)
    x = 0.5 - pages / alpha * lambert(-k * alpha * math.exp(-k * alpha))
    return pages / (pages - (x - 1))


def busy_share(depth: int, dies: int) -> float:
    """Mean share of busy dies where `depth` reads of random dies are in flight, each as long as the
    others."""
    x = depth / dies
    return 1 + x - math.sqrt(1 + x * x)
