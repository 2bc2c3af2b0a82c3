"""Certificates of nodes, kept while programs are written as jaxprs and read again: by the variables that nodes make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .jaxprs import Var
from .region import Program
from .walk import walk

Certificates = Mapping[Var, Any]  # first result of an equation -> certificate of the rewrite that put it there


def certificates_in(program: Program) -> dict[Var, Any]:
    """The certificates of a program's live nodes. Emit it first: new nodes have their variables from then on."""
    out = {}
    for region in program.regions():
        for node in region.nodes if region.changed or program.certified else ():
            if node.live and node.certificate is not None:
                out.update({v.var: node.certificate for v in node.outputs if v.var is not None})
    return out


def certify(program: Program, certificates: Certificates) -> None:
    """Hand certificates back to the nodes of a program that was read from a jaxpr."""
    program.certified = bool(certificates)
    if not certificates:
        return
    for node in walk(program.root):
        for var in node.eqn.outvars:
            found = certificates.get(var)
            if found is not None:
                node.certificate = found
                break
