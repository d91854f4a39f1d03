"Every config file loads, and files that say the same thing stay the same."
import json

import pytest
import yaml

from oaml.scripts.demo import demo_config
from oaml.training.config import CONFIG_FOLDER, config_path, load_config, load_recipe, shipped_configs


@pytest.mark.parametrize("name", shipped_configs())
def test_config_loads(name):
    recipe = "stages" in yaml.safe_load(config_path(name).read_text())
    configs = load_recipe(name).values() if recipe else [load_config(name)]
    assert all(config.output_dir.startswith("runs/") for config in configs)


def test_a_stage_begins_with_what_an_earlier_one_leaves():
    before = set()
    for config in load_recipe("nano").values():
        used = {path for path in (config.model.model_name, config.model.reader) if path and path.startswith("runs/")}
        assert used <= before, used - before
        before.add(f"{config.output_dir}/agent")


def test_the_demo_is_its_config_file():
    assert load_config("calendar_nano") == demo_config()


def test_yaml_and_json_say_the_same(tmp_path):
    source = CONFIG_FOLDER/"login_qwen3vl_2b_lora.yaml"
    (tmp_path/"same.json").write_text(json.dumps(yaml.safe_load(source.read_text())))
    assert load_config(source) == load_config(tmp_path/"same.json")
