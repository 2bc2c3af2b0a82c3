"""The command line on models: run, generate and demo from a checkpoint folder, and what it says of wrong ones."""

import os
import re
import shutil

import pytest

from jaxsplice.runtime import generate as generation
from jaxsplice.runtime.commands import models

from .command_line import jaxsplice, write_checkpoint

PROMPT = "w1 w2 w3 w4 w5"
BATCH = ("--ids=1,2,3", "--ids=4,5,6")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, oracle):
    folder = tmp_path_factory.mktemp("checkpoint")
    return str(write_checkpoint(folder, oracle.folder("dense_tiny") / "config.json"))


def generate(checkpoint, *words):
    return jaxsplice("generate", f"--model={checkpoint}", *words)


# ---------------------------------------------------------------- generate
def test_generate_streams_a_continuation(checkpoint):
    ran = generate(checkpoint, f"--prompt={PROMPT}", "--max_tokens=4", "--passes=raise{swiglu},lower")
    assert ran.code == 0, ran
    assert re.fullmatch(rf"{PROMPT} ?(w\d+ ){{3}}w\d+\n", ran.out), ran
    assert re.fullmatch(r".*first calls [\d.]+ s \(tracing, proofs, compiling\)\n", ran.err), ran
    plain = generate(checkpoint, f"--prompt={PROMPT}", "--max_tokens=4", "--nooptimized")
    assert plain.out == ran.out


@pytest.mark.parametrize("command", ["run", "generate"])
def test_verify_reaches_the_rewriting(command, checkpoint, monkeypatch):
    asked, real = [], generation.optimize

    def watched(fn, target, passes, verify="auto", **options):
        asked.append(verify)
        return real(fn, target, "none", verify, **options)

    monkeypatch.setattr(generation, "optimize", watched)
    words = (f"--model={checkpoint}", "--ids=1,2", "--max_tokens=1", "--verify=strict", "--passes=none")
    ran = jaxsplice(command, *words)
    assert ran.code == 0 and "strict" in asked, ran


def test_generate_continues_a_batch(checkpoint):
    ran = generate(checkpoint, *BATCH, "--max_tokens=2", "--nooptimized")
    assert ran.code == 0, ran
    texts = ran.out.split("\n\n")
    assert len(texts) == 3 and texts[2] == ""
    for start, text in zip(("w1 w2 w3", "w4 w5 w6"), texts):
        assert re.fullmatch(rf"{start} ?w\d+ w\d+", text), ran


def test_generate_draws_by_seed(checkpoint):
    flags = ("--ids=1,2,3", "--max_tokens=6", "--nooptimized", "--temperature=3", "--top_k=50", "--top_p=0.9")
    outs = [generate(checkpoint, *flags, f"--seed={seed}").out for seed in (1, 1, 2)]
    assert outs[0] == outs[1] != outs[2]


# ---------------------------------------------------------------- run
def test_run_compares_both_and_prints_the_tokens(checkpoint):
    ran = jaxsplice("run", f"--model={checkpoint}", *BATCH, "--max_tokens=2")
    assert ran.code == 0, ran
    assert re.match(r".*: 0\.\d+ M parameters, float32, 2 layers\n", ran.out)
    difference, spread = re.search(r"largest difference of logits: (\S+) \(their spread: (\S+)\)", ran.out).groups()
    assert float(difference) < 1e-3 < float(spread)
    for rule in ("rms-norm", "swiglu", "gated-delta-rule", "conv1d-gdn"):
        assert re.search(rf"^{rule} +\d+", ran.out, re.M), ran
    assert re.search(r"prefill of 6 tokens: reference [\d.]+ ms, optimised [\d.]+ ms \([\d.]+x\)", ran.out)
    assert ran.out.count("|") == 2 and "the reference chose otherwise" not in ran.out


# ---------------------------------------------------------------- demo
def test_demo(tmp_path):
    if not models.DEMO_CHECKPOINT.is_dir():
        ran = jaxsplice("demo", f"--out={tmp_path / 'out'}")
        assert ran.code == 1 and "demo_checkpoint" in ran.err and len(ran.err.splitlines()) == 1
        pytest.skip("the demo's checkpoint is not there yet")
    ran = jaxsplice("demo", "--max_tokens=8", f"--out={tmp_path / 'out'}", "--prompt=The for statement")
    assert ran.code == 0, ran
    assert [int(n) for n in re.findall(r"^(\d)\. ", ran.out, re.M)] == list(range(1, 7))
    assert max(map(len, ran.out.splitlines())) <= 80
    assert re.search(r"^gated-delta-rule +\d+", ran.out, re.M) and "The for statement" in ran.out
    assert {"before.txt", "after.txt", "report.txt", "diff.txt"} <= set(os.listdir(tmp_path / "out"))


