"""`oaml serve-model`: 32 clients at once beside the same questions one after the other, in one run, over HTTP.

python bench/serve_model.py [--clients 32] [--model tiny-qwen|nano|FOLDER]  writes bench/serve_model.md.

Each client asks about a screen of its own, greedily. What is compared is the time to all answers; answers must be the same. A tiny Qwen3-VL
of random weights is what a large model on an accelerator is like: a pass costs about the same for one question as for many. A nano's pass on
a CPU costs what its tokens cost, so that there is less to be gained.
"""
import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).parent


def tiny_qwen():
    "A Qwen3-VL of random weights."
    import torch
    from transformers import AutoModelForImageTextToText, Qwen3VLConfig
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from oaml.models.qwen_vl import ImageTextProcessor, QwenVLAdapter
    from oaml.nano.tokenizer import nano_tokenizer
    tokenizer = nano_tokenizer()
    ids = tokenizer.get_vocab()
    text = dict(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
                head_dim=32, max_position_embeddings=1024, pad_token_id=ids["<|endoftext|>"], bos_token_id=None, eos_token_id=ids["<|im_end|>"],
                rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[8, 4, 4]))
    vision = dict(depth=2, hidden_size=32, num_heads=2, intermediate_size=64, out_hidden_size=64, patch_size=16, deepstack_visual_indexes=[0], num_position_embeddings=64)
    config = Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
                           vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"])
    torch.manual_seed(0)
    return QwenVLAdapter(AutoModelForImageTextToText.from_config(config), ImageTextProcessor(Qwen2VLImageProcessorPil(patch_size=16, min_pixels=32*32), tokenizer), "cpu")


def measure(adapter, screens, clients, tokens):
    "Seconds one after the other and together, and how many questions were in a batch."
    import httpx

    from oaml.apps.app import split_seeds
    from oaml.datasets.prompts import PromptFormat, prompt_messages
    from oaml.devices.app_device import AppDevice
    from oaml.devices.daemon import serve_in_thread
    from oaml.models.api_adapter import openai_turns, question_of
    from oaml.scripts.serve_model import model_server
    device, fmt, bodies = AppDevice("login"), PromptFormat(**(adapter.prompt_format or {})), []
    for seed in split_seeds("validation", clients):
        image = device.reset(seed).image
        q = question_of(dict(images=[image], messages=prompt_messages(device.goal.text, [], fmt)))
        messages = [dict(role="system", content=q.system)]*bool(q.system) + [m for turn in q.chat() for m in openai_turns(turn)]
        bodies.append(dict(model="bench", messages=messages, max_tokens=tokens))
    with serve_in_thread(model_server(adapter, "bench", 0, screens)) as server, httpx.Client(timeout=600, trust_env=False, limits=httpx.Limits(max_connections=clients)) as http:
        def ask(body):
            answer = http.post(f"{server.url}/v1/chat/completions", json=body).raise_for_status().json()
            return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]
        ask(bodies[0])  # warm
        began = time.perf_counter()
        alone = [ask(b) for b in bodies]
        one = time.perf_counter() - began
        with ThreadPoolExecutor(clients) as pool:
            began = time.perf_counter()
            together = list(pool.map(ask, bodies))
            many = time.perf_counter() - began
    return dict(alone=one, together=many, ratio=one/many, same=sum(a == b for a, b in zip(alone, together)), tokens=sum(n for _, n in together))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32, help="of an answer, at most")
    parser.add_argument("--model", action="append", help="tiny-qwen, nano, or a trained agent's folder; repeat")
    given, lines = parser.parse_args(), []
    from oaml.runtime.policy import load_policy
    for name in given.model or ["tiny-qwen", "nano"]:
        if name == "tiny-qwen": adapter, screens = tiny_qwen(), ()
        else: adapter, screens = (p := load_policy(name)).adapter, p.screens
        row = measure(adapter, screens, given.clients, given.tokens)
        lines.append(f"| {name} | {row['alone']:.2f} | {row['together']:.2f} | {row['ratio']:.1f} | {row['same']} of {given.clients} | {row['tokens']} |")
        print(lines[-1], flush=True)
    head = ["# Questions together", "", " ".join(__doc__.split("\n\n")[2].split()), "", f"{given.clients} clients, {given.tokens} tokens an answer at most; load of the machine at the end: {os.getloadavg()[0]:.1f}.", "",
            "| model | one after the other, s | together, s | times as fast | same answers | tokens |", "|---|---|---|---|---|---|"]
    (HERE/"serve_model.md").write_text("\n".join(head + lines) + "\n")


if __name__ == "__main__": main()
