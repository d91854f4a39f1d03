"""What makes nano learn sooner: `python bench/ablate.py [eye] [finding]` writes experiments/ablations.json.

Two of the recipe's stages (eye and finding of configs/nano.yaml), cut to some thousand screens, and the same with one
thing changed at a time: the same screens in the same order, one seed, one thread. A row has how many CPU seconds it
trained and what it can do with validation episodes then; `19b_gallery.nano` shows them. Forty minutes on a core; rows
that are there are not trained again."""
import argparse
import json
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import torch

from oaml.apps.app import split_seeds
from oaml.datasets.samples import SampleConfig
from oaml.datasets.stream import default_sources, episode_samples
from oaml.models.base_adapter import IGNORED
from oaml.nano.eye import EyeAdapter
from oaml.nano.images import MAPS, NanoImageProcessor
from oaml.nano.model import COORDINATES, NanoAdapter, build_nano, nano_config
from oaml.nano.pointing import PointingAdapter
from oaml.models.qwen_vl import QwenVLAdapter
from oaml.scripts.train import make_evaluate, make_stream
from oaml.training.config import load_recipe
from oaml.training.trainer import Trainer

HERE = Path(__file__).resolve().parent
OUT = HERE.parent/"experiments/ablations.json"
NEAR = .06  # of the screen: a coordinate within this is right


class FixedScale(NanoImageProcessor):
    "Subtracts and divides by what other models do: numbers that are the same for all screens."
    def _middle(self, x): return np.full((len(x), 3), 127.5, np.float32)
    def _spread(self, x): return np.full(len(x), 127.5, np.float32)


class NamesOnly(EyeAdapter):
    "Learns where names are and what kinds things are, nothing of letters, parts, states and places."
    def _lesson(self, outputs, inputs): return 0 * outputs["letters"].sum()


def fresh(fmt, how: dict) -> NanoAdapter:
    "A new nano, changed: `vision` its tower's config, `images` its processor's settings, `without` inits it does without."
    def config(tokenizer, large=False):
        made = nano_config(tokenizer, large)
        for name, value in how.get("vision", {}).items(): setattr(made.vision_config, name, value)
        return made
    with ExitStack() as stack:
        stack.enter_context(patch("oaml.nano.model.nano_config", config))
        for name in how.get("without", ()): stack.enter_context(patch(f"oaml.nano.model.{name}", lambda *args, **how: None))
        model, processor = build_nano(how.get("seed", 0), large=True)
    images = dict(merge_size=1, fold=2, retina=processor.image_processor.retina) | how.get("images", {})
    processor.image_processor = images.pop("kind", NanoImageProcessor)(**images)
    return NanoAdapter(model, processor, "cpu", asdict(fmt))


# What is changed: of the eye's lesson how it is built and trained, of finding too

EYES = {
    "as in the recipe": {},
    "the same, another seed": dict(seed=1, training=["training.seed=1"]),
    "AdamW for Muon": dict(training=["training.optimizer=adamw"]),
    "AdamW, a third of the rate": dict(training=["training.optimizer=adamw", "training.learning_rate=0.001"]),
    "weights of deviation 0.02": dict(without=("fan_in_init",)),
    "places not alike for neighbours": dict(without=("ordered_init",)),
    "colours on a fixed scale": dict(images=dict(kind=FixedScale)),
    "no retina": dict(vision=dict(in_channels=2*MAPS), images=dict(retina=None)),
    "tokens of twice the side": dict(vision=dict(spatial_merge_size=2), images=dict(merge_size=2)),
    "one layer": dict(vision=dict(depth=1)),
    "two layers": dict(vision=dict(depth=2)),
    "half as wide": dict(vision=dict(hidden_size=64, num_heads=2, intermediate_size=192)),
    "names and kinds only": dict(adapter=NamesOnly),
}
FINDINGS = {
    "as in the recipe": {},
    "the same, another seed": dict(seed=1, training=["training.seed=1"]),
    "AdamW for Muon": dict(training=["training.optimizer=adamw"]),
    "heads not shown where to look": dict(pointing=0.),
    "words without codes": dict(without=("spelling_init",)),
    "no heads that copy": dict(without=("copying_init",)),
    "coordinates not alike for neighbours": dict(without=("ordered_init",)),
    "vision tower learns too": dict(training=["training.freeze_vision=false"]),
    "two questions for eight": dict(training=["stream.questions=2"]),
    "no act, questions only": dict(questions_only=True),
}


