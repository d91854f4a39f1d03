"""Training steps of a full-size Qwen3-VL with LoRA, oaml beside TRL's SFTTrainer, on random weights of the published shapes.

`python bench/gpu.py --model 2b --pixels 1003520 --batch 4` (8b; --qlora for 4-bit weights) on a GPU; `--device cpu --model tiny` takes seconds
and is what CI runs. Every side runs in a process of its own, one after another, so that each has the card, and the peak of memory, for itself.
A table goes to bench/gpu.md, under the name of the card, in the place of one with the same heading; --no-write only prints it."""
import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE/"gpu.md"
WARM = 3  # steps that don't count
HEAD = """# Full-size models

Written by `python bench/gpu.py`: LoRA (rank 16, every linear layer of the text model) on random weights of a published shape, screens of one
size, AdamW. *Memory* is the peak: of a GPU what is allocated, of a CPU how far the process grew above the loaded model. *Of the matrix rate*:
what the products of a step (counted without computing anything twice) are of that machine's rate for a product of large matrices. *Seconds* of a
CPU are CPU seconds of all threads together, so that what else the machine does counts less. The last two columns lay a side of oaml beside TRL's
with the same settings; cached vision, which TRL has not, beside TRL as it is.

**No GPU was at hand when this was written: the tables below that name a CPU are all there is.** A figure for a card stands here only where
somebody ran the command on one. Unsloth, which has no CPU either, was not laid beside for the same reason.
"""

_ROPE = dict(rope_type="default", rope_theta=5e6, mrope_section=[24, 20, 20], mrope_interleaved=True)
_VISION = dict(patch_size=16, num_position_embeddings=2304, num_heads=16)
SHAPES = {  # text and vision of Qwen3-VL as the hub has them, and two smaller ones of the same kind
    "tiny": (dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
                  rope_parameters=_ROPE | dict(mrope_section=[8, 4, 4])),
             _VISION | dict(depth=2, hidden_size=32, num_heads=2, intermediate_size=64, out_hidden_size=64, deepstack_visual_indexes=[0])),
    "131m": (dict(hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                  tie_word_embeddings=True, rope_parameters=_ROPE | dict(mrope_section=[12, 10, 10])),
             _VISION | dict(depth=6, hidden_size=256, intermediate_size=1024, out_hidden_size=512, deepstack_visual_indexes=[1, 2, 3])),
    "2b": (dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                tie_word_embeddings=True, rope_parameters=_ROPE),
           _VISION | dict(depth=24, hidden_size=1024, intermediate_size=4096, out_hidden_size=2048, deepstack_visual_indexes=[5, 11, 17])),
    "8b": (dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                rope_parameters=_ROPE),
           _VISION | dict(depth=27, hidden_size=1152, intermediate_size=4304, out_hidden_size=4096, deepstack_visual_indexes=[8, 16, 24])),
}
SIDES = {  # side: who trains, and how
    "oaml": ("oaml", {}), "oaml, gradient checkpointing": ("oaml", dict(checkpointing=True)), "oaml, vision cached": ("oaml", dict(cached=True)),
    "TRL": ("trl", {}), "TRL, gradient checkpointing": ("trl", dict(checkpointing=True))}
PEERS = {"oaml": "TRL", "oaml, gradient checkpointing": "TRL, gradient checkpointing", "oaml, vision cached": "TRL"}  # whom a side is laid beside


def shape_config(shape: str, tokenizer):
    "The transformers config of a `shape`, with the ids of `tokenizer`'s control tokens."
    from transformers import Qwen3VLConfig
    text, vision = SHAPES[shape]
    ids, tied = tokenizer.get_vocab(), text.get("tie_word_embeddings", False)
    vocabulary = len(tokenizer) if shape == "tiny" else 151936
    text = dict(text, vocab_size=vocabulary, max_position_embeddings=262144 if shape != "tiny" else 4096, pad_token_id=ids["<|endoftext|>"],
                bos_token_id=None, eos_token_id=ids["<|im_end|>"])
    return Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
                         vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"], tie_word_embeddings=tied)


