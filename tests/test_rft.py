"Seed 2's records, dialect and rewards: cases by hand and by the peer's own code, malformed files, hostile answers, TRL."
import json
import math
import random
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from oaml.datasets.rft import RFT_SAMPLES, GUIMTRFTDataset, GUIRFTDataset, RFTError, parse_rft_line, read_rft, validate_rft
from oaml.rewards.gui import (
    GUI_REWARDS, WeightedReward, action_args_check, action_schema_check, action_type_check, distance_score, react_check, reward_map)
from oaml.schemas.agentcpm import AgentCPM, agentcpm_problem, agentcpm_response, agentcpm_schema
from oaml.schemas.dialects import BOMBS, DIALECTS, DialectError, check_dialect
from oaml.schemas.sessions import Action
from oaml.scripts.cli import app


needs_json5 = pytest.mark.skipif(not find_spec("json5"), reason="json5 is missing: pip install 'oaml[rl]'")
PEER = dict(compat="agentcpm")


# The dialect

@pytest.mark.parametrize("size", [(160, 210), (1280, 720), (333, 777)])
def test_the_dialect_conforms(size):
    assert DIALECTS["agentcpm"].types == AgentCPM.types
    check_dialect(DIALECTS["agentcpm"], size)


def test_problems_are_the_schemas():
    "A field check of ours and the library's agree, on random objects, strictly and as the peer has it."
    jsonschema = pytest.importorskip("jsonschema", reason="pip install 'oaml[rl]'")
    rng = random.Random(0)
    values = [0, 5, 1000, 1001, -1, 200., .5, True, None, "up", "HOME", "finish", "continue", "", [1, 2], [1.5, 2], [1], [], [True, 1], {}, "漢", math.inf]
    names = [*agentcpm_schema()["properties"], "point"]
    for compat in (False, True):
        schema = jsonschema.Draft202012Validator(agentcpm_schema(compat))
        for _ in range(500):
            o = {rng.choice(names): rng.choice(values) for _ in range(rng.randrange(4))}
            assert (agentcpm_problem(o, compat) is None) == schema.is_valid(o), o


@needs_json5
def test_compat_takes_what_the_peer_takes():
    loose = AgentCPM(compat=True)
    for text in ("{}", '{"to":"up"}', '{"to":[1,2]}', '{"POINT":[1,2],"TYPE":"a"}', "{'PRESS': 'HOME',}", '```json\n{"STATUS":"finish"}\n```',
                 '{"duration":1500}', '{"PRESS":"BACK","duration":9}', '{"STATUS":"continue"}', '{"TYPE":""}', '{"TYPE":"a\\nb"}'):
        assert all(isinstance(a, Action) for a in loose.parse(text, (9, 9)))
    assert loose.parse('{"STATUS":"impossible"}', (9, 9))[0].type == "impossible"
    for text in (*AgentCPM.refused[:6], '{"PRESS":"MENU"}', '{"POINT":[1,2],"POINT":[1,2]}'):
        with pytest.raises(DialectError): loose.parse(text, (9, 9))


# Rewards by hand: each number can be worked out with a pencil from the rules

