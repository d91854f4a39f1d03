"""How acting-3 was trained, eight minutes on an H200: `python train_gpu.py CONFIG --seconds 475 --workers 14 [--packed FILE ...]`.

As `oaml train CONFIG`, but the workers also encode what they made, and read screens on the GPU, all of an episode together. What
they made comes first, once, in half of the draws; the other draws are from all that is there, in any order. The rate climbs for
ten seconds, then falls to nothing at the end. With `--pack FILE` it makes samples for so long and trains on none.
"""
import argparse
import lzma
import threading
import time
from dataclasses import asdict
from functools import cache
from io import BytesIO

import numpy as np
import torch

from oaml.datasets.lines import BLANK, CELL
from oaml.datasets.samples import padded
from oaml.ingest.engines import ProcessEngine
from oaml.models import base_adapter, qwen_vl
from oaml.nano import model  # noqa: F401, nano registers itself
from oaml.nano.reader import as_input, load_reader, quickest_reader, read_samples
from oaml.scripts.train import load_learner, make_stream
from oaml.training import trainer as trainers
from oaml.training.config import load_config

WARM, LAST = 10., 25. # seconds that the rate climbs; seconds before the end in which nothing new is made
EPISODES = 4          # of a call
IGNORED = -100


class Scored:
    "Of a screen's scores what `read_lines` asks for: the likeliest symbols, their scores, and the blank's."
    def __init__(self, symbols, best, blank): self.symbols, self.best, self.blank = symbols, best, blank
    def argmax(self, axis): return self.symbols
    def max(self, axis): return self.best
    def __getitem__(self, key): return self.blank


@cache
def encoder(folder, fmt, reader):
    "In a worker: an adapter on the processor, the reader that `read_samples` asks, and the same network on the GPU."
    torch.set_num_threads(1)
    available, torch.cuda.is_available = torch.cuda.is_available, lambda: False
    adapter = qwen_vl.QwenVLAdapter.load(folder, "cpu")
    torch.cuda.is_available = available
    adapter.prompt_format = dict(fmt)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return adapter, quickest_reader(reader), load_reader(reader).cuda() if torch.cuda.is_available() else None


@torch.no_grad()
def read_together(reader, network, images):
    "Let the reader remember all the images, read in one pass for each size."
    plain, known = reader.scores, {}
    for shape in {x.shape for x in images}:
        some = [padded(x, CELL[::-1]) for x in images if x.shape == shape]
        scores = network(as_input(np.stack(some)).cuda())
        best, symbols = scores.max(-1)
        parts = [x.cpu().numpy() for x in (symbols.to(torch.int16), best, scores[..., BLANK])]
        known |= {x.tobytes(): Scored(*row) for x, row in zip(some, zip(*parts))}
    reader.scores = lambda image: known[image.tobytes()]
    for x in images: reader.lines(x)
    reader.scores = plain


def packed_samples(make, jobs, folder, fmt, reader):
    "Samples of some episodes as arrays: all ids, how long each is, and where its answer begins and ends."
    adapter, r, network = encoder(folder, fmt, reader)
    rows = []
    for samples in (make(*job) for job in jobs):
        if network is not None: read_together(r, network, [x for s in samples for x in s["images"]])
        with torch.no_grad(): read = read_samples(samples, reader)
        for s in read:
            x = adapter._labelled([s], "assistant")
            if "weights" in x and not x["weights"].any(): continue  # an answer that nobody could know
            there = np.flatnonzero(x["labels"][0] != IGNORED)
            rows.append((x["input_ids"][0].numpy().astype(np.int16), there[0], there[-1] + 1))
    ids, begins, ends = zip(*rows)
    return dict(ids=np.concatenate(ids), length=np.array([len(x) for x in ids]), begin=np.array(begins), end=np.array(ends))


