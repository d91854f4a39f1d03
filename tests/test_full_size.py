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


SCRIPT = """
import sys
from pathlib import Path
import torch
import torch.nn.functional as F
from torch import nn
from oaml.models.base_adapter import BaseVLMAdapter
from oaml.training.config import TrainingConfig
from oaml.training.helpers import process_group, rank
from oaml.training.trainer import Trainer

class Sums:
    "Samples that are numbers."
    def __len__(self): return 24
    def __getitem__(self, i): return dict(x=[float(i % 5), float(i % 3), 1.], y=float(i % 7 > 2), n=1 + i % 4)

class Toy(BaseVLMAdapter):
    "A network of two layers on them; `n` labels a sample, as many as its answer has tokens."
    def prepare_inputs(self, batch, labels="assistant"):
        n = max(s["n"] for s in batch) + 1
        targets = torch.tensor([[int(s["y"])]*(s["n"] + 1) + [-100]*(n - s["n"] - 1) for s in batch])
        return dict(x=torch.tensor([s["x"] for s in batch]), labels=targets)
    def compute_loss(self, inputs, num_items=None):
        logits = self.model(inputs["x"])[:, None].expand(-1, inputs["labels"].shape[1] - 1, -1).flatten(0, 1)
        return F.cross_entropy(logits, inputs["labels"][:, 1:].flatten(), reduction="sum") / (num_items or self.count_supervised(inputs))
    def save(self, folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        torch.save(self.model.state_dict(), Path(folder)/"toy.pt")

torch.set_num_threads(1)
with process_group():
    torch.manual_seed(rank())  # the first process's weights are what counts
    adapter = Toy(nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2)), None, device="cpu")
    config = TrainingConfig(training=dict(max_steps=int(sys.argv[2]), per_device_train_batch_size=2, gradient_accumulation_steps=3, learning_rate=.05, bf16=False),
                            logging=dict(logging_steps=1, save_steps=4))
    trainer = Trainer(adapter, Sums(), config, sys.argv[1], evaluate=lambda a, s: dict(success=0.), progress=False)
    trainer.follow() if rank() else trainer.fit(resume=True)
"""


def losses(folder):
    "The rows' losses and gradients' norms."
    rows = [json.loads(line) for line in (folder/"metrics.jsonl").read_text().splitlines()]
    return [(r["samples"], r["loss"], r["grad_norm"]) for r in rows if "loss" in r]


def test_two_processes_take_one_process_steps(tmp_path):
    "By torchrun, over gloo; a process alone takes the same steps."
    (tmp_path/"toy.py").write_text(SCRIPT)
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")} | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(tmp_path/"toy.py")]
    alone = subprocess.run([sys.executable, str(tmp_path/"toy.py"), str(tmp_path/"one"), "10"], env=env, capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr[-2000:]
    done = subprocess.run([*command, str(tmp_path/"two"), "10"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = losses(tmp_path/"one"), losses(tmp_path/"two")
    assert len(one) == len(two) == 10 and [r[0] for r in one] == [r[0] for r in two]
    for a, b in zip(one, two): assert a[1:] == pytest.approx(b[1:], rel=1e-4)
    assert (tmp_path/"two/agent/toy.pt").exists() and (tmp_path/"two/checkpoint-000008").exists()


def test_the_bench_runs_on_a_cpu(tmp_path):
    "Tiny shapes, ours alone, and a table; nothing is written."
    command = [sys.executable, str(ROOT/"bench/gpu.py"), "--device", "cpu", "--model", "tiny", "--batch", "1", "--steps", "3", "--no-write", "--sides", "oaml"]
    done = subprocess.run(command, env=dict(os.environ, PYTHONPATH=str(ROOT)), capture_output=True, text=True)
    assert done.returncode == 0 and "| oaml | 0." in done.stdout and "no GPU" in done.stdout, done.stdout + done.stderr[-2000:]
