"""What coding agents get from a server, through a proxy that has the model call a tool: coding_agents.py URL DIRECTORY [AGENT]...

Tries each agent that is on PATH or beside this Python: codex (Responses), claude (Messages), aider, cecli, mini, vibe,
gptme, hermes, code-puppy and interpreter (chat completions). Each works in a directory below DIRECTORY, without a
network but URL's. The proxy turns the first request that has tools into one that must call a certain one with certain
arguments, later ones into requests whose answer is "Done.": the server holds its model to both, in the agent's own API.
The tool makes a file. Prints a line for each agent, "ok NAME", "not ok NAME: why" or "skip NAME", and leaves what it
sent in DIRECTORY/NAME/sent, JSON a line.
"""
import http.client
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.parse

url, directory = sys.argv[1], os.path.abspath(sys.argv[2])
MADE, COMMAND = "made", "echo hi >made"
LISTING = "Here:\n\nmade\n```\nhi\n```\n"  # how aider has whole files written
# Tools by their names in all agents, and what they are called with.
CALLS = {"exec_command": {"cmd": COMMAND}, "shell": {"command": ["sh", "-c", COMMAND]},
         "Bash": {"command": COMMAND, "description": "Makes a file"}, "bash": {"command": COMMAND},
         "terminal": {"command": COMMAND},
         "execute": {"language": "shell", "code": COMMAND}}
