"Screens as tasks: MiniWoB++'s pages behind the task server, and TRL, verifiers and OpenEnv, each the real library."
import inspect
import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from oaml.devices.episode import EpisodeDriver
from oaml.evals.suites import SUITES
from oaml.miniwob.device import MiniwobDevice, missing_pages
from oaml.miniwob.oracles import MiniwobOracle
from oaml.devices.oracle import acceptable_targets
from oaml.devices.wire import missing_serve
from oaml.runtime.agents import view_of
from oaml.schemas.actions import format_action, parse_action
from oaml.service.client import TaskClient
from oaml.service.gui import GuiEnvironment, MiniwobTask, SuiteTask, tool_arguments
from oaml.service.worker import serve_task

needs_serve = pytest.mark.skipif(bool(missing_serve()), reason=str(missing_serve()))


@pytest.mark.parametrize("suite", [name for name in SUITES if name != "calendar-v1"])
def test_every_suite_is_a_task(suite):
    task = SuiteTask(suite, split="validation", episodes=1)
    indices = task.get_indices()
    assert len(indices) == len(SUITES[suite].apps)
    env = GuiEnvironment(task)
    assert env.reset(index=indices[0]) and env.look()[0]["image"].size == SUITES[suite].size
    env.act("DONE()")
    assert env.get_reward() in (0., 1.)


@needs_serve
@pytest.mark.skipif(bool(missing_pages()), reason=str(missing_pages()))
def test_miniwob_over_http():
    "The oracle's actions on a page beside the server's, as tool calls."
    oracle, driver = MiniwobOracle(), EpisodeDriver(MiniwobDevice("click-test"))
    try:
        driver.reset(3)
        oracle.attach(id(driver), driver.device)
        with serve_task(MiniwobTask(["click-test"], episodes=5)) as worker, TaskClient("miniwob", worker.address) as client:
            with client.start("click-test:3") as sample:
                while not driver.over:
                    action = oracle.act([view_of(driver)])[0]
                    call = dict(id="c", type="function", function=dict(name="act", arguments=json.dumps(tool_arguments(action))))
                    turn = sample.interact([dict(role="assistant", content=None, tool_calls=[call])])
                    driver.act(action)
                assert turn.finish and turn.reward == 1. and turn.metrics["success"]
    finally: driver.close()


def test_the_tools_as_trl_reads_them():
    "TRL lists the functions of the class, and makes their schemas with transformers."
    pytest.importorskip("transformers", reason="transformers is not installed; pip install 'oaml[train]'")
    from transformers.utils import get_json_schema
    env = GuiEnvironment(SuiteTask("login-v1", episodes=2))
    names = [n for n, _ in inspect.getmembers(type(env), inspect.isfunction) if not n.startswith("_")]
    assert names == ["act", "get_reward", "look", "reset"]
    schemas = [get_json_schema(getattr(env, n))["function"] for n in ("act", "look")]
    assert schemas[0]["parameters"]["properties"]["action"]["type"] == "string" and schemas[0]["parameters"]["required"] == ["action"]
    assert [s["name"] for s in schemas] == ["act", "look"] and not schemas[1]["parameters"]["properties"]


def oracle_script(task, index):
    "What the oracle does in a sample, in the text form."
    device, seed = task.open_sample(index)
    driver = EpisodeDriver(device)
    try:
        driver.reset(seed)
        while not driver.over: driver.act(acceptable_targets(driver.device, driver.actions)[0].action)
        return [format_action(a) for a in driver.actions]
    finally: driver.close()


