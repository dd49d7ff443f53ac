"""What agents' clients get from a server whose model must call tools: agents.py URL KEY CHECKPOINT [CLIENT]...

Tries each client library, or those named by the first word of what is tried, that this Python has: openai (chat, parse, Responses), anthropic (Messages), litellm, instructor,
langchain, pydantic-ai and strands (through several APIs), llama-index, llm, mcp (a loop with a tool server's tool),
lm-eval (local-completions; it reads the tokenizer of CHECKPOINT). Prints a line for each thing tried, "ok NAME",
"not ok NAME: why" or "skip NAME". With the one argument "tool-server" it is that tool server, on its standard input
and output.
"""
import asyncio
import importlib
import json
import os
import sys
import tempfile
import typing

if sys.argv[1:] == ["tool-server"]:
    from mcp.server.mcpserver import MCPServer
    tool_server = MCPServer("files")

    @tool_server.tool()
    def find(path: typing.Literal["a", "b"]) -> str:
        """Finds"""
        return "found " + path
    tool_server.run("stdio")
    sys.exit()

url, key, checkpoint, *wanted = sys.argv[1:]
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string", "enum": ["a", "b"]}}, "required": ["path"],
              "additionalProperties": False}
ASKED = [{"role": "user", "content": "What now?"}]
FUNCTION = {"type": "function", "function": {"name": "find", "description": "Finds", "parameters": PARAMETERS}}


def check(arguments):
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert given in ({"path": "a"}, {"path": "b"}), given


def openai_client():
    import openai
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=120)


def openai_loop():
    """Two turns of a loop with a tool: the call's result goes back."""
    client, messages = openai_client(), list(ASKED)
    got = client.chat.completions.create(model="m", messages=messages, tools=[FUNCTION], tool_choice="required",
                                         parallel_tool_calls=False, temperature=0, max_tokens=80)
    call = got.choices[0].message.tool_calls[0]
    assert got.choices[0].finish_reason == "tool_calls" and call.function.name == "find"
    check(call.function.arguments)
    messages += [got.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "found"}]
    got = client.chat.completions.create(model="m", messages=messages, tools=[FUNCTION], tool_choice="none",
                                         temperature=0, max_tokens=8)
    assert got.choices[0].message.content and not got.choices[0].message.tool_calls


def openai_stream():
    with openai_client().chat.completions.stream(model="m", messages=ASKED, tools=[FUNCTION], tool_choice="required",
                                                 parallel_tool_calls=False, temperature=0, max_tokens=80) as stream:
        names = [event.name for event in stream if event.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0].message
    assert names == ["find"], names
    check(message.tool_calls[0].function.arguments)


def openai_responses():
    client = openai_client()
    tools = [{"type": "function", "name": "find", "parameters": PARAMETERS, "strict": True}]
    got = client.responses.create(model="m", input="What now?", tools=tools, tool_choice="required",
                                  parallel_tool_calls=False, temperature=0, max_output_tokens=80)
    call = got.output[0]
    assert call.type == "function_call" and got.status == "completed", got
    check(call.arguments)
    items = [{"role": "user", "content": "What now?"}, call.model_dump(),
             {"type": "function_call_output", "call_id": call.call_id, "output": "found"}]
    got = client.responses.create(model="m", instructions="Be short.", input=items, temperature=0, max_output_tokens=8)
    assert got.output_text and got.status == "incomplete" and got.incomplete_details.reason == "max_output_tokens"
    assert client.responses.retrieve(got.id).output_text == got.output_text
    more = client.responses.create(model="m", input="And?", previous_response_id=got.id, temperature=0, max_output_tokens=8)
    assert more.usage.input_tokens > got.usage.input_tokens and more.previous_response_id == got.id, more
    asked = list(client.responses.input_items.list(more.id, order="asc", limit=2))
    assert [item.type for item in asked] == ["message", "function_call", "function_call_output", "message", "message"], asked
    assert asked[-1].content[0].text == "And?" and asked[-2].content[0].text == got.output_text, asked
    client.responses.delete(got.id)


def openai_responses_stream():
    tools = [{"type": "function", "name": "find", "parameters": PARAMETERS, "strict": True}]
    with openai_client().responses.stream(model="m", input="What now?", tools=tools, tool_choice="required",
                                          parallel_tool_calls=False, temperature=0, max_output_tokens=80) as stream:
        kinds = [event.type for event in stream]
        check(stream.get_final_response().output[0].arguments)
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    with openai_client().responses.stream(model="m", input="Once", temperature=0, max_output_tokens=8) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text and text == stream.get_final_response().output_text


