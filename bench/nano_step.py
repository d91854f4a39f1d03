"""Seconds of a training step of nano, side by side with the library's own forward pass on the same weights and samples.

python bench/nano_step.py [--batch 64] [--threads 2] [--rounds 5] [--profile]
"""
import argparse
import time
from copy import deepcopy

import torch

from oaml.datasets.prompts import PromptFormat, answer_text, prompt_messages
from oaml.envs.app_device import AppDevice
from oaml.envs.oracle import acceptable_targets
from oaml.models.qwen_vl import QwenVLAdapter


def login_sample(seed: int) -> dict:
    "The first question of a login episode."
    device, fmt = AppDevice("login"), PromptFormat(precision=2)
    frame = device.reset(seed)
    answer = answer_text(acceptable_targets(device, [], 2)[0].action, fmt=fmt)
    return dict(images=[frame.image], messages=[*prompt_messages(device.goal.text, fmt=fmt), dict(role="assistant", content=answer)])


def step_of(adapter, inputs):
    "One optimizer step in bfloat16."
    optimizer = torch.optim.AdamW(adapter.trainable_parameters(), lr=1e-4, fused=True)
    def step():
        with torch.autocast("cpu", torch.bfloat16): loss = adapter.compute_loss(inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", 64), ("threads", 2), ("rounds", 5)): parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profile", action="store_true", help="print where nano's step goes")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    nano = QwenVLAdapter.from_pretrained("nano-small", device="cpu")
    library = QwenVLAdapter(deepcopy(nano.model), nano.processor, "cpu")
    library.model.set_attn_implementation("sdpa")
    samples = [login_sample(i) for i in range(args.batch)]
    inputs = nano.prepare_inputs(samples)
    questions = [dict(s, messages=s["messages"][:2]) for s in samples]
    what = {"library step": step_of(library, inputs), "nano step": step_of(nano, inputs),
            "prepare": lambda: nano.prepare_inputs(samples),
            "library answers": lambda: library.generate_batch(questions, 24), "nano answers": lambda: nano.generate_batch(questions, 24)}
    best = dict.fromkeys(what, float("inf"))
    for _ in range(args.rounds):  # in turns, so that a busy moment hits all
        for name, f in what.items():
            start = time.perf_counter()
            f()
            best[name] = min(best[name], time.perf_counter() - start)
    print(f"batch {args.batch}, {inputs['input_ids'].shape[1]} tokens, {args.threads} threads")
    for name, seconds in best.items(): print(f"{name:16} {seconds:7.3f} s {args.batch/seconds:8.1f} samples/s")
    print(f"nano's step is {best['library step']/best['nano step']:.2f} times as fast")
    if args.profile:
        with torch.profiler.profile() as profile: what["nano step"]()
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=40))


if __name__ == "__main__": main()