# ---------------------------------------------------------------- wrong use
@pytest.mark.parametrize("command", ["run", "generate"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"--model is missing: a checkpoint folder, or a configuration's name with --random_weights"),
        (["--model=/no/such/folder"], r"--model=/no/such/folder: no such folder"),
        (["--model=qwen9", "--ids=1"], r"'qwen9'\): no published size has this name\. Known: .*qwen3\.5-0\.8b"),
        (["--model=qwen3.5-0.8b", "--ids=1"], r"is a published configuration and no folder here: add --random_weights"),
        (["--model=qwen3.5-397b-a17b", "--random_weights", "--ids=1"], r"has 1,477 GiB of float32 weights, more than"),
        (["--model=qwen3.5-0.8b", "--random_weights", "--layers=99", "--ids=1"], r"--layers=99: the model has 24"),
        (["--model=qwen3.5-0.8b", "--random_weights", "--layers=-1", "--ids=1"], r"--layers=-1: the model has 24"),
        (["--model={checkpoint}"], r"nothing to continue: give --prompt='some text' or --ids=1,2,3"),
        (["--model={checkpoint}", "--ids=1,x"], r"--ids='1,x': write whole numbers separated by commas"),
        (["--model={checkpoint}", "--ids=1,9999"], r"token id 9999 is outside the vocabulary of 199"),
        (["--model={checkpoint}", "--ids=1", "--ids="], r"--ids='': write whole numbers|no empty one"),
        (["--model={checkpoint}", "--prompt="], r"give at least one prompt, and no empty one"),
        (["--model={checkpoint}", "--ids=1", "--passes=rais"], r"no pass, pipeline or rule 'rais'"),
        (["--model={checkpoint}", "--ids=1", "--target=tpu9"], r"there is no target 'tpu9'"),
        (["--model={checkpoint}", "--ids=1", "extra"], r"'extra' is not understood: this command takes --flags only"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_wrong_use_is_one_message(command, words, message, checkpoint):
    ran = jaxsplice(command, *[word.replace("{checkpoint}", checkpoint) for word in words])
    assert ran.code == 1 and re.search(message, ran.err), ran
    assert ran.err.startswith(f"jaxsplice {command}: ") and len(ran.err.splitlines()) == 1, ran
    assert command == "run" or ran.out == "", ran


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max_tokens=0"], r"max_tokens=0: at least 1 is needed"),
        (["--temperature=-1"], r"temperature=-1\.0.* must not be negative"),
        (["--top_p=2"], r"top_p=2\.0.* at most at 1"),
        (["--top_k=-1"], r"top_k=-1.* must not be negative"),
    ],
)
def test_wrong_sampling_is_one_message(words, message, checkpoint):
    ran = generate(checkpoint, "--ids=1,2", *words)
    assert ran.code == 1 and ran.out == "" and re.search(message, ran.err) and len(ran.err.splitlines()) == 1, ran


@pytest.mark.parametrize(
    "broken", ["no config", "no weights", "cut weights", "no json", "other model", "bad tokenizer"]
)
def test_a_broken_checkpoint_folder_is_one_message(broken, checkpoint, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(checkpoint, folder)
    if broken.startswith("no c"):
        (folder / "config.json").unlink()
    elif broken == "no weights":
        (folder / "model.safetensors").unlink()
    elif broken == "cut weights":
        os.truncate(folder / "model.safetensors", 1000)
    elif broken == "no json":
        (folder / "config.json").write_text("{")
    elif broken == "other model":
        (folder / "config.json").write_text('{"model_type": "llama"}')
    else:
        (folder / "tokenizer.json").write_text("{}")
    ran = jaxsplice("generate", f"--model={folder}", "--ids=1", "--max_tokens=1")
    assert ran.code == 1 and ran.out == "" and str(folder) in ran.err, ran
    assert len(ran.err.splitlines()) == 1, ran


def test_a_prompt_needs_a_tokenizer(checkpoint, tmp_path):
    folder = tmp_path / "bare"
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("tokenizer.json"))
    ran = jaxsplice("generate", f"--model={folder}", "--prompt=hello")
    assert ran.code == 1 and "bare has no tokenizer.json: give token ids with --ids=1,2,3 instead" in ran.err, ran
    ids = jaxsplice("generate", f"--model={folder}", "--ids=1,2,3,4,5", "--max_tokens=4", "--nooptimized")
    assert ids.code == 0 and re.fullmatch(r"(\d+ ){3}\d+\n", ids.out), ids
