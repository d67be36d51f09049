"""The bounds of calls, from `symc report --profile`."""

import json
import subprocess

# Seconds that a profile of the smallest and the largest size may take.
SECONDS = 120


def bounds_ms(symc, folder, flags, symbols, bindings):
    """Milliseconds that a call takes at least, at the smallest and at the largest size: the sum over all kernels. Kernels
    without a bound count as nothing. Raises `RuntimeError` if there is no profile."""
    places = {"smallest": bindings[0], "largest": bindings[-1]}
    texts = {place: ",".join(f"{name}={item[name]}" for name in symbols) for place, item in places.items()}
    sizes = [text for text in dict.fromkeys(texts.values()) if text]
    command = [symc, "report", f"{folder}/model.onnx", *flags, "--json", "-o", f"{folder}/profile.html"]
    try:
        done = subprocess.run(
            [*command, "--profile", *sizes], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"the profile took more than {SECONDS} s") from error
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"exit code {done.returncode}")
    calls = json.loads(done.stdout.splitlines()[-1])["profile"]
    bounds = [sum(kernel["bound_ns"] or 0 for kernel in call["kernels"]) / 1e6 for call in calls]
    found = dict(zip(dict.fromkeys(texts.values()), bounds))
    return {place: found[text] for place, text in texts.items()}
