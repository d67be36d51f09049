"""Measures batches of sequences of different lengths, next to other runtimes, and prints tables.

    python benches/ragged/run.py target/ragged --rounds 3

The folder is that of prepare.py. All peers run in one process, one after another in each round; a table has medians over
the rounds, and ratios to the ragged call. `ideal` has the same number of tokens in sequences of equal length. A peer
whose package or file is missing is named and left out. `--smoke` runs everything once."""

import argparse
import pathlib
import statistics
import sys

import numpy as np
from lengths import Batch, even, sampled
from peers import PEERS, Missing, timed

COUNTS = (8, 32, 64)
# Largest difference of hidden values, which layer normalisation keeps near 1.
TOLERANCE = 1e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", nargs="+", help="names of folders; default: all")
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), help="numbers of sequences")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--seed", type=int, default=1, help="of the lengths and tokens")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    rounds = 1 if arguments.smoke else arguments.rounds

    folders = [path.parent for path in sorted(arguments.folder.glob("*/model.onnx"))]
    folders = [path for path in folders if not arguments.models or path.name in arguments.models]
    if not folders:
        sys.exit(f"{arguments.folder}: no models there: see prepare.py")
    for folder in folders:
        for threads in arguments.threads:
            peers = opened(folder, threads, arguments.peers)
            for count in arguments.counts:
                batch = Batch(sampled(count, arguments.seed + count), arguments.seed)
                report(folder.name, threads, batch, measure(peers, batch, rounds), peers)
                measure_equal_lengths(peers, batch, rounds)


def opened(folder, threads, names):
    peers = {}
    for name in names:
        try:
            peers[name] = PEERS[name](folder, threads)
        except Missing as reason:
            print(f"{name} is left out: {reason}", file=sys.stderr)
    return peers


def measure(peers, batch, rounds):
    """Nanoseconds of each peer, one entry for each round. The first call of a peer is compared, and not counted."""
    reference = None
    for name, peer in peers.items():
        peer.prepare(batch)
        peer.call()
        hidden = peer.hidden()
        if hidden is None:
            continue
        reference = hidden if reference is None else reference
        difference = float(np.abs(hidden - reference).max())
        if difference > TOLERANCE:
            sys.exit(f"the hidden values of {name} differ by {difference}")
    times = {name: [] for name in peers}
    for _ in range(rounds):
        for name, peer in peers.items():
            times[name].append(timed(peer.call))
    return times


def report(model, threads, batch, times, peers):
    tokens, longest = len(batch.rows), int(batch.lengths.max())
    padding = len(batch) * longest / tokens
    print(f"\n{model}, {threads} thread(s), {len(batch)} sequences, {tokens} tokens, at most {longest}; "
          f"padded, they are {padding:.2f} times as many\n")
    print("| | ms | ratio to ragged |\n|---|---|---|")
    medians = {name: statistics.median(values) for name, values in times.items()}
    own = medians.get("ragged")
    for name, value in medians.items():
        ratio = f"{value / own:.2f}" if own else ""
        print(f"| {name} | {value / 1e6:.1f} | {ratio} |")
    if "ragged" in peers and "padded" in peers:
        arenas = [peers[name].arena_bytes() for name in ("ragged", "padded")]
        print(f"\narena: {arenas[0]:,} bytes ragged, {arenas[1]:,} padded, ratio {arenas[0] / arenas[1]:.2f}", flush=True)


def measure_equal_lengths(peers, batch, rounds):
    """Prints how much longer sequences of equal length take in a ragged call than in a dense one."""
    if "ragged" not in peers or "padded" not in peers:
        return
    length = max(1, int(even(batch.lengths)[0]))
    equal = Batch([length] * len(batch), 2)
    times = measure({name: peers[name] for name in ("ragged", "padded")}, equal, rounds)
    ragged, dense = (statistics.median(times[name]) for name in ("ragged", "padded"))
    print(f"equal lengths of {length}: ragged {ragged / 1e6:.1f} ms, dense {dense / 1e6:.1f} ms, ratio {ragged / dense:.3f}",
          flush=True)


if __name__ == "__main__":
    main()
