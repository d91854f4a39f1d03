"Hugging Face's tools on what oaml saves: transformers' pipelines and AutoProcessor, TRL's collator, the real libraries."
import importlib.util
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch", reason="pip install 'oaml[train]'")
transformers = pytest.importorskip("transformers", reason="pip install 'oaml[train]'")
from transformers import Qwen3VLProcessor, pipeline

from oaml.datasets.prompts import PromptFormat, prompt_messages
from oaml.devices.app_device import AppDevice
from oaml.nano.files import shipped_nano
from oaml.nano.model import NanoProcessor
from oaml.models.qwen_vl import ImageTextProcessor, QwenVLAdapter, as_chat, load_processor
from oaml.runtime.policy import load_policy

HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
FEW_TOKENS = dict(max_new_tokens=6)


def question(app, seed, fmt, size=None):
    "What an agent is asked at the start of a test episode, the screen as a PIL image."
    device = AppDevice(app)
    image = Image.fromarray(device.reset(1_000_000 + seed).image)
    return dict(images=[image.resize(size) if size else image], messages=prompt_messages(device.goal.text, fmt=fmt))


def answers(ask, questions, **how):
    "What a pipeline answers."
    return [ask(text=as_chat(q), return_full_text=False, **how)[0]["generated_text"] for q in questions]


def test_a_pipeline_answers_as_the_policy_does():
    "Thought and action of the shipped nano, in three applications: the reading is the processor's."
    policy = load_policy("nano")
    questions = [question(app, seed, policy.fmt) for app in ("login", "settings", "files") for seed in (0, 1)]
    ask = pipeline("image-text-to-text", str(shipped_nano()))
    assert type(ask.processor) is NanoProcessor and ask.model.dtype == torch.float32
    texts = answers(ask, questions)
    assert texts == policy.adapter.generate_batch(questions, policy.max_new_tokens)
    goal = next(m["content"] for m in questions[0]["messages"]).split("Goal: ")[1].strip()
    action, thought = policy.predict_action(questions[0]["images"][0], goal)
    assert action.type != "failed" and thought in texts[0]


PIPE = """
import sys
sys.modules["torchvision"] = None  # an import of it fails, as where it isn't installed
{first}
from transformers import pipeline
ask = pipeline("image-text-to-text", {folder!r}{more})
print(type(ask.processor).__name__, ask.processor.prompt_format["marks"])
"""


@pytest.mark.parametrize("first, more", [("import oaml.nano.model", ""), ("", ", trust_remote_code=True")])
def test_a_fresh_process_needs_an_import_or_trust(first, more):
    code = PIPE.format(first=first, more=more, folder=str(shipped_nano()))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["NanoProcessor", "True"], done.stderr


def test_without_either_the_error_says_what_to_do():
    code = PIPE.format(first="", more=", trust_remote_code=False", folder=str(shipped_nano()))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode and "trust_remote_code=True" in done.stderr and "NanoProcessor" not in done.stdout


def test_an_agent_without_processor_config_loads(tmp_path):
    "Folders that were saved before processors were transformers' own, and before there were manifests."
    shutil.copytree(shipped_nano(), tmp_path/"old")
    for name in ("processor_config.json", "processing_nano.py", "manifest.json"): (tmp_path/"old"/name).unlink()
    old, new = (QwenVLAdapter.load(f, "cpu") for f in (tmp_path/"old", shipped_nano()))
    assert old.prompt_format == new.prompt_format == old.processor.prompt_format
    q = question("login", 0, PromptFormat(**new.prompt_format))
    assert torch.equal(*(a._encode([q], answered=False)["input_ids"] for a in (old, new)))


@pytest.fixture(scope="module")
def tiny_qwen(random_qwen, tmp_path_factory):
    "A Qwen3-VL of a few thousand random weights that is no nano, as an adapter saves it."
    model, processor = random_qwen()
    folder = tmp_path_factory.mktemp("qwen")
    QwenVLAdapter(model, processor, "cpu", base_model="tiny").save(folder)
    return folder


@pytest.mark.skipif(HAS_TORCHVISION, reason="torchvision is here: transformers' own processor is used")
def test_a_saved_qwen_works_without_torchvision(tiny_qwen):
    own = QwenVLAdapter.load(tiny_qwen, "cpu")
    ask = pipeline("image-text-to-text", str(tiny_qwen), dtype="float32")
    assert type(ask.processor) is type(own.processor) is ImageTextProcessor
    q = question("login", 0, PromptFormat(), (128, 96))
    assert answers(ask, [q], **FEW_TOKENS) == own.generate_batch([q], **FEW_TOKENS)


