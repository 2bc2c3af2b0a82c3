"""User entry points: optimize, compile, explain, dumps, generation, the command line."""
