"""The chat page in headless Chromium: page.py CHROMIUM URL DIRECTORY chat|text

The server's model has a chat template, or (text) none: then the page continues texts. Drives the browser over its debugging pipe (NUL between messages). DIRECTORY is for its profile and for
pictures. Prints a line for each thing tried, "ok NAME" or "not ok NAME: why".
"""
import base64
import json
import os
import select
import subprocess
import sys
import time

chromium, url, directory, kind = sys.argv[1:5]


class Browser:
    def __init__(self):
        down_read, self.down = os.pipe()
        self.up, up_write = os.pipe()

        def give():
            # Through numbers of their own: either end may be 3 or 4 already.
            first, second = os.dup(down_read), os.dup(up_write)
            os.dup2(first, 3)
            os.dup2(second, 4)
        self.process = subprocess.Popen(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--user-data-dir=" + directory + "/profile", "--remote-debugging-pipe",
             "about:blank"],
            preexec_fn=give, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=open(directory + "/chromium.log", "wb"))
        os.close(down_read)
        os.close(up_write)
        self.rest, self.number, self.session, self.said = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def read(self, seconds):
        while b"\0" not in self.rest:
            if not select.select([self.up], [], [], seconds)[0]:
                raise TimeoutError("the browser says nothing")
            piece = os.read(self.up, 1 << 16)
            if not piece:
                raise EOFError("the browser has ended")
            self.rest += piece
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.down, json.dumps(message).encode() + b"\0")
        while True:
            got = self.read(60)
            if got.get("id") == self.number:
                if "error" in got:
                    raise RuntimeError(method + ": " + got["error"]["message"])
                return got["result"]
            self.said.append(got)

    def run(self, script):
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            raise RuntimeError(script + ": " + json.dumps(got["exceptionDetails"])[:300])
        return got["result"].get("value")

    def until(self, script, seconds=60):
        end = time.time() + seconds
        while not self.run(script):
            if time.time() > end:
                raise TimeoutError("waited for " + script + " with " + repr(self.run("document.body.innerText"))[:300])
            time.sleep(0.05)

    def press(self, key, code=0, text=""):
        for kind in ("keyDown", "keyUp"):
            event = {"type": kind, "key": key, "windowsVirtualKeyCode": code}
            if text and kind == "keyDown":
                event["text"] = text
            self.call("Input.dispatchKeyEvent", **event)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def look(self, width, height, dark, name):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        time.sleep(0.1)
        with open(directory + "/" + name + ".png", "wb") as out:
            out.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait(30)


b = Browser()
LAST = "[...document.querySelectorAll('.assistant')].pop()"
IDLE = "document.getElementById('stop').hidden"


def opens():
    b.call("Page.navigate", url=url + "/")
    b.until("document.readyState === 'complete' && document.querySelectorAll('#models li').length === 1")
    assert b.run("document.activeElement.id") == "text", "a message can be written at once"


def shows_figures():
    b.run("document.getElementById('side').hidden && document.getElementById('figures').click()")
    b.until("/of .*iB/.test(document.getElementById('f-memory').textContent)")
    b.until("document.getElementById('f-running').textContent === '0'")


def settings():
    b.run("document.getElementById('settings').focus()")
    b.press("Enter", 13, "\r")
    b.until("document.getElementById('options').open")
    b.run("document.getElementById('o-temperature').focus()")
    b.write("0")
    b.run("document.getElementById('o-max').focus()")
    b.write("24")
    b.press("Escape", 27)
    b.until("!document.getElementById('options').open")


def streams():
    b.run("document.getElementById('text').focus()")
    b.write("Tell me <b>a story</b> & <script>document.title = 'taken'</script>")
    b.press("Enter", 13, "\r")
    b.until("document.querySelectorAll('.assistant').length === 1")
    b.until(IDLE)
    assert b.run(LAST + ".querySelector('.text').textContent.length") > 10
    assert "24 tokens" in b.run(LAST + ".querySelector('.under').textContent")


def is_text_only():
    assert b.run("document.querySelectorAll('.turn b, .turn script').length") == 0
    assert b.run("document.querySelector('.user .text').textContent").endswith("</script>")
    assert b.run("document.title") == "moe-serve"


