"A Qwen3-VL of a few thousand random weights, in the precision that a GPU would load it in: what training moves, and what comes back"
import pytest
import torch
from PIL import Image

from oaml.datasets.prompts import PromptFormat, answer_text, prompt_messages
from oaml.devices.app_device import AppDevice
from oaml.devices.oracle import acceptable_targets
from oaml.models.qwen_vl import QwenVLAdapter
from oaml.training.config import TrainingConfig
from oaml.training.trainer import Trainer

STEPS, RATE = 20, 1e-5


class Logins:
    "First steps of login episodes on small screens."
    def __len__(self): return 8
    def __getitem__(self, i):
        device, fmt = AppDevice("login"), PromptFormat(precision=2)
        image = Image.fromarray(device.reset(i).image).resize((128, 96))
        answer = answer_text(acceptable_targets(device, [], 2)[0].action, fmt=fmt)
        return dict(images=[image], messages=[*prompt_messages(device.goal.text, fmt=fmt), dict(role="assistant", content=answer)])


@pytest.fixture(scope="module")
def tiny(random_qwen, tmp_path_factory):
    "The folder of such a model, its weights spread as those of a trained one."
    model, processor = random_qwen()
    folder = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def loaded(folder, dtype, **how):
    "The model in a precision, as `from_pretrained` loads it on CUDA (bfloat16) or elsewhere (float32)."
    adapter = QwenVLAdapter.from_pretrained(folder, device="cpu", **how)
    adapter.model.to(dtype)
    return adapter


def trained(adapter, folder, steps=STEPS, rate=RATE, resume=False, **training):
    values = dict(max_steps=steps, per_device_train_batch_size=2, gradient_accumulation_steps=1, learning_rate=rate, lr_scheduler_type="constant",
                  warmup_ratio=0., bf16=True, threads=1, prefetch=False) | training
    config = TrainingConfig(training=values, logging=dict(save_steps=10, logging_steps=5))
    return Trainer(adapter, Logins(), config, folder, progress=False).fit(resume=resume)


def weights(adapter): return {n: p.detach().float().clone() for n, p in adapter.model.named_parameters()}


def share_moved(adapter, folder):
    before = weights(adapter)
    trained(adapter, folder)
    after = weights(adapter)
    return sum(int((after[n] != w).sum()) for n, w in before.items())/sum(w.numel() for w in before.values())


def test_bfloat16_weights_move_as_those_of_float32(tiny, tmp_path):
    moved = {dtype: share_moved(loaded(tiny, dtype), tmp_path/str(dtype)) for dtype in (torch.float32, torch.bfloat16)}
    assert abs(moved[torch.float32] - moved[torch.bfloat16]) < .03, moved


def test_only_what_is_trained_is_held_in_float32(tiny, tmp_path):
    adapter = QwenVLAdapter.from_pretrained(tiny, device="cpu", dtype=torch.bfloat16)
    assert {p.dtype for p in adapter.model.parameters()} == {torch.bfloat16}
    adapter.qwen.model.visual.requires_grad_(False)
    frozen = {n for n, p in adapter.model.named_parameters() if not p.requires_grad}
    trained(adapter, tmp_path/"frozen", steps=2)
    for name, p in adapter.model.named_parameters(): assert p.dtype == (torch.bfloat16 if name in frozen else torch.float32), name
    trained(adapter, tmp_path/"without", steps=2, bf16=False)  # what is frozen in fewer bits meets float32 without autocast, too
    assert adapter.generate(dict(Logins()[0], messages=Logins()[0]["messages"][:-1]), 4) is not None


def test_a_lora_base_stays_in_bfloat16(tiny, tmp_path):
    adapter = QwenVLAdapter.from_pretrained(tiny, lora_config=dict(r=4), device="cpu", dtype=torch.bfloat16)
    trained(adapter, tmp_path/"run", steps=2)
    kinds = {("lora_" in n, p.dtype) for n, p in adapter.model.named_parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    again = QwenVLAdapter.load(tmp_path/"run"/"agent", "cpu", torch.bfloat16)
    assert {("lora_" in n, p.dtype) for n, p in again.model.named_parameters()} == kinds


def test_bfloat16_weights_resume_to_the_bit(tiny, tmp_path):
    whole = loaded(tiny, torch.bfloat16)
    trained(whole, tmp_path/"whole", rate=1e-3)
    class Stop:
        def after_step(self, trainer): trainer.interrupted = trainer.cursor.step == 10
    config = dict(max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=1, learning_rate=1e-3, lr_scheduler_type="constant",
                  warmup_ratio=0., bf16=True, threads=1, prefetch=False)
    config = TrainingConfig(training=config, logging=dict(save_steps=10, logging_steps=5))
    half = Trainer(loaded(tiny, torch.bfloat16), Logins(), config, tmp_path/"half", hooks=[Stop()], progress=False).fit()
    assert (half.status, half.step) == ("interrupted", 10)
    rest = loaded(tiny, torch.bfloat16)
    trained(rest, tmp_path/"half", rate=1e-3, resume=True)
    ours, theirs = weights(rest), weights(whole)
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)


def test_another_precision_than_a_model_has_is_refused(tiny):
    with pytest.raises(ValueError, match="dtype=torch.bfloat16: nano-small has weights of torch.float32; leave dtype out"):
        QwenVLAdapter.from_pretrained("nano-small", device="cpu", dtype=torch.bfloat16)
