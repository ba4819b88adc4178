"""A real Chromium: Debian's packages `chromium` and `chromium-driver`, driven by Selenium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from devstack.airflow import USER, AirflowHome
from devstack.axe import axe_script

WAIT_SECONDS = 90.0


class Browser:
    """A window, logged in to an Airflow."""

    def __init__(self, driver: Any, home: AirflowHome) -> None:
        self.driver = driver
        self.home = home

    def login(self) -> None:
        self.open("/auth/login")
        self.find("input[name=username]").send_keys(USER)
        self.find("input[name=password]").send_keys(self.home.password)
        self.find("button[type=submit]").click()
        self.wait(lambda: "/auth/login" not in self.driver.current_url)

    def open(self, path: str) -> None:
        self.driver.switch_to.default_content()
        self.driver.get(f"{self.home.url}{path}")

    def enter_frame(self) -> None:
        """Go into the frame that Airflow shows a plugin in."""
        self.driver.switch_to.default_content()
        self.driver.switch_to.frame(self.find("iframe"))

    def find(self, css: str, text: str = "") -> WebElement:
        """Return the first visible element, with a text, when there is one."""

        def look() -> WebElement | None:
            return next((element for element in self.all(css) if text in element.text), None)

        found: WebElement = self.wait(look)
        return found

    def all(self, css: str) -> list[WebElement]:
        found: list[WebElement] = [e for e in self.driver.find_elements(By.CSS_SELECTOR, css) if e.is_displayed()]
        return found

    def wait(self, condition: Any) -> Any:
        from selenium.common.exceptions import StaleElementReferenceException, WebDriverException

        waiting: WebDriverWait[Any] = WebDriverWait(
            self.driver, WAIT_SECONDS, ignored_exceptions=(StaleElementReferenceException, WebDriverException)
        )
        return waiting.until(lambda _: condition())

    def dark(self, is_dark: bool) -> None:
        """Have the system prefer a scheme of colours."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def screenshot(self, file: Path) -> None:
        assert self.driver.save_screenshot(str(file))

    def violations(self) -> list[str]:
        """Return what axe-core finds by the rules of WCAG 2.2, levels A and AA, and takes for serious or critical."""
        self.driver.execute_script(axe_script())
        found = self.driver.execute_async_script(
            "const [tags, done] = arguments; axe.run(document, { runOnly: tags }).then((result) => done(result), done)",
            ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"],
        )
        return [
            f"{rule['id']}: {node['target']} {node['failureSummary']}"
            for rule in found["violations"]
            if rule["impact"] in ("serious", "critical")
            for node in rule["nodes"]
        ]

    def keys(self, *keys: str) -> None:
        """Press keys, as somebody without a pointer does."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def has_focus(self, css: str) -> bool:
        return bool(self.driver.execute_script("return document.activeElement.matches(arguments[0])", css))

    def tab_to(self, css: str) -> None:
        """Press the tab key until an element has the focus."""
        for _ in range(100):
            if self.has_focus(css):
                return
            self.keys(Keys.TAB)
        raise AssertionError(f"{css} cannot be reached")

    def refreshed(self) -> None:
        """Wait until the page has refreshed itself twice: the first answer may be as before."""
        self.driver.set_script_timeout(WAIT_SECONDS)
        self.driver.execute_async_script(
            "const [done] = arguments; let left = 2;"
            "document.addEventListener('refreshed', () => (left -= 1) === 0 && done())"
        )

    def errors(self) -> list[str]:
        """Return what the browser complained about since it was asked last: scripts that fail, and what the policy
        blocks.
        """
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@contextmanager
def chromium(home: AirflowHome) -> Iterator[Browser]:
    """Open a window; the test is skipped where there is no Chromium."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # Chromium refuses its sandbox to root, and a container has little shared memory.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    window = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(window, home)
    finally:
        window.quit()
