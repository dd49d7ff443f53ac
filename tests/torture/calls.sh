# Calls of tools that the bundled model must make, in the form of each chat template: SCHEMAS (200) tools with random
# parameters, whose arguments parse and validate. A row for tests/data/calls.jinja and for each template in CHAT_TEMPLATES
# (a directory of published ones: llama.cpp's models/templates): right; cut off within max_tokens, most of them in
# thoughts before the call; refused (templates that write no calls refuse all); wrong. Wants Python with jsonschema
# (PYTHON; python3): pip install 'jsonschema[format]'. Half a minute of a processor a template.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
n=${SCHEMAS:-200}
python=${PYTHON:-python3}
if ! "$python" -c 'import jsonschema' 2>/dev/null; then
    echo "ok 1 - calls of $n random tools # SKIP no Python with jsonschema"
    echo "1..1"
    exit 0
fi
# Random schemas and the words of published templates need more than the model's own context, and little of what it has
# learnt: it has one layer left. The second has the marks that LFM2.5-Instruct's template leaves to its tokenizer.
mkdir "$tmp/long" "$tmp/marked"
cp "$checkpoint"/* "$tmp/long"
run "$python" tests/fixtures/make_schemas.py shallow "$checkpoint" "$tmp/long"
expect_exit 0 "one layer of the model is kept"
cp "$tmp/long"/* "$tmp/marked"
sed -i 's/<|endoftext|>/<|tool_call_start|>/g; s/<|im_start|>/<|tool_call_end|>/g' "$tmp/marked"/tokenizer*.json
for pack in long marked; do
    run "$bin/moe-quantize" -q -o "$tmp/$pack.moe" "$tmp/$pack"
    expect_exit 0 "a pack with a longer context is made: $pack"
done
"$python" tests/fixtures/make_schemas.py calls "$n" "${SEED:-47}" >"$tmp/requests"
printf '| %-50s | %6s | %7s | %7s | %6s |\n' template right 'cut off' refused wrong
for template in tests/data/calls.jinja ${CHAT_TEMPLATES:+"$CHAT_TEMPLATES"/*.jinja}; do
    name=$(basename "$template" .jinja)
    pack=long
    case $name in LFM2.5-Instruct*) pack=marked ;; esac
    rm -f "$tmp/results"
    run "$bin/moe-run" -t 1 "$tmp/$pack.moe" -c 16384 --template-file "$template" --requests "$tmp/requests" -o "$tmp/results"
    if [ ! -s "$tmp/results" ]; then
        result 1 "$name: the requests are answered"
        continue
    fi
    "$python" tests/fixtures/make_schemas.py check "$tmp/requests" "$tmp/results" >"$out"
    # shellcheck disable=SC2046 # the numbers are words
    set -- $(tail -n 1 "$out" | tr -cd '0-9 ')
    printf '| %-50s | %6s | %7s | %7s | %6s |\n' "$name" "$@"
    if [ "$3" = "$n" ]; then
        skip "$name" "$(sed -n 2p "$out")"
    else
        check "$name: arguments parse and validate" test "$3$4" = 00
    fi
done
finish
