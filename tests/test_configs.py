"Every config file loads, and files that say the same thing stay the same."
import json
from pathlib import Path

import pytest
import yaml

from oaml.scripts.demo import demo_config
from oaml.training.config import load_config, load_recipe

CONFIGS = Path(__file__).parents[1]/"configs"


@pytest.mark.parametrize("path", sorted(p for p in CONFIGS.rglob("*") if p.is_file()), ids=lambda p: p.name)
def test_config_loads(path):
    configs = load_recipe(path).values() if "stages" in yaml.safe_load(path.read_text()) else [load_config(path)]
    assert all(config.output_dir.startswith("runs/") for config in configs)


def test_a_stage_begins_with_what_an_earlier_one_leaves():
    before = set()
    for config in load_recipe(CONFIGS/"nano.yaml").values():
        used = {path for path in (config.model.model_name, config.model.reader) if path and path.startswith("runs/")}
        assert used <= before, used - before
        before.add(f"{config.output_dir}/agent")


def test_the_demo_is_its_config_file():
    assert load_config(CONFIGS/"calendar_nano.yaml") == demo_config()


def test_yaml_and_json_say_the_same(tmp_path):
    source = CONFIGS/"login_qwen3vl_2b_lora.yaml"
    (tmp_path/"same.json").write_text(json.dumps(yaml.safe_load(source.read_text())))
    assert load_config(source) == load_config(tmp_path/"same.json")
