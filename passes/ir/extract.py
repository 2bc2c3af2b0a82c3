"""A part of a region as a closed jaxpr of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import jaxprs
from .jaxprs import Literal, Var
from .region import Node, Value


def extract(nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]):
    """The closed jaxpr that computes `outputs` from `inputs` by `nodes` (in program order).

    Args:
        nodes: nodes of one region, each after what it needs.
        inputs: Values that become arguments; equal ones may repeat.
        outputs: Values that become results.

    Returns:
        A closed jaxpr; constants that the nodes read are its constants.

    Raises:
        ValueError: a node reads a value that is none of these.
    """
    env: dict[Value, Any] = {}
    invars = [Var(v.aval) for v in inputs]
    for value, var in zip(inputs, invars):
        env.setdefault(value, var)
    consts: list[tuple[Var, Any]] = []

    def read(atom):
        if type(atom) is Literal:
            return atom
        if atom not in env:
            if atom.node is not None or atom.role[0] != "const":
                raise ValueError(f"{atom} is neither among the inputs nor made by the nodes nor a constant")
            env[atom] = var = Var(atom.aval)
            consts.append((var, atom.role[1]))
        return env[atom]

    eqns, effects = [], set()
    for node in nodes:
        operands = [read(a) for a in node.inputs]
        outvars = [Var(v.aval) for v in node.outputs]
        for value, var in zip(node.outputs, outvars):
            env.setdefault(value, var)  # a bound value that a covered node also makes stays bound
        eqns.append(node.eqn.replace(invars=operands, outvars=outvars))
        effects |= node.eqn.effects
    body = jaxprs.new_jaxpr([v for v, _ in consts], invars, [read(o) for o in outputs], eqns, effects)
    return jaxprs.close(body, [c for _, c in consts])