def shortened(stage: str, screens: int, how: dict):
    "A stage's config: so many screens of 256x192, in this process."
    few = [f"stream.samples={screens}", "stream.kinds=[{size: [256, 192]}]", "stream.workers=0", "training.processes=1",
           "logging.eval_episodes=2"]
    return load_recipe(HERE.parent/"configs/nano.yaml", [*few, *how.get("training", ())])[stage]


def trained(adapter, samples, config) -> float:
    "CPU seconds that `adapter` learnt from `samples`."
    start = time.process_time()
    with TemporaryDirectory() as folder: Trainer(adapter, samples, config, folder).fit()
    return time.process_time() - start


def eye_row(how: dict, screens: int) -> dict:
    "The eye's lesson."
    config = shortened("eye", screens, how)
    fmt = config.prompt.prompt_format()
    nano = fresh(fmt, how)
    eye = how.get("adapter", EyeAdapter)(nano, config.training.seed)
    stream = make_stream(config, fmt)
    samples = [stream[k] for k in range(screens)]
    seconds = trained(eye, samples, config)
    figures = make_evaluate(config, fmt)(eye, 0)
    return dict(weights=sum(p.numel() for p in nano.qwen.model.visual.parameters()), cpu_seconds=seconds,
                **{k: figures[k] for k in ("letters", "names", "kinds")})


def without_act(sample: dict) -> dict:
    "The chat without its first question, which is for the next act."
    first, _, *rest = sample["messages"]
    return dict(sample, messages=rest) if rest else sample


def coordinates_right(adapter, samples: list[dict]) -> float:
    "How many coordinates are near what they should be, given what stands before them."
    ids, right = adapter.tokenizer.convert_tokens_to_ids(list(COORDINATES)), []
    value = torch.full((len(adapter.tokenizer),), torch.nan)
    value[ids] = torch.linspace(0, 1, len(ids))
    with torch.no_grad(), adapter.evaluating():
        for k in range(0, len(samples), 16):
            inputs = adapter.prepare_inputs(samples[k:k+16])
            labels = inputs["labels"][:, 1:]
            keep = (labels != IGNORED) & torch.isin(labels, torch.tensor(ids))
            logits = adapter.qwen.lm_head(adapter._states({n: v for n, v in inputs.items() if n != "labels"}, keep))
            right += [(value[logits.argmax(-1)] - value[labels[keep]]).abs() <= NEAR]
    return torch.cat(right).float().mean().item()


def finding_row(how: dict, screens: int) -> dict:
    "The first lesson in looking, on the eye that oaml ships."
    config = shortened("finding", screens, how)
    fmt = config.prompt.prompt_format()
    nano, shipped = fresh(fmt, how), QwenVLAdapter.from_pretrained("nano", device="cpu")
    nano.qwen.model.visual.load_state_dict(shipped.qwen.model.visual.state_dict())
    nano.qwen.model.visual.requires_grad_(not config.training.freeze_vision)
    weight = how.get("pointing", config.training.pointing)
    adapter = PointingAdapter.of(nano, weight) if weight else nano
    stream = make_stream(config, fmt)
    samples = [stream[k] for k in range(screens)]
    if how.get("questions_only"): samples = [without_act(s) for s in samples]
    seconds = trained(adapter, samples, config)
    asked = SampleConfig(picks=4, questions=8, fmt=fmt)
    unseen = [without_act(s) for k, source in enumerate(default_sources()) for seed in split_seeds("validation", 4, 300*k)
              for s in episode_samples(source.app, seed, asked)]
    return dict(cpu_seconds=seconds, coordinates=coordinates_right(nano, unseen))


LESSONS = dict(eye=(eye_row, EYES, 6400), finding=(finding_row, FINDINGS, 960))


def main(names: list[str]):
    "Train what is not there yet, a row at a time."
    torch.set_num_threads(1)
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in names:
        row, variants, screens = LESSONS[name]
        for what, how in variants.items():
            if what in known.get(name, {}): continue
            rows = known.get(name, {}) | {what: dict(screens=screens, **row(how, screens))}
            known[name] = {w: rows[w] for w in variants if w in rows}
            OUT.write_text(json.dumps(known, indent=1))
            print(name, what, known[name][what], flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help=f"of {', '.join(LESSONS)}; default: all")
    named = parser.parse_args().lessons
    if unknown := set(named) - set(LESSONS): parser.error(f"no such lesson: {', '.join(unknown)}; there are {', '.join(LESSONS)}")
    main(named or list(LESSONS))
