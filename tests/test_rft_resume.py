"Practising that is killed in a rollout, in an update and inside a save, and resumed, ends in the bits of one left alone."
import json
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason='pip install "oaml[train]"')
if sys.platform == "win32": pytest.skip("Windows has no SIGKILL, with which runs are killed here", allow_module_level=True)

STEPS, SAVE = 6, 3
LAST = f"checkpoint-{STEPS:06d}"


# ---- the run, in a process of its own ----

def paid_by_chance(rollout):
    "A reward that a model without any skill gets half of the time."
    return sum(rollout.steps[0].completion.ids) % 2


def answers_by_chance(completions, **columns):
    "The same for answers to recorded steps."
    return [float(sum(map(ord, text)) % 2) for text in completions]


def run(out_dir, kill=None, recorded=False):
    """Practise with a random model in `out_dir`, short rollouts, or on the sample records; `kill` names the place where the process
    dies."""
    import torch

    from oaml.apps.catalog import load_app
    from oaml.models.qwen_vl import QwenVLAdapter
    from oaml.datasets.rft import RFT_SAMPLES
    from oaml.scripts.rft import RftTrainer, practice_sources
    from oaml.training.config import TrainingConfig
    torch.set_num_threads(1)
    resume = (Path(out_dir)/"resolved.yaml").exists()
    adapter = QwenVLAdapter.from_pretrained("nano-small", device="cpu", seed=0)
    if list(Path(out_dir).glob("checkpoint-*")):  # a resumed run gets other new weights: nothing may come from them
        with torch.no_grad(): [p.normal_() for p in adapter.trainable_parameters()]
    config = TrainingConfig.model_validate(dict(
        **(dict(data=str(RFT_SAMPLES)) if recorded else {}), prompt=dict(precision=2, history=3*recorded), rft=dict(apps=["login"], starts=4, group_size=3, groups_per_update=1, groups_at_once=3, max_new_tokens=3, loss="dapo"),
        training=dict(max_steps=STEPS, learning_rate=1e-2, threads=1, seed=4), logging=dict(logging_steps=1, save_steps=SAVE, eval_episodes=0)))
    worlds, source = practice_sources(config, config.prompt.prompt_format())
    source.reward = answers_by_chance if recorded else paid_by_chance
    if worlds:
        worlds.limit.least = 2
        worlds.limit.lengths = {f"login:{family}": [1]*5 for family in load_app("login").families}
    trainer = RftTrainer(adapter, source, config, out_dir)
    if kill: arm(kill, trainer)
    trainer.fit(resume=resume)


# ---- the places to die ----

def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)


class InTheMiddle:
    "Die in the update after the given one, when its gradients are computed."
    def __init__(self, step): self.step = step
    def after_micro_batch(self, trainer):
        if trainer.cursor.step == self.step: die()


def arm(kill, trainer):
    "Prepare the process to die at the place named `kill`."
    from oaml.nano.numpy_engine import LightNano
    from oaml.training import checkpoints
    draw = LightNano.sample_completions
    def draw_once(*args):
        if trainer.cursor.step < 3: return draw(*args)
        draw(*args), die()
    places = dict(
        in_an_update=lambda: setattr(trainer, "hooks", [InTheMiddle(1)]),
        inside_a_save=lambda: setattr(checkpoints, "write_manifest", die),
        in_a_rollout=lambda: setattr(LightNano, "sample_completions", draw_once),
        in_a_later_update=lambda: setattr(trainer, "hooks", [InTheMiddle(5)]),
    )
    places[kill]()


KILLS = ["in_an_update", "inside_a_save", "in_a_rollout", "in_a_later_update"]  # in which order one run dies at all of them


# ---- the tests ----

def start(out_dir, kill=None, recorded=False):
    "Begin or resume the run in a fresh process, forked from one that has imported everything and done nothing."
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["oaml.scripts.rft", "oaml.models.qwen_vl", "oaml.nano.model", "oaml.training.trainer",
                                    "transformers.models.qwen3_vl.modeling_qwen3_vl"])
    process = context.Process(target=run, args=(str(out_dir), kill, recorded))
    process.start()
    process.join(timeout=600)
    assert process.exitcode is not None, "the run hangs"
    return process.exitcode


