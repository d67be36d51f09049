#!/usr/bin/env python3
"""Opens report pages in a headless browser, uses them, and checks the text and the pictures that they show.

    python run.py --symc PATH [--keep FOLDER]

Needs Chromium, its driver, and the packages of requirements.txt. `--keep` is a folder for pages and screenshots.
"""

import argparse
import contextlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

ROOT = pathlib.Path(__file__).parents[3]
sys.path.append(str(ROOT / "python" / "tests"))
import models  # the padded encoder

MODEL = ROOT / "compiler" / "examples" / "block.onnx"
SIZES = ("N=2,S=16", "N=8,S=64")


@contextlib.contextmanager
def browser(scheme):
    """A browser without a network whose pages prefer the colour scheme `light` or `dark`."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1800"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.execute_cdp_cmd("Network.enable", {})
        driver.execute_cdp_cmd(
            "Network.emulateNetworkConditions",
            {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        yield driver
    finally:
        driver.quit()


def report(symc, page, *arguments, model=MODEL):
    """Writes a page, and returns the line that `symc` prints."""
    command = [symc, "report", model, "--dim", "N=1..8", "--dim", "S=1..64", "-o", page, "--json", *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def open_page(driver, page):
    driver.get(page.as_uri())
    errors = [entry["message"] for entry in driver.get_log("browser")]
    assert not errors, errors


def texts(driver, selector):
    return [element.text for element in driver.find_elements(By.CSS_SELECTOR, selector)]


def picture(driver, identifier, path):
    """The pixels of an element."""
    element = driver.find_element(By.ID, identifier)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    image = Image.open(io.BytesIO(element.screenshot_as_png)).convert("RGB")
    image.save(path)
    return image


def brightness(image, x, y):
    return sum(image.getpixel((x, y))) / 3


def check_plan(driver, page):
    """A page without profiles: no profile is shown, and a slider changes the plan."""
    open_page(driver, page)
    assert not driver.find_element(By.ID, "profile").is_displayed()
    assert not driver.find_element(By.ID, "ragged").is_displayed()
    at_most = texts(driver, "#numbers b")[0]
    slider = driver.find_element(By.ID, "dim N")
    driver.execute_script("arguments[0].value = 0; arguments[0].dispatchEvent(new Event('input'))", slider)
    at_least = texts(driver, "#numbers b")[0]
    number = lambda text: int(text.replace(" ", ""))
    assert 0 < number(at_least) < number(at_most), (at_least, at_most)


def check_profile(driver, page, line, scheme, folder):
    """A page with profiles: its sizes, its picture of the layers, its table, and the text of a kernel."""
    open_page(driver, page)
    buttons = driver.find_elements(By.CSS_SELECTOR, "#profile-sizes button")
    assert [button.text for button in buttons] == list(SIZES)
    for button, profile in zip(buttons, line["profile"]):
        button.click()
        rows = driver.find_elements(By.CSS_SELECTOR, "#profile-kernels tr")[1:]
        assert len(rows) == len(profile["kernels"])
        slowest = max(profile["kernels"], key=lambda kernel: kernel["ns"])
        assert slowest["name"].split()[0] in rows[0].text, rows[0].text
        call = float(re.search(r"A call takes ([\d.]+) µs", texts(driver, "#profile-summary")[0]).group(1))
        assert abs(call - profile["call_ns"] / 1e3) <= 0.5, (call, profile["call_ns"])

        boxes = driver.find_elements(By.CSS_SELECTOR, "#flame .box")
        width = driver.find_element(By.ID, "flame").size["width"]
        top = [box for box in boxes if box.value_of_css_property("top") == "0px"]
        covered = sum(box.rect["width"] for box in top)
        assert abs(covered - width) <= 2 + 0.01 * width, f"the layers cover {covered} of {width} pixels"

    widest = max(boxes, key=lambda box: box.rect["width"])
    driver.execute_script("arguments[0].focus()", widest)
    assert "µs" in texts(driver, "#flame-about")[0]
    rows[0].find_element(By.TAG_NAME, "button").click()
    assert texts(driver, "#text")[0].startswith("kernel "), "a click shows the text of the kernel"

    image = picture(driver, "flame", folder / f"flame-{scheme}.png")
    colours = {image.getpixel((x, 8)) for x in range(0, image.width, 3)}
    assert len(colours) > 1, "boxes and borders have different colours"
    background = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    background.save(folder / f"page-{scheme}.png")
    corner = brightness(background, 2, 2)
    assert corner > 200 if scheme == "light" else corner < 60, f"{scheme}: the background has brightness {corner}"


def check_baseline(driver, page):
    open_page(driver, page)
    assert "first.html" in texts(driver, "#profile-summary")[0]
    heads = texts(driver, "#profile-kernels th")
    assert heads[-2:] == ["before in µs", "before / now"], heads
    ratios = [float(row.split()[-1]) for row in texts(driver, "#profile-kernels tr")[1:]]
    assert ratios and all(ratio > 0 for ratio in ratios)


def check_ragged(driver, page):
    """A page of a ragged batch: the division of the kernels, their shares of the work, and the parts of the buffers."""
    open_page(driver, page)
    number = r"([\d.]+)"
    summary = re.compile(
        r"A call takes N sequences of T rows; `offsets` has the first row of each. "
        r"The mask of the padded model, `mask`, is not an input. "
        rf"(\d+) kernels run once for all rows, with {number} % of the work; "
        rf"(\d+) run once for each sequence, with {number} %."
    )

    def shares():
        once, of_once, each, of_each = summary.fullmatch(texts(driver, "#ragged-summary")[0]).groups()
        rows = [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in table.find_elements(By.TAG_NAME, "tr")]
        for how, count, share in (("once for all rows", once, of_once), ("for each sequence, group", each, of_each)):
            found = [row for row in rows if row[1].startswith(how)]
            assert len(found) == int(count) > 0, (how, count, rows)
            total = sum(float(row[2].removesuffix(" %")) for row in found)
            assert abs(total - float(share)) <= 0.1 * len(found), (how, total, share)
        assert abs(float(of_once) + float(of_each) - 100) <= 0.1, (of_once, of_each)
        assert all(bool(row[3]) == row[1].startswith("for each") for row in rows), "each group has its reason"
        return float(of_each)

    table = driver.find_element(By.ID, "ragged-kernels")
    at_most = shares()
    units = {text.rsplit(" ", 1)[1] for text in texts(driver, "#ragged-buffers tr")}
    assert units == {"row", "sequence"}, units
    table.find_elements(By.TAG_NAME, "button")[-1].click()
    text = texts(driver, "#text")[0]
    assert text.startswith("; once for each sequence") and "\nkernel " in text, f"a click shows the kernel: {text}"

    # One sequence with all rows: attention takes the larger share.
    slider = driver.find_element(By.ID, "dim N")
    driver.execute_script("arguments[0].value = 0; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert shares() > at_most, at_most


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--symc", default="target/debug/symc")
    parser.add_argument("--keep", type=pathlib.Path)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.keep or pathlib.Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        plain, first, second, ragged = (folder / f"{name}.html" for name in ("plain", "first", "second", "ragged"))
        report(args.symc, plain)
        line = report(args.symc, first, "--profile", *SIZES)
        report(args.symc, second, "--profile", *SIZES, "--baseline", first)
        encoder = folder / "encoder.onnx"
        encoder.write_bytes(models.encoder().SerializeToString())
        report(args.symc, ragged, "--ragged", "S", model=encoder)
        checks = 0
        for scheme in ("light", "dark"):
            with browser(scheme) as driver:
                check_plan(driver, plain)
                check_profile(driver, first, line, scheme, folder)
                check_baseline(driver, second)
                check_ragged(driver, ragged)
                checks += 4
    print(f"report pages: {checks} passed, 0 failed")


if __name__ == "__main__":
    sys.exit(main())
