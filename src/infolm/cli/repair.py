"""`infolm repair`: repair a damaged run."""

import json
from dataclasses import asdict

from infolm.cli.app import JsonOption, RunArgument, app
from infolm.errors import RunError


@app.command()
def repair(run: RunArgument, as_json: JsonOption = False) -> None:
    """Restore the damaged files of a run from its intact ones.

    The recipe comes from the manifest, the vocabulary from the text, the weights from the best or
    the last checkpoint. Damaged files are moved to RUN/damaged; intact files do not change.
    """
    from infolm.repair import repair as mend

    result = mend(run)
    if as_json:
        print(json.dumps({"run": str(run), **asdict(result)}, indent=2))
    else:
        for file, how in result.done.items():
            print(f"{file}: {how}.")
        if not result.done and not result.lost:
            print("all files are intact.")
    if result.lost:
        told = "; ".join(
            f"{file} is lost: {str(why).rstrip('.')}" for file, why in result.lost.items()
        )
        raise RunError(f"{run} could not be repaired completely ({told})")
