"""The pairwise losses as the papers write them, in NumPy, beside ours."""

import numpy as np

from bert4rec_tf.nn import losses


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def shares(negatives):
    powers = np.exp(negatives - negatives.max())
    return powers / powers.sum()


def bpr_max_oracle(positive, negatives, regularization=0.7):
    weights = shares(negatives)
    likelihood = (weights * sigmoid(positive - negatives)).sum()
    return -np.log(likelihood + 1e-24) + regularization * (weights * negatives**2).sum()


def top1_oracle(positive, negatives):
    """With the positive among the scores, and its second term subtracted, as the authors write it."""
    scores = np.append(negatives, positive)
    terms = sigmoid(scores - positive) + sigmoid(scores**2)
    return terms.mean() - sigmoid(positive**2) / len(scores)


ORACLES = {
    "bpr": (losses.bpr, lambda p, n: -np.log(sigmoid(p - n)).mean()),
    "binary": (losses.binary_cross_entropy, lambda p, n: -np.log(sigmoid(p)) - np.log(1 - sigmoid(n)).sum()),
    "top1": (losses.top1, top1_oracle),
    "top1_max": (losses.top1_max, lambda p, n: (shares(n) * (sigmoid(n - p) + sigmoid(n**2))).sum()),
    "bpr_max": (lambda *args: losses.bpr_max(*args, regularization=0.7), bpr_max_oracle),
}