def random_checkpoint(shape: str, folder: Path, device: str="cpu", half: bool=False) -> Path:
    "Write a Qwen3-VL of this `shape` with random weights (in bfloat16 if `half`) to `folder`, as a folder from the hub."
    import torch
    from transformers import AutoModelForImageTextToText
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from oaml.models.qwen_vl import ImageTextProcessor
    from oaml.nano.tokenizer import nano_tokenizer
    tokenizer = nano_tokenizer()
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(shape_config(shape, tokenizer), dtype=torch.bfloat16 if half else torch.float32)
    model.save_pretrained(folder)
    ImageTextProcessor(Qwen2VLImageProcessorPil(patch_size=16, min_pixels=32*32), tokenizer).save_pretrained(folder)
    return Path(folder)


def samples(n: int, size: tuple[int, int]) -> list[dict]:
    "So many login screens of a `size`, each with a question and its answer."
    from PIL import Image
    from oaml.devices.app_device import AppDevice
    device, found = AppDevice("login"), []
    for seed in range(n):
        image = Image.fromarray(device.reset(seed).image).resize(size)
        chat = [dict(role="user", content=f"Goal: {device.goal.text}"), dict(role="assistant", content=f"CLICK(x=0.{seed % 9 + 1}, y=0.5)")]
        found.append(dict(images=[image], messages=chat))
    return found


def screen_size(pixels: int) -> tuple[int, int]:
    "A phone's screen (9 by 20) of about so many pixels, in whole visual tokens."
    height = max(32, round((pixels*20/9)**.5/32)*32)
    return max(32, round(pixels/height/32)*32), height


def machine_name(device: str) -> str:
    "What computes."
    import torch
    if device == "cuda": return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor() or platform.machine())
    return f"{cpu}, {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores (no GPU)"


def now(device: str) -> float:
    "The time in seconds: of a CPU what this process computed, all threads together, so that what else the machine does counts for nothing."
    return time.process_time() if device == "cpu" else time.perf_counter()


def matrix_rate(device: str, half: bool) -> float:
    "Operations per second of a product of large matrices."
    import torch
    n, kind = (8192, torch.bfloat16) if device == "cuda" else (2048, torch.bfloat16 if half else torch.float32)
    a = torch.randn(n, n, device=device, dtype=kind)
    times = []
    for _ in range(6):
        _wait(device)
        start = now(device)
        a @ a
        _wait(device)
        times.append(now(device) - start)
    return 2*n**3 / sorted(times[1:])[2]


def _wait(device: str):
    "Return when the device has computed all that it was asked for."
    import torch
    if device == "cuda": torch.cuda.synchronize()


class Memory:
    "The peak of memory in a block, bytes: of a GPU in all, of a CPU above what the process had before."
    def __init__(self, device: str): self.device, self.peak = device, 0
    def _resident(self) -> int:
        import psutil
        return psutil.Process().memory_info().rss
    def __enter__(self):
        import torch
        if self.device == "cuda": torch.cuda.reset_peak_memory_stats()
        else:
            self.before, self.ended = self._resident(), threading.Event()
            self.thread = threading.Thread(target=self._watch, daemon=True)
            self.thread.start()
        return self
    def _watch(self):
        while not self.ended.wait(.02): self.peak = max(self.peak, self._resident() - self.before)
    def __exit__(self, *_):
        import torch
        if self.device == "cuda": self.peak = torch.cuda.max_memory_allocated()
        else:
            self.ended.set()
            self.thread.join()


class Clock:
    "When each optimizer step ended."
    def __init__(self, device: str): self.device, self.times = device, []
    def after_step(self, trainer):
        _wait(self.device)
        self.times.append(now(self.device))
    def step_seconds(self) -> float:
        counted = self.times[min(WARM, len(self.times) - 2):]
        return (counted[-1] - counted[0])/(len(counted) - 1)


def train_oaml(adapter, data: list[dict], clock: Clock, args, cached: bool):
    "So many steps of oaml's trainer."
    from oaml.models.budget import VisionCache
    from oaml.training.config import TrainingConfig
    from oaml.training.trainer import Trainer
    config = TrainingConfig(training=dict(max_steps=args.steps, per_device_train_batch_size=args.batch, gradient_accumulation_steps=1, bf16=args.half))
    with tempfile.TemporaryDirectory() as d:
        if cached:
            adapter.vision_cache = VisionCache(Path(d)/"vision", 50.)
            with adapter.evaluating():
                for sample in data: adapter.compute_loss(adapter.prepare_inputs([sample]))  # an epoch before, which this isn't about
        Trainer(adapter, data, config, d, hooks=[clock], progress=False).fit()


