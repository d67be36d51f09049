"""Measures eight layers of 2048 x 2048 weights of 4 bits next to other runtimes, and prints tables.

    python benches/few_bits/run.py target/few_bits --rounds 15

The script writes its models to the folder: blocks of 32 weights with a scale each, as `MatMulNBits` and for llama.cpp.
All peers run in one process, one after another in each round; a table has the medians of the shortest calls of a round.
The time to read as many bytes as the layers have is measured in the same rounds. Names end with the type of the
activations in products. A peer whose package is missing is named and left out. `--smoke` runs everything once."""

import argparse
import concurrent.futures
import pathlib
import statistics
import sys
import time

import numpy as np
from peers import PEERS, Missing, reference

ROWS = (1, 16, 128)
# Calls in a row of one peer; the shortest counts, as the first of them finds the weights of other peers in the caches.
CALLS = {1: 12, 16: 6, 128: 3}
# Scales of 16 bits, as llama.cpp has them.
WEIGHT_BYTES = 8 * 2048 * 2048 * (4 + 16 / 32) / 8
# Largest difference from the products in f32, relative to the root of the mean square: rounded activations have one.
TOLERANCE = {"f32": 1e-4, "int8": 0.06}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)

    for threads in arguments.threads:
        peers = opened(arguments.folder, threads, arguments.peers)
        times, reads = measure(peers, threads, 1 if arguments.smoke else arguments.rounds)
        print_table(threads, times, reads)


def opened(folder, threads, names):
    peers = {}
    for name in names:
        make, *options = PEERS[name]
        try:
            peers[name] = make(folder, threads, *options)
        except Missing as reason:
            print(f"{name} is left out: {reason}", file=sys.stderr)
    return peers


def measure(peers, threads, rounds):
    """Nanoseconds by number of rows and peer, one entry for each round, and those of reading the bytes."""
    reads = Reads(threads)
    times = {rows: {name: [] for name in peers} for rows in ROWS}
    for rows in ROWS:
        x = np.random.default_rng(rows).standard_normal((rows, 2048), np.float32)
        want = reference(x)
        for name, peer in peers.items():
            peer.prepare(x)
            peer.call()
            check(name, peer.result(), want)
        for _ in range(rounds):
            reads.measure()
            for name, peer in peers.items():
                peer.prepare(x)
                times[rows][name].append(min(peer.call() for _ in range(CALLS[rows])))
    return times, reads


def check(name, result, want):
    """Ends the program if a peer computes another product."""
    if result is None:
        return
    error = float(np.sqrt(np.square(result - want).mean() / np.square(want).mean()))
    if not error <= TOLERANCE[name.rsplit(" ", 1)[1]]:
        sys.exit(f"{name}: the result is off by {error:.1e}")


class Reads:
    """The time to read as many bytes as the weights have, on this number of threads."""

    def __init__(self, threads):
        self.parts = np.array_split(np.ones(int(WEIGHT_BYTES) // 4, np.float32), threads)
        self.pool = concurrent.futures.ThreadPoolExecutor(threads)
        self.times = []

    def measure(self):
        self.times.append(min(self.once() for _ in range(CALLS[1])))

    def once(self):
        start = time.perf_counter_ns()
        if len(self.parts) == 1:
            self.parts[0].max()
        else:
            list(self.pool.map(np.max, self.parts))
        return time.perf_counter_ns() - start


def print_table(threads, times, reads):
    """The medians in microseconds, and the bandwidth that one row reaches."""
    read_ns = statistics.median(reads.times)
    bandwidth = f"{WEIGHT_BYTES / read_ns:.1f} GB/s"
    print(f"\n{threads} thread(s); reading {WEIGHT_BYTES / 1e6:.1f} MB takes {read_ns / 1e3:,.0f} us, {bandwidth}\n")
    print("| us | " + " | ".join(f"{rows} row(s)" for rows in ROWS) + " | 1 row: share of the bandwidth |")
    print("|" + "---|" * (len(ROWS) + 2))
    for name in times[1]:
        medians = [statistics.median(times[rows][name]) for rows in ROWS]
        cells = " | ".join(f"{median / 1e3:,.0f}" for median in medians)
        print(f"| {name} | {cells} | {100 * read_ns / medians[0]:.0f} % |", flush=True)


if __name__ == "__main__":
    main()