def openai_embeddings():
    """Texts alike are closer than others; a text's vector does not depend on those beside it."""
    def embed(**asked):
        return [one.embedding for one in openai_client().embeddings.create(model="m", **asked).data]

    def product(one, other):
        return sum(x * y for x, y in zip(one, other))
    many = embed(input=["The cat sat on the mat.", "A cat sat on a mat.", "Stock markets fell sharply"])
    assert abs(product(many[0], many[0]) - 1) < 1e-6
    assert product(many[0], many[1]) > product(many[0], many[2]) + 0.1, many
    alone = embed(input="A cat sat on a mat.", encoding_format="float")
    assert max(abs(x - y) for x, y in zip(alone[0], many[1])) < 1e-7
    short = embed(input="A cat sat on a mat.", dimensions=16)[0]
    assert len(short) == 16 and abs(product(short, short) - 1) < 1e-6
    assert embed(input=[[997, 804, 259]], extra_body={"pooling": "last"}) != embed(input=[[997, 804, 259]])


def anthropic_loop():
    import anthropic
    client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=120)
    tools = [{"name": "find", "description": "Finds", "input_schema": PARAMETERS}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    got = client.messages.create(model="m", max_tokens=80, messages=ASKED, tools=tools, tool_choice=choice)
    call = got.content[-1]
    assert got.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "find", got
    check(call.input)
    turns = ASKED + [{"role": "assistant", "content": got.content},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "found"}]}]
    got = client.messages.create(model="m", max_tokens=8, system="Be short.", messages=turns, tools=tools,
                                 tool_choice={"type": "none"})
    assert got.stop_reason == "max_tokens" and got.content[0].text and got.usage.output_tokens == 8, got


def anthropic_stream():
    import anthropic
    client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=120)
    tools = [{"name": "find", "description": "Finds", "input_schema": PARAMETERS}]
    with client.messages.stream(model="m", max_tokens=80, messages=ASKED, tools=tools,
                                tool_choice={"type": "tool", "name": "find", "disable_parallel_tool_use": True}) as stream:
        check(stream.get_final_message().content[-1].input)
    with client.messages.stream(model="m", max_tokens=8, messages=ASKED) as stream:
        assert "".join(stream.text_stream) == stream.get_final_message().content[0].text


def litellm_calls():
    import litellm
    got = litellm.completion(model="openai/m", api_base=url + "/v1", api_key=key, messages=ASKED, tools=[FUNCTION],
                             tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=80)
    check(got.choices[0].message.tool_calls[0].function.arguments)


def instructor_model():
    import enum
    import instructor
    import pydantic

    class Find(pydantic.BaseModel):
        path: enum.Enum("Path", {"a": "a", "b": "b"})
    got = instructor.from_openai(openai_client()).chat.completions.create(
        model="m", messages=ASKED, response_model=Find, temperature=0, max_tokens=80, max_retries=0)
    assert got.path.value in "ab"


def langchain_openai_tools():
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(model="m", base_url=url + "/v1", api_key=key, temperature=0, max_tokens=80, max_retries=0)
    got = model.bind_tools([FUNCTION], tool_choice="find", parallel_tool_calls=False).invoke("What now?")
    check(got.tool_calls[0]["args"])


def pydantic_ai_models():
    """A call of the one tool that makes the answer, and an answer that follows the schema."""
    import anthropic
    import pydantic
    import pydantic_ai
    from pydantic_ai.models import anthropic as messages, openai as chats
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    class Find(pydantic.BaseModel):
        path: typing.Literal["a", "b"]
    ours = OpenAIProvider(base_url=url + "/v1", api_key=key)
    theirs = AnthropicProvider(anthropic_client=anthropic.AsyncAnthropic(base_url=url, api_key=key))
    models = chats.OpenAIChatModel("m", provider=ours), chats.OpenAIResponsesModel("m", provider=ours)
    outputs = pydantic_ai.ToolOutput, pydantic_ai.NativeOutput
    pairs = [(model, output) for model in models for output in outputs]
    for model, output in pairs + [(messages.AnthropicModel("m", provider=theirs), pydantic_ai.ToolOutput)]:
        agent = pydantic_ai.Agent(model, output_type=output(Find), model_settings={"temperature": 0, "max_tokens": 80})
        assert agent.run_sync("What now?").output.path in "ab", (model, output)


def strands_models():
    import pydantic
    import strands
    from strands.models.ollama import OllamaModel
    from strands.models.openai import OpenAIModel

    class Find(pydantic.BaseModel):
        """Finds"""
        path: typing.Literal["a", "b"]
    few = {"temperature": 0, "max_tokens": 80}
    for model in (OpenAIModel(client_args={"base_url": url + "/v1", "api_key": key}, model_id="m", params=few),
                  OllamaModel(url, model_id="m", **few)):
        got = strands.Agent(model=model, callback_handler=None).structured_output(Find, "What now?")
        assert got.path in "ab", (model, got)