def train_trl(adapter, data: list[dict], clock: Clock, args, checkpointing: bool):
    "So many steps of TRL's SFTTrainer, on the same model, samples and collator."
    import transformers
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
    class Ends(transformers.TrainerCallback):
        def on_step_end(self, *a, **kw): clock.after_step(None)
    how = dict(max_steps=args.steps, per_device_train_batch_size=args.batch, gradient_accumulation_steps=1, learning_rate=2e-4, bf16=args.half,
               gradient_checkpointing=checkpointing, report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True, max_length=None,
               remove_unused_columns=False, dataset_kwargs=dict(skip_prepare_dataset=True), use_cpu=args.device == "cpu")
    table = Dataset.from_dict(dict(messages=[["x"]]*len(data), at=list(range(len(data)))))
    adapter.master_weights()
    with tempfile.TemporaryDirectory() as d:
        trainer = SFTTrainer(adapter.model, SFTConfig(d, **how), data_collator=lambda rows: adapter.collate([data[r["at"]] for r in rows]),
                             train_dataset=table, processing_class=adapter.processor, callbacks=[Ends()])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def run_side(args) -> dict:
    "What one side measures, in this process."
    import torch
    from oaml.models.qwen_vl import VISION_MODULES, QwenVLAdapter
    who, how = SIDES[args.side]
    if args.threads: torch.set_num_threads(args.threads)
    lora = dict(r=16, lora_alpha=32, target_modules="all-linear", exclude_modules=VISION_MODULES)
    adapter = QwenVLAdapter.from_pretrained(args.folder, lora, args.qlora, args.device, max_pixels=args.pixels,
                                            dtype=torch.bfloat16 if args.half else None, gradient_checkpointing=how.get("checkpointing", False) and who == "oaml")
    data = samples(4*args.batch, screen_size(args.pixels))
    tokens = int(adapter.encode_inputs(data)["attention_mask"].sum())/len(data)
    clock = Clock(args.device)
    with Memory(args.device) as memory:
        if who == "oaml": train_oaml(adapter, data, clock, args, how.get("cached", False))
        else: train_trl(adapter, data, clock, args, how.get("checkpointing", False))
    seconds, operations = clock.step_seconds(), None
    if args.side == "oaml": operations = count_operations(adapter, data[0])  # behind the steps: what it leaves allocated is no growth of theirs
    return dict(side=args.side, step_seconds=seconds, samples_per_s=args.batch/seconds, tokens_per_s=args.batch*tokens/seconds, tokens=tokens,
                memory=memory.peak, operations=operations, matrix_rate=matrix_rate(args.device, args.half))


def count_operations(adapter, sample: dict) -> int|None:
    "Additions and multiplications of a step of one sample; None where it does not fit."
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    inputs = adapter.prepare_inputs([sample])
    try:
        with FlopCounterMode(display=False) as counter: adapter.compute_loss(inputs).backward()
    except torch.OutOfMemoryError: return None
    adapter.model.zero_grad()
    return counter.get_total_flops()


def beside(row: dict, rows: list[dict]) -> tuple[str, str]:
    "How many times as long TRL takes for a step, set as `row` is, and what share of TRL's memory `row` needs; empty where there is none to compare."
    peer = next((r for r in rows if r["side"] == PEERS.get(row["side"]) and "failed" not in r), None)
    return (f"{peer['step_seconds']/row['step_seconds']:.2f}", f"{row['memory']/peer['memory']:.2f}") if peer else ("", "")


