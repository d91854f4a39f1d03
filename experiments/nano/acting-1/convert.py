"""The shipped nano's text tower as a text nano: `python convert.py OLD NEW`, with OLD the folder of the shipped weights.

Tokens that both know keep their rows. A new word begins as the mean of its bytes' rows, a place on the screen as its coordinate;
neither is answered at first.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from oaml.nano.model import NanoAdapter
from oaml.nano.network import NanoForCausalLM, nano_config
from oaml.nano.processor import NanoImages, NanoProcessor
from oaml.nano.screens import LineReader
from oaml.nano.tokenizer import ACROSS, COORDINATES, DOWN, nano_tokenizer, token_ids


def rows_for(tokenizer, known, rows, new_rows):
    "`rows` of the tokens that are `known`, in the order of `tokenizer`; those of new tokens are 0 unless `new_rows`."
    out = torch.zeros(len(tokenizer), rows.shape[1])
    for token, i in tokenizer.get_vocab().items():
        if token in known: out[i] = rows[known[token]]
        elif new_rows: out[i] = rows[[known[byte] for byte in token]].mean(0)
    if new_rows:
        for pieces in (ACROSS, DOWN): out[token_ids(tokenizer, pieces)] = rows[[known[number] for number in COORDINATES]]
    return out


def main(old, new):
    tokenizer, known = nano_tokenizer(), Tokenizer.from_file(str(old/"tokenizer.json")).get_vocab()
    weights = {name.replace("model.language_model.", "model."): w.float() for name, w in load_file(old/"model.safetensors").items()
               if not name.startswith("model.visual")}
    for name, new_rows in {"model.embed_tokens.weight": True, "lm_head.weight": False}.items():
        weights[name] = rows_for(tokenizer, known, weights[name], new_rows)
    model = NanoForCausalLM._from_config(nano_config(tokenizer), attn_implementation="eager")
    model.load_state_dict(weights)
    prompt_format = json.loads((old/"oaml.json").read_text())["prompt_format"]
    del prompt_format["transcript"]  # a text nano has no other prompts
    NanoAdapter(model, NanoProcessor(NanoImages(LineReader(old)), tokenizer), "cpu", prompt_format, "nano").save(new)


if __name__ == "__main__": main(*map(Path, sys.argv[1:]))
