"A token or a key that is none is refused wherever one can be given, and shown nowhere: no message, no traceback, no log, no output."
import contextlib
import io
import logging
import subprocess
import sys
import traceback

import pytest

from oaml.config import find_api_key, load_settings

for needed in ("starlette", "uvicorn", "httpx"): pytest.importorskip(needed, reason='needs pip install "oaml[serve]"')

from oaml.devices.catalog import open_device
from oaml.devices.daemon import Access
from oaml.devices.remote import RemoteDevice, daemon_url
from oaml.devices.serve import load_daemon_config, make_daemon_config, serve_device
from oaml.schemas.door import read_secret, read_secret_file
from oaml.service.client import TaskClient

CANARY = "c4nary-in-a-coal-mine"  # of more than sixteen characters, as a key for rollouts wants
BAD = {"newline": CANARY + "\n", "carriage return": CANARY + "\r\n", "blank": f"{CANARY} {CANARY}", "before": "\t" + CANARY, "nul": CANARY + "\0",
       "letter": CANARY + "\u00e9"}
FILES = {k: v for k, v in BAD.items() if k not in ("newline", "carriage return")} | {"two newlines": CANARY + "\n\n"}


def shown_by(call):
    "The error of `call`, and all that could be seen of it: message, representation, traceback, log, output."
    log, out = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out): call()
    except Exception as e: error = e
    else: error = None
    finally: logging.getLogger().removeHandler(handler)
    seen = [log.getvalue(), out.getvalue()]
    while error: seen, error, last = [*seen, str(error), repr(error), repr(vars(error)), *traceback.format_exception(error)], error.__cause__ or error.__context__, error
    return (last if len(seen) > 2 else None), "\n".join(seen)


def refused(call, where):
    "`call` raises ValueError that names `where` and never shows the canary."
    error, seen = shown_by(call)
    assert isinstance(error, ValueError) and where in seen and CANARY not in seen, seen.replace(CANARY, "THE CANARY")


def given(monkeypatch, name, value):
    "Set a variable of the environment as it is; one with a NUL can't be set."
    if "\0" in value: pytest.skip("no variable holds a NUL")
    monkeypatch.setenv(name, value)


@pytest.mark.parametrize("kind", BAD)
def test_as_an_argument(kind, tmp_path):
    from oaml.prompt2policy.pages import serve_p2p
    from oaml.service.worker import served_task
    bad = BAD[kind]
    refused(lambda: RemoteDevice("127.0.0.1", 9, token=bad), "token")
    refused(lambda: open_device("http://127.0.0.1:9", token=bad), "token")
    refused(lambda: TaskClient("any", token=bad), "token")
    refused(lambda: Access(bad), "token")
    refused(lambda: make_daemon_config(device="app:login", token=bad), "token")
    refused(lambda: served_task("oaml.service.gui.GuiTask", dict(name="any"), token=bad), "token")
    refused(lambda: serve_p2p(tmp_path, port=0, token=bad), "token")
    refused(lambda: find_api_key("anthropic", bad), "api_key")


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_keys_of_hosted_models(kind, provider, monkeypatch):
    pytest.importorskip(provider, reason='needs pip install "oaml[api]"')
    from oaml.models.api_adapter import ApiVLMAdapter
    from oaml.prompt2policy.llm import HostedLLM, get_llm
    refused(lambda: ApiVLMAdapter(provider, "any", BAD[kind]), "api_key")
    refused(lambda: ApiVLMAdapter(provider, "any", BAD[kind], "http://127.0.0.1:9/v1"), "api_key")
    refused(lambda: HostedLLM(provider, "any", api_key=BAD[kind]), "api_key")
    monkeypatch.setattr("oaml.config.settings", load_settings("").model_copy(update={f"{provider}_api_key": None}))
    given(monkeypatch, f"{provider.upper()}_API_KEY", BAD[kind])
    refused(lambda: get_llm(f"{provider}:any"), f"{provider.upper()}_API_KEY")
    refused(lambda: ApiVLMAdapter(provider, "any", base_url="http://127.0.0.1:9/v1"), f"{provider.upper()}_API_KEY")


