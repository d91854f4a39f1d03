"What the notebooks of `realapps` cannot show: every kind played once in the real application, and processes that end."
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oaml.devices.connection import Chromium, missing_browser
from oaml.devices.episode import EpisodeDriver
from oaml.realapps.catalog import REAL_APPS, REAL_KINDS, real_apps_tasks
from oaml.realapps.changes import Change, apply_changes, change_faults, find_changes
from oaml.realapps.player import play_names
from oaml.realapps.tasks import CONDITIONS, RealAppDevice, draw_scene
from oaml.schemas.sessions import Action

pytestmark = pytest.mark.skipif(bool(missing_browser()), reason=str(missing_browser()))
KINDS = [(app, kind) for app, kinds in REAL_KINDS.items() for kind in kinds]
HALTS = [(app, kind) for app, kind in KINDS if kind.halts]
PLAYED = [(app, kind) for app, kinds in REAL_KINDS.items() for kind in kinds[::dict(django_admin=1, label_studio=8).get(app, 3)]]  # the others' pages take seconds to load; the suite plays all


@pytest.fixture(scope="module")
def devices():
    "A device on each application, started when it is first wanted."
    made = {}
    with Chromium() as chromium:
        def device(name):
            if why := REAL_APPS[name].missing(): pytest.skip(why)
            if name not in made: made[name] = RealAppDevice(REAL_APPS[name](), REAL_KINDS[name][0], chromium=chromium, owned=True)
            return made[name]
        yield device
        for d in made.values(): d.close()


def ids(x): return getattr(x, "name", x)


@pytest.mark.parametrize("app, kind", PLAYED, ids=ids)
def test_the_player_reaches_each_goal_and_who_does_nothing_does_not(devices, app, kind):
    device = devices(app)
    device.switch(kind, "values")
    driver = EpisodeDriver(device)
    driver.reset(0)
    assert not driver.presatisfied and not find_changes(device.before, device.app.state())
    played = play_names(device)
    assert not played.halted and not device.faults() and len(played.targets) <= kind.step_budget
    last = driver.act(played.targets[-1].action)
    assert last.terminated and last.reward == 1


@pytest.mark.parametrize("app, kind", HALTS[::4], ids=ids)
def test_the_player_halts_where_the_goal_cannot_be_reached(devices, app, kind):
    device = devices(app)
    device.switch(kind, "halt")
    device.reset(1)
    assert play_names(device).halted and not device.faults() and not device.solved()


def test_an_agent_that_only_says_done_earns_nothing(devices):
    device = devices("django_admin")
    driver = EpisodeDriver(device)
    for kind in REAL_KINDS["django_admin"][:2]:
        device.switch(kind, "same")
        driver.reset(3)
        end = driver.act(Action("done"))
        assert end.terminated and not end.reward


@pytest.mark.parametrize("app", REAL_APPS)
def test_only_the_application_can_be_reached(devices, app):
    device = devices(app)
    device.reset(0)
    device.page.evaluate("fetch('http://example.org/').catch(() => 0)")
    assert device.page.gateway.refused["http://example.org:80"]


@pytest.mark.parametrize("app", REAL_APPS)
def test_a_reset_is_fast_and_leaves_nothing_behind(devices, app):
    application = devices(app).app
    kind = REAL_KINDS[app][0]
    data = draw_scene(application, kind, "same", 0).data
    application.fill(data)
    fresh = application.state()
    application.fill(draw_scene(application, kind, "data", 1).data)
    assert application.state() != fresh
    began = time.process_time()
    application.fill(data)
    assert time.process_time() - began < 1
    assert application.state() == fresh