def outcome(out_dir):
    "All that two equal runs must share, floats as hex."
    import torch

    from oaml.training.checkpoints import fingerprint, flaw, read_metrics
    assert flaw(out_dir/"agent") is None and flaw(out_dir/LAST) is None
    rows = [{k: v.hex() if isinstance(v, float) else v for k, v in row.items() if "seconds" not in k} for row in read_metrics(out_dir)]
    states = {name: fingerprint(torch.load(out_dir/LAST/f"{name}.pt", weights_only=True))
              for name in ("model", "optimizer", "scheduler", "rng", "rollouts")}
    return dict(rows=rows, **states)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    "The folder of a run that nobody killed."
    out_dir = tmp_path_factory.mktemp("undisturbed")/"run"
    assert start(out_dir) == 0
    return out_dir


def test_the_run_is_one_worth_comparing(undisturbed):
    import torch
    rows = outcome(undisturbed)["rows"]
    assert [r["step"] for r in rows] == list(range(1, STEPS + 1))
    assert any(r["staleness_max"] == 1 for r in rows)  # some learnt from what waited in the queue
    middle = torch.load(undisturbed/f"checkpoint-{STEPS - SAVE:06d}/rollouts.pt", weights_only=True)
    assert json.loads(json.loads(middle["plain"])["queue"])["groups"]  # and there something waited


def test_killed_at_every_kind_of_place(undisturbed, tmp_path):
    for kill in KILLS: assert start(tmp_path/"run", kill) == -signal.SIGKILL, kill
    assert start(tmp_path/"run") == 0
    assert outcome(tmp_path/"run") == outcome(undisturbed)


def without(folder, piece):
    "Take `piece` out of the checkpoint `folder`: it becomes what a fresh run has, under a valid manifest."
    import numpy as np
    import torch

    from oaml.training.checkpoints import write_manifest
    name = "optimizer" if piece == "optimizer" else "rollouts"
    value = torch.load(folder/f"{name}.pt", weights_only=True)
    if piece == "optimizer": value = [s | dict(state={}) for s in value]
    else:
        plain = json.loads(value["plain"])
        if piece == "generator": plain["rng"] = np.random.default_rng([3, 1]).bit_generator.state
        if piece == "queue": plain["queue"] = json.dumps(dict(groups=[], questions=[]))
        value["plain"] = json.dumps(plain)
    torch.save(value, folder/f"{name}.pt")
    (folder/"manifest.json").unlink()
    write_manifest(folder)


@pytest.mark.parametrize("piece", [None, "generator", "queue", "optimizer"])
def test_each_piece_of_the_state_counts(undisturbed, tmp_path, piece):
    "The comparison must fail if a piece is lost; with all of them (None) it must hold."
    out_dir = tmp_path/"run"
    shutil.copytree(undisturbed, out_dir, ignore=shutil.ignore_patterns("agent", LAST))
    if piece: without(out_dir/f"checkpoint-{STEPS - SAVE:06d}", piece)
    assert start(out_dir) == 0
    assert (outcome(out_dir) == outcome(undisturbed)) == (piece is None)


def test_on_recorded_data_too(tmp_path):
    "Chains with the model's own history, cut in the middle of one and in an update."
    assert start(tmp_path/"whole", recorded=True) == 0
    for kill in ("in_a_rollout", "in_a_later_update"): assert start(tmp_path/"run", kill, recorded=True) == -signal.SIGKILL, kill
    assert start(tmp_path/"run", recorded=True) == 0
    whole = outcome(tmp_path/"whole")
    assert outcome(tmp_path/"run") == whole
    assert any(r["recorded"] for r in whole["rows"]) and all(r["success"] is None for r in whole["rows"])


def test_three_updates_by_the_command(tmp_path):
    "nano practises login for three updates: the smallest run from the command to an agent."
    from typer.testing import CliRunner

    from oaml.scripts.cli import app
    from oaml.training.checkpoints import read_metrics
    config = "rft"
    keys = dict(output_dir=tmp_path/"run", apps="[login]", starts=6, group_size=3, groups_per_update=1, groups_at_once=2, temperature=1.5)
    keys = {k if k == "output_dir" else f"rft.{k}": v for k, v in keys.items()} | {"training.max_steps": 3, "logging.eval_episodes": 0}
    done = CliRunner().invoke(app, ["rft", str(config), *(x for k, v in keys.items() for x in ("--set", f"{k}={v}"))])
    assert done.exit_code == 0, done.output
    assert "finished at step 3" in done.output and (tmp_path/"run/agent/model.safetensors").exists()
    rows = [r for r in read_metrics(tmp_path/"run") if "loss" in r]
    gaps = [r["gap"] for r in rows if r["gap"] is not None]  # None: all answers were drawn by earlier weights
    assert len(rows) == 3 and gaps and max(gaps) < 2e-4  # NumPy draws, PyTorch learns
