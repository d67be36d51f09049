#!/usr/bin/env python3
"""Opens the page of examples/talk in headless Chromium with a small decoder, and checks its answers.

    python talk.py --symc PATH [--keep PICTURE.png]

Needs Chromium, its driver, a C compiler for wasm32, the network for npm, and the packages of requirements.txt and of
examples/talk/requirements.txt. The expected tokens are computed from the whole sequence each time.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from web import browser, serve

ROOT = pathlib.Path(__file__).parents[3]
sys.path.append(str(ROOT / "python" / "tests"))
import models  # the decoder, and its most probable tokens

# A token is a letter, and the first token ends an answer.
END = "<end>"
LETTERS = "abcdefghij"
TURNS = {"start": "a", "before": "b", "after": "c", "next": "d", "end": [END]}
# Prompts are longer than a call, and conversations fill the state.
NEW, PAST = 4, 39
DIMS = ["B=1", f"S=1..{NEW}", f"P=0..{PAST}"]


def ids(text):
    return [1 + LETTERS.index(letter) for letter in text]


def answer(tokens):
    """The answer after these tokens, as letters, and whether it ends before the state is full."""
    room = PAST + 2 - len(tokens)
    own = models.greedy(tokens, room, end=0)
    return "".join(LETTERS[token - 1] for token in own), len(own) < room


def prompt(message, head):
    return ids(head + TURNS["before"] + message + TURNS["after"])


def messages(is_short):
    """Messages whose answers end before the state is full, or do not."""
    words = ("".join(word) for length in (3, 4) for word in itertools.product(LETTERS, repeat=length))
    return (word for word in words if is_short(*answer(prompt(word, TURNS["start"]))))


def write_model(folder):
    """The files of a folder of examples/generate/export.py."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(models.decoder().SerializeToString())
    (folder / "settings.json").write_text(json.dumps(TURNS))
    end = {"id": 0, "content": END, "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {END: 0, **{letter: 1 + idx for idx, letter in enumerate(LETTERS)}}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [{**end, **flags}], "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "fuse_unk": False,
            "end_of_word_suffix": None, "byte_fallback": False, "vocab": vocabulary, "merges": [],
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


class Page:
    def __init__(self, driver, url):
        self.driver = driver
        driver.get(url)
        self.wait("Ready.")

    def status(self):
        return self.driver.find_element(By.ID, "status").text

    def wait(self, *starts):
        """Waits for a status that begins so."""
        try:
            WebDriverWait(self.driver, 60).until(lambda _: self.status().startswith(starts))
        except TimeoutException as error:
            raise AssertionError(f"the page says `{self.status()}`, not {starts}") from error

    def ask(self, message, status):
        field = self.driver.find_element(By.ID, "message")
        field.send_keys(message)
        self.driver.find_element(By.ID, "send").click()
        WebDriverWait(self.driver, 60).until(lambda _: self.driver.find_element(By.ID, "send").is_enabled())
        assert status in self.status(), f"`{self.status()}` has no `{status}`"
        return self.driver.find_elements(By.CSS_SELECTOR, ".answer")[-1].text


def check(page):
    """Two turns of a conversation, then a new one that fills the state."""
    first = next(messages(lambda text, ends: ends and len(text) > 2))
    tokens = prompt(first, TURNS["start"])
    expected, _ = answer(tokens)
    assert page.ask(first, f"{len(expected)} tokens") == expected
    tokens += ids(expected) + prompt("cab", TURNS["next"])
    expected, _ = answer(tokens)
    assert page.ask("cab", "tokens/s" if len(expected) > 1 else "tokens") == expected

    page.driver.find_element(By.ID, "new").click()
    assert not page.driver.find_elements(By.CSS_SELECTOR, ".answer")
    long = next(messages(lambda text, ends: not ends))
    expected, _ = answer(prompt(long, TURNS["start"]))
    assert page.ask(long, f"The conversation has {PAST + 1} tokens") == expected
    page.ask("cab", f"Error: the conversation has {PAST + 1} tokens")
    errors = [entry["message"] for entry in page.driver.get_log("browser") if "favicon" not in entry["message"]]
    assert not errors, errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--symc", default="target/debug/symc")
    parser.add_argument("--keep", type=pathlib.Path)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        write_model(scratch / "model")
        command = [sys.executable, ROOT / "examples/talk/prepare.py", scratch / "model", scratch / "page"]
        command += ["--symc", args.symc, "--weights", "none", *(word for dim in DIMS for word in ("--dim", dim))]
        subprocess.run(list(map(str, command)), check=True)
        driver = browser()
        server = serve(scratch / "page", "application/wasm")
        try:
            check(Page(driver, f"http://127.0.0.1:{server.server_port}/index.html"))
            if args.keep:
                driver.save_screenshot(str(args.keep))
        finally:
            driver.quit()
            server.shutdown()
    print("talking pages: 1 passed, 0 failed")


if __name__ == "__main__":
    sys.exit(main())
