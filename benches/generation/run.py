"""Measures decoding, prefill and a grouped attention, next to other runtimes, and prints tables.

    python benches/generation/run.py target/smollm2 --rounds 5

The folder is that of examples/generate/export.py and of prepare.py. All peers run in one process, one after another in
each round; a table has medians over the rounds. The bandwidth of reading memory is measured in the same rounds. A peer
whose package or file is missing is named and left out. `--smoke` runs everything once at small sizes."""

import argparse
import concurrent.futures
import pathlib
import statistics
import sys

import grouped
import numpy as np
from peers import PEERS, ROWS, STEPS, Missing, timed

PAST = (16, 512, 1024)
PREFILL = (32, 256)
# Positions before the step of several sequences.
BATCH_PAST = 128
# The largest prompt of one call. Longer pasts are read in several.
CHUNK = 256
# Elements that are read to measure the bandwidth: more than all caches hold.
READ_ELEMS = 64 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--skip-model", action="store_true", help="only the grouped attention")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    rounds = 1 if arguments.smoke else arguments.rounds

    for threads in arguments.threads:
        reads = Reads(threads)
        attention = opened(grouped.PEERS, threads)
        if attention:
            agree(attention)
            rows = measure_attention(attention, reads, 3 if arguments.smoke else 20 * rounds)
            key_bytes = 2 * grouped.KEY_HEADS * grouped.CAPACITY * grouped.WIDTH * 4
            title = f"attention over {grouped.PAST} positions"
            print_table(title, threads, rows, reads, key_bytes, "keys and values", 3)
        del attention
        if arguments.skip_model:
            continue
        makers = {name: PEERS[name] for name in arguments.peers}
        peers = opened(makers, arguments.folder, threads)
        if peers:
            rows = measure(peers, reads, rounds, arguments.smoke)
            print_table("SmolLM2-135M", threads, rows, reads, weight_bytes(arguments.folder), "the weights in f32", 1)


def opened(makers, *arguments):
    peers = {}
    for name, make in makers.items():
        try:
            peers[name] = make(*arguments)
        except Missing as reason:
            print(f"{name} is left out: {reason}", file=sys.stderr)
    return peers


def weight_bytes(folder):
    return (folder / "model.onnx").stat().st_size


class Reads:
    """The time to read all elements of an array once, on this number of threads."""

    def __init__(self, threads):
        self.parts = np.array_split(np.ones(READ_ELEMS, np.float32), threads)
        self.pool = concurrent.futures.ThreadPoolExecutor(threads)
        self.times = []

    def measure(self):
        self.times.append(timed(lambda: list(self.pool.map(lambda part: part.max(), self.parts))))

    def bytes_per_ns(self):
        return READ_ELEMS * 4 / statistics.median(self.times)


def agree(attention):
    """Ends the program if the peers of the grouped attention compute other values."""
    results = {}
    for name, peer in attention.items():
        peer.step()
        results[name] = peer.result()
    first, *others = results.items()
    for name, result in others:
        if not np.allclose(result, first[1], rtol=1e-4, atol=1e-5):
            sys.exit(f"the attention of {name} differs from that of {first[0]}")


def measure_attention(peers, reads, rounds):
    """Nanoseconds by case and peer, one entry for each round."""
    times = {"one token": {name: [] for name in peers}}
    for k in range(rounds):
        if k % 10 == 0:
            reads.measure()
        for name, peer in peers.items():
            times["one token"][name].append(peer.step())
    return times


def measure(peers, reads, rounds, smoke):
    """Nanoseconds by case and peer, one entry for each round. A step of several sequences counts all of them."""
    times = {}

    def note(case, name, value):
        times.setdefault(case, {}).setdefault(name, []).append(value)

    for peer in peers.values():
        peer.start(8, 1)
        peer.step()
    for _ in range(rounds):
        reads.measure()
        for count in PREFILL[:1] if smoke else PREFILL:
            for name, peer in peers.items():
                note(f"prefill of {count}", name, peer.start(count, 1))
        for past in PAST[:1] if smoke else PAST:
            for name, peer in peers.items():
                note(f"decode at {past}", name, decode(peer, past, 1))
        past = 16 if smoke else BATCH_PAST
        for rows in (1, ROWS):
            for name, peer in peers.items():
                note(f"decode of {rows} at {past}", name, decode(peer, past, rows))
    return times


def decode(peer, past, rows):
    """The mean time of a step after `past` positions."""
    chunk = past if getattr(peer, "reads_long_prompts", False) else CHUNK
    peer.start(min(past, chunk), rows)
    for first in range(chunk, past, chunk):
        peer.feed(min(chunk, past - first))
    return statistics.mean(peer.step() for _ in range(STEPS))


def print_table(title, threads, times, reads, n_bytes, content, digits):
    """The medians in milliseconds, and the time to read the bytes of `content` once."""
    bytes_per_ns = reads.bytes_per_ns()
    names = list(next(iter(times.values())))
    bound = f"reading {content} once takes {n_bytes / bytes_per_ns / 1e6:.{digits}f} ms"
    print(f"\n{title}, {threads} thread(s); {bytes_per_ns:.1f} GB/s: {bound}\n")
    print("| ms | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
    for case, by_peer in times.items():
        row = [f"{statistics.median(by_peer[name]) / 1e6:.{digits}f}" for name in names]
        print(f"| {case} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
