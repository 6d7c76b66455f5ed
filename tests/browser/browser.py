"""Chromium without a window, for pages in files."""

from __future__ import annotations

import json
import pathlib
import shutil

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

NAMES = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str:
    """What has to be installed; empty if nothing has to."""
    if not any(map(shutil.which, NAMES)):
        return "no Chromium: install the package chromium"
    if not shutil.which("chromedriver"):
        return "no chromedriver: install the package chromium-driver"
    return ""


class Browser:
    """Opens pages and tells what they show."""

    def __init__(self) -> None:
        options = Options()
        options.binary_location = next(path for path in map(shutil.which, NAMES) if path)
        # Containers often have neither the privileges for a sandbox nor a large /dev/shm.
        for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))

    def close(self) -> None:
        self.driver.quit()

    def size(self, width: int, height: int = 900) -> None:
        # A window cannot be as narrow as a telephone; the page of one can.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def dark(self, is_dark: bool) -> None:
        value = "dark" if is_dark else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, page: pathlib.Path) -> float:
        """Milliseconds from the beginning of the navigation to the frame with everything."""
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(page.resolve().as_uri())
        ready = "return document.documentElement.dataset.ready || document.querySelector('body > .problem')?.textContent"
        found = WebDriverWait(self.driver, 120).until(lambda driver: driver.execute_script(ready))
        return float(found)

    def complaints(self) -> list[str]:
        """What the page wrote to the console since it was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened."""
        messages = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]

    def run(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def frames(self) -> None:
        """Waits for what was changed to be drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def tile(self, section: str, name: str) -> tuple[int | None, str]:
        """The exact number and the text of a fact."""
        return tuple(
            self.run(
                "const tile = [...document.querySelectorAll(`#${arguments[0]} > div`)].find((t) => t.dataset.name === arguments[1]);"
                "const data = tile.querySelector('dd');"
                "return [data.dataset.value === undefined ? null : Number(data.dataset.value), data.textContent];",
                section,
                name,
            )
        )

    def rows(self, table: str) -> list[list[str]]:
        """The cells of a table; numbers in their exact form where there is one."""
        return self.run(
            "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].map((row) => [...row.cells].map("
            "(cell) => cell.querySelector('[data-value]')?.dataset.value ?? cell.textContent));",
            table,
        )
