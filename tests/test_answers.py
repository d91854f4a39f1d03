"What models answer: 20,000 mutated answers through every dialect's reader, and the same screen at three sizes."
import sys
import warnings
from pathlib import Path

import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]/"bench"))


def test_no_answer_raises_or_acts_out_of_a_thought():
    "bench/answers.py does the same with a million."
    from answers import measure
    counts, (slowest, *_), shown = measure(20_000, seed=20)
    assert not shown, shown[:3]
    assert counts["read as actions"] > 2_000, "the answers are too wild to test reading as well as refusing"
    assert slowest < 1_000  # ms of CPU for 1,000 characters: 3 when it was written, so a thousand is a reader that is not linear


@pytest.mark.parametrize("name", ["agentcpm", "agentcpm_compat", "browsergym", "openai_words", "dsl"])
def test_long_answers_are_read_in_linear_time(name):
    from time import process_time

    from answers import READERS
    from oaml.schemas.dialects import DialectError
    def seconds(text):
        began = process_time()
        try: READERS[name](text)
        except DialectError: pass
        return process_time() - began
    for piece in ("<think>", "</think>", '{"text": "</think>", ', "f(1, ", "[THINK]a[/THINK]", "\nActions:\nWAIT()", "{[", '"\\'):
        short, long = (min(seconds(piece*n + "<think>") for _ in range(2)) for n in (2_000, 20_000))
        assert long < 25*short + .05, piece


@pytest.mark.parametrize("seed", [2, 1_000_000])
def test_a_screen_of_any_size_is_answered_as_that_of_the_trained_one(seed, tmp_path):
    "In the library, by `oaml predict` and behind `oaml serve-model`."
    pytest.importorskip("openai", reason='needs pip install "oaml[api]"')
    pytest.importorskip("uvicorn", reason='needs pip install "oaml[serve]"')
    from oaml.devices.app_device import AppDevice
    from oaml.models.api_adapter import ApiVLMAdapter
    from oaml.runtime.policy import AgentPolicy, load_policy, same_act
    from oaml.scripts.demo_policy import predict
    from oaml.scripts.serve_model import lend_model
    device, nano = AppDevice("login"), load_policy("nano")
    screen, goal = Image.fromarray(device.reset(seed).image), device.goal.text
    def here(shown): return nano.predict_action(shown, goal)[0]
    def predicted(shown):
        shown.save(tmp_path/"shown.png")
        return predict("nano", tmp_path/"shown.png", goal, say=lambda note: None)
    with warnings.catch_warnings(), lend_model(nano.adapter, screens=nano.screens) as url:
        warnings.simplefilter("ignore")
        remote = AgentPolicy(ApiVLMAdapter("openai", "nano", base_url=url))
        for ask in (here, predicted, lambda shown: remote.predict_action(shown, goal)[0]):
            once, *larger = [ask(screen.resize([n*k for n in screen.size], Image.Resampling.NEAREST)) for k in (1, 2, 3)]
            assert once.type == "click" and all(same_act(once, act) for act in larger), (once, larger)
