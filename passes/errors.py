"""The one error class of jaxsplice and its few subclasses.

Every message says: the call as typed, what was given, what is needed, the way out. Nothing is left half-done when one
of these is raised.
"""


class JaxspliceError(Exception):
    """Base of every error that jaxsplice raises on purpose."""


class Refuse(JaxspliceError):
    """A lawful "no" to one rewrite, in one sentence. Raised by a rule's `where`; never reaches the user as an error.

    Example:
        >>> raise Refuse("F = 96 is not a multiple of 128")
        Traceback (most recent call last):
        ...
        jaxsplice.passes.errors.Refuse: F = 96 is not a multiple of 128
    """


class PipelineError(JaxspliceError):
    """A pipeline, pass or rule was asked for by a name or option that does not exist."""


class TraceError(JaxspliceError):
    """A function could not be traced to a jaxpr with the given arguments."""


class VerifyError(JaxspliceError):
    """A graph breaks an invariant (types, scoping, effects), or a rewrite failed its proof where that must not pass."""


def no_such(kind: str, given: str, known, way_out: str = "") -> str:
    """One sentence for an unknown name: what was given, the closest known names, all known names, the way out.

    Args:
        kind: what the name stands for ("rule", "pass", "configuration").
        given: the name as typed.
        known: the names that exist.
        way_out: what else the user can do.

    Returns:
        The message.
    """
    import difflib

    known = sorted(known)
    close = difflib.get_close_matches(given, known, n=2)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    tail = f" {way_out}" if way_out else ""
    return f"there is no {kind} {given!r}.{hint} Known: {', '.join(known)}.{tail}"
