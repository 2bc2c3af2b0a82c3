"""`jaxsplice COMMAND --flags`: the command line. `jaxsplice COMMAND --help` lists a command's flags."""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from absl import flags

COMMANDS = ("demo", "run", "generate", "dump", "explain", "bisect", "rules")
GOOGLE_PCI_VENDOR = "0x1ae0"


def choose_platform() -> None:
    """Keep a TPU library that finds no TPU from printing: without one, JAX is told not to look for it."""
    if os.environ.get("JAX_PLATFORMS") or importlib.util.find_spec("libtpu") is None or has_tpu():
        return
    import jax

    gpu = any(importlib.util.find_spec(f"jax_cuda{v}_plugin") for v in (12, 13))
    jax.config.update("jax_platforms", "cuda,cpu" if gpu else "cpu")


def has_tpu() -> bool:
    """Whether this machine has a TPU on its PCI bus, or is told of one."""
    if os.environ.get("TPU_ACCELERATOR_TYPE") or glob.glob("/dev/accel[0-9]*"):
        return True
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        try:
            with open(path, encoding="ascii") as file:
                if file.read().strip() == GOOGLE_PCI_VENDOR:
                    return True
        except OSError:
            continue
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: words after the program's name; the process' own when None.

    Returns:
        0 on success, 1 when the command failed, 2 when the words do not make a command.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        from jaxsplice.passes.errors import no_such

        print(f"jaxsplice: {no_such('command', name, COMMANDS)}", file=sys.stderr)
        return 2
    command = importlib.import_module(f"jaxsplice.runtime.commands.{name}")
    values = flags.FlagValues()
    command.define(values)
    if any(word in ("-h", "--help") for word in rest):
        print(f"jaxsplice {name}: {command.SUMMARY}\n\n{flag_help(values)}")
        return 0
    try:
        left = values([f"jaxsplice {name}", *rest])[1:]
    except flags.Error as error:
        print(f"jaxsplice {name}: {error}\nSee jaxsplice {name} --help", file=sys.stderr)
        return 2
    return run_command(name, command, values, left)


def run_command(name: str, command, values: flags.FlagValues, words: list[str]) -> int:
    """Run a parsed command; what a user can cause becomes one line on stderr."""
    from jaxsplice.passes.errors import JaxspliceError

    choose_platform()
    try:
        return command.run(values, words)
    except (JaxspliceError, FileNotFoundError, NotADirectoryError, PermissionError, ValueError) as error:
        print(f"jaxsplice {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"jaxsplice {name}: stopped", file=sys.stderr)
        return 130


def usage() -> str:
    """All commands, a line each."""
    lines = ["jaxsplice COMMAND [--flags]", ""]
    for name in COMMANDS:
        command = importlib.import_module(f"jaxsplice.runtime.commands.{name}")
        lines.append(f"  {name:<9} {command.SUMMARY}")
    return "\n".join([*lines, "", "jaxsplice COMMAND --help lists a command's flags."])


def flag_help(values: flags.FlagValues) -> str:
    """The flags of a command, with their defaults, at most 80 columns wide."""
    import textwrap

    lines = []
    for flag_name in sorted(values):
        flag = values[flag_name]
        default = "" if flag.default in (None, "", False) else f" (default {flag.default})"
        lines.append(f"  --{flag_name}")
        lines += textwrap.wrap(f"{flag.help}{default}", 74, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
