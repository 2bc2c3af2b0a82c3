"""Views: a small, ordered set of equations under which two programs are compared. Nothing here rewrites anything."""

from . import casts, contractions, functions, layout, marks, places, products  # noqa: F401 - they register themselves
from .cursor import Cursor, Frame, chain
from .spellings import VIEW as SPELLINGS

# In order of how much they assume. The first four are equalities of real numbers that leave every rounding where it was
# or move it by association; `casts` and `spellings` move roundings, so their certificates are measured.
VIEWS = ("marks", "layout", "functions", "products", "contractions", "casts", SPELLINGS)
ALL = frozenset(VIEWS)
WITHOUT_ROUNDING = frozenset(VIEWS) - {"casts", SPELLINGS}

__all__ = ["ALL", "VIEWS", "WITHOUT_ROUNDING", "Cursor", "Frame", "chain"]
