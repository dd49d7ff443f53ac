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
KEPT = "JSON.parse(localStorage['moe-talks'])"
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
    assert got == b.run(KEPT + "[0].turns.at(-1).content"), got


def continues_a_text():
    b.run("document.getElementById('text').focus()")
    b.write("Once upon a time")
    b.press("Enter", 13, "\r")
    b.until("document.querySelectorAll('.assistant').length === 1")
    b.until(IDLE)
    got = b.run("""fetch('/v1/completions', {method: 'POST', body: JSON.stringify({temperature: 0, max_tokens: 24,
        prompt: 'Once upon a time'})}).then((r) => r.json()).then((r) => r.choices[0].text)""")
    assert len(got) > 10 and got == b.run(KEPT + "[0].turns.at(-1).content"), got
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


def keeps_conversations():
    b.run("document.getElementById('fresh').click()")
    assert b.run("document.querySelectorAll('.turn').length") == 0
    b.run("document.getElementById('o-max').value = '5'; document.getElementById('text').focus()")
    b.write("Another")
    b.press("Enter", 13, "\r")
    b.until("document.querySelectorAll('.assistant').length === 1 && " + IDLE)
    assert b.run("document.querySelectorAll('#talks li').length") == 2
    b.run("document.querySelectorAll('#talks .open')[1].click()")
    assert b.run("document.querySelectorAll('.turn').length") == 4
    b.run("document.querySelectorAll('#talks .small')[0].click()")
    assert b.run("document.querySelectorAll('#talks li').length") == 1 == b.run(KEPT + ".length")


def edits_and_retries():
    first = b.run(KEPT + "[0].turns.at(-1).content")
    b.run("document.getElementById('o-temperature').value = '0'; " + LAST + ".querySelectorAll('.under button')[1].click()")
    b.until(IDLE + " && " + KEPT + "[0].turns.length === 4")
    assert b.run(KEPT + "[0].turns.at(-1).content") != first
    b.run("[...document.querySelectorAll('.user')].pop().querySelectorAll('.under button')[1].click()")
    assert b.run("document.getElementById('text').value") == "Once upon a time"
    assert b.run("document.querySelectorAll('.turn').length") == 2
    b.write("!")
    b.press("Enter", 13, "\r")
    b.until(IDLE + " && document.querySelectorAll('.turn').length === 4")
    assert b.run(KEPT + "[0].turns[2].content") == "Once upon a time!"


def markdown(text):
    """What the page makes of a text, as HTML, and the seconds that it took."""
    return b.run("(() => { const d = document.createElement('div'), t = performance.now(); markdown(d, %s);"
                 "return [d.innerHTML, (performance.now() - t) / 1000]; })()" % json.dumps(text))


def renders_markdown():
    code = lambda text: ('<div class="code"><pre tabindex="0"><code>%s</code></pre>'
                         '<button class="small" type="button" aria-label="Copy code">Copy</button></div>' % text)
    to = '<a href="https://a.example/x" rel="noopener noreferrer" target="_blank">'
    for text, html in (
            ("plain\ntwo", "<p>plain\ntwo</p>"),
            ("# One\ntext\n\n* a\n* b *c*\n", "<h3>One</h3><p>text</p><ul><li>a</li><li>b <em>c</em></li></ul>"),
            ("3. x\n   ```py\n   1 < 2\n   ```\n4. y", '<ol start="3"><li><p>x</p>' + code("1 &lt; 2") + "</li><li>y</li></ol>"),
            ("- a\n  - b\n- c", "<ul><li><p>a</p><ul><li>b</li></ul></li><li>c</li></ul>"),
            ("**b _i_** `c*d*` snake_case_name 2*3*4 \\*no\\*", "<p><strong>b <em>i</em></strong> <code>c*d*</code> "
             "snake_case_name 2<em>3</em>4 *no*</p>"),
            ("> q\n> r", "<blockquote><p>q\nr</p></blockquote>"),
            ("|a|b|\n|-|-|\n|1|`2`|", "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td><code>2</code></td></tr></table>"),
            ("[t](https://a.example/x) https://a.example/x", "<p>" + to + "t</a> " + to + "https://a.example/x</a></p>"),
            ("```\nopen", code("open")),
            ("---", "<hr>")):
        got = markdown(text)[0]
        assert got == html, (text, got)


def copies():
    """Also where the browser has no clipboard, as for plain http from another machine."""
    b.run("""{ const d = document.createElement('div'); d.className = 'copied'; document.body.append(d); markdown(d, '```\\n1 < 2\\n```');
        document.addEventListener('copy', () => { window.copied = 'by hand: ' + document.activeElement.value; }); }""")
    for clipboard, copied in (("{ writeText: (text) => { window.copied = text; } }", "1 < 2"), ("undefined", "by hand: 1 < 2")):
        b.call("Runtime.evaluate", userGesture=True, expression="Object.defineProperty(navigator, 'clipboard', "
               "{ value: %s, configurable: true }); document.querySelector('.copied button').click()" % clipboard)
        assert b.run("window.copied") == copied, b.run("window.copied")
    b.run("document.querySelector('.copied').remove()")


