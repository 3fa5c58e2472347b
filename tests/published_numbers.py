"""Numbers that sentences state as published, and the study's figures to hold them against."""

import csv
import re
from collections.abc import Iterable
from pathlib import Path

from rooffloor.validate.hypotheses.published_words import QUANTITIES, UNITS

type Key = tuple[str, str, str]
"""Quantity, model, GPU."""
ROOT = Path(__file__).resolve().parents[1]
COMMITTED = ROOT / "data" / "transfer-study" / "published_figures.csv"
MODELS = ("Llama-3.1-8B", "Qwen2.5-7B", "Llama-3.2-1B", "Qwen1.5-MoE-A2.7B")
GPUS = ("H100", "H200", "A100-40GB")
WORDS = {words: quantity for quantity, words in QUANTITIES.items()}
ORDERS = {"small-batch steps": "small_batch_step", "long-context rises": "long_context_rise"}
_MODEL, _GPU = (f"(?:{'|'.join(map(re.escape, names))})" for names in (MODELS, GPUS))
_NAME, _UNIT = f"(?:{'|'.join(map(re.escape, WORDS))})", f"(?:{'|'.join(UNITS.values())})"
_NUMBER = r"-?\d+(?:\.\d+)?"
LIST = re.compile(rf"({_NAME}) of ({_MODEL}): ({_NUMBER} {_UNIT} on {_GPU}(?:, {_NUMBER} {_UNIT} on {_GPU})*)")
PAIR = re.compile(rf"({_MODEL}) on ({_GPU}) \(([^()]*)\)")
ORDER = re.compile(rf"the ({'|'.join(ORDERS)}) on ({_GPU}) .*?: ((?:{_MODEL} {_NUMBER} ms(?:, )?)+)")
ITEM = re.compile(rf"({_NAME}): ({_NUMBER}) ({_UNIT})")


def read(file: Path = COMMITTED) -> dict[Key, str]:
    """Each figure as the file has it."""
    with file.open(newline="") as lines:
        return {(row["quantity"], row["model"], row["gpu"]): row["value"] for row in csv.DictReader(lines)}


def stated(sentence: str) -> tuple[dict[Key, str], str]:
    """The published numbers of a sentence, and the sentence without them."""
    found: dict[Key, str] = {}
    for name, model, values in LIST.findall(sentence):
        for value, gpu in re.findall(rf"({_NUMBER}) {_UNIT} on ({_GPU})", values):
            found[WORDS[name], model, gpu] = value
    for model, gpu, items in PAIR.findall(sentence):
        for name, value, _ in ITEM.findall(items):
            owner = MODELS[0] if WORDS[name] == "anchor_offset" else model
            found[WORDS[name], owner, gpu] = value
    for what, gpu, values in ORDER.findall(sentence):
        for model, value in re.findall(rf"({_MODEL}) ({_NUMBER}) ms", values):
            found[ORDERS[what], model, gpu] = value
    left = ITEM.sub("", LIST.sub("", ORDER.sub("", sentence)))
    return found, left


def others(text: str) -> list[str]:
    """Numbers that a text holds beside names of models, GPUs, hypotheses and cells."""
    for names in (*MODELS, *GPUS, r"T_gpu", r"\bH[123][abc]?\b", r"B = \d+, L = \d+"):
        text = re.sub(names if "\\" in names else re.escape(names), "", text)
    return re.findall(r"-?\d+(?:\.\d+)?", text)


def as_published(sentences: Iterable[str]) -> list[str]:
    """Sentences that claim to hold printed numbers."""
    return [sentence for sentence in sentences if "As published" in sentence]