@pytest.mark.parametrize("app, kind", KINDS, ids=ids)
def test_conditions_differ_from_the_usual_one_as_they_say(app, kind):
    "The same seed gives the same scene; each condition changes what it names, and what else it must."
    application = object.__new__(REAL_APPS[app])  # need not be installed
    for seed in range(4):
        scenes = {c: draw_scene(application, kind, c, seed) for c in CONDITIONS}
        assert scenes == {c: draw_scene(application, kind, c, seed) for c in CONDITIONS}
        usual = scenes["values"]
        assert scenes["look"].look != usual.look and (scenes["look"].data, scenes["look"].goal) == (usual.data, usual.goal)
        assert scenes["words"].goal.text != usual.goal.text and (scenes["words"].data, scenes["words"].values) == (usual.data, usual.values)
        assert scenes["data"].data != usual.data and scenes["same"].data == usual.data
        assert scenes["way"].data != usual.data and scenes["way"].values == usual.values
        assert scenes["halt"].halt and (scenes["halt"].data, scenes["halt"].values) != (usual.data, usual.values)
        for scene in scenes.values(): assert "{" not in scene.goal.text


_DRAWN = """
from oaml.realapps.catalog import REAL_APPS, REAL_KINDS
from oaml.realapps.tasks import CONDITIONS, draw_scene
print([draw_scene(object.__new__(REAL_APPS[a]), k, c, 7) for a, ks in REAL_KINDS.items() for k in ks for c in CONDITIONS])
"""

def test_a_seed_draws_the_same_in_every_process():
    drawn = [subprocess.run([sys.executable, "-c", _DRAWN], env={**os.environ, "PYTHONHASHSEED": h}, capture_output=True, text=True, check=True).stdout for h in "12"]
    assert drawn[0] == drawn[1] and len(drawn[0]) > 1000


def test_the_suite_is_large_enough_and_its_splits_share_no_seed():
    tasks = {split: real_apps_tasks(split) for split in ("train", "validation", "test")}
    assert len(tasks["test"]) >= 400
    assert not {t.seed for t in tasks["train"]} & {t.seed for t in tasks["test"]}


def alive(folder):
    "Processes that run in `folder`."
    found = []
    for p in Path("/proc").glob("[0-9]*"):
        try: found += [p.name] if os.readlink(p/"cwd").startswith(folder) else []
        except OSError: pass
    return found


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_nothing_runs_on_when_the_application_is_closed_or_its_owner_killed(how):
    if why := REAL_APPS["django_admin"].missing(): pytest.skip(why)
    code = "from oaml.realapps.django_admin import DjangoAdmin\napp = DjangoAdmin().start()\nprint(app.folder, flush=True)\ninput()\napp.close()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        folder = owner.stdout.readline().strip()
        assert alive(folder)
        if how == "killed": owner.send_signal(signal.SIGKILL)
        else: owner.communicate("\n")
        owner.wait()
    for _ in range(200):
        if not alive(folder) and not os.path.exists(folder): return
        time.sleep(.05)
    assert not alive(folder) and not os.path.exists(folder)


def test_a_server_that_does_not_start_says_why(monkeypatch):
    if why := REAL_APPS["django_admin"].missing(): pytest.skip(why)
    app = REAL_APPS["django_admin"]()
    monkeypatch.setattr(app, "command", lambda: ["sh", "-c", "echo no such port >&2"])
    monkeypatch.setattr("oaml.realapps.application.START_S", .5)
    with pytest.raises(RuntimeError, match="django_admin has not answered within 0.5 s; the last it wrote: 'no such port'"): app.start()
    assert not app.folder.exists()


def test_the_right_edit_on_the_wrong_row_and_one_change_more_are_refused(devices):
    app = devices("django_admin").app
    app.fill(draw_scene(app, REAL_KINDS["django_admin"][1], "values", 0).data)
    before = app.state()
    one, other, *_ = [key for key, row in before["auth_user"].items() if row["is_active"] and row["username"] not in ("admin", "clerk")]
    wanted = [Change("changed", "auth_user", one, dict(is_active=0))]
    def faults(*made): return change_faults(wanted, find_changes(before, apply_changes(before, made)))
    assert not faults(*wanted)
    assert len(faults(Change("changed", "auth_user", other, dict(is_active=0)))) == 2
    assert len(faults(*wanted, Change("removed", "auth_user", other))) == 1
    assert len(faults(Change("changed", "auth_user", one, dict(is_active=0, is_staff=1 - before["auth_user"][one]["is_staff"])))) == 2