def hostile_markdown_is_text():
    allowed = set("P H3 H4 H5 H6 UL OL LI EM STRONG DEL CODE PRE DIV BUTTON BLOCKQUOTE TABLE TR TH TD A HR".split())
    bad = ["<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert(1))", "[x](data:text/html,<script>)",
           "[x](vbscript:x)", "<a href='javascript:x'>", "[<b>](https://a.example/\"onclick=\"x)", "`<script>`", "|<svg onload=x>|\n|-|",
           "![x](https://a.example/x.png)", "```<script>\n</pre><script>\n```", "https://a.example/\"><img>", "[x](\tjavascript:x)",
           "> <iframe>", "1. <style>*{}</style>", "[a](https://user:x@a.example)", "\u202e<b>", "# <h1 onclick=x>"]
    for text in bad:
        b.run("{ const d = document.createElement('div'); markdown(d, %s); window.probe = d; }" % json.dumps(text))
        tags = set(b.run("[...probe.querySelectorAll('*')].map((e) => e.tagName)"))
        names = set(b.run("[...probe.querySelectorAll('*')].flatMap((e) => e.getAttributeNames())"))
        schemes = set(b.run("[...probe.querySelectorAll('a')].map((e) => e.protocol)"))
        assert tags <= allowed and names <= {"class", "type", "aria-label", "tabindex", "href", "rel", "target", "start"} and \
            schemes <= {"http:", "https:", "mailto:"}, (text, tags, names, schemes)
    longest = 0
    for piece in ("*", "**a ", "_a", "`", "`a``b", "[", "[a](", "> ", ">", "- ", "- a\n", "  ", "|", "|a\n|-|\n", "# ", "~~", "\\",
                  "https://", "h", "*a **b ", "\n", "1. a\n\n", "```\n", " - a\n  ", "***", "[[a](b)"):
        longest = max(longest, markdown(piece * (100000 // len(piece)))[1])
    nested = "".join("  " * i + "- a\n" for i in range(400)) + ">" * 400 + " x"
    longest = max(longest, markdown(nested)[1])
    assert longest < 4, longest


def folds_thoughts_and_shows_calls():
    b.run("""{ const turn = { role: 'assistant', content: '', note: '' };
        takePiece(turn, { delta: { reasoning_content: 'Hm <b>' } });
        takePiece(turn, { delta: { tool_calls: [{ index: 0, id: 'c1', function: { name: 'look', arguments: '{"a"' } }] } });
        takePiece(turn, { delta: { tool_calls: [{ index: 0, function: { arguments: ':1}' } }] } });
        talk.push(turn); show(turn); }""")
    assert b.run(LAST + ".querySelector('.thought').open") is False
    assert b.run(LAST + ".querySelector('.thought .plain').textContent") == "Hm <b>"
    assert b.run(LAST + ".querySelector('.call').textContent") == 'Call of look{\n  "a": 1\n}'
    assert b.run("openCall()") == "c1"
    b.run("talk.push({ role: 'tool', callId: 'c1', content: '2', note: '' })")
    assert b.run("openCall()") is None
    body = b.run("wishes().messages.slice(-2)")
    assert body[0]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"a":1}'} and body[0]["reasoning_content"] == "Hm <b>"
    assert body[1] == {"role": "tool", "content": "2", "tool_call_id": "c1"}
    b.run("talk.length -= 2; showAll()")


def takes_files():
    b.run("""{ const to = new DataTransfer();
        to.items.add(new File(['a ``` b'], 'notes.txt')); to.items.add(new File(['\\0'], 'x.bin'));
        document.dispatchEvent(new DragEvent('drop', { dataTransfer: to, cancelable: true })); }""")
    b.until("document.querySelectorAll('.error').length === 1")
    assert b.run("document.getElementById('text').value") == "notes.txt:\n````\na ``` b\n````\n"
    assert "x.bin is not text" in b.run("document.querySelector('.error .text').textContent")
    b.run("document.getElementById('text').value = ''; talk.pop(); showAll()")


def needs_no_mouse():
    seen = []
    b.run("document.getElementById('side').hidden = false")
    b.run("document.getElementById('text').focus()")
    for _ in range(60):
        b.press("Tab", 9)
        seen.append(b.run("(document.activeElement.id || document.activeElement.textContent)"))
    for wanted in ("send", "text", "attach", "fresh", "figures", "settings", "Edit", "Again", "Copy", "Delete"):
        assert wanted in seen, (wanted, seen)


def tells_errors():
    b.run("document.getElementById('o-max').value = ''; document.getElementById('text').focus()")
    b.write("word " * 600)
    b.press("Enter", 13, "\r")
    b.until("document.querySelectorAll('.error').length === 1")
    assert "context" in b.run("document.querySelector('.error .text').textContent")


def fits_phones_and_desks():
    for width, height, dark, name in ((390, 800, False, "phone-light"), (390, 800, True, "phone-dark"),
                                      (1280, 800, False, "desk-light"), (1280, 800, True, "desk-dark")):
        b.run("document.querySelectorAll('.sample').length || (() => { const t = { role: 'assistant', note: '12 tokens', thought: 'Hm.', "
              "content: '# Title\\n\\nSome **bold** text, `code` and a [link](https://a.example/).\\n\\n- one\\n- two\\n\\n```c\\nint main(void) { return 0; }\\n```\\n\\n|a|b|\\n|-|-|\\n|1|2|', "
              "calls: [{ id: 'x', name: 'look', arguments: '{}' }] }; show(t).root.classList.add('sample'); })()")
        b.run("document.getElementById('side').hidden = %s" % ("false" if width > 1000 else "true"))
        b.look(width, height, dark, name)
        b.run("document.querySelector('.sample').scrollIntoView()")
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
             keeps_conversations, edits_and_retries, renders_markdown, copies, hostile_markdown_is_text,
             folds_thoughts_and_shows_calls, takes_files, needs_no_mouse, tells_errors, fits_phones_and_desks, keeps_the_policy),
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
