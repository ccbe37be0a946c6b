"""StableHLO operation -> the rule that lowers it."""

from __future__ import annotations

from collections.abc import Callable

from neuronjax.hlo.graph import Op
from neuronjax.lower.control import collectives, control_flow, host, native_kernels
from neuronjax.lower.epilogue import Epilogue
from neuronjax.lower.index import chosen_product, gather, movement, scatter
from neuronjax.lower.product import attention, block_scaled, convolution, matmul, pair
from neuronjax.lower.reduction import reduce, unpooling, windows
from neuronjax.lower.scope import Scope
from neuronjax.lower.sort import sort, top_k

RULES: dict[str, Callable[[Scope, Op], None]] = {
    **movement.RULES,
    **control_flow.RULES,
    **reduce.RULES,
    **sort.RULES,
    **gather.RULES,
    **scatter.RULES,
    **collectives.RULES,
    **windows.RULES,
    **unpooling.RULES,
    **top_k.RULES,
    **native_kernels.RULES,
    "*": host.lower,
}
"""Operation -> rule; `*` takes what no engine can do."""

EPILOGUES: dict[str, Callable[[Scope, Op, Epilogue], None]] = {
    **matmul.EPILOGUES,
    **chosen_product.EPILOGUES,
    **block_scaled.EPILOGUES,
    **convolution.EPILOGUES,
    **attention.EPILOGUES,
    **pair.EPILOGUES,
}
"""Products, which take element-wise operations on their results along."""