def llama_index_tools():
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    def find(path: typing.Literal["a", "b"]) -> str:
        """Finds"""
        return path
    model = OpenAILike(model="m", api_base=url + "/v1", api_key=key, is_chat_model=True, is_function_calling_model=True,
                       max_tokens=80, temperature=0, context_window=512)
    got = model.chat_with_tools([FunctionTool.from_defaults(find)], user_msg="What now?", tool_required=True,
                                allow_parallel_tool_calls=False)
    check(model.get_tool_calls_from_response(got)[0].tool_kwargs)
    assert "".join(piece.delta for piece in model.stream_complete("Once"))


def llm_model():
    """As its users name such a server: a line in extra-openai-models.yaml."""
    with tempfile.TemporaryDirectory() as home:
        with open(home + "/extra-openai-models.yaml", "w", encoding="utf-8") as models:
            models.write(f"[{{model_id: here, model_name: m, api_base: {url}/v1, supports_schema: true}}]")
        os.environ["LLM_USER_PATH"] = home
        import llm
        model = llm.get_model("here")
        model.key = key
        whole, pieces = [model.prompt("Once upon", stream=stream, temperature=0, max_tokens=8) for stream in (False, True)]
        assert whole.text() and whole.text() == "".join(pieces)
        check(model.prompt("What now?", schema=PARAMETERS, stream=False, temperature=0, max_tokens=80).text())


async def mcp_turns():
    import mcp
    import openai
    ours = mcp.StdioServerParameters(command=sys.executable, args=[__file__, "tool-server"])
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=120)
    asked = {"model": "m", "messages": list(ASKED), "temperature": 0, "max_tokens": 80}
    async with mcp.Client(ours) as server:
        asked["tools"] = [{"type": "function", "function": {"name": tool.name, "description": tool.description or "",
                                                            "parameters": tool.input_schema}}
                          for tool in (await server.list_tools()).tools]
        got = await client.chat.completions.create(**asked, parallel_tool_calls=False,
                                                   tool_choice={"type": "function", "function": {"name": "find"}})
        call, = got.choices[0].message.tool_calls
        result = await server.call_tool(call.function.name, json.loads(call.function.arguments))
    assert not result.is_error and result.content[0].text in ("found a", "found b"), result
    asked["messages"] += [got.choices[0].message, {"role": "tool", "tool_call_id": call.id,
                                                   "content": result.content[0].text}]
    more = await client.chat.completions.create(**asked)
    assert more.choices[0].message.content and more.usage.prompt_tokens > got.usage.prompt_tokens, more


def mcp_loop():
    asyncio.run(mcp_turns())


def lm_eval_scores():
    """Log probabilities of ends of texts, and whether they are the greedy ones."""
    os.environ.update(HF_HUB_OFFLINE="1", OPENAI_API_KEY=key)
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    model = LocalCompletionsAPI(base_url=url + "/v1/completions", model="m", tokenizer=checkpoint, batch_size=2,
                                tokenizer_backend="huggingface", max_length=512)
    asked = [("Once upon a", " time"), ("Once upon a", " dog"), ("There was a little", " girl who")]
    likely, unlikely, longer = model.loglikelihood(
        [Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i) for i, pair in enumerate(asked)])
    assert likely[1] and not unlikely[1] and unlikely[0] < likely[0] - 1 and longer[0] < 0, (likely, unlikely, longer)


for tried in (openai_loop, openai_stream, openai_responses, openai_responses_stream, openai_embeddings, anthropic_loop, anthropic_stream,
              litellm_calls, instructor_model, langchain_openai_tools, pydantic_ai_models, strands_models,
              llama_index_tools, llm_model, mcp_loop, lm_eval_scores):
    name = tried.__name__.replace("_", " ")
    if wanted and name.split()[0] not in wanted:
        continue
    try:
        importlib.import_module({"langchain": "langchain_openai", "llama": "llama_index.llms.openai_like", "lm": "lm_eval",
                                 "pydantic": "pydantic_ai"}.get(name.split()[0], name.split()[0]))
    except ImportError:
        print("skip", name)
        continue
    try:
        tried()
        print("ok", name)
    except Exception as why:  # pylint: disable=broad-exception-caught
        print("not ok %s: %s" % (name, repr(why).replace("\n", " ")[:300]))
    sys.stdout.flush()
