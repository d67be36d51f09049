"""The bounds of calls, from `symc report --profile`."""

import json
import subprocess

# Seconds that a profile may take.
SECONDS = 120


def bounds_ns(symc, model, flags, sizes):
    """Nanoseconds that a call takes at least, at each size: the sum over all kernels of their arithmetic at the measured
    peak, or their bytes at the measured bandwidth. Kernels without a bound count as nothing. A size has a value for
    each symbol. Raises `RuntimeError` if there is no profile."""
    texts = [",".join(f"{name}={value}" for name, value in size.items()) for size in sizes]
    given = [text for text in dict.fromkeys(texts) if text]
    command = [symc, "report", model, *flags, "--json", "-o", f"{model}.html", "--profile", *given]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"the profile took more than {SECONDS} s") from error
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"exit code {done.returncode}")
    calls = json.loads(done.stdout.splitlines()[-1])["profile"]
    found = dict(zip(dict.fromkeys(texts), calls))
    return [sum(kernel["bound_ns"] or 0 for kernel in found[text]["kernels"]) for text in texts]
