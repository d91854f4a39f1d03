"An update on recorded data, ours beside TRL's GRPOTrainer: the same answers to the same prompts, rewards, advantages, loss and gradients."
import pytest

torch = pytest.importorskip("torch", reason='pip install "oaml[train]"')
trl = pytest.importorskip("trl", reason='pip install "oaml[rl]"')
datasets = pytest.importorskip("datasets", reason='pip install "oaml[rl]"')

GROUP, LONGEST = 3, 6


def letters(completions, **columns):
    "Pays for letters, so that the answers of random weights differ in it; `columns` are those of the data, which must be there."
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    assert all(len(columns[k]) == len(texts) for k in ("solution", "resolution", "bboxs", "step_id"))
    return [sum(x.isalpha() for x in t)/(1 + len(t)) for t in texts]


@pytest.fixture
def learner(random_qwen, tmp_path):
    "A Qwen3-VL of random weights, and two groups of its answers to recorded steps, as an update of oaml has them."
    from oaml.datasets.prompts import PromptFormat
    from oaml.ingest.synthetic import generate_synthetic_sessions
    from oaml.models.qwen_vl import QwenVLAdapter
    from oaml.runtime.recorded import RecordedEpisodes, RecordedSource
    from oaml.runtime.rollouts import PlayRules, SourceRules
    model, processor = random_qwen()
    model.save_pretrained(tmp_path/"model")
    processor.save_pretrained(tmp_path/"model")
    adapter = QwenVLAdapter.from_pretrained(str(tmp_path/"model"), device="cpu")
    adapter.placeholders = []  # TRL draws and learns among all tokens; oaml leaves those that stand for images out
    episodes = [e for s in generate_synthetic_sessions(2, seed=0, app="login", output_dir=tmp_path/"data", progress=False) for e in s.episodes]
    source = RecordedSource(RecordedEpisodes(episodes, PromptFormat()), letters, PlayRules(GROUP, 1., LONGEST), SourceRules(2, 2, 8, std="sample"), good=.99)
    return adapter, source, source.next_groups(adapter, 0)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo"])
def test_trl_makes_the_same_of_an_update(learner, loss, tmp_path):
    from oaml.training.grpo import LossRule, policy_gradients
    adapter, source, groups = learner
    experiences = source.experiences(groups)
    assert len(groups) == 2 and len(experiences) == 2*GROUP and len({len(x.completion.prompt) for x in experiences}) == 2  # lengths that need padding
    row = policy_gradients(adapter, experiences, LossRule(loss, longest=LONGEST), 1., prompts=1, version=0, answers=2)
    ours = {n: p.grad.clone() for n, p in adapter.model.named_parameters() if p.grad is not None}
    adapter.model.zero_grad()

    adapter.tokenizer.padding_side = "left"
    rows = [dict(prompt=x.step.sample["messages"], images=x.step.sample["images"], **x.step.columns) for g in groups for x in g.rollouts]
    config = trl.GRPOConfig(output_dir=str(tmp_path/"out"), per_device_train_batch_size=2*GROUP, num_generations=GROUP, max_completion_length=LONGEST, temperature=1., loss_type=loss,
                            use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], disable_tqdm=True, scale_rewards="group", beta=0., epsilon=.2)
    trainer = trl.GRPOTrainer(adapter.model, letters, config, train_dataset=datasets.Dataset.from_list([dict(prompt="")]*4), processing_class=adapter.processor)
    drawn = [x.completion for g in groups for x in g.rollouts]
    answers = [[dict(role="assistant", content=c.text)] for c in drawn]
    trainer._generate = lambda prompts: ([list(c.prompt) for c in drawn], [list(c.ids) for c in drawn], None, answers, None, {}, None, None)
    trainer.current_gradient_accumulation_steps = 1
    adapter.model.train()
    batch = trainer._generate_and_score_completions(rows)
    theirs = trainer._compute_loss(adapter.model, batch)
    theirs.backward()

    assert batch["pixel_values"].shape[0] > 0 and batch["prompt_ids"].shape[1] == max(len(c.prompt) for c in drawn)
    assert batch["advantages"].tolist() == pytest.approx([x.advantage for x in experiences], abs=1e-6)
    assert float(theirs) == pytest.approx(row["loss"], abs=1e-6)
    found = {n: p.grad for n, p in adapter.model.named_parameters() if p.grad is not None}
    assert found.keys() == ours.keys() and max(float(g.abs().max()) for g in ours.values()) > 1e-3
    for name, grad in ours.items(): assert torch.allclose(grad, found[name], atol=2e-6, rtol=1e-4), name
