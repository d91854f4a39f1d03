"""How fast oaml is beside what people use instead: `python bench/run.py` writes bench/results.md.

Name rows to run only those (`python bench/run.py screens latency`); then nothing is written, only printed.
A row has two sides, each a function that does the work and returns how fast it went (work per second). They take
turns, so that whatever else the machine does hits both; the ratio is the median over the turns. Where torch's counter
can say how many operations the work takes, the row says what share that is of the machine's matrix rate: of a product
of 2048 by 2048 numbers on the same threads, measured before each turn."""
import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Callable


HERE = Path(__file__).resolve().parent
BIN = "Scripts" if os.name == "nt" else "bin"
OPENADAPT = "openadapt-ml==0.17.0"
SCREENS = 300       # screens a turn: a few seconds on the slower side
EPISODES = 40       # episodes a turn
BATCH, STEPS = 32, 12   # samples a training step; steps a turn, of which the first three warm up
CALLS = 32          # predictions a turn


@dataclass
class Row:
    "A comparison."
    what: str       # the work
    unit: str       # what a second is filled with
    beside: str     # who does the other side
    ours: Callable[[], float]    # does the work by oaml, returns units per second
    theirs: Callable[[], float]  # does the same work the other way
    operations: tuple[float, float]|None=None  # additions and multiplications of a unit, oaml's and the other's
    kind: str="float32"          # of the numbers that are multiplied


def matrix_rate(kind: str) -> float:
    "Operations per second of a product of matrices."
    import torch
    a, times = torch.randn(2048, 2048, dtype=getattr(torch, kind)), []
    for _ in range(4):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / statistics.median(times[1:])


def take_turns(row: Row, turns: int) -> tuple[list[float], list[float], list[float]]:
    "Rates of both sides of `row` and of matrices, after one turn each that does not count. Who begins alternates."
    rates = []
    for turn in range(-1, turns):
        sides = [row.ours, row.theirs] if turn % 2 else [row.theirs, row.ours]
        matrices = matrix_rate(row.kind) if row.operations else float("nan")
        pair = [side() for side in sides]
        if turn >= 0: rates.append([*(pair if turn % 2 else pair[::-1]), matrices])
    return tuple(zip(*rates))


def table_line(row: Row, turns: int) -> str:
    "The results of `row` as a line of the table."
    ours, theirs, matrices = take_turns(row, turns)
    ratios = [a/b for a, b in zip(ours, theirs)]
    shares = "not counted"
    if row.operations:
        one, other = (statistics.median(n*r/m for r, m in zip(rates, matrices))
                      for n, rates in zip(row.operations, (ours, theirs)))
        shares = f"{one:.0%}, {other:.0%} of {statistics.median(matrices)/1e9:,.0f} G/s"
    cells = (row.what, row.unit, f"{statistics.median(ours):,.1f}", f"{statistics.median(theirs):,.1f}",
             f"**{statistics.median(ratios):.2f}**", f"{min(ratios):.2f} to {max(ratios):.2f}", shares, row.beside)
    return f"| {' | '.join(cells)} |"


def counted(work: Callable) -> float:
    "Operations of `work` by torch's counter, which knows products, convolutions and attention."
    from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False) as counter: work()
    return counter.get_total_flops()


# (a) Screens, against openadapt-ml's generator in an environment of its own

def openadapt_python() -> Path:
    "The Python of openadapt-ml's own environment, made at the first call: its generator needs Pillow and pydantic only."
    env = HERE/".venv-openadapt"
    python = env/BIN/("python.exe" if os.name == "nt" else "python")
    if not (env/"ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", env], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"pillow=={version('pillow')}", f"pydantic=={version('pydantic')}"], check=True)
        subprocess.run([*pip, "--no-deps", OPENADAPT], check=True)
        (env/"ready").touch()
    return python


