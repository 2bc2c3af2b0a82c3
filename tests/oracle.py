"""Reads the numeric fixtures in tests/fixtures: tiny models and operators with a public implementation's results."""

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open

FIXTURES = Path(__file__).parent / "fixtures"


class OracleFile(dict[str, np.ndarray]):
    """The arrays of one fixture file by name; `meta` holds its lists of lengths and the like."""

    def __init__(self, folder: str, name: str):
        with safe_open(FIXTURES / folder / f"{name}.safetensors", framework="np") as file:
            super().__init__({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118  (not a dict)
            self.meta = json.loads((file.metadata() or {}).get("meta", "{}"))


class Oracle:
    """All fixtures: `oracle("moe_tiny", "text")["logits"]`; each file is read once."""

    def __init__(self):
        self._read: dict[tuple[str, str], OracleFile] = {}

    def __call__(self, folder: str, name: str) -> OracleFile:
        if (folder, name) not in self._read:
            self._read[folder, name] = OracleFile(folder, name)
        return self._read[folder, name]

    def folder(self, name: str) -> Path:
        """The path of a fixture folder; those of models are checkpoints."""
        return FIXTURES / name
