"A run killed with SIGKILL at any instant, and resumed, ends in the same bits as one that was left alone."
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason='pip install "oaml[train]"')
pytest.importorskip("peft", reason='pip install "oaml[train]"')
if sys.platform == "win32": pytest.skip("Windows has no SIGKILL, with which runs are killed here", allow_module_level=True)

STEPS, SAVE, EVAL = 12, 3, 4
LAST = f"checkpoint-{STEPS:06d}"


# ---- the run, in a process of its own ----

class Screens:
    "Small random screens; which way the answer goes depends on the index alone."
    def __len__(self): return 22

    def __getitem__(self, i):
        import numpy as np
        rng = np.random.default_rng(i)
        answer = "DONE()" if i % 3 == 0 else f"CLICK(x={rng.random():.2f}, y={rng.random():.2f})"
        return dict(images=[rng.integers(0, 256, (32, 64, 3), dtype=np.uint8)],
                    messages=[dict(role="user", content="Goal: press it."), dict(role="assistant", content=answer)])


def run(out_dir, kill=None, watch=True, **training):
    "Train the small model with LoRA and dropout in `out_dir`; `kill` names the place where the process dies."
    import torch

    from oaml.models.qwen_vl import QwenVLAdapter
    from oaml.training.config import TrainingConfig
    from oaml.training.trainer import Trainer
    torch.set_num_threads(1)
    resume = (Path(out_dir)/"resolved.yaml").exists()
    lora = dict(r=4, lora_dropout=.2, target_modules=["q_proj", "v_proj"])
    adapter = QwenVLAdapter.from_pretrained("nano-small", lora_config=lora, device="cpu", seed=0)
    if list(Path(out_dir).glob("checkpoint-*")):  # a resumed run gets other new weights: nothing may come from them
        with torch.no_grad(): [p.normal_() for p in adapter.trainable_parameters()]
    config = TrainingConfig(
        training=dict(max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-2,
                      warmup_ratio=.2, weight_decay=.01, threads=1, seed=3) | training,
        logging=dict(logging_steps=1, save_steps=SAVE, save_total_limit=2, eval_steps=EVAL if watch else None,
                     metric="draw"))
    trainer = Trainer(adapter, Screens(), config, out_dir, evaluate=evaluate if watch else None)
    if kill: arm(kill, trainer)
    trainer.fit(resume=resume)


def evaluate(adapter, step):
    "An evaluation that uses the random state, as an environment might."
    import numpy as np
    import torch
    np.random.rand(7)
    return dict(draw=float(torch.rand(1)))


# ---- the places to die ----

def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)


def before(owner, name, when=lambda *a: True):
    "Die as `owner.name` is called with arguments for which `when` holds."
    inner = getattr(owner, name)
    setattr(owner, name, lambda *a, **k: die() if when(*a) else inner(*a, **k))


def half_row(trainer):
    "Die with half a row of metrics on the disk."
    inner = trainer.write_row
    def write_row(**row):
        if trainer.cursor.step < 5: return inner(**row)
        trainer.metrics.write(b'{"step": 5, "ep')
        trainer.metrics.flush()
        die()
    trainer.write_row = write_row


def half_deleted(trainer):
    "Die when one file of the oldest checkpoint is gone."
    inner = shutil.rmtree
    def rmtree(path, *args, **kwargs):
        if not Path(path).name.startswith("checkpoint-"): return inner(path, *args, **kwargs)
        (Path(path)/"model.pt").unlink()
        die()
    shutil.rmtree = rmtree


class InTheMiddle:
    "Die between two micro-batches of the third step."
    def after_micro_batch(self, trainer):
        if trainer.cursor.step == 2: die()


def arm(kill, trainer):
    "Prepare the process to die at the place named `kill`."
    from oaml.training import checkpoints, trainer as module
    adapter_save = trainer.adapter.save
    places = dict(
        in_the_middle_of_a_window=lambda: setattr(trainer, "hooks", [InTheMiddle()]),
        between_optimizer_and_schedule=lambda: before(module.torch.optim.lr_scheduler.LambdaLR, "step",
                                                      lambda s: s.last_epoch == 3),
        after_the_adapters_files=lambda: setattr(trainer.adapter, "save", lambda f: (adapter_save(f), die())),
        half_a_row=lambda: half_row(trainer),
        before_the_manifest=lambda: before(checkpoints, "write_manifest"),
        before_the_rename=lambda: before(checkpoints.Path, "rename"),
        as_old_ones_are_deleted=lambda: half_deleted(trainer),
        in_an_evaluation=lambda: setattr(trainer, "evaluate", die),
        before_the_agent=lambda: before(module, "atomic_folder", lambda path: Path(path).name == "agent"),
    )
    places[kill]()


