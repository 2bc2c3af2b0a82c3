"""Certificate: what was proved of one rewrite, and how."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

KINDS = ("exact", "reassociated", "numeric", "numeric@reduced", "approximate", "assumed")  # strongest first


@dataclass(frozen=True)
class Claim:
    """One of the three claims behind a rewrite.

    Args:
        kind: one of `KINDS`.
        error: largest |difference| / (1 + |truth|) measured; None when nothing had to be measured.
        tolerance: the limit it was held against.
        note: where and how, in a few words.
    """

    kind: str
    error: float | None = None
    tolerance: float | None = None
    note: str = ""

    def __str__(self) -> str:
        if self.error is None:
            return self.kind
        return f"{self.kind}({self.error:.1e} <= {self.tolerance:.1e})"


def strength(proof: Claim | Certificate) -> int:
    """Order of kinds: the stronger the smaller."""
    return KINDS.index(proof.kind)


EXACT, REASSOCIATED = Claim("exact"), Claim("reassociated")


@dataclass(frozen=True)
class Certificate:
    """Proof of one rewrite: three claims; the certificate is as strong as the weakest.

    Args:
        rule: the rule's name.
        match: the region equals `before` at the exact types that were bound.
        rewrite: `before` equals `after` with its Ops read as their references.
        implementation: the chosen implementation equals its Op's reference; None until one is chosen.
        source: the user's file and line.
    """

    rule: str
    match: Claim
    rewrite: Claim
    implementation: Claim | None = field(default=None)
    source: str = ""

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims made so far."""
        return tuple(c for c in (self.match, self.rewrite, self.implementation) if c is not None)

    @property
    def weakest(self) -> Claim:
        """The claim that decides."""
        return max(self.claims, key=strength)

    @property
    def kind(self) -> str:
        """Kind of the weakest claim."""
        return self.weakest.kind

    @property
    def error(self) -> float | None:
        """Largest error measured for any claim; None when none was measured."""
        return max((c.error for c in self.claims if c.error is not None), default=None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: rule, kind, error, source, and the three claims."""
        return {**asdict(self), "kind": self.kind, "error": self.error}

    def __str__(self) -> str:
        names = ("match", "rewrite", "implementation")
        claims = (self.match, self.rewrite, self.implementation)
        return ", ".join(f"{n} {c}" for n, c in zip(names, claims) if c is not None)
