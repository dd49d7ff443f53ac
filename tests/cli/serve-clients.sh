# moe-serve as others use it: the official openai client, requests of editors' plugins, coding agents and, in headless Chromium, the chat page.
# PYTHON_OPENAI: a Python that has the package openai (python3); PYTHON_PYDANTIC, PYTHON_FRAMEWORKS: those that
# have what does not go with the others' versions (the same); PYTHON_AGENTS: one that has coding agents beside it (none);
# CHROMIUM: the browser (chromium).
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
pack
python=${PYTHON_OPENAI:-python3}
browser=${CHROMIUM:-chromium}

serve() { listen "$bin/moe-serve" "$tiny" "$@"; }
# Each line "ok NAME", "not ok NAME: why" or "skip NAME" becomes a test of its own.
tell() { # TITLE LINES
    [ -s "$2" ] || result 1 "$1: it has said nothing"
    while IFS= read -r line; do
        case $line in
        'ok '*) result 0 "$1: ${line#ok }" ;;
        'skip '*) skip "$1: ${line#skip }" "this Python has no such package" ;;
        *) result 1 "$1: ${line#not ok }" ;;
        esac
    done <"$2"
}

if "$python" -c 'import openai' 2>/dev/null; then
    run "$bin/moe-run" -t 1 "$tiny" -p 'Once upon a time' -n 24 --temp 0
    cp "$out" "$tmp/expected"
    echo sk-a >"$tmp/keys"
    chmod 600 "$tmp/keys"
    serve --template-file tests/data/chatml.jinja --strict-names --api-key-file "$tmp/keys" --max-queue 4 || exit 1
    "$python" tests/clients/openai_client.py "$url" sk-a "$tmp/expected" >"$tmp/lines" 2>"$err" </dev/null
    tell "the openai client" "$tmp/lines"
    kill "$server"
    wait "$server"
    serve --template-file tests/data/calls.jinja --strict-names --alias m || exit 1
    {
        "$python" tests/clients/agents.py "$url" none "$checkpoint" openai anthropic litellm instructor langchain llm mcp lm
        "${PYTHON_PYDANTIC:-$python}" tests/clients/agents.py "$url" none "$checkpoint" pydantic
        "${PYTHON_FRAMEWORKS:-$python}" tests/clients/agents.py "$url" none "$checkpoint" strands llama
    } >"$tmp/lines" 2>"$err" </dev/null
    tell "agents' clients" "$tmp/lines"
    "$python" tests/clients/ollama_client.py "$url" tiny >"$tmp/lines" 2>"$err" </dev/null
    tell "Ollama's clients" "$tmp/lines"
    kill "$server"
    wait "$server"
else
    skip "the openai client" "no Python with the package openai (PYTHON_OPENAI)"
fi

if command -v "$python" >/dev/null; then
    pack_with_marks
    listen "$bin/moe-serve" "$marked" --template-file tests/data/calls.jinja --name m || exit 1
    "$python" tests/clients/editor_requests.py "$url" m >"$tmp/lines" 2>"$err" </dev/null
    tell "plugins of editors" "$tmp/lines"
    kill "$server"
    wait "$server"
else
    skip "plugins of editors" "no Python (PYTHON_OPENAI)"
fi

if [ -n "${PYTHON_AGENTS:-}" ]; then
    # What agents say of themselves is longer than the model's own context, of which hermes wants 64,000 tokens; the
    # template shows ends of it.
    mkdir "$tmp/long" "$tmp/agents"
    cp "$checkpoint"/* "$tmp/long"
    sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 65536/' "$checkpoint/config.json" >"$tmp/long/config.json"
    run "$bin/moe-quantize" -q -o "$tmp/long.moe" "$tmp/long"
    listen "$bin/moe-serve" "$tmp/long.moe" -c 65536 --template-file tests/data/agents.jinja --name m || exit 1
    "$PYTHON_AGENTS" tests/clients/coding_agents.py "$url" "$tmp/agents" >"$tmp/lines" 2>"$err" </dev/null
    tell "coding agents" "$tmp/lines"
    kill "$server"
    wait "$server"
fi

if ! command -v python3 >/dev/null || ! command -v "$browser" >/dev/null; then
    skip "the chat page" "no python3 or no chromium (CHROMIUM)"
else
    serve --template-file tests/data/chatml.jinja || exit 1
    HOME=$tmp python3 tests/clients/page.py "$browser" "$url" "$tmp" chat >"$tmp/lines" 2>"$err" </dev/null
    tell "the chat page" "$tmp/lines"
    [ -z "${PICTURES:-}" ] || cp "$tmp"/*.png "$PICTURES"
    kill "$server"
    wait "$server"
    rm -rf "$tmp/profile"
    serve || exit 1
    HOME=$tmp python3 tests/clients/page.py "$browser" "$url" "$tmp" text >"$tmp/lines" 2>"$err" </dev/null
    tell "the chat page without a chat template" "$tmp/lines"
    kill "$server"
    wait "$server"
fi
finish
