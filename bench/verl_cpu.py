"""GRPO by verl's own parts, on a CPU: its data set, reward manager, advantages and loss, with the shipped nano in the place of its engines.

python bench/verl_cpu.py [--updates 8]  writes bench/verl.md. It needs an environment with verl 0.9 beside oaml (see the page).

verl's RLHFDataset reads what `save_verl_rows` wrote, its reward manager calls `compute_score`, its estimator makes advantages and its policy loss the
gradient. Each update is laid beside oaml's own loss on the same answers: another number ends the run."""
import argparse
import asyncio
import os
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
PAGE, GROUP, PROMPTS, LONGEST, TEMPERATURE = Path(__file__).parent/"verl.md", 4, 2, 64, 1.3
HEAD = """# verl on a CPU

`python bench/verl_cpu.py --updates {updates}`: GRPO on recorded steps of the login, by verl's data set (`RLHFDataset` on `save_verl_rows`), reward manager (`naive`, with
`compute_score`), advantages (`grpo`) and loss (`vanilla`, mean over tokens). The shipped nano draws the answers and learns, where verl has vLLM and FSDP.
*Apart* is how far loss, and its gradient at a token, are from oaml's on the same answers.

What is not run is verl's trainer itself. {trainer}

It needs an environment of its own, for verl wants transformers before 5.11. This one had verl 0.9.1, transformers 5.9.0, tokenizers 0.22.2,
huggingface-hub 1.33.0, tensordict 0.10.0 and TransferQueue 0.1.11 beside oaml's own requirements and PyTorch for CPUs; a fresh
`pip install "oaml[train,hf]" verl` asks for the like and was not tried.
"""
TRAINER = ("`python -m verl.trainer.main_ppo` draws answers by vLLM, SGLang or TensorRT-LLM alone, and puts its workers on devices that Ray counts as GPUs; "
           "its platforms are CUDA, ROCm and NPU.\nSo its code says. Started here, it took the configuration of `14k_runtime.verl`, and then Ray did not come up in time on a busy machine.")


def recorded(folder, fmt):
    "Write the rows of two logins, and return the file."
    from oaml.ingest.synthetic import generate_synthetic_sessions
    from oaml.runtime.verl import save_verl_rows
    sessions = generate_synthetic_sessions(2, seed=0, app="login", output_dir=folder/"data", progress=False)
    save_verl_rows([e for s in sessions for e in s.episodes], file := folder/"train.parquet", fmt)
    return file


def question(row):
    "What a row of RLHFDataset asks, as oaml's adapters take it."
    turns = [m["content"] if isinstance(m["content"], list) else [dict(type="text", text=m["content"])] for m in row["raw_prompt"]]
    words = ["".join(p["text"] for p in parts if p["type"] == "text") for parts in turns]
    return dict(images=[p["image"] for parts in turns for p in parts if p["type"] == "image"],
                messages=[dict(role=m["role"], content=text) for m, text in zip(row["raw_prompt"], words)])


async def paid(config, tokenizer, rows, drawn):
    "What verl's reward manager pays for each row's answers."
    import numpy as np
    import torch
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager
    manager = load_reward_manager(config, tokenizer)
    async def one(row, answer):
        known = {k: np.array([row[k]], dtype=object) for k in ("data_source", "reward_model", "extra_info")}
        ids = torch.tensor([answer.ids])
        return (await manager.run_single(DataProto.from_dict(dict(responses=ids, attention_mask=torch.ones_like(ids)), non_tensors=known)))["reward_score"]
    return [await one(row, answer) for row, answers in zip(rows, drawn) for answer in answers]


