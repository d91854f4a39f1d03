"""One update of reinforcement fine-tuning, ours beside TRL's GRPOTrainer: the same prompts, 8 answers to each, one run.

python bench/rft.py [--groups 4]  writes bench/rft.json and bench/rft.md.

Seconds a group, split into drawing, scoring and learning. Single steps only: TRL plays many steps as one growing chat, oaml asks anew on each screen. Both start from the shipped nano, on one thread, one prompt an update (of prompts of different lengths TRL 1.16 makes tensors that do not fit each other with
nano's processor, which reads screens), and take turns. Counted is the processor's time of this process, which a busy machine
stretches less than the clock's.
"""
import argparse
import json
import os
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE, GROUP, LONGEST = Path(__file__).parent, 8, 64


def questions(n):
    "The first screens of `n` episodes, as a policy is asked."
    from oaml.apps.catalog import load_app
    from oaml.datasets.prompts import PromptFormat, prompt_messages
    from oaml.devices.app_device import AppDevice
    from oaml.models.cards import read_card
    from oaml.nano.files import shipped_nano
    fmt = PromptFormat(**read_card(shipped_nano())["prompt_format"])
    device = AppDevice("files", goals=load_app("files").families)
    frames = [(device.reset(600_000 + k).image, device.goal.text) for k in range(n)]
    return [dict(images=[image], messages=prompt_messages(goal, [], fmt)) for image, goal in frames]


def paid(text):
    "The same reward for both: a click with an even number of letters before it. Whatever it is, it must not be uniform."
    from oaml.schemas.actions import parse_response
    action, _ = parse_response(text)
    return float(action.type == "click" and round((action.x or 0)*100) % 2 == 0)


def nano():
    "The shipped nano, ready to learn."
    from oaml.models.qwen_vl import QwenVLAdapter
    return QwenVLAdapter.from_pretrained("nano", device="cpu")


def ours(samples, bf16):
    "Seconds of drawing, scoring and learning."
    import torch

    from oaml.training.grpo import Experience, LossRule, group_advantages, policy_gradients
    adapter, took = nano(), {}
    optimizer = torch.optim.AdamW(adapter.trainable_parameters(), lr=1e-5, fused=True)
    def lap(name, begun): took[name] = time.process_time() - begun
    begun = time.process_time()
    drawn = adapter.snapshot().sample_completions(samples, GROUP, 1., 0, LONGEST)
    lap("draw", begun)
    begun = time.process_time()
    advantages = [group_advantages(torch.tensor([paid(d.text) for d in answers])).tolist() for answers in drawn]
    lap("score", begun)
    begun = time.process_time()
    window = [Experience(s, d, a) for s, answers, row in zip(samples, drawn, advantages) for d, a in zip(answers, row)]
    figures = policy_gradients(adapter, window, LossRule("dapo"), bf16=bf16)
    torch.nn.utils.clip_grad_norm_(adapter.trainable_parameters(), 1.)
    optimizer.step()
    lap("learn", begun)
    return took | dict(tokens=figures["tokens"]/len(window), gap=figures["gap"])


def trl(samples):
    "Seconds of GRPOTrainer's first step, split by its own methods."
    import tempfile

    from datasets import Dataset
    from PIL import Image
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    adapter, took, lengths = nano(), defaultdict(float), []
    data = Dataset.from_list([dict(prompt=s["messages"], images=[Image.fromarray(s["images"][0])]) for s in samples])
    def reward(completions, completion_ids, **columns):
        lengths.extend(map(len, completion_ids))
        return [paid(c[0]["content"] if isinstance(c, list) else c) for c in completions]

    class Ends(TrainerCallback):
        def on_step_begin(self, *args, **kwargs): took["begun"] = time.process_time()
        def on_step_end(self, *args, **kwargs): took["whole"] = time.process_time() - took["begun"]

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, per_device_train_batch_size=GROUP*len(samples), num_generations=GROUP, max_steps=1,
            max_completion_length=LONGEST, temperature=1., top_p=1., top_k=0, repetition_penalty=1., loss_type="dapo", beta=0.,
            learning_rate=1e-5, bf16=False, report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, seed=0,
            gradient_checkpointing=False)
        trainer = GRPOTrainer(adapter.model, reward, args=config, train_dataset=data, processing_class=adapter.processor, callbacks=[Ends()])
        for name, method in dict(draw="_generate", score="_calculate_rewards").items():
            def timed(*args, _inner=getattr(trainer, method), _name=name, **kwargs):
                begun = time.process_time()
                try: return _inner(*args, **kwargs)
                finally: took[_name] += time.process_time() - begun
            setattr(trainer, method, timed)
        trainer.train()
    return dict(draw=took["draw"], score=took["score"], learn=took["whole"] - took["draw"] - took["score"], tokens=sum(lengths)/max(len(lengths), 1), gap=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=4, help="prompts, each an update of its own")
    given = parser.parse_args()
    import torch
    torch.set_num_threads(1)
    samples, rows = questions(given.groups), defaultdict(list)
    whos = {"oaml, float32": lambda x: ours(x, False), "TRL GRPOTrainer": trl, "oaml, bfloat16": lambda x: ours(x, True)}
    ours(samples[:1], False)  # warm
    for k in range(given.groups):
        for who, run in whos.items():
            rows[who].append(run(samples[k:k+1]))
            print(f"prompt {k + 1}, {who}: " + ", ".join(f"{n} {rows[who][-1][n]:.2f} s" for n in ("draw", "score", "learn")), flush=True)
    table = []
    for who, runs in rows.items():
        each = {n: median(r[n] for r in runs) for n in ("draw", "score", "learn")}
        table.append(dict(who=who, **each, group=sum(each.values()), tokens_each=median(r["tokens"] for r in runs), gap=runs[0]["gap"]))
    from oaml.training.checkpoints import environment
    known = dict(groups=given.groups, answers=GROUP, load=os.getloadavg()[0], environment=environment(), rows=table)
    (HERE/"rft.json").write_text(json.dumps(known, indent=1))
    theirs = next(r["group"] for r in table if r["who"].startswith("TRL"))
    lines = ["# One update of a group of 8", "", " ".join(__doc__.split("\n\n")[2].split()), "",
             f"CPU seconds a group, medians of {given.groups} prompts; load of the machine at the end: {known['load']:.1f}.", "",
             "| | draw | score | learn | a group | times TRL's speed | tokens an answer |", "|---|---|---|---|---|---|---|"]
    lines += [f"| {r['who']} | {r['draw']:.2f} | {r['score']:.3f} | {r['learn']:.2f} | {r['group']:.2f} | {theirs/r['group']:.1f} | {r['tokens_each']:.0f} |" for r in table]
    (HERE/"rft.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__": main()