def screen_rate(python: Path, statement: str) -> float:
    "PNG files per second that `statement`, a call that fills folder d, writes in a fresh process (its imports apart)."
    before, call = statement.split(";")
    code = (f"import time\nfrom pathlib import Path\n{before}\ndef main(d):\n    start = time.perf_counter()\n    {call}\n"
            "    print(len(list(Path(d).rglob('*.png'))) / (time.perf_counter() - start))\n"
            "import sys\nmain(sys.argv[1])")
    with tempfile.TemporaryDirectory() as d:
        done = subprocess.run([python, "-c", code, d], capture_output=True, text=True)
    if done.returncode: sys.exit(f"{python}:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def openadapt_screens() -> float:
    "Login screens per second of openadapt-ml: six a scripted episode, 800x600."
    return screen_rate(openadapt_python(), "from openadapt_ml.ingest.synthetic import generate_synthetic_episodes as make;"
                       f"make(num_episodes={SCREENS//6}, seed=0, output_dir=d, scenario='login')")


def oaml_screens(size: tuple[int, int]) -> float:
    "Login screens per second of oaml at `size`, in one process: the oracle acts in the live app, all is recorded."
    return screen_rate(sys.executable, "from oaml.ingest.synthetic import generate_synthetic_sessions as make;"
                       f"make({SCREENS//6}, seed=0, output_dir=d, size={size}, workers=1, progress=False)")


def screens() -> list[Row]:
    "The same count of PNGs at the sizes each makes by default, and at openadapt-ml's size."
    beside = f"{OPENADAPT}'s generator, 800x600, scripted frames"
    what, unit = "login screens, recorded, PNGs written", "screens/s"
    return [Row(f"{what} ({w}x{h})", unit, beside, lambda size=(w, h): oaml_screens(size), openadapt_screens)
            for w, h in ((256, 192), (800, 608))]


# (b) Episodes, against the device without gymnasium around it

def play(reset: Callable, device, perform: Callable) -> float:
    "Oracle episodes per second: `reset` to a seed, then `perform` the oracle's actions until DONE."
    from oaml.devices.oracle import acceptable_targets
    start = time.perf_counter()
    for seed in range(EPISODES):
        reset(seed)
        done = []
        while not done or done[-1].type != "done":
            done.append(acceptable_targets(device, done)[0].action)
            perform(done[-1])
    return EPISODES / (time.perf_counter() - start)


def episodes() -> list[Row]:
    "What gymnasium's interface costs on top of the device: the oracle plays the same seeds in both."
    import gymnasium
    import oaml.envs  # noqa: F401, registers the environments
    from oaml.devices.app_device import AppDevice
    env, device = gymnasium.make("oaml/Login-v1"), AppDevice("login")
    return [Row("login episodes, oracle acting, pixels each step", "episodes/s", "the same device without gymnasium",
                lambda: play(lambda seed: env.reset(seed=seed), env.unwrapped.device, env.step),
                lambda: play(device.reset, device, device.perform))]


# What (c) and (d) share: a nano and some samples

def episodes_on_disk(folder: Path) -> list:
    "A few login episodes."
    from oaml.ingest.synthetic import generate_synthetic_sessions
    return [s.episodes[0] for s in generate_synthetic_sessions(40, seed=0, output_dir=folder, progress=False)]


def nano():
    "The nano that oaml ships, on the CPU."
    from oaml.models.qwen_vl import QwenVLAdapter
    return QwenVLAdapter.from_pretrained("nano", device="cpu")


def plain():
    "Its weights in the transformers library's own class, as it sets it up by default."
    import torch
    from oaml.nano.files import shipped_nano
    from oaml.nano.network import NanoForCausalLM  # Qwen3ForCausalLM under another name
    return NanoForCausalLM.from_pretrained(shipped_nano(), dtype=torch.float32)


# (c) Training, against the transformers library's Trainer

class StepTimes:
    "Notes when each optimizer step ended, as a hook of oaml's trainer."
    def __init__(self): self.times = []
    def after_step(self, trainer): self.times.append(time.perf_counter())
    def rate(self) -> float: return BATCH * (len(self.times) - 3) / (self.times[-1] - self.times[2])


def oaml_training(data: list[dict], bf16: bool) -> float:
    "Samples per second of oaml's trainer."
    from oaml.training.config import TrainingConfig
    from oaml.training.trainer import Trainer
    clock, knobs = StepTimes(), dict(per_device_train_batch_size=BATCH, gradient_accumulation_steps=1)
    config = TrainingConfig(training=dict(max_steps=STEPS, bf16=bf16, **knobs))
    with tempfile.TemporaryDirectory() as d: Trainer(nano(), data, config, d, hooks=[clock], progress=False).fit()
    return clock.rate()


def library_training(data: list[dict], bf16: bool) -> float:
    "Samples per second of the transformers library's Trainer, from the same weights."
    import transformers
    adapter, clock = nano(), StepTimes()
    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *args, **kw): clock.after_step(None)
    with tempfile.TemporaryDirectory() as d:
        args = transformers.TrainingArguments(
            d, max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=2e-4, optim="adamw_torch_fused",
            bf16=bf16, use_cpu=True, report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
            remove_unused_columns=False)
        trainer = transformers.Trainer(plain(), args, adapter.prepare_inputs, data, callbacks=[Clock()])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return clock.rate()