@pytest.mark.parametrize("kind", BAD)
def test_in_the_environment(kind, monkeypatch):
    from oaml.prompt2policy.llm import get_llm
    from oaml.scripts.service import controller_of
    for name, call in {"OAML_DEVICE_TOKEN": lambda: RemoteDevice("127.0.0.1", 9), "GEMINI_API_KEY": lambda: get_llm("gemini:any")}.items():
        given(monkeypatch, name, BAD[kind])
        refused(call, name)
    refused(lambda: make_daemon_config(device="app:login"), "OAML_DEVICE_TOKEN")
    given(monkeypatch, "OAML_TASK_TOKEN", BAD[kind])
    refused(controller_of, "OAML_TASK_TOKEN")


@pytest.mark.parametrize("kind", FILES)
def test_in_a_file(kind, tmp_path):
    from oaml.scripts.service import controller_of
    file = tmp_path/"secret"
    file.write_text(FILES[kind], encoding="utf-8", newline="")
    refused(lambda: make_daemon_config(device="app:login", token_file=str(file)), "token_file")
    refused(lambda: controller_of(token_file=str(file)), "token_file")
    refused(lambda: read_secret_file(file, "token_file"), "secret")
    file.write_bytes(FILES[kind].encode() + b"\xff")
    refused(lambda: read_secret_file(file, "token_file"), "token_file")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_newline_that_editors_write(tmp_path, end):
    (tmp_path/"secret").write_text(CANARY + end, newline="")
    config = make_daemon_config(device="app:login", token_file=str(tmp_path/"secret"))
    assert config.token.get_secret_value() == CANARY and CANARY not in f"{config} {config!r} {config.model_dump()} {config.model_dump_json()}"


def test_in_a_config(tmp_path):
    (tmp_path/"c.yaml").write_text(f'device: app:login\ntoken: "{CANARY}\\n"\n')
    refused(lambda: load_daemon_config(tmp_path/"c.yaml"), "token")


@pytest.mark.parametrize("kind", [k for k in BAD if k != "nul"])
def test_in_an_env_file(kind, tmp_path, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OAML_RFT_KEY"): monkeypatch.delenv(name, raising=False)
    quoted = BAD[kind].replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    (tmp_path/".env").write_text("".join(f'{name}="{quoted}"\n' for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OAML_RFT_KEY")), encoding="utf-8")
    known = load_settings(tmp_path/".env")
    assert CANARY not in f"{known} {known!r} {known.model_dump()}"
    refused(lambda: find_api_key("openai", known=known), "OPENAI_API_KEY")
    pytest.importorskip("torch", reason='needs pip install "oaml[train]"')
    from oaml.scripts import rft
    monkeypatch.setattr(rft, "load_settings", lambda: known)
    refused(rft._rft_key, "OAML_RFT_KEY")


@pytest.mark.parametrize("kind", BAD)
def test_keys_of_rollouts(kind):
    from oaml.runtime.workers import check_address, rollout_worker
    refused(lambda: check_address("tcp://127.0.0.1:5701", BAD[kind]), "key")
    refused(lambda: rollout_worker("tcp://127.0.0.1:5701", None, None, BAD[kind]), "key")


def test_passwords_in_addresses():
    from oaml.service.worker import http_address
    for call in (lambda: daemon_url(f"http://me:{CANARY}@127.0.0.1:9"), lambda: RemoteDevice(f"me:{CANARY}@127.0.0.1", 9),
                 lambda: http_address(f"http://me:{CANARY}@127.0.0.1:9/api"), lambda: TaskClient("any", f"http://me:{CANARY}@127.0.0.1:9/api")):
        refused(call, "password")


def test_a_right_secret_is_shown_nowhere_either():
    with serve_device("app:login", token=CANARY) as served, RemoteDevice(served.url, token=served.token) as device:
        _, seen = shown_by(lambda: print(served, repr(served), device, repr(device), Access(CANARY), vars(Access(CANARY)), vars(device), device._http.headers))
        assert CANARY not in seen
        error, seen = shown_by(lambda: RemoteDevice(served.url, token=read_secret(CANARY + "x", "token")))
        assert "401" in str(error) and CANARY not in seen


def test_on_the_command_line(tmp_path):
    (tmp_path/"secret").write_text(CANARY + " \n")
    line = "serve-device", "--device", "app:login", "--port", "0", "--token-file", "secret"
    done = subprocess.run([sys.executable, "-c", "from oaml.scripts.cli import main; main()", *line], capture_output=True, cwd=tmp_path, text=True, timeout=60)
    assert done.returncode == 2 and "--token-file" in done.stderr and CANARY not in done.stdout + done.stderr, done.stderr
