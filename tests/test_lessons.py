"Lessons in generated worlds: the same tokens in training and in acting, and the whole training in miniature, in slices."
import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from random import Random

import numpy as np
import pytest

from oaml.datasets.prompts import PromptFormat
from oaml.datasets.samples import SampleConfig
from oaml.datasets.stream import walk_episode
from oaml.models.qwen_vl import QwenVLAdapter
from oaml.nano.model import SampleEncoder
from oaml.nano.numpy_engine import LightNano
from oaml.runtime.lessons import WorldLessons, demonstration, lesson
from oaml.runtime.policy import AgentPolicy

BENCH = Path(__file__).parents[1]/"bench/worlds_training.py"


@pytest.mark.parametrize("shown_as", ["words", "proposal", "words+marks", "words+values+marks+proposal"])
def test_a_demonstration_gives_the_same_tokens_in_training_and_in_acting(shown_as):
    fmt = PromptFormat(precision=2, thought=True, goal_first=True, marks=True, shots=1, shown_as=shown_as)
    learner = QwenVLAdapter.from_pretrained("nano-small")
    learner.prompt_format = asdict(fmt)
    encode, config = SampleEncoder(learner), SampleConfig(fmt=fmt)
    policy = AgentPolicy(LightNano.of(learner), eyes="tree")
    for world in (11, 2_000_004):
        device, steps = walk_episode(f"worlds:{world}", world, config, Random(world))
        shown = [demonstration(f"worlds:{world}", device.goal.family, 0)]
        policy.show(shown)
        for step in steps[:3]:
            asked = []
            policy.adapter.generate_batch = lambda samples, *how: asked.extend(samples) or ["DONE()"]
            policy.predict_action(np.asarray(device.stage.render(step[0])), device.goal.text, elements=step[1])
            acting = policy.adapter._prompt_ids(asked[0], "sample")
            training = encode([lesson(device, step, device.goal.text, shown, config)])[0]["input_ids"][0].tolist()
            assert training[:len(acting)] == acting


def test_half_of_the_lessons_show_a_sibling_and_a_quarter_nothing():
    lessons, kinds = WorldLessons(worlds=5), {"sibling": 0, "none": 0, "other": 0}
    for seed in range(300):
        rng = Random(seed)
        shown = lessons.shown("worlds:3", "delete", "Remove the guest 'Ada'.", "", rng)
        kinds["none" if not shown else "sibling" if shown[0] in [demonstration("worlds:3", "delete", k) for k in range(3)] else "other"] += 1
    assert abs(kinds["sibling"] - 150) < 30 and abs(kinds["none"] - 75) < 25 and kinds["other"] > 40


def test_the_training_in_worlds_runs_in_slices_and_is_measured(tmp_path):
    spec = importlib.util.spec_from_file_location("worlds_training", BENCH)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    bench.ANSWER_TOKENS = 8  # what a nano drawn at random says has no end
    options = ["run", "--arms", "marks", "--worlds", "2", "--samples", "24", "--start", "nano-small", "--folder", str(tmp_path/"runs"), "--batch", "4",
               "--accumulate", "1", "--workers", "0", "--episodes", "3", "--save", "2"]
    bench.main([*options, "--minutes", "0.0001"])  # a slice ends after a step
    first = json.loads((tmp_path/"runs/marks-2w-24s-nano-small/data.json").read_text())
    assert not (tmp_path/"runs/results.jsonl").exists() and "WorldLessons(worlds=2" in first["made_by"]
    bench.main(options)
    bench.main(options)  # nothing twice
    rows = bench.rows_of(tmp_path/"runs")
    assert [(r["where"], r["shots"]) for r in rows] == [("validation", 0), ("validation", 1)] and all(r["steps"] for r in rows)
    bench.main(["table", "--folder", str(tmp_path/"runs"), "--out", str(tmp_path/"out")])
    assert (tmp_path/"out/table.md").read_text().count("marks-2w-24s-nano-small") == 2
