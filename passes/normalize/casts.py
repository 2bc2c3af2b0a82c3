"""View `casts`: float -> float conversions. What they round is judged by the proof, never assumed away."""

from __future__ import annotations

import jax.numpy as jnp

from ..ir.region import Node
from .cursor import Cursor, peels


@peels("casts", "convert_element_type")
def _float_cast(cursor: Cursor, node: Node) -> Cursor | None:
    old, new = node.inputs[0].aval.dtype, node.params["new_dtype"]
    if old == new or (jnp.issubdtype(old, jnp.floating) and jnp.issubdtype(new, jnp.floating)):
        return cursor.at(node.inputs[0], cursor.index)
    return None
