"""The job files of docs/scaling.md: their syntax, and that their commands are infolm's."""

import subprocess
from pathlib import Path

import yaml

JOBS = Path(__file__).parents[1] / "docs" / "jobs"


def test_the_slurm_script_is_bash():
    assert subprocess.run(["bash", "-n", str(JOBS / "slurm.sh")]).returncode == 0


def test_the_kubernetes_job_starts_as_many_machines_as_it_has_pods():
    service, job = yaml.safe_load_all((JOBS / "kubernetes.yaml").read_text())
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["completions"] == spec["parallelism"] == 2
    assert f"--nnodes={spec['completions']}" in container["command"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
