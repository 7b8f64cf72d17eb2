"""`python -m docs.make_screenshot REPORT.html`: the top of a report, light and dark, for the README and the front page.

Needs Debian's chromium and chromedriver, as the tests of the report do. The picture in the repository is of
`calibrant demo -o demo && calibrant audit demo/test.npz --html report.html`.
"""

from __future__ import annotations

import base64
import io
import shutil
import sys
from pathlib import Path

FIGURES = Path(__file__).parent / "figures"
WIDTH, HEIGHT = 1160, 930


def shoot(page: Path, folder: Path = FIGURES) -> None:
    from PIL import Image
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        browser.get(page.resolve().as_uri())
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for theme in ("light", "dark"):
            scheme = [{"name": "prefers-color-scheme", "value": theme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
            data = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
            picture = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB").quantize(96)
            picture.save(folder / f"report-{theme}.png", optimize=True)
    finally:
        browser.quit()


if __name__ == "__main__":
    shoot(Path(sys.argv[1]))