BOX = [[400, 900], [600, 1100]]  # on a screen of 1000x2000; its middle is (500, 1000) pixels
BY_HAND = [  # answer, solution, box, box2, schema, type, args
    ('{"POINT":[500,500]}', dict(POINT=[500, 500]), BOX, None, .3, 1, 1),
    ('{"POINT":[400,500]}', dict(POINT=[500, 500]), BOX, None, .3, 1, .95 + .05*.9**3),     # 100 pixels off the middle
    ('{"POINT":[600,550]}', dict(POINT=[500, 500]), BOX, None, .3, 1, .95 + .05*.9**3),     # a corner: 100 and 100
    ('{"POINT":[300,500]}', dict(POINT=[500, 500]), BOX, None, .3, 1, .9),                  # outside: 1 - .2/2
    ('{"POINT":[0,0]}', dict(POINT=[500, 500]), BOX, None, .3, 1, .5),
    ('{"POINT":[509,491]}', dict(POINT=[500, 500]), None, None, .3, 1, 1),                  # within a hundredth
    ('{"POINT":[512,500]}', dict(POINT=[500, 500]), None, None, .3, 1, .994),               # 1 - .012/2
    ('{"POINT":[500,500],"thought":"so"}', dict(POINT=[500, 500]), BOX, None, .3, 1, 1),    # thoughts don't count
    ('{"POINT":[500,500],"to":"up"}', dict(POINT=[500, 500]), BOX, None, .3, 0, .9),        # a key too many
    ('{"POINT":[500,500]}', dict(POINT=[500, 500], to="up"), BOX, None, .3, 0, .2),         # -.3 and the mean of 1, 0
    ('{"POINT":[500,500],"to":"down"}', dict(POINT=[500, 500], to="up"), BOX, None, .3, 1, .5),
    ('{"POINT":[500,500],"to":[1,1]}', dict(POINT=[500, 500], to="up"), BOX, None, .3, 1, .5),
    ('{"POINT":[500,500],"to":[500,500]}', dict(POINT=[500, 500], to=[500, 500]), BOX, BOX, .3, 1, 1),
    ('{"POINT":[500,500],"to":[300,500]}', dict(POINT=[500, 500], to=[500, 500]), BOX, BOX, .3, 1, .95),
    ('{"duration":150}', dict(duration=3000), None, None, .3, 1, 0),
    ('{"duration":151}', dict(duration=3000), None, None, .3, 1, 1),
    ('{"duration":5001}', dict(duration=5001), None, None, .3, 1, 0),                       # right, and worth nothing
    ('{"TYPE":"ab"}', dict(TYPE="abcd"), None, None, .3, 1, 2/3),                           # 2*2/(2+4)
    ('{"TYPE":"x"}', dict(TYPE="abcd"), None, None, .3, 1, 0),
    ('{"PRESS":"BACK"}', dict(PRESS="HOME"), None, None, .3, 1, 0),
    ('{"PRESS":"BACK"}', dict(STATUS="finish"), None, None, .3, 0, -.4),                    # one too many, one missing
    ('```json\n{"PRESS":"HOME"}\n```', dict(PRESS="HOME"), None, None, .15, 1, .95),
    ('{"PRESS":"MENU"}', dict(PRESS="HOME"), None, None, .09, -1, -1),
    ("press home", dict(PRESS="HOME"), None, None, 0, -1, -1),
    ("{}", dict(PRESS="HOME"), None, None, .3, -1, -1),                                     # by the schema, and no action
]
SHORT = '<think>t</think><act>{"POINT":[500,500]}</act>'
TAGGED = [  # answer, step, react, for a click on the middle of BOX
    (f"<plan>p</plan>{SHORT}", 0, 1), (SHORT, 0, -1), (SHORT, 1, 1), (f"<reflection>r</reflection>{SHORT}", 4, 1), (f"{SHORT}.", 1, -1), (f"so {SHORT}", 1, -1),
    ('<think>t</think><act>{"POINT":[500,500],"to":"up"}</act>', 1, -.5), ('<think>t</think><act>{"PRESS":"HOME"}</act>', 1, -1),
    ('<think>t</think><act>{"POINT":[300,500]}</act>', 1, .9), ('<think>t</think><act>no</act>', 1, -1), ('{"POINT":[500,500]}', 1, -1)]


def columns(solution, size, boxes, step=0):
    return dict(solution=[solution], resolution=[(size, size)], bboxs=[boxes], step_id=[step])


