#!/usr/bin/env python3
"""Opens the page of examples/browser in headless Chromium, and checks the answers of its network.

    python web.py FOLDER [--keep PICTURE.png]

FOLDER is one that examples/browser/prepare.py has made. Needs Chromium, its driver, and the packages of
requirements.txt.
"""

import argparse
import functools
import http.server
import pathlib
import shutil
import sys
import threading

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait


class Handler(http.server.SimpleHTTPRequestHandler):
    # Python 3.11 and older don't know the type of these modules everywhere.
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

    def log_message(self, *_):
        pass


def serve(folder, wasm_type):
    """A server of `folder` on a free port, which gives .wasm files this type."""
    types = {**Handler.extensions_map, ".wasm": wasm_type}
    handler = functools.partial(type("Typed", (Handler,), {"extensions_map": types}), directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def answer(driver, expected):
    """Waits for an answer that begins with `expected`; returns its percentage."""
    text = lambda: driver.find_element(By.ID, "answer").text
    try:
        WebDriverWait(driver, 30).until(lambda _: text().startswith(f"{expected} ("))
    except TimeoutException as error:
        raise AssertionError(f"the page says `{text()}`, not `{expected}`") from error
    return float(text().split("(")[1].split()[0])


def check(driver, url):
    """Upright text, the same turned, and other text."""
    driver.get(url)
    assert answer(driver, "upright") > 90
    driver.find_element(By.ID, "turn").click()
    assert answer(driver, "upside down") > 90
    driver.find_element(By.ID, "turn").click()
    field = driver.find_element(By.ID, "text")
    field.clear()
    field.send_keys("2026-11-25")
    assert answer(driver, "upright") > 90
    errors = [entry["message"] for entry in driver.get_log("browser") if "favicon" not in entry["message"]]
    assert not errors, errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    args = parser.parse_args()

    driver = browser()
    try:
        # Browsers compile files of the right type while they load; the others are loaded first.
        for wasm_type in ("application/wasm", "application/octet-stream"):
            server = serve(args.folder, wasm_type)
            check(driver, f"http://127.0.0.1:{server.server_port}/index.html")
            server.shutdown()
        if args.keep:
            driver.save_screenshot(str(args.keep))
    finally:
        driver.quit()
    print("browser pages: 2 passed, 0 failed")


if __name__ == "__main__":
    sys.exit(main())
