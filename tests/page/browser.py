# SPDX-License-Identifier: Apache-2.0
"""A browser without a window, asked through a pipe by the DevTools protocol: Chromium and Python's standard library are enough.

Requests that leave the machine are counted: a page that needs nothing besides makes none.
"""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

START_SECONDS = 180  # beside other work
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """A browser with one page; with-statement. asks: methods of the protocol."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        to_read, self.to = os.pipe()
        self.answers, from_write = os.pipe()

        def connect():  # what it reads is 3, what it writes 4; first away from both numbers
            a, b = os.dup(to_read), os.dup(from_write)
            while a < 5 or b < 5:
                a, b = os.dup(a), os.dup(b)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [find(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe",
             "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={self.folder}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=connect, close_fds=False)
        os.close(to_read)
        os.close(from_write)
        self.rest, self.number, self.session, self.fetched, self.errors = b"", 0, None, [], []
        try:
            self.connect()
        except BaseException:
            self.__exit__()
            raise

    def connect(self):
        target = next(t for t in self.ask("Target.getTargets", START_SECONDS)["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for name in ("Page.enable", "Runtime.enable", "Network.enable", "Log.enable"):
            self.ask(name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.ask("Browser.close", seconds=5)
        except (OSError, RuntimeError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.answers)
        shutil.rmtree(self.folder, ignore_errors=True)

    def message(self, until):
        while b"\0" not in self.rest:
            if not select.select([self.answers], [], [], max(0, until - time.monotonic()))[0]:
                raise RuntimeError("the browser does not answer")
            data = os.read(self.answers, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self.rest += data
        first, self.rest = self.rest.split(b"\0", 1)
        return json.loads(first)

    def note(self, event):
        """Records the page's requests, and its errors."""
        name, told = event.get("method"), event.get("params", {})
        if name == "Network.requestWillBeSent":
            self.fetched.append(told["request"]["url"])
        elif name == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif name == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(told["entry"]["text"])

    def ask(self, method, seconds=60, **parameters):
        self.number += 1
        asked = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            asked["sessionId"] = self.session
        os.write(self.to, json.dumps(asked).encode() + b"\0")
        until = time.monotonic() + seconds
        while True:
            answer = self.message(until)
            if answer.get("id") != self.number:
                self.note(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def processor_seconds(self):
        """Processor time of all processes of the browser so far."""
        own, children = {}, {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                    told = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            own[int(pid)] = (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")
            children.setdefault(int(told[1]), []).append(int(pid))
        left, total = [self.process.pid], 0
        while left:
            pid = left.pop()
            total += own.get(pid, 0)
            left += children.get(pid, [])
        return total

    # ---- steps of tests ----

    def open(self, path, width, height, scheme="light", ratio=1):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=ratio, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url="file://" + path)
        until = time.monotonic() + 60
        while not self.run("location.protocol === 'file:' && document.readyState === 'complete'"):
            if time.monotonic() > until:
                raise RuntimeError(f"{path} does not load")
            time.sleep(0.05)
        self.frame()

    def run(self, text, seconds=120):
        """The value of an expression, awaited where it is a promise."""
        answer = self.ask("Runtime.evaluate", seconds, expression=text, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", text))
        return answer["result"].get("value")

    def frame(self):
        """Until what was asked for has been drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def key(self, key, shift=False):
        known = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "Enter": 13, "Tab": 9, "Escape": 27}
        told = {"key": key, "windowsVirtualKeyCode": known.get(key, ord(key[0])), "modifiers": 8 if shift else 0}
        if key not in known:
            told["text"] = key
        self.ask("Input.dispatchKeyEvent", type="keyDown", **told)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **{k: v for k, v in told.items() if k != "text"})
        self.frame()

    def mouse(self, kind, x, y, **more):
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self, path, height=None):
        clip = {}
        if height is not None:
            width = self.run("window.innerWidth")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}, "captureBeyondViewport": True}
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.ask("Page.captureScreenshot", format="png", **clip)["data"]))
