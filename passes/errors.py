"""The one error class of jaxsplice and its few subclasses.

Every message says: the call as typed, what was given, what is needed, the way out. Nothing is left half-done when one
of these is raised.
"""

import difflib
import os
import traceback


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


class RuleError(Refuse):
    """A rule's own code (`before`, `after`, `where`, `find`, `sample`) failed: no match there, and a warning.

    With `verify="strict"` it is raised.
    """


class InstrumentError(JaxspliceError):
    """An instrument failed while it watched a pipeline."""


class InternalError(JaxspliceError):
    """jaxsplice itself failed; raised with `verify="strict"` only, else the program is used as it was given."""


class PipelineError(JaxspliceError):
    """A pipeline, pass or rule was asked for by a name or option that does not exist."""


class TraceError(JaxspliceError):
    """A function could not be traced to a jaxpr with the given arguments."""


class VerifyError(JaxspliceError):
    """A graph breaks an invariant (types, scoping, effects), or a rewrite failed its proof where that must not pass."""


def raised_by(error: BaseException) -> str:
    """What an exception says in one line, and the last line of code outside JAX that it passed through.

    Example:
        >>> raised_by(ValueError("too wide"))
        'ValueError: too wide'
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f"{os.sep}site-packages{os.sep}jax" not in f.filename] or frames
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {text}' if text else ''}{where}"


def first_line(error: BaseException | str) -> str:
    """The first line of a message; of an exception without one, what it is.

    Example:
        >>> first_line(ValueError("too wide\\nby far")), first_line(ValueError())
        ('too wide', 'ValueError()')
    """
    return (str(error).splitlines() or [repr(error)])[0]


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
    known = sorted(known)
    close = difflib.get_close_matches(given, known, n=2)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    tail = f" {way_out}" if way_out else ""
    return f"there is no {kind} {given!r}.{hint} Known: {', '.join(known)}.{tail}"
