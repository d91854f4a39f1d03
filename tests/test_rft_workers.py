"Worker processes that play for a learner: one is killed and the others go on; when all are, the learner says so in time. Engines."
import multiprocessing
import os
import sys

import pytest

pytest.importorskip("torch", reason='pip install "oaml[train]"')
pytest.importorskip("zmq", reason='pip install "oaml[rl]"')
if sys.platform == "win32": pytest.skip("Windows has no SIGKILL, with which workers are killed here", allow_module_level=True)

KEY = "a-key-that-both-ends-know"


class Dice:
    "Draws DONE() or WAIT()."
    def sample_completions(self, samples, n, temperature, seed, most):
        import numpy as np

        from oaml.models.interface import Completion
        rng = np.random.default_rng(seed)
        answer = lambda: "DONE()" if rng.random() < .5 else "WAIT()"
        return [[Completion((1,), (2,), np.zeros(1, np.float32), answer()) for _ in range(n)] for _ in samples]


def by_chance(rollout): return float(len(rollout.steps) > 1)


def pieces():
    "What a source is made of, on both ends."
    from oaml.datasets.prompts import PromptFormat
    from oaml.runtime.rollouts import PlayRules, SourceRules, Start
    return ([Start("login", 600_000 + k) for k in range(4)], PromptFormat(), PlayRules(group_size=4, repeats=2),
            SourceRules(groups_per_update=2, groups_at_once=1, staleness=1, max_rounds=100), by_chance)


def play(address, key):
    "A worker process."
    from oaml.runtime.rollouts import RolloutSource
    from oaml.runtime.workers import rollout_worker
    rollout_worker(address, RolloutSource(*pieces()), lambda weights: Dice(), key, deadline=300)


def begin(address, key=KEY):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["oaml.runtime.workers"])
    process = context.Process(target=play, args=(address, key), daemon=True)
    process.start()
    return process


def test_a_killed_worker_is_done_without():
    from oaml.runtime.workers import RolloutServer, WorkedSource
    with WorkedSource(*pieces(), workers=0, room=2, deadline=300) as source, RolloutServer(source, lambda actor: b"w", key=KEY) as server:
        workers = [begin(server.address) for _ in range(2)]
        for version in range(3):
            groups = source.next_groups(Dice(), version)
            assert len(groups) == 2 and all(version - r.version in (0, 1) for g in groups for r in g.rollouts)
        workers[0].kill()
        for version in range(3, 6): assert len(source.next_groups(Dice(), version)) == 2
        workers[1].kill()
        for worker in workers: worker.join(60)
        source.deadline = 3.
        with pytest.raises(RuntimeError, match="no group came in"):
            for version in range(6, 20): source.next_groups(Dice(), version)


def test_a_worker_ends_with_its_learner():
    from oaml.runtime.workers import RolloutServer, WorkedSource
    source = WorkedSource(*pieces(), workers=0, room=2, deadline=300)
    with RolloutServer(source, lambda actor: b"w", key=KEY) as server, source:  # as `scripts.rft.workers_of` has them
        worker = begin(server.address)
        source.next_groups(Dice(), 0)
    worker.join(10)
    assert worker.exitcode == 0


def dice_group(weights, version, start, limit, seed):
    "What a worker of an engine does, without a model."
    from oaml.runtime.rollouts import pack_groups, play_groups
    from oaml.runtime.workers import start_from_json
    _, fmt, rules, _, reward = pieces()
    assert weights == b"w"
    return pack_groups(play_groups(Dice(), [start_from_json(start)], fmt, rules, seed, version, reward, lambda s: limit))


def dies(*call): os._exit(1)


def engine_source(engine, play_start):
    from oaml.runtime.workers import EngineSource
    return EngineSource(*pieces(), engine=engine, weights=lambda actor: b"w", play_start=play_start, deadline=300.)


def test_processes_of_an_engine_play_as_this_one_does():
    from oaml.ingest.engines import open_engine
    def outcome(engine):
        with open_engine(engine) as calls:
            source = engine_source(calls, dice_group)
            groups = [g for version in range(2) for g in source.next_groups(Dice(), version)]
            return [[(r.start, r.version, r.reward, len(r.steps)) for r in g.rollouts] for g in groups], source.counts
    assert outcome("processes:2") == outcome(None)


def test_a_process_of_an_engine_that_dies_ends_the_round():
    from oaml.ingest.engines import open_engine
    with pytest.raises(RuntimeError, match="terminated abruptly"), open_engine("processes:1") as calls:
        engine_source(calls, dies).next_groups(Dice(), 0)
