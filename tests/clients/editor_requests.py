"""What plugins of editors ask of a server, as they send it: editor_requests.py URL MODEL

llama.vim and llama.vscode (/infill), Continue, Zed, Twinny and Copilot (Ollama's API, LM Studio's, completions). The model
must have tokens to fill in the middle. Prints a line for each request, "ok NAME" or "not ok NAME: why".
"""
import json
import sys
import urllib.request

url, model = sys.argv[1:]
FIGURES = ["content", "timings/prompt_n", "timings/predicted_n", "timings/predicted_per_second", "truncated", "tokens_cached"]
FILES = [{"text": "def a():\n    pass\n", "filename": "a.py"}, {"text": "x = 1\n", "time": [1, 2], "filename": "b.py"}]
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
MIDDLE = "<fim_prefix>a<fim_suffix>b<fim_middle>"
FEW = {"temperature": 0.01, "top_p": None, "num_predict": 6, "stop": ["<fim_prefix>", "\n\n"], "num_ctx": 512, "mirostat": None}
LLAMA = {"samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 900,
         "id_slot": 0, "stream": False}


def lines(text):
    return [json.loads(line[6:] if line.startswith("data: ") else line) for line in text.splitlines()
            if line.strip() and line != "data: [DONE]" and not line.startswith("event:")]


# What is asked, and what the answer's JSON, or its list of events, must have.
ASKED = [
    ("llama.vim reads files ahead", "/infill", {**LLAMA, "input_prefix": "", "input_suffix": "", "input_extra": FILES, "prompt": "",
     "n_predict": 0, "samplers": [], "response_fields": [""]}, lambda got: got == {}),
    ("llama.vim fills in the middle", "/infill", {**LLAMA, "input_prefix": "def f():\n", "input_suffix": "\nx\n", "prompt": "    re",
     "input_extra": FILES, "n_predict": 9, "n_indent": 4, "top_k": 40, "top_p": 0.9, "response_fields": FIGURES},
     lambda got: set(got) == set(FIGURES) and got["timings/predicted_n"] == 9),
    ("llama.vim reads a chat ahead", "/v1/chat/completions", {**LLAMA, "messages": CHAT, "n_predict": 0, "response_fields": [""]},
     lambda got: got["usage"]["completion_tokens"] == 0),
    ("llama.vscode fills in the middle", "/infill", {**LLAMA, "input_prefix": "a", "input_suffix": "b", "input_extra": [], "prompt": "c",
     "n_predict": 4, "temperature": 0}, lambda got: got["tokens_predicted"] == 4 and got["content"]),
    ("llama.vscode looks at models", "/v1/models", None, lambda got: got["data"][0]["id"] == model),
    ("Continue asks what a model can", "/api/show", {"name": model}, lambda got: "completion" in got["capabilities"]),
    ("Continue completes", "/api/generate", {"model": model, "raw": True, "prompt": MIDDLE, "options": FEW, "keep_alive": 1800,
     "stream": True}, lambda got: got[-1]["done"] and got[-1]["prompt_eval_count"] >= 5),
    ("Continue has the model's tokens used", "/api/generate", {"model": model, "prompt": "a", "suffix": "b", "options": FEW, "stream": False},
     lambda got: got["done"] and got["prompt_eval_count"] == 6),
    ("Continue chats", "/api/chat", {"model": model, "messages": CHAT, "options": FEW, "think": False, "stream": True},
     lambda got: "".join(one["message"]["content"] for one in got)),
    ("Continue embeds", "/api/embed", {"model": model, "input": ["a", "b"]}, lambda got: len(got["embeddings"]) == 2),
    ("Continue completes by OpenAI's API", "/v1/completions", {"model": model, "prompt": "a", "suffix": "b", "max_tokens": 5,
     "top_p": None, "stop": ["x"], "stream": True}, lambda got: got[-1]["choices"][0]["finish_reason"]),
    ("Zed chats", "/api/chat", {"model": model + ":latest", "messages": CHAT, "stream": True, "keep_alive": -1, "think": None,
     "options": {"num_ctx": 512, "num_predict": 4, "stop": [], "temperature": 1.0, "top_p": None}, "tools": [
         {"type": "function", "function": {"name": "find", "description": "d", "parameters": {"type": "object", "properties": {}}}}]},
     lambda got: got[-1]["done_reason"] == "length"),
    ("Zed looks at LM Studio's models", "/api/v0/models", None, lambda got: got["data"][0]["state"] == "loaded"),
    ("Zed chats by LM Studio's API", "/api/v0/chat/completions", {"model": model, "messages": CHAT, "stream": True, "max_tokens": 4,
     "stop": [], "temperature": 1.0, "tools": [], "tool_choice": None}, lambda got: got[-1]["choices"][0]["finish_reason"] == "length"),
    ("Twinny completes", "/api/generate", {"model": model, "prompt": MIDDLE, "raw": True, "stream": True, "keep_alive": "5m",
     "options": {"temperature": 0.2, "num_predict": 5}}, lambda got: got[-1]["eval_count"] <= 5),
    ("Copilot looks at the version", "/api/version", None, lambda got: got["version"]),
]
for name, path, body, holds in ASKED:
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body else None,
                                     {"Content-Type": "application/json", "Authorization": "Bearer none"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read().decode()
        told = lines(text) if body and body.get("stream") else json.loads(text)
        print("ok " + name if holds(told) else "not ok %s: %s" % (name, text[:300].replace("\n", " ")))
    except Exception as why:  # pylint: disable=broad-exception-caught
        print("not ok %s: %s" % (name, repr(why).replace("\n", " ")[:300]))
