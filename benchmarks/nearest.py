"""KSG on 10,000 points in 10 + 10 dimensions against scikit-learn's k-d tree query alone.

    OMP_NUM_THREADS=1 python benchmarks/nearest.py            # bar: 3

Ours is the mean of the local values, then the whole estimate: with the error, the trial on a
Gaussian surrogate and the shuffled pairs. The yardstick finds the k nearest neighbours of every
joint point in the max norm, which is where KSG begins.
"""

import numpy as np
import torch
from sklearn.neighbors import KDTree
from timing import ratio

from infolm.information.nearest import KSG, ksg_local

SAMPLES, DIMENSIONS, NEIGHBOURS, INFORMATION = 10_000, 10, 3, 1.0


def main() -> None:
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    x, noise = generator.standard_normal((2, SAMPLES, DIMENSIONS))
    rho = np.sqrt(1 - np.exp(-2 * INFORMATION / DIMENSIONS))
    y = rho * x + np.sqrt(1 - rho**2) * noise
    joint = np.concatenate([x, y], axis=1)

    def query() -> None:
        KDTree(joint, metric="chebyshev").query(joint, NEIGHBOURS + 1)

    for label, ours in {
        "KSG 1, the value": lambda: ksg_local(x, y, NEIGHBOURS),
        "KSG 2, the value": lambda: ksg_local(x, y, NEIGHBOURS, variant=2),
        "KSG 1, the whole estimate": lambda: KSG(NEIGHBOURS).estimate(x, y),
    }.items():
        value, a, b = ratio(ours, query, repeats=5)
        print(f"{label} / k-d tree query: {value:.2f} (bar 3; {a:.2f} s / {b:.2f} s)")


if __name__ == "__main__":
    main()
