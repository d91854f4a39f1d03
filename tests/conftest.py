"With `pytest -n`, a module whose tests share something that takes long to start (a site, JupyterLab, Ray, Docker, a display, a wheel's environment, a training) keeps to one process."
from pathlib import PurePosixPath

import pytest

TOGETHER = ("test_desktop", "test_docs", "test_engines", "test_environments", "test_inspector", "test_miniwob_oracles", "test_p2p_backends",
            "test_p2p_gui", "test_packaging", "test_realapps", "test_resume", "test_rft_resume", "test_synth")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    "Tests go to whichever process is free, those of a module in `TOGETHER` all to the same."
    from xdist.scheduler import LoadScopeScheduling
    class ByModule(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            module = nodeid.split("::")[0]
            return module if PurePosixPath(module).stem in TOGETHER else nodeid
    return ByModule(config, log)


@pytest.fixture(scope="session")
def random_qwen():
    "Makes a Qwen3-VL of a few thousand random weights, the same each time, and its processor."
    def make():
        import torch
        from transformers import AutoModelForImageTextToText, Qwen3VLConfig
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
        from oaml.models.qwen_vl import ImageTextProcessor
        from oaml.nano.tokenizer import nano_tokenizer
        tokenizer = nano_tokenizer()
        ids = tokenizer.get_vocab()
        text = dict(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                    num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=512,
                    pad_token_id=ids["<|endoftext|>"], bos_token_id=None, eos_token_id=ids["<|im_end|>"],
                    rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[4, 2, 2]))
        vision = dict(depth=2, hidden_size=32, num_heads=2, intermediate_size=64, out_hidden_size=32, patch_size=16,
                      deepstack_visual_indexes=[0], num_position_embeddings=64)
        config = Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=ids["<|image_pad|>"],
                               video_token_id=ids["<|video_pad|>"], vision_start_token_id=ids["<|vision_start|>"],
                               vision_end_token_id=ids["<|vision_end|>"])
        torch.manual_seed(0)
        return (AutoModelForImageTextToText.from_config(config),
                ImageTextProcessor(Qwen2VLImageProcessorPil(patch_size=16, min_pixels=32*32), tokenizer))
    return make
