"""The demo's training script, and the checkpoint that it made and the package ships."""

import contextlib
import io
import re
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.models import qwen3_5
from jaxsplice.passes.errors import JaxspliceError
from jaxsplice.runtime import train_demo
from jaxsplice.runtime.commands.models import DEMO_CHECKPOINT
from jaxsplice.runtime.generate import Generator
from jaxsplice.runtime.optimize import optimize
from jaxsplice.runtime.training.corpus import all_windows, clean, random_windows, topics_corpus
from jaxsplice.runtime.training.steps import check_agreement, next_token_loss

TINY = ("--seed=5", "--size=tiny", "--vocabulary=300", "--length=16", "--batch=1", "--batches=2")
# Ours, not the documentation's: its sentences are not in the training text, its words are.
UNSEEN_TEXT = """A function definition is an executable statement. When it runs, it binds the name of the function in
the current local namespace to a function object. The body of the function is not executed at that time; it is executed
when the function is called. If no return statement is reached, the call returns None. An exception that is raised in
the body of a try statement can be handled by an except clause, and the finally clause is executed in any case."""

# Nats per token.  Measured 5.58; guessing by the tokens' frequencies in the training text gives 5.97, at random 7.62.
UNSEEN_BOUND = 5.8


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint after three steps, and what was printed meanwhile."""
    folder, printed = tmp_path_factory.mktemp("train") / "checkpoint", io.StringIO()
    jax.config.update("jax_disable_most_optimizations", True)  # compile time rules this run
    try:
        with contextlib.redirect_stdout(printed):
            assert train_demo.main([f"--out={folder}", "--steps=3", *TINY]) == 0
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    return folder, printed.getvalue()


@pytest.mark.slow
def test_three_steps_write_a_checkpoint_that_loads(trained):
    folder, _ = trained
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert [other.name for other in folder.parent.iterdir()] == ["checkpoint"]
    params, config = qwen3_5.load(folder)
    assert config.is_moe and set(config.layer_types) == {"linear_attention", "full_attention"}
    assert str(params.embed.dtype) == "bfloat16" and str(params.layers[0].mixer.A_log.dtype) == "float32"
    start = qwen3_5.random_params(config, jax.random.key(5), "bfloat16")
    assert not np.array_equal(params.embed, start.embed)
    tokenizer = qwen3_5.load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("naïve → text").ids) == "naïve → text"
    assert tokenizer.get_vocab_size() == config.vocab_size == 300


@pytest.mark.slow
def test_the_script_says_what_was_rewritten_and_how_well_it_predicts(trained):
    _, printed = trained
    assert "3 router-top-k" not in printed and "2 router-top-k" in printed
    assert re.search(r"optimised and reference differ by \S+ in the loss, \S+ in the gradient", printed)
    assert 4 < float(re.search(r"held-out loss of the checkpoint as stored: (\S+)", printed)[1]) < 8


def test_disagreement_and_nothing_rewritten_are_errors():
    def loss(params, width, x, factor=1.0):
        h = jax.nn.silu(x @ params) * (x @ params)
        return factor * jnp.mean(h[:, :width] ** 2), None

    params, x = (jax.random.normal(key, (8, 8)) for key in jax.random.split(jax.random.key(0)))
    good = check_agreement(optimize(loss, static_argnums=1), loss, params, 4, x)
    assert good.rewrites == {"swiglu": 1} and good.loss_error < 1e-6 and good.gradient_error < 1e-5
    for factor, error in ((1.01, "1.0e-02"), (np.nan, "nan")):
        other = optimize(partial(loss, factor=factor), static_argnums=1)
        with pytest.raises(JaxspliceError, match=f"disagree on the first batch: loss by {error}"):
            check_agreement(other, loss, params, 4, x)
    with pytest.raises(JaxspliceError, match="not rewritten anywhere"):
        check_agreement(optimize(loss, passes="normalize", static_argnums=1), loss, params, 4, x)


@pytest.mark.parametrize(
    "words, message",
    [
        ((), "--out is missing"),
        (("--out={}/new", "--length=10000000"), "--length=10000000: the training text has only"),
    ],
)
def test_failures_are_one_line_and_leave_nothing(tmp_path, capsys, words, message):
    assert train_demo.main([word.format(tmp_path) for word in words]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["optax", "tqdm"])
def test_without_optax_or_tqdm_the_extra_is_named(monkeypatch, tmp_path, capsys, name):
    monkeypatch.setitem(sys.modules, name, None)
    assert train_demo.main([f"--out={tmp_path}/new"]) == 1
    assert capsys.readouterr().err == f"train_demo: training needs {name}: pip install 'jaxsplice[train]'\n"
    assert list(tmp_path.iterdir()) == []


def test_wrong_flags_are_two(capsys):
    assert train_demo.main(["--steps=0"]) == 2
    assert train_demo.main(["--size=huge"]) == 2
    assert train_demo.main(["--help"]) == 0
    assert "--learning_rate" in capsys.readouterr().out


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "deep" / "checkpoint"
    with pytest.raises(KeyboardInterrupt), train_demo.new_folder(target) as folder:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt
    assert list((tmp_path / "deep").iterdir()) == []
    target.mkdir()  # an empty one is taken
    with train_demo.new_folder(target) as folder:
        (folder / "whole").write_text("whole")
        assert list(target.iterdir()) == []
        with pytest.raises(JaxspliceError, match="another run writes it"), train_demo.new_folder(target):
            pass
    assert [file.name for file in target.iterdir()] == ["whole"]
    with pytest.raises(JaxspliceError, match="exists already"), train_demo.new_folder(target):
        pass
    assert [file.name for file in target.iterdir()] == ["whole"]


# ---------------------------------------------------------------- text
def test_held_out_paragraphs_are_not_trained_on():
    corpus = topics_corpus(seed=0)
    paragraphs = lambda documents: {p.strip() for text in documents for p in text.split("\n\n")}
    held_out = paragraphs(corpus.held_out)
    assert len(held_out) > 50 and not held_out & paragraphs(corpus.training)
    assert topics_corpus(seed=0).digest == corpus.digest != topics_corpus(seed=1).digest


def test_code_keeps_its_quotes():
    text = 'The "if" and "x.y()" words ("for"), but "two words" and\n\n   print("a", "b")\n>>> {"a": "b"}'
    assert clean(text) == 'The if and x.y() words (for), but "two words" and\n\n   print("a", "b")\n>>> {"a": "b"}'


def test_windows():
    stream = np.arange(100, dtype=np.int32)
    rows = random_windows(stream, np.random.default_rng(0), rows=50, length=9)
    assert rows.shape == (50, 10) and (np.diff(rows, axis=1) == 1).all() and rows.max() <= 99
    batches = all_windows(stream, rows=2, length=9)
    assert batches.shape == (5, 2, 10) and batches[..., :-1].ravel().tolist() == list(range(90))
    assert all_windows(stream, rows=2, length=60).shape == (0, 2, 61)


# ---------------------------------------------------------------- the shipped checkpoint
@pytest.fixture(scope="module")
def shipped():
    """Parameters in float32, configuration and tokenizer."""
    return *qwen3_5.load(DEMO_CHECKPOINT, np.float32), qwen3_5.load_tokenizer(DEMO_CHECKPOINT)


def test_the_shipped_checkpoint_is_small_and_finite(shipped):
    params, config, tokenizer = shipped
    assert sum(file.stat().st_size for file in DEMO_CHECKPOINT.rglob("*")) <= 10_000_000
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    assert config.vocab_size == tokenizer.get_vocab_size() and config.eos_token_id == tokenizer.token_to_id(
        "<|endoftext|>"
    )


def test_the_shipped_checkpoint_predicts_text_it_has_not_seen(shipped):
    params, config, tokenizer = shipped
    ids = np.array([[config.eos_token_id, *tokenizer.encode(UNSEEN_TEXT).ids]], np.int32)
    _, entropy = jax.jit(next_token_loss)(params, config, ids)
    assert float(entropy) < UNSEEN_BOUND < np.log(config.vocab_size) - 1.5


@pytest.mark.slow
def test_optimised_and_reference_write_the_same(shipped):
    params, config, tokenizer = shipped
    prompt = tokenizer.encode("The with statement is used to wrap").ids
    fast, plain = (Generator(params, config, optimized=o).generate([prompt], 32)[0] for o in (True, False))
    assert fast == plain and len(set(fast)) > 12
    assert re.search(r"\b(the|is|of|a)\b", tokenizer.decode(fast))