def test_trl_trains_in_the_environment(tmp_path):
    """One step of its GRPOTrainer on a small Qwen3-VL of random weights: tools are called, screens come back, rewards are paid,
    weights move. What the model says is written down beforehand: one of the two does as the oracle, the other gives up."""
    for name in ("torch", "trl", "datasets"): pytest.importorskip(name, reason=f"{name}: not installed; pip install 'oaml[train,rl]'")
    import datasets
    import torch
    import trl
    from transformers import AutoModelForImageTextToText, Qwen3VLConfig
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from trl.chat_template_utils import qwen3_vl_chat_template
    from oaml.models.qwen_vl import ImageTextProcessor
    from oaml.nano.tokenizer import nano_tokenizer
    tokenizer = nano_tokenizer()
    tokenizer.chat_template, tokenizer.padding_side = qwen3_vl_chat_template, "left"
    tokenizer.pad_token, tokenizer.eos_token, ids = "<|endoftext|>", "<|im_end|>", tokenizer.get_vocab()
    text = dict(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                head_dim=16, max_position_embeddings=8192, pad_token_id=tokenizer.pad_token_id, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
                rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[4, 2, 2]))
    vision = dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=64, out_hidden_size=32, patch_size=16, deepstack_visual_indexes=[0],
                  num_position_embeddings=64)
    config = Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
                           vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"])
    task = SuiteTask("login-v1", episodes=2)
    index, made = task.get_indices()[0], []
    script, model = oracle_script(task, index), AutoModelForImageTextToText.from_config(config)

    def says(row, chat):
        if '"action": "DONE()"' in chat: return "Finished."
        done = chat.count("<tool_response>")
        return "<tool_call>\n" + json.dumps(dict(name="act", arguments=dict(action="DONE()" if row and not done else script[done]))) + "\n</tool_call>"

    def generate(input_ids, **_):
        answers = [tokenizer.encode(says(i, tokenizer.decode(row)), add_special_tokens=False) + [tokenizer.eos_token_id] for i, row in enumerate(input_ids)]
        width = max(map(len, answers))
        return torch.cat([input_ids, torch.tensor([a + [tokenizer.pad_token_id]*(width - len(a)) for a in answers])], 1)

    def factory(): made.append(GuiEnvironment(task)); return made[-1]

    model.generate = generate
    table = datasets.Dataset.from_list([dict(prompt=[dict(role="user", content="Act until it is done.")], index=index)]*2)
    how = trl.GRPOConfig(output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=2, num_generations=2, max_completion_length=4096,
                         learning_rate=1e-3, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], disable_tqdm=True, logging_steps=1, save_strategy="no")
    trainer = trl.GRPOTrainer(model, args=how, train_dataset=table, environment_factory=factory,
                              processing_class=ImageTextProcessor(Qwen2VLImageProcessorPil(patch_size=16, min_pixels=32*32), tokenizer))
    before = [p.detach().clone() for p in model.parameters()]
    trainer.train()
    row = trainer.state.log_history[0]
    assert row["rewards/GuiEnvironment/mean"] == .5 and row["tools/failure_frequency"] == 0
    assert row["tools/call_frequency"] == (len(script) + 1)/2 and row["loss"]
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert len(made) == 2 and all(env._driver is None for env in made)  # their devices are closed


# Libraries that can't share this environment: in others, named by variables

def run_there(variable, what, code, *args):
    "The last line that `code` prints with the Python that a variable names, as JSON. The test is skipped without it."
    if not (python := os.environ.get(variable)): pytest.skip(f"{variable}: not set; a Python of an environment with {what}")
    env = os.environ | dict(PYTHONPATH=str(Path(__file__).parents[1]))
    done = subprocess.run([python, "-c", code, *args], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class OracleModel(BaseHTTPRequestHandler):
    "A chat server that answers with the next line of the script of a goal, as a tool call."
    scripts, asked = {}, []
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        goal, k = body["messages"][0]["content"][0]["text"], sum(m["role"] == "assistant" for m in body["messages"])
        call = dict(id=f"c{k}", type="function", function=dict(name="act", arguments=json.dumps(tool_arguments(parse_action(self.scripts[goal][k])))))
        answer = json.dumps(dict(id="a", object="chat.completion", created=0, model="oracle", usage=dict(prompt_tokens=1, completion_tokens=1, total_tokens=2), choices=[
            dict(index=0, finish_reason="tool_calls", message=dict(role="assistant", content=None, tool_calls=[call]))])).encode()
        self.send_response(200)
        for header in (("content-type", "application/json"), ("content-length", str(len(answer)))): self.send_header(*header)
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_): pass