# the order in which one run dies at all of them
KILLS = ["in_the_middle_of_a_window", "after_the_adapters_files", "between_optimizer_and_schedule", "half_a_row",
         "before_the_manifest", "before_the_rename", "as_old_ones_are_deleted", "in_an_evaluation", "before_the_agent"]


# ---- the tests ----

def start(out_dir, kill=None, **options):
    "Begin or resume the run in a fresh process, forked from one that has imported everything and done nothing."
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["oaml.models.qwen_vl", "oaml.nano.model", "oaml.training.trainer", "peft",
                                    "transformers.models.qwen3_vl.modeling_qwen3_vl"])
    process = context.Process(target=run, args=(str(out_dir), kill), kwargs=options)
    process.start()
    return process


def finish(process):
    "The process's exit code."
    process.join(timeout=120)
    assert process.exitcode is not None, "the run hangs"
    return process.exitcode


def outcome(out_dir):
    "All that two equal runs must share, floats as hex."
    import torch

    from oaml.training.checkpoints import fingerprint, flaw, read_metrics
    assert flaw(out_dir/"agent") is None and flaw(out_dir/LAST) is None
    times = ("seconds", "samples_per_s", "eval_seconds")
    rows = [{k: v.hex() if isinstance(v, float) else v for k, v in row.items() if k not in times}
            for row in read_metrics(out_dir)]
    states = {name: fingerprint(torch.load(out_dir/LAST/f"{name}.pt", weights_only=True))
              for name in ("model", "optimizer", "scheduler", "rng")}
    return dict(rows=rows, **states)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    "The folder of a run that nobody killed."
    out_dir = tmp_path_factory.mktemp("undisturbed")/"run"
    assert finish(start(out_dir)) == 0
    return out_dir


def test_the_run_is_one_worth_comparing(undisturbed):
    rows = outcome(undisturbed)["rows"]
    assert [r["step"] for r in rows if "loss" in r] == list(range(1, STEPS + 1))
    assert [r["step"] for r in rows if "eval_draw" in r] == [4, 8, 12]


@pytest.mark.parametrize("options", [dict(watch=False), dict(prefetch=False)], ids=str)
def test_evaluation_and_prefetch_change_no_bit(undisturbed, tmp_path, options):
    assert finish(start(tmp_path/"run", **options)) == 0
    ours, theirs = outcome(tmp_path/"run"), outcome(undisturbed)
    ours["rows"], theirs["rows"] = ([r for r in o["rows"] if "loss" in r] for o in (ours, theirs))
    assert ours == theirs


def test_killed_at_every_kind_of_place(undisturbed, tmp_path):
    for kill in KILLS: assert finish(start(tmp_path/"run", kill)) == -signal.SIGKILL, kill
    assert finish(start(tmp_path/"run")) == 0
    assert outcome(tmp_path/"run") == outcome(undisturbed)


def test_killed_at_random_instants(undisturbed, tmp_path):
    out_dir, rng = tmp_path/"run", random.Random(os.environ.get("OAML_KILL_SEED", 0))
    for rows in (2, 5, 9):
        process = start(out_dir)
        while process.is_alive() and lines(out_dir/"metrics.jsonl") < rows: time.sleep(.005)
        time.sleep(rng.random()/5)
        process.kill()
        assert finish(process) in (-signal.SIGKILL, 0)
    assert finish(start(out_dir)) == 0
    assert outcome(out_dir) == outcome(undisturbed)


def lines(path): return path.read_bytes().count(b"\n") if path.exists() else 0


def without(folder, piece):
    "Take `piece` out of the checkpoint `folder`: it becomes what a fresh run has, under a valid manifest."
    import torch

    from oaml.training.checkpoints import rng_state, write_manifest
    load = lambda: torch.load(folder/f"{piece}.pt", weights_only=True)
    if piece == "rng": value = rng_state()
    if piece == "cursor": value = load() | dict(step=0)
    if piece == "scheduler": value = [s | dict(last_epoch=0, _step_count=1) for s in load()]
    if piece == "optimizer": value = [s | dict(state={}) for s in load()]
    torch.save(value, folder/f"{piece}.pt")
    (folder/"manifest.json").unlink()
    write_manifest(folder)


@pytest.mark.parametrize("piece", [None, "rng", "cursor", "scheduler", "optimizer"])
def test_each_piece_of_the_state_counts(undisturbed, tmp_path, piece):
    "The comparison must fail if a piece is lost; with all of them (None) it must hold."
    out_dir = tmp_path/"run"
    shutil.copytree(undisturbed, out_dir, ignore=shutil.ignore_patterns("agent", LAST))
    middle = out_dir/f"checkpoint-{STEPS - SAVE:06d}"
    if piece: without(middle, piece)
    assert finish(start(out_dir)) == 0
    same = outcome(out_dir) == outcome(undisturbed)
    assert same == (piece is None)
