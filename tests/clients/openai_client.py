"""What the official openai client gets from a server: openai_client.py URL KEY EXPECTED

KEY is one of the server's keys. EXPECTED is a file with what the model says greedily after "Once upon a
time", 24 tokens. Prints a line for each thing tried, "ok NAME" or "not ok NAME: why".
"""
import sys
import threading
import time

import openai

url, key, expected = sys.argv[1], sys.argv[2], open(sys.argv[3], encoding="utf-8").read()
client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=120)
STORY = "Once upon a time"
ASKED = [{"role": "user", "content": STORY}]
model = ""


def models():
    global model
    model = client.models.list().data[0].id
    assert model == "tiny", model


def completes():
    got = client.completions.create(model=model, prompt=STORY, max_tokens=24, temperature=0)
    assert got.choices[0].text == expected, got.choices[0].text
    assert got.choices[0].finish_reason == "length"
    assert got.usage.completion_tokens == 24 and got.usage.total_tokens == got.usage.prompt_tokens + 24


def streams():
    pieces = list(client.completions.create(model=model, prompt=STORY, max_tokens=24, temperature=0, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == expected
    assert len(pieces) > 10 and pieces[-1].choices[0].finish_reason == "length"


def chats():
    got = client.chat.completions.create(model=model, messages=ASKED, max_tokens=12, temperature=0)
    assert got.choices[0].message.role == "assistant" and got.choices[0].message.content
    pieces = client.chat.completions.create(
        model=model, messages=ASKED, max_completion_tokens=12, temperature=0, stream=True,
        stream_options={"include_usage": True})
    text, usage = "", None
    for piece in pieces:
        if piece.choices:
            text += piece.choices[0].delta.content or ""
        usage = piece.usage or usage
    assert text == got.choices[0].message.content, text
    assert usage.completion_tokens == got.usage.completion_tokens


def seeds_and_choices():
    def ask():
        got = client.completions.create(model=model, prompt=STORY, max_tokens=16, temperature=1, seed=5, n=3)
        return [choice.text for choice in got.choices]
    first = ask()
    assert first == ask() and len(set(first)) == 3, first


def stops():
    got = client.completions.create(model=model, prompt=STORY, max_tokens=40, temperature=0, stop=[" girl", "zebra"])
    assert got.choices[0].finish_reason == "stop" and expected.startswith(got.choices[0].text)


def log_probabilities():
    got = client.chat.completions.create(model=model, messages=ASKED, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3)
    said = got.choices[0].logprobs.content
    assert len(said) == got.usage.completion_tokens and len(said[0].top_logprobs) == 3
    assert said[0].top_logprobs[0].token == said[0].token and said[0].logprob <= 0
    got = client.completions.create(model=model, prompt=STORY, max_tokens=5, temperature=0, logprobs=2)
    assert len(got.choices[0].logprobs.token_logprobs) == 5


def refused(kind, status, **wishes):
    try:
        client.completions.create(**{"model": model, "prompt": STORY, "max_tokens": 2, **wishes})
    except kind as error:
        assert error.status_code == status and error.message and isinstance(error.body, dict), error
        return error
    raise AssertionError("it was answered")


def refuses():
    error = refused(openai.NotFoundError, 404, model="gpt-9")
    assert "gpt-9" in error.body["message"], error.body
    error = refused(openai.BadRequestError, 400, temperature=99)
    assert error.body["type"] == "invalid_request_error" and error.body["param"] == "temperature", error.body
    refused(openai.BadRequestError, 400, prompt="word " * 3000)
    refused(openai.BadRequestError, 400, prompt="word " * 3000, stream=True)


def refuses_keys():
    other = openai.OpenAI(base_url=url + "/v1", api_key="sk-wrong", max_retries=0)
    try:
        other.models.list()
    except openai.AuthenticationError as error:
        assert error.status_code == 401
        return
    raise AssertionError("it was answered")


def stops_when_closed():
    stream = client.completions.create(model=model, prompt=STORY, max_tokens=450, temperature=1, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    got = client.completions.create(model=model, prompt=STORY, max_tokens=24, temperature=0)
    assert got.choices[0].text == expected


def retries_when_full():
    """The queue takes four: more at once are refused, and those that retry are served in the end."""
    kinds = []

    def ask(retries):
        try:
            patient = client.with_options(max_retries=retries)
            patient.completions.create(model=model, prompt=STORY, max_tokens=200, temperature=1, extra_body={"ignore_eos": True})
            kinds.append("answered")
        except openai.RateLimitError as error:
            assert error.status_code == 429 and error.response.headers["retry-after"]
            kinds.append("refused")
    threads = [threading.Thread(target=ask, args=(0,)) for _ in range(12)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    ask(8)
    for thread in threads:
        thread.join()
    assert "refused" in kinds and "answered" in kinds and len(kinds) == 13, kinds


for test in (models, completes, streams, chats, seeds_and_choices, stops, log_probabilities, refuses,
             refuses_keys, stops_when_closed, retries_when_full):
    try:
        test()
        print("ok " + test.__name__)
    except Exception as error:  # each is told, and the next tried
        print("not ok " + test.__name__ + ": " + repr(error).replace("\n", " ")[:300])