def training() -> list[Row]:
    "The same weights, samples, batch, optimizer and precision."
    import torch
    import transformers
    from oaml.datasets.next_action import NextActionDataset
    from oaml.datasets.prompts import PromptFormat
    from oaml.training.trainer import bf16_here
    transformers.utils.logging.disable_progress_bar()
    data = NextActionDataset(episodes_on_disk(tempfile.mkdtemp()), PromptFormat(**nano().prompt_format))
    bf16 = bf16_here(torch.device("cpu"))
    what, ours = f"training nano, batch {BATCH}, {'bfloat16' if bf16 else 'float32'}", lambda: oaml_training(data, bf16)
    adapter, library = nano(), plain()
    inputs = adapter.prepare_inputs([data[k] for k in range(BATCH)])
    own = counted(lambda: adapter.compute_loss(inputs).backward()) / BATCH
    theirs = counted(lambda: library(**inputs).loss.backward()) / BATCH
    return [Row(what, "samples/s", "transformers' Trainer and Qwen3 class", ours, lambda: library_training(data, bf16),
                (own, theirs), "bfloat16" if bf16 else "float32")]


# (d) Acting, against plain `generate`

def answers_rate(predict: Callable, screens: list[tuple], at_once: int) -> float:
    "Answers of `predict` per second, so many screens and goals at a time."
    start = time.perf_counter()
    for k in range(0, len(screens), at_once): predict(*map(list, zip(*screens[k:k+at_once])))
    return len(screens) / (time.perf_counter() - start)


def latency() -> list[Row]:
    "The trained nano, whole answers, as it gives them: on NumPy, and in the transformers library's own class."
    import torch
    from oaml.datasets.prompts import prompt_messages
    from oaml.runtime.policy import load_policy
    policy, adapter, model = load_policy("nano"), nano(), plain().eval()
    steps = [(e, s) for e in episodes_on_disk(tempfile.mkdtemp()) for s in e.steps][:CALLS]
    screens = [(s.observation.image(), e.goal) for e, s in steps]

    @torch.no_grad()
    def library(images, goals):
        samples = [dict(images=[i], messages=prompt_messages(g, None, policy.fmt)) for i, g in zip(images, goals)]
        inputs = adapter._encode(samples, answered=False, side="left")
        ids = model.generate(**inputs, max_new_tokens=policy.max_new_tokens, do_sample=False, eos_token_id=adapter.stops,
                             pad_token_id=adapter.tokenizer.pad_token_id)
        return [adapter._answer(row) for row in ids[:, inputs["input_ids"].shape[1]:].tolist()]

    model.set_attn_implementation("eager")  # the counter sees through it
    operations = counted(lambda: [library([image], [goal]) for image, goal in screens]) / len(screens)
    model.set_attn_implementation("sdpa")
    return [Row(what, "actions/s", "transformers' Qwen3 class and `generate`",
                lambda n=n: answers_rate(policy.predict_actions, screens, n),
                lambda n=n: answers_rate(library, screens, n), (operations, operations))
            for what, n in (("nano's next action, one screen at a time", 1), (f"nano's next actions, {CALLS} at once", CALLS))]


ROWS = dict(screens=screens, episodes=episodes, training=training, latency=latency)


def machine() -> str:
    "This machine and the versions that matter, in one line each."
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), cpu)
    packages = ("oaml", "torch", "transformers", "gymnasium", "pillow", "numpy")
    load = f"{os.getloadavg()[0]:.1f} when it began" if hasattr(os, "getloadavg") else "unknown"
    return "\n".join((f"- {cpu}, {os.cpu_count()} cores, {platform.system()} {platform.release()}; load {load}",
                      f"- Python {platform.python_version()}, " + ", ".join(f"{p} {version(p)}" for p in packages)))


def main():
    "Run the rows, print the table, and write it if all of them ran."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"which rows, all by default: {', '.join(ROWS)}")
    parser.add_argument("--turns", type=int, default=5, help="turns of each side that count (default 5)")
    args = parser.parse_args()
    if unknown := set(args.rows) - set(ROWS): parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    about = machine()
    head = ("| work | unit | oaml | the other | ratio (median) | least to most | share of the matrix rate | the other is |\n"
            + "|---"*8 + "|")
    print(about, head, sep="\n\n", flush=True)
    lines = []
    for name in args.rows or ROWS:
        for row in ROWS[name]():
            lines.append(table_line(row, args.turns))
            print(lines[-1], flush=True)
    if args.rows: return
    text = (f"# Benchmarks\nWritten by `python bench/run.py`: after a warm-up, {args.turns} turns of each side, alternating. "
            f"A ratio above 1 means that oaml is faster.\n\n{about}\n\n" + "\n".join([head, *lines]) + "\n")
    (HERE/"results.md").write_text(text, encoding="utf-8")


if __name__ == "__main__": main()
