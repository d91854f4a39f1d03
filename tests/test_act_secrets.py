"A secret given to `oaml act` stands in no file, picture's text, line that is said, or prompt. `bench/act_secrets.py` plays 200 episodes."
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]/"bench"))
for needed in ("openai", "httpx2"): pytest.importorskip(needed, reason='needs pip install "oaml[api]"')
import act_secrets

from oaml.scripts.act import PersonsDevice


def test_it_is_found_nowhere(tmp_path):
    problems, ends = act_secrets.run(12, tmp_path)
    assert not problems and sum(ends.values()) == 12


def test_the_search_finds_one_that_is_written_down(tmp_path, monkeypatch):
    monkeypatch.setattr(PersonsDevice, "_plain", lambda self, text: text)
    monkeypatch.setattr(PersonsDevice, "_without", lambda self, e: e)
    assert act_secrets.run(6, tmp_path)[0]
