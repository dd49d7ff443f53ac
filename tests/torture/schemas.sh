# SCHEMAS (1,000) random JSON schemas, each with an answer of the bundled model that follows it: all parse
# and validate, but for those that max_tokens cut off, a tenth at most. Wants Python with jsonschema
# (PYTHON; python3): pip install 'jsonschema[format]'. A minute.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
n=${SCHEMAS:-1000}
python=${PYTHON:-python3}
if ! "$python" -c 'import jsonschema' 2>/dev/null; then
    echo "ok 1 - answers to $n random schemas # SKIP no Python with jsonschema"
    echo "1..1"
    exit 0
fi
pack
"$python" tests/fixtures/make_schemas.py make "$n" "${SEED:-22}" >"$tmp/requests"
run "$bin/moe-run" "$tiny" --requests "$tmp/requests" -o "$tmp/results"
expect_exit 0 "$n requests with schemas are answered"
check "answers parse and validate" "$python" tests/fixtures/make_schemas.py check "$tmp/requests" "$tmp/results"
finish
