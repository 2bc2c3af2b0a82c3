"""The tokenizer beside a checkpoint."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from jaxsplice.models.qwen3_5 import load_tokenizer


def test_loads_what_is_there(tmp_path):
    tokenizer = Tokenizer(WordLevel({"fused": 0, "kernels": 1}, unk_token="fused"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert loaded is not None
    assert loaded.encode("kernels fused").ids == [1, 0]


def test_none_without_a_file(tmp_path):
    assert load_tokenizer(tmp_path) is None


def test_a_broken_file_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a tokenizer"):
        load_tokenizer(tmp_path)
