"""All rules and passes that jaxsplice ships, and the named pipelines made of them."""

from __future__ import annotations

import functools

from jaxsplice import patterns
from jaxsplice.passes.cleanup import Cleanup
from jaxsplice.passes.lower import Lower
from jaxsplice.passes.pipeline import Library

PIPELINES = {
    "default": "normalize,raise,fuse,place,lower,cleanup",
    "none": "normalize",
}


@functools.cache
def library() -> Library:
    """What pipeline text may name.

    Example:
        >>> str(library().pipeline("normalize,raise{swiglu,rms-norm},lower"))
        'normalize,raise{swiglu,rms-norm},lower'
    """
    return Library(patterns.rules(), {"lower": Lower("lower"), "cleanup": Cleanup("cleanup")}, PIPELINES)