def table(rows: list[dict], args) -> str:
    "The sides as a section of gpu.md."
    first = next((r for r in rows if r.get("side") == "oaml" and "failed" not in r), {})
    packages = ", ".join(f"{p} {version(p)}" for p in ("torch", "transformers", "peft", "trl", "bitsandbytes") if find_spec(p))
    kind = "QLoRA" if args.qlora else "LoRA"
    lines = [f"## {machine_name(args.device)}: {kind}, {args.model} shape, {args.pixels:,} pixels, batch {args.batch}, {'bfloat16' if args.half else 'float32'}\n",
             f"{packages}. {args.steps} steps, {min(WARM, args.steps - 2)} of them to warm up; {first.get('tokens', 0):.0f} tokens a sample. {args.note}".rstrip() + "\n",
             "| side | s a step | samples/s | tokens/s | memory, GiB | of the matrix rate | TRL's time, times | of TRL's memory |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for r in rows:
        if "failed" in r: lines.append(f"| {r['side']} | {r['failed']} | | | | | | |")
        else:
            share = f"{first['operations']*r['samples_per_s']/r['matrix_rate']:.0%}" if first.get("operations") else "not counted"
            lines.append(f"| {r['side']} | {r['step_seconds']:.3f} | {r['samples_per_s']:.2f} | {r['tokens_per_s']:,.0f} | {r['memory']/2**30:.2f} | {share} | {' | '.join(beside(r, rows))} |")
    return "\n".join(lines) + "\n"


def write_page(section: str):
    "Put a section into gpu.md, in the place of one with the same heading."
    head, *others = PAGE.read_text(encoding="utf-8").split("\n## ") if PAGE.exists() else [HEAD]
    title = section.splitlines()[0]
    kept = [f"## {o}".rstrip() + "\n" for o in others if f"## {o}".splitlines()[0] != title]
    PAGE.write_text("\n".join([HEAD, *kept, section]), encoding="utf-8")


def measure(args) -> list[dict]:
    "All sides, one after another."
    rows = []
    with tempfile.TemporaryDirectory() as d:
        half = ["--half"] if args.half else []
        make = [sys.executable, __file__, "--make", f"{d}/model", "--model", args.model, "--device", args.device, *half]
        subprocess.run(make, check=True)
        for side in args.sides or SIDES:
            if SIDES[side][0] == "trl" and not (find_spec("trl") and find_spec("datasets")):
                rows.append(dict(side=side, failed="TRL is not installed"))
                continue
            command = [sys.executable, __file__, "--side", side, "--folder", f"{d}/model", "--model", args.model, "--device", args.device, "--pixels", str(args.pixels),
                       "--batch", str(args.batch), "--steps", str(args.steps), "--threads", str(args.threads or 0), *half, *(["--qlora"] if args.qlora else [])]
            done = subprocess.run(command, capture_output=True, text=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith('{"side"')]
            if not lines: print(done.stderr[-3000:], file=sys.stderr)
            rows.append(json.loads(lines[-1]) if lines else dict(side=side, failed=next(reversed(done.stderr.strip().splitlines()), f"rc {done.returncode}")[:100].replace("|", "/")))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main():
    "Measure, print the table, and write it."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="2b", help="shape of the model (default 2b)")
    parser.add_argument("--pixels", type=int, help="pixels of a screen (default 1003520, about 1,000 visual tokens; 16384 for tiny)")
    parser.add_argument("--batch", type=int, default=2, help="samples in a step (default 2)")
    parser.add_argument("--steps", type=int, default=50, help="steps (default 50; 6 for tiny)")
    parser.add_argument("--qlora", action="store_true", help="4-bit weights; needs bitsandbytes")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="where (default: cuda where there is one)")
    parser.add_argument("--half", action="store_true", default=None, help="weights in bfloat16 (default on cuda)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's choice)")
    parser.add_argument("--sides", nargs="*", choices=SIDES, help="some of the sides (default all)")
    parser.add_argument("--note", default="", help="a sentence for the table, such as what else the machine did")
    parser.add_argument("--no-write", action="store_true", help="leave bench/gpu.md as it is")
    for name in ("--side", "--folder", "--make"): parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    import torch
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    args.half = args.device == "cuda" if args.half is None else args.half
    args.pixels = args.pixels or (16384 if args.model == "tiny" else 1_003_520)
    if args.model == "tiny" and args.steps == 50: args.steps = 6
    if args.make: return random_checkpoint(args.model, Path(args.make), args.device, args.half)
    if args.side: return print(json.dumps(run_side(args)), flush=True)
    section = table(measure(args), args)
    print(section)
    if not args.no_write: write_page(section)


if __name__ == "__main__": main()