TABLES = {
    "codex": (".codex/config.toml", """model = "m"
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.local]
name = "local"
base_url = "{base}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""),
    "vibe": (".vibe/config.toml", """active_model = "m"
enable_telemetry = false
[[providers]]
name = "local"
api_base = "{base}/v1"
api_key_env_var = ""
backend = "generic"
[[models]]
name = "m"
provider = "local"
alias = "m"
"""),
    "hermes": (".hermes/config.yaml", """model:
  default: m
  provider: custom
  base_url: {base}/v1
  api_key: none
  context_length: 65536
"""),
    "code-puppy": (".code_puppy/extra_models.json", """{{"m": {{"type": "custom_openai", "name": "m", "context_length": 8192,
"custom_endpoint": {{"url": "{base}/v1", "api_key": "none"}}}}}}
"""),
}
AIDER = ["--model", "openai/m", "--edit-format", "whole", "--yes-always", "--no-git", "--no-check-update",
         "--no-show-model-warnings", "--analytics-disable", "--message", "Make a file", MADE]
COMMANDS = {
    "codex": ["exec", "--skip-git-repo-check", "Make a file"],
    "claude": ["-p", "Make a file", "--allowedTools", "Bash"],
    "aider": AIDER, "cecli": AIDER,
    "mini": ["--exit-immediately", "-y", "-t", "Make a file", "-m", "openai/m", "-c", "mini.yaml", "-c",
             "model.model_kwargs.api_base={base}/v1", "-c", "agent.step_limit=2"],
    "vibe": ["-p", "Make a file", "--agent", "auto-approve", "--max-turns", "4"],
    "gptme": ["-n", "-m", "local/m", "-t", "shell", "--tool-format", "tool", "Make a file"],
    "hermes": ["-z", "Make a file", "--yolo", "--ignore-rules", "-t", "terminal"],
    "code-puppy": ["-p", "Make a file", "-m", "m", "--yolo", "true"],
    "interpreter": ["--model", "openai/m", "--api_base", "{base}/v1", "--api_key", "none", "-y", "--stdin", "--offline",
                    "--llm_supports_functions"],
}
BUNDLED = {"codex": "codex_cli_bin/bin/codex", "claude": "claude_agent_sdk/_bundled/claude"}
MODULES = [path for path in sys.path if path.endswith("-packages")]


def is_answered(body):
    """Whether a tool's result is in the conversation."""
    said = json.dumps(body.get("messages") or body.get("input") or [])
    return any(word in said for word in ('"role": "tool"', '"tool_result"', '_call_output"'))


def must_call(api, body):
    """Has the one tool that is known here called with its arguments; false: there is none."""
    for tool in body.get("tools") or []:
        function = tool.get("function", tool)
        name, call = function.get("name"), CALLS.get(function.get("name"))
        if call is None or is_answered(body):
            continue
        key = "input_schema" if api == "messages" else "parameters"
        takes = function[key].get("properties", {}).get("command", {}).get("type")
        call = {**call, "command": COMMAND} if "command" in call and takes == "string" else call
        function[key] = {
            "type": "object", "properties": {key: {"const": value} for key, value in call.items()},
            "required": list(call), "additionalProperties": False}
        if api == "messages":
            body["tool_choice"] = {"type": "tool", "name": name, "disable_parallel_tool_use": True}
        else:
            body["parallel_tool_calls"] = False
            body["tool_choice"] = ({"type": "function", "name": name} if api == "responses" else
                                   {"type": "function", "function": {"name": name}})
        return True
    return False


def held(path, body):
    """The request, so that the model's answer is known."""
    api = path.split("?")[0].rsplit("/", 1)[1]
    if api not in ("messages", "responses", "completions") or must_call(api, body):
        return body
    says = {"type": "json_schema", "name": "says", "schema": {"const": "Done."}}
    if api == "responses":
        body["text"] = {"format": says}
    elif api == "messages":
        body["output_config"] = {"format": says}
    else:
        body["grammar"] = "root ::= " + json.dumps("Done." if body.get("tools") else LISTING)
    if body.get("tools"):
        body["tool_choice"] = {"type": "none"} if api == "messages" else "none"
    return body


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen = []

    def pass_on(self):
        received = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(received) if received else None
        one = {"method": self.command, "path": self.path, "body": json.loads(received) if received else None}
        kept = {key: value for key, value in self.headers.items()
                if key.lower() in ("authorization", "x-api-key", "content-type", "accept", "anthropic-version")}
        server = http.client.HTTPConnection(urllib.parse.urlparse(url).netloc, timeout=300)
        server.request(self.command, self.path, json.dumps(held(self.path, body)) if body else None, kept)
        answer = server.getresponse()
        one.update(status=answer.status, ignored=answer.getheader("X-Moe-Ignored"))
        self.seen.append(one)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        said = b""
        while piece := answer.read1(65536):
            said += piece
            self.wfile.write(piece)
        one["error"] = said.decode("utf-8", "replace") if answer.status >= 400 else None

    do_GET = do_HEAD = do_POST = pass_on

    def log_message(self, *_):
        pass


def find(name):
    beside = os.path.dirname(sys.executable)
    bundled = [os.path.join(path, BUNDLED.get(name, "none")) for path in MODULES]
    return next(filter(os.path.exists, bundled), None) or shutil.which(name, path=beside + ":" + os.environ["PATH"])


def try_agent(name, program, base):
    home = os.path.join(directory, name)
    work = os.path.join(home, "work")
    os.makedirs(work)
    if name in TABLES:
        path, table = TABLES[name]
        os.makedirs(os.path.join(home, os.path.dirname(path)))
        with open(os.path.join(home, path), "w", encoding="utf-8") as out:
            out.write(table.format(base=base))
    nowhere = "http://127.0.0.1:9"
    environment = {"HOME": home, "PATH": os.environ["PATH"], "TERM": "dumb", "LANG": "C.UTF-8", "OPENAI_API_KEY": "none",
                   "OPENAI_API_BASE": base + "/v1", "OPENAI_BASE_URL": base + "/v1", "ANTHROPIC_BASE_URL": base, "ANTHROPIC_AUTH_TOKEN": "none",
                   "ANTHROPIC_MODEL": "m", "ANTHROPIC_SMALL_FAST_MODEL": "m", "DISABLE_AUTOUPDATER": "1",
                   "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "AIDER_ANALYTICS_DISABLE": "1",
                   "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                   "https_proxy": nowhere, "http_proxy": nowhere,
                   "no_proxy": "127.0.0.1"}
    Proxy.seen.clear()
    with open(os.path.join(home, "said"), "w", encoding="utf-8") as said:
        ended = subprocess.run([program] + [word.format(base=base) for word in COMMANDS[name]], cwd=work, env=environment,
                               input="Make a file\n" * 3, text=True, stdout=said, stderr=said, timeout=1800, check=False)
    with open(os.path.join(home, "sent"), "w", encoding="utf-8") as sent:
        sent.writelines(json.dumps(one) + "\n" for one in Proxy.seen)
    refused = [(one["path"], one["error"]) for one in Proxy.seen if one["error"] and one["method"] == "POST"]
    assert Proxy.seen, "it has asked nothing, and ended with %d" % ended.returncode
    assert not refused, refused[0]
    with open(os.path.join(work, MADE), encoding="utf-8") as made:
        assert made.read().strip() == "hi", "another file was made"
    assert ended.returncode == 0, "it ended with %d" % ended.returncode


proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
threading.Thread(target=proxy.serve_forever, daemon=True).start()
for agent in sys.argv[3:] or COMMANDS:
    found = find(agent)
    if not found:
        print("skip", agent)
        continue
    try:
        try_agent(agent, found, "http://127.0.0.1:%d" % proxy.server_address[1])
        print("ok", agent)
    except Exception as why:  # pylint: disable=broad-exception-caught
        print("not ok %s: %s" % (agent, repr(why).replace("\n", " ")[:300]))
    sys.stdout.flush()