def matches_the_api():
    got = b.run("""fetch('/v1/chat/completions', {method: 'POST', body: JSON.stringify({temperature: 0, max_tokens: 24,
        messages: [{role: 'user', content: document.querySelector('.user .text').textContent}]})})
        .then((r) => r.json()).then((r) => r.choices[0].message.content)""")
    assert got == b.run(LAST + ".querySelector('.text').textContent"), got


def continues_a_text():
    b.run("document.getElementById('text').focus()")
    b.write("Once upon a time")
    b.press("Enter", 13, "\r")
    b.until("document.querySelectorAll('.assistant').length === 1")
    b.until(IDLE)
    got = b.run("""fetch('/v1/completions', {method: 'POST', body: JSON.stringify({temperature: 0, max_tokens: 24,
        prompt: 'Once upon a time'})}).then((r) => r.json()).then((r) => r.choices[0].text)""")
    assert len(got) > 10 and got == b.run(LAST + ".querySelector('.text').textContent"), got
    assert "24 tokens" in b.run(LAST + ".querySelector('.under').textContent")


def stops():
    b.run("document.getElementById('o-max').value = '480'; document.getElementById('o-temperature').value = '1'")
    b.run("document.getElementById('text').focus()")
    b.write("Once upon a time")
    b.press("Enter", 13, "\r")
    b.until("document.querySelectorAll('.assistant').length === 2 && " + LAST + ".querySelector('.text').textContent.length > 5 || " + IDLE)
    b.press("Escape", 27)
    b.until(IDLE)
    note = b.run(LAST + ".querySelector('.under').textContent")
    assert "stopped" in note or "tokens" in note, note
    b.until("fetch('/metrics').then((r) => r.text()).then((t) => /moe_choices_running 0/.test(t))")


def keeps_the_conversation():
    n = b.run("document.querySelectorAll('.turn').length")
    b.call("Page.reload")
    b.until("document.readyState === 'complete' && document.querySelectorAll('#models li').length === 1")
    assert b.run("document.querySelectorAll('.turn').length") == n == 4


def tells_errors():
    b.run("document.getElementById('o-max').value = ''; document.getElementById('text').focus()")
    b.write("word " * 600)
    b.press("Enter", 13, "\r")
    b.until("document.querySelectorAll('.error').length === 1")
    assert "context" in b.run("document.querySelector('.error .text').textContent")


def fits_phones_and_desks():
    for width, height, dark, name in ((390, 800, False, "phone-light"), (390, 800, True, "phone-dark"),
                                      (1280, 800, False, "desk-light"), (1280, 800, True, "desk-dark")):
        b.run("document.getElementById('side').hidden = %s" % ("false" if width > 1000 else "true"))
        b.look(width, height, dark, name)
        assert b.run("document.documentElement.scrollWidth <= innerWidth"), name
        assert b.run("document.getElementById('text').getBoundingClientRect().bottom <= innerHeight"), name


def keeps_the_policy():
    trouble = [m["params"] for m in b.said if m.get("method") in ("Runtime.exceptionThrown",) or
               m.get("method") == "Log.entryAdded" and "Content Security Policy" in m["params"]["entry"].get("text", "")]
    assert not trouble, json.dumps(trouble)[:300]
    asked = {m["params"]["request"]["url"].split("/")[2] for m in b.said
             if m.get("method") == "Network.requestWillBeSent" and m["params"]["request"]["url"].startswith("http")}
    assert asked == {url.split("/")[2]}, asked


tests = {
    "chat": (opens, shows_figures, settings, streams, is_text_only, matches_the_api, stops, keeps_the_conversation,
             tells_errors, fits_phones_and_desks, keeps_the_policy),
    "text": (opens, settings, continues_a_text),
}
try:
    for test in tests[kind]:
        try:
            test()
            print("ok " + test.__name__, flush=True)
        except Exception as error:  # each is told, and the next tried
            print("not ok " + test.__name__ + ": " + repr(error).replace("\n", " ")[:400], flush=True)
finally:
    b.close()
