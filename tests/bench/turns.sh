#!/bin/sh
# What a second turn computes: for each family with recurrent states, and one without, a chat whose first prompt has
# about 2,000 tokens, and a short second turn. Drawn weights: the counts are those of any weights. OLD=DIR counts with
# the programs of another build beside these. Prints Markdown.
#
#   BUILD=build sh tests/bench/turns.sh [FAMILY...]
. tests/cli/lib.sh
[ $# -gt 0 ] || set -- qwen3-moe-a qwen3-next-a granite4-a nemotron-h-a kimi-linear-a lfm2-moe-a jamba-a deepseek-v4-a

words() { # N: that many letters, a token each with the fixtures' tokenizers of bytes
    head -c $(($1 / 2)) /dev/zero | od -An -v -tx1 -w1 | tr -d ' \n' | sed 's/00/ab/g'
}

turn() { # BODY: prints tokens of the prompt and those that were computed
    "$load" -p "$port" -P /v1/chat/completions -f "$1" -o "$tmp/got" >"$out" 2>"$err"
    tr ',{' '\n\n' <"$tmp/got" | sed -n 's/}*$//; s/"prompt_tokens"://p; s/"cached_tokens"://p' |
        awk 'NR == 1 { n = $1 } END { print n, n - $1 }'
}

chat() { # PROGRAMS PACK: prints both turns' tokens, and those that were computed
    listen "$1/moe-serve" -t 1 "$2" -c 4096 --memory 512M || exit 1
    question='{"role": "user", "content": "'$(words 1980)'"}'
    printf '{"messages": [%s], "max_tokens": 24, "temperature": 0}' "$question" >"$tmp/body1"
    printf '{"messages": [%s, {"role": "assistant", "content": "An answer."}, {"role": "user", "content": "%s"}], "max_tokens": 24, "temperature": 0}' \
        "$question" "$(words 60)" >"$tmp/body2"
    printf '%s %s' "$(turn "$tmp/body1")" "$(turn "$tmp/body2")"
    kill -TERM "$server"
    wait "$server" 2>/dev/null
}

echo '| family | first turn | second turn | computed of it |'"${OLD:+ computed before |}"
echo '|---|---|---|---|'"${OLD:+---|}"
for family in "$@"; do
    rm -rf "$tmp/chat"
    cp -r "$drawn/$family" "$tmp/chat"
    sed -i -E 's/"(max_position_embeddings|model_max_length)": [0-9]*/"\1": 4096/' "$tmp/chat/config.json"
    echo '{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}{% if add_generation_prompt %}[assistant]<think>{% endif %}' \
        >"$tmp/chat/chat_template.jinja"
    "$bin/moe-quantize" -q -t 1 --experts 8 --dense 8 --group 32 -o "$tmp/chat.moe" "$tmp/chat" || continue
    set -- $(chat "$bin" "$tmp/chat.moe")
    row="| $family | $1 | $3 | $4 |"
    [ -z "${OLD:-}" ] || row="$row $(set -- $(chat "$OLD" "$tmp/chat.moe"); echo "$4") |"
    echo "$row"
done
