"""The tokenizer that comes with a checkpoint."""

from pathlib import Path

from tokenizers import Tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer in a checkpoint folder.

    Args:
        path: the folder.

    Returns:
        The tokenizer (`encode(text).ids`, `decode(ids)`), or None when the folder has no tokenizer.json.

    Raises:
        ValueError: tokenizer.json is not a tokenizer.
    """
    file = Path(path) / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{file} is not a tokenizer ({error}); download it again") from error