def test_a_saved_qwen_leads_to_the_librarys_own_processor(tiny_qwen):
    "Nothing in the folder names a class of ours: without oaml, AutoProcessor takes its own, which asks for torchvision."
    code = f"from transformers import AutoProcessor; print(type(AutoProcessor.from_pretrained({str(tiny_qwen)!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if HAS_TORCHVISION: assert done.stdout.strip() == Qwen3VLProcessor.__name__ == type(load_processor(str(tiny_qwen))).__name__
    else: assert done.returncode and "video processor" in done.stderr


@pytest.mark.skipif(HAS_TORCHVISION, reason="torchvision is here: transformers' own processor is used")
@pytest.mark.parametrize("base", ["tiny_qwen", "nano"])
def test_lora_agents_load_over_their_base(base, tmp_path, request):
    base = base if base == "nano" else str(request.getfixturevalue(base))
    lora = QwenVLAdapter.from_pretrained(base, lora_config=dict(r=4), device="cpu")
    torch.manual_seed(0)
    for name, p in lora.model.named_parameters():
        if "lora_B" in name: torch.nn.init.normal_(p, std=.5)
    lora.save(tmp_path/"lora")
    q = question("login", 0, PromptFormat(**(lora.prompt_format or {})), None if base == "nano" else (128, 96))
    texts = answers(pipeline("image-text-to-text", str(tmp_path/"lora"), dtype="float32"), [q], **FEW_TOKENS)
    assert texts == lora.generate_batch([q], **FEW_TOKENS)
    assert texts != QwenVLAdapter.from_pretrained(base, device="cpu").generate_batch([q], **FEW_TOKENS)


def test_processors_are_processor_mixins_and_take_what_they_take():
    nano = QwenVLAdapter.from_pretrained("nano", device="cpu").processor
    assert isinstance(nano, transformers.ProcessorMixin)
    fmt = PromptFormat(**nano.prompt_format)
    qs = [question("login", k, fmt) for k in (0, 1)]
    chats = [nano.apply_chat_template(as_chat(q), add_generation_prompt=True) for q in qs]
    images = [q["images"] for q in qs]
    nested = nano(images=images, text=chats, padding=True, return_tensors="pt")
    flat = nano(images=[np.asarray(i[0]) for i in images], text=chats, padding=True, return_tensors="pt")
    assert all(torch.equal(nested[k], flat[k]) for k in nested)
    alone = nano(images=images[0][0], text=chats[0])  # one image, one text, no tensors
    assert alone["input_ids"][0] == nested["input_ids"][0][nested["attention_mask"][0] == 1].tolist()
    assert "Text: " in nano.decode(alone["input_ids"][0]) and "Text: " not in chats[0]
    assert nano(text=["no image"])["input_ids"]


def test_trl_makes_our_batches_of_prompts_and_completions_too():
    pytest.importorskip("datasets", reason="pip install 'oaml[hf]'")
    sft = pytest.importorskip("trl.trainer.sft_trainer", reason="pip install 'oaml[hf]'")
    adapter = QwenVLAdapter.from_pretrained("nano", device="cpu")
    q = question("login", 0, PromptFormat(**adapter.prompt_format))
    done = dict(role="assistant", content="Thought: all done\nAction: DONE()")
    collator = sft.DataCollatorForVisionLanguageModeling(adapter.processor, completion_only_loss=True)
    theirs = collator([dict(images=q["images"], prompt=q["messages"], completion=[done])])
    ours = adapter.collate([dict(q, messages=[*q["messages"], done])])
    assert torch.equal(theirs["input_ids"][:, :ours["input_ids"].shape[1]], ours["input_ids"])
    taught = [adapter.tokenizer.decode(b["labels"][b["labels"] != -100]).strip() for b in (theirs, ours)]
    assert taught[0] == taught[1] == done["content"] + "<|im_end|>"


def test_export_says_which_extra_is_missing():
    code = """
import sys
sys.modules["datasets"] = None
from oaml.scripts.cli import main
sys.argv = ["oaml", "data", "export", "nowhere", "--out", "out"]
main()"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.strip() == 'oaml: datasets: not installed; pip install "oaml[hf]"'


def test_a_row_a_step_is_made_without_torch(tmp_path):
    code = f"""
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from pathlib import Path
from oaml.datasets.hf import hf_rows
from oaml.datasets.prompts import PromptFormat
from oaml.ingest.synthetic import generate_synthetic_sessions
folder = Path({str(tmp_path)!r})/"data"
made = generate_synthetic_sessions(1, seed=0, output_dir=folder, progress=False)
print(len(list(hf_rows(folder, PromptFormat()))) == len(made[0].episodes[0].steps))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr
