"""A headless Chromium, driven through its DevTools protocol over two pipes.

Selenium would need a driver of exactly the browser's version, and Playwright brings Node.js and 45 MB. The protocol
itself is JSON with a zero byte after each message, so it needs neither a package nor a port.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

# In seconds.
HANGS = 60

_FLAGS = ["--headless", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
# Chromium expects its pipes at 3 and 4. Its sandbox does not work for root.
_START = """
import fcntl, os, sys
pipes = map(int, sys.argv[1:3])
command = sys.argv[3:]
requests, answers = (fcntl.fcntl(pipe, fcntl.F_DUPFD, 10) for pipe in pipes)
os.dup2(requests, 3)
os.dup2(answers, 4)
os.execvp(command[0], command)
"""


def find_chromium():
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """A browser process, and its messages that did not answer a command."""

    def __init__(self, program):
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [program, *_FLAGS, *sandbox, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _START, str(requests), str(answers), *command],
            pass_fds=[requests, answers],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(requests)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self.events = []

    def close(self):
        os.close(self._requests)
        self._process.terminate()
        self._process.wait()
        os.close(self._answers)
        self._profile.cleanup()

    def call(self, method, session=None, **parameters):
        """The result of one command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._requests, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                break
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def wait_for(self, event, session):
        """Returns once the event has come."""
        while not any(e.get("method") == event and e.get("sessionId") == session for e in self.events):
            self.events.append(self._receive())

    def _receive(self):
        end = time.monotonic() + HANGS
        while b"\0" not in self._buffer:
            ready = select.select([self._answers], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"no answer of Chromium within {HANGS} s"
            data = os.read(self._answers, 1 << 20)
            assert data, "Chromium has ended"
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)


class Tab:
    """A page in the browser."""

    def __init__(self, browser):
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.width = None
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def open(self, address):
        """Loads an address and forgets earlier messages."""
        self._browser.events.clear()
        result = self.call("Page.navigate", url=address)
        assert "errorText" not in result, (address, result)
        self._browser.wait_for("Page.loadEventFired", self._session)

    def resize(self, width, height=900):
        self.width = width
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        # After two frames the page has reacted to its new size, except for animations.
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
        self.run("document.getAnimations().filter(a => a instanceof CSSTransition).forEach(a => a.finish())")

    def run(self, script):
        """The value of an expression, or of its promise."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def problems(self, origin):
        """Console errors, failed requests, and requests to other places, since the page was opened."""
        found = []
        addresses = {}
        for event in self._browser.events:
            method, of = event.get("method"), event.get("params", {})
            if event.get("sessionId") != self._session:
                continue
            if method == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
                said = " ".join(str(argument.get("value", argument.get("description"))) for argument in of["args"])
                found.append(f"console {of['type']}: {said}")
            elif method == "Runtime.exceptionThrown":
                details = of["exceptionDetails"]
                found.append(f"exception: {details.get('exception', {}).get('description', details['text'])}")
            elif method == "Log.entryAdded" and of["entry"]["level"] == "error" and of["entry"]["source"] != "network":
                found.append(f"log: {of['entry']['text']}")
            elif method == "Network.requestWillBeSent":
                address = addresses[of["requestId"]] = of["request"]["url"]
                if not address.startswith((origin, "data:", "blob:")):
                    found.append(f"request to another place: {address}")
            elif method == "Network.responseReceived" and of["response"]["status"] >= 400:
                found.append(f"status {of['response']['status']}: {of['response']['url']}")
            elif method == "Network.loadingFailed" and not of.get("canceled"):
                found.append(f"{of['errorText']}: {addresses.get(of['requestId'])}")
        return found