def update(adapter, optimizer, config, rows, seed):
    "Draw answers, let verl pay and weigh them, and make a step; what came of it."
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
    from verl.workers.config import ActorConfig

    from oaml.training.grpo import Experience, LossRule, clipped_loss, group_advantages, old_log_probs
    begun, samples = time.process_time(), [question(r) for r in rows]
    drawn = adapter.sample_completions(samples, GROUP, TEMPERATURE, seed, LONGEST)
    rewards = torch.tensor(asyncio.run(paid(config, adapter.tokenizer, rows, drawn)))
    window = [Experience(s, d, 0.) for s, answers in zip(samples, drawn) for d in answers]
    inputs = adapter.prepare_completions([x.sample for x in window], [x.completion for x in window])
    with adapter.as_drawn():
        mask = inputs["answer_mask"]
        old, (now, _) = old_log_probs(window, mask), adapter.log_probs(inputs, TEMPERATURE)
        last = mask.sum(1).long() - 1
        scores = torch.zeros_like(mask).scatter(1, last[:, None], rewards[:, None])
        groups = np.repeat(np.arange(len(rows)), GROUP)
        advantages, _ = get_adv_estimator_fn("grpo")(token_level_rewards=scores, response_mask=mask, index=groups)
        actor = ActorConfig(strategy="fsdp", rollout_n=GROUP, ppo_micro_batch_size_per_gpu=GROUP)
        loss, _ = get_policy_loss_fn("vanilla")(old_log_prob=old, log_prob=now, advantages=advantages, response_mask=mask, loss_agg_mode="token-mean", config=actor)
        ours, _ = clipped_loss(now, old, group_advantages(rewards.view(-1, GROUP)).flatten(), mask, LossRule("dapo"))
        (theirs_at,), (ours_at,) = (torch.autograd.grad(x, now, retain_graph=True) for x in (loss, ours))
        apart = max(float((loss - ours).detach().abs()), float((theirs_at - ours_at).abs().max()))
        if apart > 1e-5: raise SystemExit(f"update {seed}: verl's loss {float(loss.detach()):.7f} and oaml's {float(ours.detach()):.7f}, or their gradients, are {apart:.2g} apart")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(adapter.trainable_parameters(), 1.)
    optimizer.step()
    optimizer.zero_grad()
    return dict(reward=float(rewards.mean()), varied=int((rewards.view(-1, GROUP).std(1) > 0).sum()), loss=float(loss.detach()), apart=apart, seconds=time.process_time() - begun)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=8, help="updates, of two prompts and four answers each (default 8)")
    parser.add_argument("--no-write", action="store_true", help="leave bench/verl.md as it is")
    args = parser.parse_args()
    import torch
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from oaml.datasets.prompts import PromptFormat
    from oaml.models.qwen_vl import QwenVLAdapter
    torch.set_num_threads(1)
    adapter = QwenVLAdapter.from_pretrained("nano", device="cpu")
    before = [p.detach().clone() for p in adapter.trainable_parameters()]
    optimizer = torch.optim.AdamW(adapter.trainable_parameters(), lr=1e-4)
    lines = ["| update | reward, mean | groups that vary | loss | apart | CPU seconds |", "|---:|---:|---:|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as d:
        config = OmegaConf.create(dict(data=dict(cache_dir=d, filter_overlong_prompts=False), reward=dict(
            custom_reward_function=dict(path="pkg://oaml.runtime.verl", name="compute_score"), reward_manager=dict(source="register", name="naive"))))
        data = RLHFDataset(str(recorded(Path(d), PromptFormat(**adapter.prompt_format or {}))), adapter.tokenizer, config.data, adapter.processor)
        for k in range(args.updates):
            row = update(adapter, optimizer, config, [data[(PROMPTS*k + j) % len(data)] for j in range(PROMPTS)], k)
            lines.append(f"| {k + 1} | {row['reward']:.3f} | {row['varied']} of {PROMPTS} | {row['loss']:.4f} | {row['apart']:.0e} | {row['seconds']:.1f} |")
            print(lines[-1], flush=True)
    moved = sum(not torch.equal(p, q) for p, q in zip(before, adapter.trainable_parameters()))
    lines.append(f"\n{moved} of {len(before)} tensors moved. " + ", ".join(f"{p} {version(p)}" for p in ("verl", "torch", "transformers")) + ".")
    print(lines[-1])
    if not args.no_write: PAGE.write_text(HEAD.format(trainer=TRAINER, updates=args.updates) + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__": main()