@needs_json5
@pytest.mark.parametrize("answer, solution, box, box2, schema, kind, args", BY_HAND)
def test_rewards_worked_by_hand(answer, solution, box, box2, schema, kind, args):
    known = columns(solution, (1000, 2000), [box, box2]) | PEER
    got = [f([answer], **known)[0] for f in (action_schema_check, action_type_check, action_args_check)]
    assert got == pytest.approx([schema, kind, args], abs=1e-12)


@needs_json5
@pytest.mark.parametrize("answer, step, worth", TAGGED)
def test_react_worked_by_hand(answer, step, worth):
    assert react_check([answer], **columns(dict(POINT=[500, 500]), (1000, 2000), [BOX, None], step), **PEER) == [pytest.approx(worth, abs=1e-12)]


@needs_json5
def test_rewards_are_the_peers():
    "283 answers with what AgentCPM-GUI's own functions gave for them (its schema check times its 0.3)."
    cases = [json.loads(line) for line in (Path(__file__).parent/"rft_cases.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(cases) >= 200
    for c in cases:
        known = columns(c["solution"], c["size"], c["bboxs"], c["step"]) | PEER
        got = [f([c["answer"]], **known)[0] for f in (action_schema_check, action_type_check, action_args_check, react_check)]
        assert got == pytest.approx([c["schema"], c["type"], c["args"], c["react"]], abs=1e-9), c


def test_a_map_of_random_clicks():
    size, box = (1000, 2000), [[100, 200], [350, 700]]
    worth = reward_map(action_args_check, dict(POINT=[200, 200]), size, [box, None], columns=40, rows=40)
    assert sum(map(sum, worth))/1600 == pytest.approx(.25*.25)
    centred = [[distance_score([x, y], [500, 500], size, [[499, 999], [501, 1001]]) for x in range(5, 1000, 10)] for y in range(5, 1000, 10)]
    assert sum(map(sum, centred))/10_000 == pytest.approx(.75, abs=1e-3)


def test_weights_count():
    rewards = dict(a=lambda completions, **c: [1.]*len(completions), b=lambda completions, **c: [float(len(t)) for t in completions])
    assert WeightedReward(dict(a=2, b=-.5), rewards)(["", "abcd"]) == [2., 0.]
    assert WeightedReward(dict(a=2), rewards)(["", "abcd"]) == [2., 2.]
    for wrong in ({}, dict(c=1), dict(a="1"), dict(a=math.inf)):
        with pytest.raises(ValueError, match="weights"): WeightedReward(wrong, rewards)


def test_strict_rewards_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "json5", None)
    known = columns(dict(PRESS="HOME"), (9, 9), [None, None])
    assert action_args_check(['{"PRESS":"HOME"}'], **known) == [1.]
    with pytest.raises(ImportError, match=r"oaml\[rl\]"): action_args_check(['{"PRESS":"HOME"}'], **known, **PEER)


# Files

LINES = [json.loads(line) for line in RFT_SAMPLES.read_text(encoding="utf-8").splitlines()]
FOLDER = RFT_SAMPLES.parent


def test_the_samples_are_right():
    assert validate_rft(RFT_SAMPLES) == (8, sum(len(r["image"]) for r in LINES), [])
    single, steps = GUIRFTDataset(RFT_SAMPLES), GUIMTRFTDataset(RFT_SAMPLES)
    keys = ["id", "step_id", "resolution", "bboxs", "solution", "prompt", "next_id"]
    assert all(list(s) == keys and s["next_id"] is None for s in single)
    for i, record in enumerate(steps.records):
        chain = [steps[i + 8*k] for k in range(len(record.steps))]
        assert [s["next_id"] for s in chain] == [*(i + 8*k for k in range(1, len(chain))), None]
        assert [s["solution"] for s in chain] == [s.solution for s in record.steps]
        for s in chain:
            known = columns(s["solution"], s["resolution"][0], s["bboxs"])
            assert action_args_check([json.dumps(s["solution"])], **known) == [1.]


def test_a_missing_picture_is_never_another_sample(tmp_path):
    line = LINES[0] | dict(image={"<image_00>": str(tmp_path/"shot.png")})
    (tmp_path/"a.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(RFTError, match=r"a.jsonl:1: image.<image_00>: there is no file"): GUIRFTDataset(tmp_path/"a.jsonl")
    (tmp_path/"shot.png").write_bytes(b"no picture")
    with pytest.raises(RFTError, match=r"a.jsonl:1: image.<image_00>: cannot be read as a picture"): GUIRFTDataset(tmp_path/"a.jsonl")[0]
    Image.new("RGB", (256, 192)).save(tmp_path/"shot.png")
    assert GUIRFTDataset(tmp_path/"a.jsonl")[0]["prompt"][1]["content"][1]["image"].size == (256, 192)
    Image.new("RGB", (64, 64)).save(tmp_path/"shot.png")
    with pytest.raises(RFTError, match=r"a.jsonl:1: bbox\[0\]: .* leaves the screen of 64x64"): GUIRFTDataset(tmp_path/"a.jsonl")[0]


def test_pictures_as_data_and_in_the_folder_above(tmp_path):
    import base64
    (tmp_path/"data").mkdir()
    png = (FOLDER/LINES[0]["image"]["<image_00>"]).read_bytes()
    (tmp_path/"shot.png").write_bytes(png)
    inline = "data:image/png;base64," + base64.b64encode(png).decode()
    lines = [LINES[0] | dict(id=k, image={"<image_00>": v}) for k, v in enumerate(("shot.png", inline))]
    (tmp_path/"data"/"a.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    a, b = GUIRFTDataset(tmp_path/"data"/"a.jsonl")
    assert a["prompt"][1]["content"][1]["image"].tobytes() == b["prompt"][1]["content"][1]["image"].tobytes()


def test_mixed_boxes_are_refused(tmp_path):
    flat = LINES[0] | dict(image={"<image_00>": str(FOLDER/LINES[0]["image"]["<image_00>"])})
    (x1, y1, x2, y2), = flat["bbox"]
    corners = flat | dict(id="b", bbox=[[x1, y1], [x2, y2]])
    (tmp_path/"a.jsonl").write_text(json.dumps(flat) + "\n" + json.dumps(corners), encoding="utf-8")
    good, _, wrong = validate_rft(tmp_path/"a.jsonl")
    assert good == 1 and len(wrong) == 1 and "a.jsonl:2" in wrong[0] and "mixes them" in wrong[0]
    for form, line in (("flat", 2), ("corners", 1)):
        with pytest.raises(RFTError, match=f"a.jsonl:{line}: .*say boxes="): read_rft(tmp_path/"a.jsonl", form)


def test_validate_lists_every_bad_line(tmp_path):
    bad = ["{", "[]", '{"image": 5}', json.dumps(LINES[0] | dict(image={"<image_00>": "no.png"})), "\udcff"]*6
    (tmp_path/"bad.jsonl").write_bytes("\n".join(bad).encode("utf-8", "surrogateescape"))
    done = CliRunner().invoke(app, ["data", "validate", str(tmp_path/"bad.jsonl")])
    *lines, last = done.stdout.splitlines()
    assert done.exit_code == 1 and last == "0 records with 0 steps are right, 30 lines are not"
    assert [line.split(": ")[0] for line in lines] == [f"{tmp_path/'bad.jsonl'}:{n}" for n in range(1, 31)]
    done = CliRunner().invoke(app, ["data", "validate", str(RFT_SAMPLES)])
    assert (done.exit_code, done.stdout) == (0, "8 records with 25 steps are right\n")
    assert CliRunner().invoke(app, ["data", "validate", str(tmp_path/"none.jsonl")]).exit_code == 2
    assert CliRunner().invoke(app, ["data", "validate", str(RFT_SAMPLES), "--boxes", "round"]).exit_code == 2


# Ten thousand of each

ODD = [None, True, 0, -1, 1e308, "", "a", "\ud800", "<image_00>", "<Question></Question>", [], {}, [[]], [1, 2], [[1, 2, 3, 4]], {"role": "user"}, "x"*500,
       "/dev/zero", "../../etc/passwd", "\0", "data:image/png;base64,AAAA"]


def broken(rng):
    "A record with one thing in it that makes it wrong, or a line that is none."
    line = json.loads(json.dumps(rng.choice(LINES)))
    def spots(value):
        if isinstance(value, dict): yield from ((value, k) for k in value)
        if isinstance(value, list): yield from ((value, k) for k in range(len(value)))
        for v in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            if isinstance(v, dict|list): yield from spots(v)
    if rng.random() < .6:
        where, k = rng.choice([s for s in spots(line) if s[1] != "id"])
        if rng.random() < .3 and isinstance(where, dict): del where[k]
        else: where[k] = rng.choice(ODD)
        return json.dumps(line)
    text = json.dumps(line)
    at = rng.randrange(len(text))
    return rng.choice([text[:at], text[:at] + rng.choice('{}[]":,\\0x') + text[at:], "["*rng.randrange(5000), '{"id":'*rng.randrange(3000),
                       text.replace('"POINT\\"', '"point\\"').replace('"TYPE\\"', '"type\\"').replace('"STATUS\\"', '"status\\"'), text.replace("role", "rule")])


def test_ten_thousand_malformed_records():
    "Each is refused with its place, or is a record that says what its line says; nothing else comes out, and none takes long."
    rng, refused, slowest = random.Random(0), 0, 0.
    for n in range(10_000):
        text, began = broken(rng), time.perf_counter()
        try:
            record = parse_rft_line(text, f"bad.jsonl:{n}", FOLDER)
            data = json.loads(text)
            assert record.where == f"bad.jsonl:{n}" and [json.loads(t["content"]) for t in data["conversations"][-2*len(record.steps)+1::2]] == [s.solution for s in record.steps]
            for k, step in enumerate(record.steps): record.check_step(k, record.screen(step.image).size)
        except RFTError as e:
            assert str(e).startswith(f"bad.jsonl:{n}: ") and len(str(e)) < 1200
            refused += 1
        slowest = max(slowest, time.perf_counter() - began)
    assert refused > 7_000 and slowest < 10


PIECES = ['{', '}', '[', ']', '"', "'", ":", ",", '"POINT"', '"to"', '"TYPE"', "[500,500]", "1e999", "9"*50, "-1", "NaN", "null", "true", '"up"', '"STATUS"', '"finish"', "```json",
          "```", "<think>", "</think>", "<act>", "</act>", "<plan>", "</plan>", "//", "/*", "*/", "\\", "\\u", "\ud800", "漢", "\0", "\n", " ", "CLICK(", "__import__('os')"]


def hostile(rng):
    kind = rng.random()
    if kind < .6: return "".join(rng.choice(PIECES) for _ in range(rng.randrange(30)))
    if kind < .97:
        text = rng.choice(['{"POINT":[500,500]}', '{"TYPE":"abc"}', f"<plan>p</plan>{SHORT}", '```json\n{"PRESS":"HOME"}\n```'])
        at = rng.randrange(len(text))
        return text[:at] + rng.choice(PIECES) + text[at + rng.randrange(3):]
    return rng.choice(PIECES)*rng.randrange(1, 4000)


@needs_json5
def test_ten_thousand_hostile_answers():
    "By the strict dialect each is one action or a refusal with a reason; every reward is a number."
    rng, strict = random.Random(0), DIALECTS["agentcpm"]
    answers = [*(b for b in BOMBS if b), *(hostile(rng) for _ in range(10_000))]
    read = 0
    for answer in answers:
        try: acts, why = strict.parse(answer, (640, 480)), None
        except DialectError as e: acts, why = [], str(e)
        action, _ = agentcpm_response(answer)
        assert action == acts[0] if len(acts) == 1 else action.type == "failed" and action.raw["reason"] and (acts or why)
        read += bool(acts)
    assert read < len(answers)/10
    loose = AgentCPM(compat=True)
    for answer in answers[:2000]:
        try: assert all(isinstance(a, Action) for a in loose.parse(answer, (640, 480)))
        except DialectError as e: assert str(e)
    for start in range(0, len(answers), 1000):  # all rewards on a batch, as in training
        batch, right = answers[start:start+1000], dict(POINT=[500, 500]) if start % 2000 else dict(TYPE="ab"*99)
        n = len(batch)
        known = dict(solution=[right]*n, resolution=[((640, 480),)*2]*n, bboxs=[[None, None]]*n, step_id=[start//1000 % 2]*n)
        for f in GUI_REWARDS.values():
            for compat in (None, "agentcpm"):
                worth = f(batch, **known, compat=compat)
                assert len(worth) == n and all(isinstance(v, float) and -2 <= v <= 1 for v in worth)


# TRL

def test_trl_learns_from_our_rewards(tmp_path):
    "Two steps of its GRPOTrainer on nano with PEFT, two prompts of different lengths in each: the numbers are our functions', and LoRA moves alone."
    torch = pytest.importorskip("torch", reason="pip install 'oaml[train]'")
    pytest.importorskip("peft", reason="pip install 'oaml[train]'")
    datasets = pytest.importorskip("datasets", reason="pip install 'oaml[rl]'")
    trl = pytest.importorskip("trl", reason="pip install 'oaml[rl]'")
    from oaml.datasets.prompts import PromptFormat
    from oaml.datasets.rft import step_rows
    from oaml.ingest.synthetic import generate_synthetic_sessions
    from oaml.models.qwen_vl import QwenVLAdapter
    made = generate_synthetic_sessions(2, seed=0, app="login", output_dir=tmp_path/"data", progress=False)
    adapter = QwenVLAdapter.from_pretrained("nano", lora_config=dict(r=2), device="cpu")
    adapter.tokenizer.padding_side = "left"
    table = datasets.Dataset.from_list(list(step_rows([e for s in made for e in s.episodes], PromptFormat(**adapter.prompt_format))))
    right, calls = WeightedReward(dict(action_type_check=.5, action_args_check=.5), dialect="oaml"), []
    def spied(completions, **columns):
        worth = right(completions, **columns)
        calls.append(([c[0]["content"] for c in completions], {k: columns[k] for k in ("solution", "resolution", "bboxs", "step_id")}, worth))
        return worth
    def brief(completions, **columns): return [-len(c[0]["content"])/1000 for c in completions]
    config = trl.GRPOConfig(output_dir=str(tmp_path/"out"), max_steps=2, per_device_train_batch_size=4, num_generations=2, max_completion_length=48,
                            temperature=2., learning_rate=1e-3, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], disable_tqdm=True,
                            logging_steps=1, save_strategy="no", reward_weights=[1., .1], seed=0)
    trainer = trl.GRPOTrainer(adapter.model, [spied, brief], config, train_dataset=table, processing_class=adapter.processor)
    before = {name: p.detach().clone() for name, p in adapter.model.named_parameters()}
    trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert len(calls) == len(rows) == 2 and all(math.isfinite(row["loss"]) for row in rows)
    for (answers, known, worth), row in zip(calls, rows):
        assert worth == right(answers, **known) and row["rewards/spied/mean"] == pytest.approx(sum(worth)/4)
        lengths = [-len(a)/1000 for a in answers]
        assert row["reward"] == pytest.approx(sum(worth)/4 + .1*sum(lengths)/4, abs=1e-5)
    moved = [name for name, p in adapter.model.named_parameters() if not torch.equal(p, before[name])]
    assert moved and all("lora_" in name for name in moved)
