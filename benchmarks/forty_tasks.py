"""Samples of the forty tasks of Czyz et al. (NeurIPS 2023), with their true mutual information.

Their package needs versions of JAX and NumPy that nothing else here does: give it an environment of
its own, and hand the samples over as files.

    python3 -m venv tasks
    tasks/bin/pip install benchmark-mi jax==0.4.20 jaxlib==0.4.20 'scipy<1.13'
    tasks/bin/python benchmarks/forty_tasks.py runs/forty
    python benchmarks/mutual_information.py --tasks runs/forty --runs 40 --estimators mine,ksg
"""

import json
import sys
from pathlib import Path

import numpy as np

SAMPLES, SEED = 10_000, 0


def main() -> None:
    from bmi.benchmark import BENCHMARK_TASKS  # type: ignore[import-not-found]

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    index = []
    for name, task in BENCHMARK_TASKS.items():
        x, y = task.sample(SAMPLES, SEED)
        np.savez(folder / f"{name}.npz", x=np.asarray(x), y=np.asarray(y))
        index.append({"name": name, "mutual_information": float(task.mutual_information)})
    (folder / "tasks.json").write_text(json.dumps(index, indent=1))


if __name__ == "__main__":
    main()
