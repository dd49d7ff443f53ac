"""What Ollama's own client, and LangChain's, get from a server whose model must call tools: ollama_client.py URL MODEL

Prints a line for each thing tried, "ok NAME", "not ok NAME: why" or "skip NAME".
"""
import importlib
import json
import sys

url, model = sys.argv[1], sys.argv[2]
ASKED = [{"role": "user", "content": "Once upon a time"}]
SCHEMA = {"type": "object", "properties": {"path": {"type": "string", "enum": ["a", "b"]}}, "required": ["path"],
          "additionalProperties": False}
FEW = {"num_predict": 8, "temperature": 0}


def client():
    import ollama
    return ollama.Client(host=url, timeout=120)


def ollama_models():
    listed = client().list().models
    assert listed[0].model == model and listed[0].size > 0 and len(listed[0].digest) == 64, listed
    shown = client().show(model)
    assert "completion" in shown.capabilities and shown.modelinfo["general.parameter_count"] > 0, shown
    assert client().ps().models[0].model == model
    assert client().show(model + ":latest").details.family


def ollama_chat():
    got = client().chat(model=model, messages=ASKED, options=FEW)
    assert got.message.content and got.done and got.done_reason == "length", got
    assert got.eval_count == 8 and got.prompt_eval_count > 0 and got.total_duration >= got.eval_duration > 0, got
    pieces = list(client().chat(model=model, messages=ASKED, options=FEW, stream=True))
    assert "".join(piece.message.content for piece in pieces) == got.message.content, pieces
    assert pieces[-1].done and not pieces[0].done and pieces[-1].eval_count == 8, pieces


def ollama_generate():
    got = client().generate(model=model, prompt=ASKED[0]["content"], system="Be short.", options=FEW)
    assert got.response and got.done_reason == "length", got
    pieces = list(client().generate(model=model, prompt=ASKED[0]["content"], raw=True, options=FEW, stream=True))
    assert "".join(piece.response for piece in pieces) and pieces[-1].prompt_eval_count == 5, pieces
    assert client().generate(model=model, keep_alive=0).done_reason == "unload"


def ollama_schema():
    got = client().chat(model=model, messages=ASKED, format=SCHEMA, options={"temperature": 0, "num_predict": 80})
    assert json.loads(got.message.content)["path"] in "ab", got
    got = client().generate(model=model, prompt="x", format="json", options={"temperature": 0, "num_predict": 200})
    assert got.response.startswith("{"), got


def ollama_tools():
    tool = {"type": "function", "function": {"name": "find", "description": "Finds", "parameters": SCHEMA}}
    turns = ASKED + [{"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments": {"path": "a"}}}]},
                     {"role": "tool", "tool_name": "find", "content": "found"}]
    got = client().chat(model=model, messages=turns, tools=[tool], options=FEW)
    assert got.message.content, got


def ollama_refusals():
    import ollama
    for wrong, status, words in ((dict(model="none-such", messages=ASKED), 404, "none-such"),
                                 (dict(model=model, messages=[{"role": "user", "content": "x", "images": [b"x"]}]), 400,
                                  "messages[0].images"),
                                 (dict(model=model, messages=ASKED, options={"temperature": 99.0}), 400, "temperature")):
        try:
            client().chat(**wrong)
        except ollama.ResponseError as error:
            assert error.status_code == status and words in error.error, error
        else:
            raise AssertionError("it was answered: %s" % wrong)


def ollama_embeddings():
    got = client().embed(model=model, input=["a cat", "a dog"])
    assert len(got.embeddings) == 2 and abs(sum(x * x for x in got.embeddings[0]) - 1) < 1e-6, got
    assert max(abs(x - y) for x, y in zip(client().embeddings(model=model, prompt="a dog").embedding,
                                          got.embeddings[1])) < 1e-7


def langchain_ollama_chat():
    from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
    chat = ChatOllama(model=model, base_url=url, temperature=0, num_predict=8, validate_model_on_init=True)
    got = chat.invoke("Once upon a time")
    assert got.content and got.usage_metadata["output_tokens"] == 8, got
    assert "".join(piece.content for piece in chat.stream("Once upon a time")) == got.content
    chat = ChatOllama(model=model, base_url=url, temperature=0, num_predict=80)
    assert chat.with_structured_output(SCHEMA, method="json_schema").invoke("x")["path"] in "ab"
    assert len(OllamaEmbeddings(model=model, base_url=url).embed_documents(["a", "b"])) == 2
    assert OllamaLLM(model=model, base_url=url, temperature=0, num_predict=8).invoke("Once")


for tried in (ollama_models, ollama_chat, ollama_generate, ollama_schema, ollama_tools, ollama_embeddings, ollama_refusals,
              langchain_ollama_chat):
    name = tried.__name__.replace("_", " ")
    try:
        importlib.import_module({"langchain": "langchain_ollama"}.get(name.split()[0], name.split()[0]))
    except ImportError:
        print("skip", name)
        continue
    try:
        tried()
        print("ok", name)
    except Exception as why:  # pylint: disable=broad-exception-caught
        print("not ok %s: %s" % (name, repr(why).replace("\n", " ")[:300]))
    sys.stdout.flush()
