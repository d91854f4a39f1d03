"Answers as they grow, from a model that transformers decodes: alone, together, drawn, cut at a limit, and through the server."
import json

import pytest

torch = pytest.importorskip("torch", reason='pip install "oaml[train]"')


@pytest.fixture
def qwen(random_qwen):
    from oaml.models.qwen_vl import QwenVLAdapter
    model, processor = random_qwen()
    return QwenVLAdapter(model, processor, "cpu", base_model="random")


def asked(n):
    "So many questions of different lengths about a login screen."
    from oaml.devices.app_device import AppDevice
    image = AppDevice("login").reset(1_000_000).image
    return [dict(images=[image], messages=[dict(role="user", content="Goal: Log in" + "!"*k)]) for k in range(n)]


@pytest.mark.parametrize("temperature", [0., 1.])
def test_what_is_told_grows_to_the_answer(qwen, temperature):
    samples, limits, seeds = asked(3), [3, 9, 6], [1, 2, 3]
    told = [[] for _ in samples]
    whole = qwen.write_batch(samples, limits, temperature, seeds)
    assert qwen.write_batch(samples, limits, temperature, seeds, each=lambda k, text: told[k].append(text)) == whole
    for w, texts, most in zip(whole, told, limits):
        assert texts[-1] == w.text and len(set(texts)) > 1 and w.tokens <= most
        for before, after in zip(texts, texts[1:]): assert after.startswith(before.rstrip("\ufffd"))


def test_pieces_through_the_server(qwen):
    "The pieces, read as server-sent events by hand, are the answer that comes whole; the usage is its."
    pytest.importorskip("uvicorn", reason='pip install "oaml[serve]"')
    import base64
    import httpx
    from oaml.models.api_adapter import png_of
    from oaml.scripts.serve_model import lend_model
    png = base64.b64encode(png_of(asked(1)[0]["images"][0])[0]).decode()
    content = [dict(type="image_url", image_url=dict(url=f"data:image/png;base64,{png}")), dict(type="text", text="Goal: Log in.")]
    body = dict(model="random", messages=[dict(role="user", content=content)], max_tokens=12, temperature=1, seed=4)
    with lend_model(qwen, "random") as url, httpx.Client(timeout=60) as http:
        whole = http.post(f"{url}/chat/completions", json=body).json()
        stop = whole["choices"][0]["message"]["content"][3:5]
        for more in ({}, dict(stop=stop)):
            whole = http.post(f"{url}/chat/completions", json=body | more).json()
            with http.stream("POST", f"{url}/chat/completions", json=body | more | dict(stream=True, stream_options=dict(include_usage=True))) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
            assert events.pop() == "[DONE]"
            *pieces, last = map(json.loads, events)
            text = "".join(p["choices"][0]["delta"].get("content", "") for p in pieces)
            assert text == whole["choices"][0]["message"]["content"] and not (more and stop in text)
            assert last["usage"] == whole["usage"] and last["choices"] == [] and pieces[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
            if not more: assert len([p for p in pieces if p["choices"][0]["delta"].get("content")]) > 2
