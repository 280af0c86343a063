"""How long `infolm --help` takes, against starting Python itself. Bar: 0.5 s.

python benchmarks/start_up.py
"""

import subprocess
import sys

from timing import ratio


def run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    value, a, b = ratio(lambda: run("-m", "infolm", "--help"), lambda: run("-c", ""), repeats=9)
    print(f"infolm --help: {a:.2f} s (bar 0.5), {value:.1f} times `python -c ''` ({b:.2f} s)")


if __name__ == "__main__":
    main()
