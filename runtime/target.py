"""Target: the hardware a program is lowered for."""

from __future__ import annotations

import re
from dataclasses import dataclass

import jax

from jaxsplice.passes.errors import JaxspliceError, no_such

# name -> platform as JAX's lowering names it
PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "rocm": "rocm", "tpu7x": "tpu", "v6e": "tpu", "v5p": "tpu", "v5e": "tpu"}
_TOPOLOGY = re.compile(r"\d+(x\d+){1,2}")


@dataclass(frozen=True)
class Target:
    """Hardware by name, with an optional topology of chips.

    Args:
        name: "cpu", "gpu", "rocm", "tpu7x", "v6e", "v5p" or "v5e".
        topology: as in "2x2x1"; empty when it does not matter.

    Example:
        >>> Target.parse("tpu7x:2x2x1").platform
        'tpu'
    """

    name: str
    topology: str = ""

    @property
    def platform(self) -> str:
        """The platform that implementations are chosen for."""
        return PLATFORMS[self.name]

    @classmethod
    def parse(cls, target: str | Target | None) -> Target:
        """A target from its text; the machine's own when None.

        Raises:
            JaxspliceError: unknown name, or a topology that is not numbers joined by x.
        """
        if isinstance(target, Target):
            return target
        if target is None:
            return cls.here()
        name, _, topology = str(target).partition(":")
        if name not in PLATFORMS:
            raise JaxspliceError(no_such("target", name, PLATFORMS, "A topology may follow: tpu7x:2x2x1."))
        if topology and not _TOPOLOGY.fullmatch(topology):
            raise JaxspliceError(f"target {target!r}: {topology!r} is no topology; write it as in tpu7x:2x2x1")
        return cls(name, topology)

    @classmethod
    def here(cls) -> Target:
        """The hardware of this process' default backend."""
        backend = jax.default_backend()
        if backend != "tpu":
            return cls("gpu" if backend in ("gpu", "cuda") else backend if backend in PLATFORMS else "cpu")
        kind = jax.devices()[0].device_kind.lower()
        kinds = {"7x": "tpu7x", "v6": "v6e", "v5p": "v5p", "v5 lite": "v5e", "v5e": "v5e"}
        return cls(next((name for part, name in kinds.items() if part in kind), "tpu7x"))

    def __str__(self) -> str:
        return f"{self.name}:{self.topology}" if self.topology else self.name
