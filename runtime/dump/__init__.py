"""Dumps: graphs and reports as files, before and after every stage."""

from .stages import StageDumps, dump_result

__all__ = ["StageDumps", "dump_result"]
