"A training's data are looked at before step 1, all of what is wrong in one list; what is taken out or moved does not end a run that never used it."
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

torch = pytest.importorskip("torch", reason="pip install 'oaml[train]'")

from oaml.ingest.store import StoreError, load_sessions, save_sessions
from oaml.ingest.synthetic import generate_synthetic_sessions
from oaml.scripts.train import load_learner, make_dataset, train
from oaml.training.checkpoints import TrainingError
from oaml.training.config import load_config
from oaml.training.trainer import Trainer, window_indices

STEPS = 5


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")/"data"
    generate_synthetic_sessions(10, seed=0, output_dir=folder, progress=False)
    return folder


def config_for(data, out, *more):
    return load_config(overrides=[f"data.path={data}", f"output_dir={out}", f"training.max_steps={STEPS}", "logging.eval_episodes=0",
                                  "training.per_device_train_batch_size=2", "training.gradient_accumulation_steps=1", "logging.save_steps=1", "training.threads=1", *more])


class StopAfter:
    def __init__(self, step): self.step = step
    def after_step(self, trainer): trainer.interrupted = trainer.interrupted or trainer.cursor.step == self.step


def run(data, out, stop=None, resume=False, *more):
    config = config_for(data, out, *more)
    adapter = load_learner(config, fmt := config.prompt.prompt_format())
    dataset, manifest = make_dataset(config, fmt, False, adapter)
    hooks = (StopAfter(stop),) if stop else ()
    return Trainer(adapter, dataset, config, data_manifest=manifest, progress=False, hooks=hooks).fit(resume)


def weights(result): return {p.name: p.read_bytes() for p in sorted(result.agent.glob("*.safetensors"))}


def without(folder, out, index):
    "The data without the session of sample `index`, and how many samples went."
    shutil.copytree(folder, out)
    sessions, at = load_sessions(out), 0
    for k, s in enumerate(sessions):
        n = sum(len(e.steps) for e in s.episodes)
        if at <= index < at + n: break
        at += n
    save_sessions(sessions[:k] + sessions[k+1:], out, json.loads((out/"manifest.json").read_text())["meta"])
    return range(at, at + n)


def test_all_that_is_wrong_is_named_before_the_first_step(recorded, tmp_path):
    shutil.copytree(recorded, data := tmp_path/"data")
    screens = sorted((data/"screens").glob("*.png"))
    screens[0].write_bytes(screens[0].read_bytes()[:100])
    Image.new("RGB", (64, 64)).save(screens[1])
    screens[2].unlink()
    (data/"sessions"/"login-0000005.json").write_text("{}")
    with pytest.raises(StoreError) as e: train(config_for(data, tmp_path/"run"), progress=False)
    text = str(e.value)
    assert "things are wrong" in text and "login-0000005.json" in text and "session login-00000" in text and "].steps[" in text
    known = {o.observation.image_path for s in load_sessions(recorded) for ep in s.episodes for o in ep.steps}
    assert all(screen.name in text for screen in screens[:3] if str(recorded/"screens"/screen.name) in known)
    assert not (tmp_path/"run"/"metrics.jsonl").exists()


def test_many_problems_stand_in_a_file(recorded, tmp_path):
    shutil.copytree(recorded, data := tmp_path/"data")
    for screen in (data/"screens").glob("*.png"): screen.write_bytes(b"no picture")
    with pytest.raises(StoreError, match=r"and \d+ more; all of them are in .*bad_data.txt") as e: train(config_for(data, tmp_path/"run"), progress=False)
    lines = (tmp_path/"run"/"bad_data.txt").read_text().splitlines()
    assert len(str(e.value).splitlines()) == 22 and len(lines) == len(list((data/"screens").glob("*.png")))


def test_a_second_start_opens_no_screen(recorded, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path/"cache"))
    from oaml.schemas import sessions
    opened, real = [], sessions.open_picture
    monkeypatch.setattr(sessions, "open_picture", lambda path: opened.append(path) or real(path))
    make_dataset(config := config_for(recorded, tmp_path/"run"), config.prompt.prompt_format(), False)
    assert opened
    opened.clear()
    make_dataset(config, config.prompt.prompt_format(), False)
    assert not opened


def test_moved_data_go_on_to_the_same_bits(recorded, tmp_path):
    whole = run(recorded, tmp_path/"whole")
    shutil.copytree(recorded, tmp_path/"a")
    assert run(tmp_path/"a", tmp_path/"run", stop=2).status == "interrupted"
    (tmp_path/"a").rename(tmp_path/"b")
    assert weights(run(tmp_path/"b", tmp_path/"run", resume=True)) == weights(whole)


def test_what_no_step_used_may_be_taken_out(recorded, tmp_path):
    config = config_for(recorded, tmp_path/"x")
    total = len(make_dataset(config, config.prompt.prompt_format(), False)[0])
    batch, windows = config.training.per_device_train_batch_size, config.training.gradient_accumulation_steps
    uses = [{i for idxs in window_indices(k, total, batch, windows, config.training.seed)[1] for i in idxs} for k in range(STEPS)]
    ends = []
    early, late, at = uses[0] | uses[1], set().union(*uses[2:]), 0
    for s in load_sessions(recorded):
        gone = range(at, at := at + sum(len(e.steps) for e in s.episodes))
        if not early & set(gone) and late & set(gone): break
    else: pytest.fail("no session is used late only; take another seed")
    assert without(recorded, smaller := tmp_path/"smaller", gone[0]) == gone
    for stop in (1, 2):  # stopped earlier or later, what comes is the same
        out = tmp_path/f"run{stop}"
        run(recorded, out, stop=stop)
        ends.append(weights(run(smaller, out, resume=True)))
        assert json.loads((out/"samples.json").read_text())["left_out"] == list(gone)
    assert ends[0] == ends[1]
    again = tmp_path/"again"
    run(recorded, again, stop=1)
    run(smaller, again, stop=3, resume=True)
    assert weights(run(smaller, again, resume=True)) == ends[0]


def test_what_a_step_used_may_not(recorded, tmp_path):
    config = config_for(recorded, tmp_path/"run")
    total = len(make_dataset(config, config.prompt.prompt_format(), False)[0])
    first = window_indices(0, total, 2, config.training.gradient_accumulation_steps, config.training.seed)[1][0][0]
    run(recorded, tmp_path/"run", stop=2)
    without(recorded, tmp_path/"smaller", first)
    with pytest.raises(TrainingError, match="is gone, which step [12] used"): run(tmp_path/"smaller", tmp_path/"run", resume=True)
    generate_synthetic_sessions(11, seed=0, output_dir=tmp_path/"more", progress=False)
    save_sessions(load_sessions(tmp_path/"more"), tmp_path/"more", json.loads((recorded/"manifest.json").read_text())["meta"])
    with pytest.raises(TrainingError, match="samples were changed, added"): run(tmp_path/"more", tmp_path/"run", resume=True)


def test_save_sessions_refuses_what_does_not_open(tmp_path):
    from oaml.schemas.sessions import Action, Episode, Observation, Session, Step
    (tmp_path/"cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    session = Session("s", [Episode("e", "Look.", [Step(0., Observation(str(tmp_path/"cut.png")), Action("done"))])])
    with pytest.raises(StoreError, match="cut.png: cannot be read as an image"): save_sessions([session], tmp_path/"data")
    assert not Path(tmp_path/"data").exists()
