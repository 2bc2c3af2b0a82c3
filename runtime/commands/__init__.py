"""The subcommands of `jaxsplice`: one file each, with `SUMMARY`, `define(flags)` and `run(flags) -> exit code`."""