class Pool:
    "The samples that are there. A trainer's data set, in an order that depends on when they came."
    in_order = True
    def __init__(self):
        self.samples, self.new, self.order, self.lock, self.rng = [], [], [], threading.Lock(), np.random.default_rng(0)

    def __len__(self): return 100_000_000

    def add(self, packed, fresh):
        parts = np.split(packed["ids"], np.cumsum(packed["length"])[:-1])
        with self.lock:
            if fresh: self.new += range(len(self.samples), len(self.samples) + len(parts))
            self.samples += zip(parts, packed["begin"].tolist(), packed["end"].tolist())

    def __getitem__(self, _):
        with self.lock:
            if len(self.new) > 2000 or self.new and (not self.order or self.rng.random() < .5):
                return self.samples[self.new.pop(int(self.rng.integers(len(self.new))))]
            if not self.order:
                waiting = set(self.new)
                self.order = self.rng.permutation([k for k in range(len(self.samples)) if k not in waiting]).tolist()
            return self.samples[self.order.pop()]


def batch_of(adapter, samples):
    "What `prepare_inputs` makes of them, and how many tokens carry loss."
    width = -(-max(len(ids) for ids, *_ in samples)//16)*16
    ids, labels, mask = (np.full((len(samples), width), v, np.int64) for v in (adapter.tokenizer.pad_token_id, IGNORED, 0))
    for k, (x, a, b) in enumerate(samples): ids[k, :len(x)], mask[k, :len(x)], labels[k, a:b] = x, 1, x[a:b]
    tensors = {k: torch.from_numpy(v) for k, v in dict(input_ids=ids, attention_mask=mask, labels=labels).items()}
    return {k: v.to(adapter.device) for k, v in tensors.items()} | dict(tokens=int((labels[:, 1:] != IGNORED).sum()))


class Deadline:
    "A hook: stop the training when its time is over."
    def __init__(self, over): self.over = over
    def after_step(self, trainer): trainer.interrupted = trainer.interrupted or self.over()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--seconds", type=float, default=475)
    parser.add_argument("--workers", type=int, default=14, help="0: train on packed samples alone")
    parser.add_argument("--packed", nargs="*", default=[], help="files of an earlier --pack")
    parser.add_argument("--pack", help="write what was made to this file, and do not train")
    args, began = parser.parse_args(), time.time()
    def clock(): return time.time() - began
    config = load_config(args.config)
    fmt = config.prompt.prompt_format()
    stream, pool = make_stream(config, fmt), Pool()
    stream.micro_batch = 4  # episodes on one kind of screen
    made = []
    for file in args.packed: pool.add(np.load(BytesIO(lzma.open(file).read())), fresh=False)

    def feed():
        calls, k, jobs, coming = ProcessEngine(args.workers, 5), 0, [], set()
        def done(call):
            if call.cancelled(): return
            (made.append if args.pack else lambda packed: pool.add(packed, fresh=True))(call.result())
        while clock() < args.seconds - LAST:
            coming = {c for c in coming if not c.done()}
            while len(coming) < 2*args.workers:
                while len(jobs) < EPISODES: jobs, k = jobs + stream.block(k), k + 1
                call = calls.submit(packed_samples, stream.make, jobs[:EPISODES], config.model.model_name, tuple(asdict(fmt).items()), config.model.reader)
                jobs = jobs[EPISODES:]
                coming.add(call)
                call.add_done_callback(done)
            time.sleep(.05)
        calls.shutdown(cancel_futures=True)

    feeder = threading.Thread(target=feed, daemon=True)
    if args.workers: feeder.start()
    if args.pack:
        feeder.join()
        file = BytesIO()
        np.savez(file, **{k: np.concatenate([p[k] for p in made]) for k in made[0]})
        return lzma.open(args.pack, "wb").write(file.getvalue())
    base_adapter.BaseVLMAdapter.count_supervised = lambda self, inputs: inputs.pop("tokens")
    adapter = load_learner(config, fmt)
    adapter.model.float()  # on a GPU it is loaded in bfloat16
    adapter.prepare_inputs = lambda samples, labels: batch_of(adapter, list(samples))
    trainers.lr_factor = lambda *_: max(1e-3, min(1., clock()/WARM)*(1 - clock()/args.seconds))
    while not pool.samples: time.sleep(.2)
    trainers.Trainer(adapter, pool, config, hooks=(Deadline(lambda: clock() > args.seconds),), data_manifest=stream.manifest(), progress=True).fit()


if __name__ == "__main__": main()
