"""Batches of sequences: their lengths, their tokens, and the padded arrays of some of them."""

import numpy as np

# Lengths are log-normal, as those of texts that a service encodes.
MEDIAN = 60
SIGMA = 0.8
LONGEST = 512
VOCABULARY = 30_522


def sampled(count, seed):
    """The lengths of `count` sequences."""
    random = np.random.default_rng(seed)
    return np.clip(random.lognormal(np.log(MEDIAN), SIGMA, count), 1, LONGEST).astype(np.int64)


def even(lengths):
    """As many sequences with as many tokens in all, of almost equal lengths."""
    count, rows = len(lengths), int(lengths.sum())
    return np.array([rows // count + (k < rows % count) for k in range(count)], np.int64)


class Batch:
    """Sequences of random tokens. `rows` has the tokens of all of them, one after another."""

    def __init__(self, lengths, seed):
        self.lengths = np.asarray(lengths, np.int64)
        self.rows = np.random.default_rng(seed).integers(1000, VOCABULARY, int(self.lengths.sum()))
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])

    def __len__(self):
        return len(self.lengths)

    def sequences(self):
        """The tokens of each sequence, as lists."""
        return [self.rows[begin:end].tolist() for begin, end in zip(self.offsets, self.offsets[1:])]

    def padded(self, chosen=None):
        """The inputs of the padded model for the chosen sequences, padded to the longest of them."""
        chosen = range(len(self)) if chosen is None else chosen
        longest = int(self.lengths[list(chosen)].max())
        ids = np.zeros((len(chosen), longest), np.int64)
        mask = np.zeros_like(ids)
        for row, k in enumerate(chosen):
            ids[row, : self.lengths[k]] = self.rows[self.offsets[k] : self.offsets[k + 1]]
            mask[row, : self.lengths[k]] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def buckets(self, count):
        """The sequences in `count` groups of about as many, sorted by their lengths."""
        order = np.argsort(self.lengths, kind="stable")
        return [group for group in np.array_split(order, count) if len(group)]
