"""What a training's screens cost before the model: `python bench/feed.py` writes bench/feed.md. Processor time, so that a busy machine does not matter.

Before: `transformers`' processor does everything in the trainer's process. After: a worker opens and resizes (`training.workers`), the bytes are
cut and scaled where the model is. Both from PNG files of a phone's screens, one after another, in one run. And: how long a second start looks at
screens that it looked at before (remembered by size, time and hash)."""
import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZE = 1080, 2400


def cpu_ms(work, items) -> list[float]:
    "Milliseconds of processor time that `work` takes of each item."
    times = []
    for item in items:
        start = time.process_time()
        work(item)
        times.append(1000*(time.process_time() - start))
    return times


def screens(folder: Path, n: int) -> list[Path]:
    "PNG files of login screens, as large as a phone's."
    from PIL import Image
    from oaml.devices.app_device import AppDevice
    device, paths = AppDevice("login"), []
    for seed in range(n):
        paths.append(folder/f"{seed}.png")
        Image.fromarray(device.reset(seed).image).resize(SIZE, Image.Resampling.LANCZOS).save(paths[-1])
    return paths


def feeding(n: int) -> dict[str, float]:
    "Median milliseconds of processor time a sample, by part."
    import torch
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from oaml.datasets.samples import load_image
    from oaml.models.budget import pack_screens, unpack_screens
    torch.set_num_threads(1)
    processor = Qwen2VLImageProcessorPil(patch_size=16, min_pixels=32*32, max_pixels=16_777_216)
    with tempfile.TemporaryDirectory() as d:
        paths = screens(Path(d), n)
        packed = [pack_screens(processor, [load_image(p)]) for p in paths[:2]]
        before, after = [], []
        for p in paths:  # by turns
            before += cpu_ms(lambda p: processor([load_image(p)], return_tensors="pt"), [p])
            after += cpu_ms(lambda p: pack_screens(processor, [load_image(p)]), [p])
        last = cpu_ms(lambda x: unpack_screens(processor, x["pixel_values"], x["image_grid_thw"]), packed*2)
        opened = cpu_ms(load_image, paths)
    return {k: statistics.median(v) for k, v in dict(before=before, worker=after, at_the_model=last, opening=opened).items()}


def second_start(n: int) -> float:
    "Seconds of processor time for looking at `n` screens that are known; links to a few files, which the check can't tell from others."
    from oaml.ingest.screens import CheckedScreen, ScreenLedger, _key, look_at_screens
    with tempfile.TemporaryDirectory() as d:
        files = screens(Path(d), 1 + n//50_000)  # a file can have so many links
        paths = {str(Path(d)/f"link-{k}.png"): "0"*64 for k in range(n)}
        for k, p in enumerate(paths): os.link(files[k//50_000], p)
        ledger = ScreenLedger(Path(d)/"ledger.sqlite")
        ledger.keep({p: _key(p, h) for p, h in paths.items()}, {p: CheckedScreen(None, h, SIZE) for p, h in paths.items()})
        ledger.close()
        start = time.process_time()
        found = look_at_screens(paths, 1, memory=Path(d)/"ledger.sqlite")
        seconds = time.process_time() - start
    assert len(found) == n and not any(f.problem for f in found.values())
    return seconds


def main():
    "Measure, and write the page."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--screens", type=int, default=12, help="screens that are fed")
    parser.add_argument("--known", type=int, default=100_000, help="screens of the second start")
    args = parser.parse_args()
    ms, again = feeding(args.screens), second_start(args.known)
    text = f"""# Feeding screens

`python bench/feed.py`: {SIZE[0]}x{SIZE[1]}, one thread, processor time (the machine was busy), medians of {args.screens} screens by turns in one run.

| a sample | ms of CPU |
|---|---:|
| before: everything in the trainer's process | {ms['before']:.0f} |
| after: in a worker (opening the PNG alone is {ms['opening']:.0f}) | {ms['worker']:.0f} |
| after: cutting and scaling where the model is, on a CPU thread | {ms['at_the_model']:.0f} |

A worker makes {ms['before']/ms['worker']:.1f} times the samples of a second of one core; two workers on two cores beside a GPU, where the one thread of before had
one: {2*ms['before']/ms['worker']:.1f} times, reckoned from these figures.

A second start looks at {args.known:,} known screens in {again:.1f} s of CPU.
"""
    (HERE/"feed.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__": main()
