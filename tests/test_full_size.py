"What full-size models need, on tiny ones: 4-bit weights on a CPU, several processes with equal losses, a merged folder that transformers loads."
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("bench_gpu", ROOT/"bench/gpu.py")
gpu = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu)

LORA = dict(r=4, target_modules="all-linear")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    "A folder with a tiny random Qwen3-VL, as from the hub."
    return gpu.random_checkpoint("tiny", tmp_path_factory.mktemp("base"))


def loss_of(adapter, samples):
    "The mean loss of `samples`."
    adapter.model.eval()
    with torch.no_grad(): return float(adapter.compute_loss(adapter.prepare_inputs(samples)))


def test_qlora_on_a_cpu(base, tmp_path):
    "4-bit weights train, answer, come back with their processor and merge; vision and head are whole."
    pytest.importorskip("bitsandbytes")
    from bitsandbytes.nn import Linear4bit
    from oaml.models.qwen_vl import QwenVLAdapter
    samples, knobs = gpu.samples(2, (96, 64)), dict(max_pixels=4*32*32, gradient_checkpointing=True)
    adapter = QwenVLAdapter.from_pretrained(base, dict(LORA, exclude_modules=r".*visual.*"), load_in_4bit=True, device="cpu", **knobs)
    small = {name for name, m in adapter.qwen.named_modules() if isinstance(getattr(m, "base_layer", m), Linear4bit)}
    assert small and not [name for name in small if "visual" in name or "lm_head" in name]
    assert {p.dtype for p in adapter.trainable_parameters()} == {torch.float32} and adapter.load_in_4bit
    adapter.model.train()
    optimizer, first = torch.optim.AdamW(adapter.trainable_parameters(), lr=1e-2), loss_of(adapter, samples)
    for _ in range(3):
        adapter.compute_loss(adapter.prepare_inputs(samples)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss_of(adapter, samples) < first
    asked = [dict(s, messages=s["messages"][:-1]) for s in samples]
    answers = adapter.generate_batch(asked, 6)
    adapter.prompt_format = dict(precision=3)
    adapter.save(tmp_path/"agent")
    again = QwenVLAdapter.load(tmp_path/"agent", "cpu", load_in_4bit=True)
    assert again.load_in_4bit and again.prompt_format == dict(precision=3) and again.processor.image_processor.size["longest_edge"] == 4*32*32
    assert again.generate_batch(asked, 6) == answers and not any(p.requires_grad for n, p in again.model.named_parameters() if "lora" not in n)
    whole = QwenVLAdapter.load(tmp_path/"agent", "cpu", load_in_4bit=False)
    whole.merge()
    assert abs(loss_of(whole, samples) - loss_of(again, samples)) < .2  # rounding to 4 bits
