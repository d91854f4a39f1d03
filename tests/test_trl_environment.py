"TRL's GRPOTrainer plays an application through `environment_factory`: the screen at reset, Qwen's tool, success as the reward."
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason='pip install "oaml[train]"')
trl = pytest.importorskip("trl", reason='pip install "oaml[rl]"')
datasets = pytest.importorskip("datasets", reason='pip install "oaml[rl]"')


def test_a_step_on_random_weights(random_qwen, tmp_path):
    from oaml.devices.app_device import AppDevice
    from oaml.devices.episode import EpisodeDriver
    from oaml.envs.trl import trl_environment
    model, processor = random_qwen()
    template = (Path(trl.__file__).parent/"chat_templates"/"qwen3_vl.jinja").read_text(encoding="utf-8")
    processor.chat_template = processor.tokenizer.chat_template = template
    processor.tokenizer.padding_side = "left"
    model.config.text_config.max_position_embeddings = 4096
    made = []
    def factory():
        made.append(trl_environment(lambda: EpisodeDriver(AppDevice("login")))())
        return made[-1]
    rows = datasets.Dataset.from_list([dict(prompt=[dict(role="user", content="Do this: ")], seed=600_000 + k) for k in range(2)])
    config = trl.GRPOConfig(output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=2, num_generations=2, max_completion_length=4, use_cpu=True,
                            bf16=False, gradient_checkpointing=False, report_to=[], disable_tqdm=True, logging_steps=1, save_strategy="no", seed=0)
    trainer = trl.GRPOTrainer(model, args=config, train_dataset=rows, processing_class=processor, environment_factory=factory)
    trainer.train()
    row = next(r for r in trainer.state.log_history if "reward" in r)
    assert row["rewards/TrlEnvironment/mean"] == row["reward"] == 0.
    assert len(made) == 2 and all(e._driver.seed in (600_000, 600_001) and e._driver.frame.size == (256, 192) for e in made)