VERIFIERS = """
import asyncio, json, sys, types
from oaml.service.verifiers import verifiers_classes
module = sys.modules["my_gui"] = types.ModuleType("my_gui")  # as a file my_gui.py would be
module.__spec__ = __import__("importlib.machinery").machinery.ModuleSpec("my_gui", None)
vars(module).update(verifiers_classes(), __all__=list(verifiers_classes()))
import verifiers.v1 as vf
async def main():
    env = vf.load_environment(vf.resolve_env_config(dict(taskset=dict(id="my_gui", parameters=json.loads(sys.argv[2])))))
    model = vf.ModelContext("oracle", vf.EvalClientConfig(base_url=sys.argv[1], api_key_var="HOME"))
    found = []
    async with env.serving():
        for task in env.taskset:
            episode = await env.run_episode(task, model)
            trace = episode.traces[0]
            found.append(dict(name=task.data.name, ok=episode.ok, errors=[e.message for e in episode.errors], turns=trace.num_turns, metrics=trace.metrics,
                              reward={k: r.score for k, r in trace.rewards.items()}, tools=[t.name for t in trace.tools]))
    print(json.dumps(found))
asyncio.run(main())
"""


def test_an_evaluation_of_verifiers():
    "OAML_VERIFIERS_PYTHON: a Python with verifiers 0.4 and what oaml requires; it wants openai<3, so it is none of this environment."
    given = dict(suite="login-v1", split="validation", episodes=3)
    task = SuiteTask(**given)
    scripts = {i: oracle_script(task, i) for i in task.get_indices()}
    for index, script in scripts.items():
        device, seed = task.open_sample(index)
        device.reset(seed)
        OracleModel.scripts[device.goal.text] = script
        device.close()
    with ThreadingHTTPServer(("127.0.0.1", 0), OracleModel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try: found = run_there("OAML_VERIFIERS_PYTHON", "verifiers 0.4, which wants openai<3", VERIFIERS, f"http://127.0.0.1:{server.server_port}/v1", json.dumps(given))
        finally: server.shutdown()
    assert [f["name"] for f in found] == list(scripts)
    for f in found:
        assert f["ok"] and not f["errors"] and f["reward"] == dict(reward=1.) and f["metrics"]["success"] == 1 and f["tools"] == ["act"], f
        assert f["turns"] == f["metrics"]["steps"] == len(scripts[f["name"]])
    assert OracleModel.asked[0]["tools"][0]["function"]["name"] == "act"


OPENENV = """
import json, sys
from openenv import GenericEnvClient
with GenericEnvClient(base_url=sys.argv[1]).sync() as env:
    results = [env.reset(seed=11)] + [env.step(action) for action in json.loads(sys.argv[2])]
    print(json.dumps(dict(rewards=[r.reward for r in results], done=[r.done for r in results], keys=sorted(results[0].observation), state=env.state())))
"""


@needs_serve
def test_openenvs_own_client_plays():
    "OAML_OPENENV_PYTHON: a Python with openenv 0.10."
    pytest.importorskip("lxml", reason="lxml: not installed; pip install 'oaml[mobile]'")
    import oaml.tasks
    from oaml.devices.app_device import AppDevice
    from oaml.envs.openenv import OpenTask, serve_openenv
    from oaml.schemas.sessions import to_dict
    from oaml.tasks.definition import load_task
    from oaml.tasks.task_env import TaskEnv
    from oaml.tasks.vision import TruthTextModel
    def login():
        device = AppDevice("login", goals=("login",))
        return TaskEnv(device, load_task(Path(oaml.tasks.__file__).parent/"task_files"/"login.textproto"), TruthTextModel(device))
    here = OpenTask(login())
    results, script = [here.reset(seed=11)], []
    while not results[-1]["done"]:
        script.append(to_dict(acceptable_targets(here.env.device)[0].action))
        results.append(here.step(script[-1]))
    with serve_openenv(login) as url: found = run_there("OAML_OPENENV_PYTHON", "openenv 0.10", OPENENV, url, json.dumps(script))
    assert found["rewards"] == [r["reward"] for r in results] and found["done"] == [False]*len(script) + [True]
    assert found["keys"] == sorted(results[0]["observation"]) and found["state"]["step_count"] == len(script)
