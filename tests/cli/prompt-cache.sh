# What runs keep on disk for later ones. --prompt-cache: a prompt's context changes no answer, is used as far as it
# goes, grows with the prompt, and is refused where it is damaged, of another pack or computed another way. --learn:
# what a cache has learnt makes more hits and changes no answer.
. tests/cli/lib.sh
pack
start='Once upon a time there was a girl'
cache=$tmp/cache
ask() { run "$bin/moe-run" -t 1 "$tiny" -n 12 --temp 0 "$@"; }
kept() { ask --prompt-cache "$cache" --stats-json "$json" "$@"; }

ask -p "$start" && cp "$out" "$tmp/short"
ask -p "$start who had a dog." && cp "$out" "$tmp/long"
kept -p "$start"
expect_exit 0 "a file that is not there is made"
check "... without a change" cmp -s "$out" "$tmp/short"
check "... and nothing came from it" none loaded_tokens
prompt=$(figure prompt_tokens)
cp "$cache" "$tmp/first"
kept -p "$start"
check "the same prompt: the same answer" cmp -s "$out" "$tmp/short"
check "... of which one token was computed" [ "$(figure prompt_tokens) $(figure loaded_tokens)" = "1 $((prompt - 1))" ]
check "... and the file is as it was" cmp -s "$cache" "$tmp/first"
kept -t 2 -c 100 --batch 3 --strategy lru --expert-memory 6M -p "$start who had a dog."
check "a longer prompt in another session: its answer" cmp -s "$out" "$tmp/long"
check "... computed from where the file ends" [ "$(figure loaded_tokens)" = "$prompt" ]
check "... and the file grew" [ "$(wc -c <"$cache")" -gt "$(wc -c <"$tmp/first")" ]
kept --stats -p "$start"
check "the shorter one again: its answer" cmp -s "$out" "$tmp/short"
expect_stderr_like "*loaded   $((prompt - 1)) tokens of the prompt from a context file*" "--stats says so"
check "... and the longer file stays" [ "$(wc -c <"$cache")" -gt "$(wc -c <"$tmp/first")" ]
kept -c 12 -p "$start"
check "a context shorter than the file" [ "$(figure loaded_tokens)" = "$((prompt - 1))" ]
kept -p "No such thing"
check "another prompt has its own place" [ "$(figure loaded_tokens)" -le 1 ]
cp "$tmp/first" "$cache"
kept -p "$start" --temp 1 --seed 3 --logprobs 1
cp "$out" "$tmp/sampled"
ask -p "$start" --temp 1 --seed 3 --logprobs 1
check "drawn tokens and their probabilities are the same" cmp -s "$out" "$tmp/sampled"

# Refused: one line each, and the file stays.
printf X | dd of="$cache" bs=1 seek=$(($(wc -c <"$cache") - 100)) conv=notrunc 2>/dev/null
kept -p "$start"
error_line 3 "moe-run: $cache: the context file is damaged: *" "a damaged file"
head -c 1000 "$tmp/first" >"$cache"
kept -p "$start"
error_line 3 "moe-run: $cache: the context file is damaged: its size*" "a cut one"
echo "not one" >"$cache"
kept -p "$start"
error_line 3 "moe-run: $cache: is not a context file*" "one of another kind"
check "... which stays" [ "$(cat "$cache")" = "not one" ]
"$bin/moe-quantize" -q -t 1 --method rtn --experts 2 -o "$tmp/two.moe" "$checkpoint" || exit 1
cp "$tmp/first" "$cache"
run "$bin/moe-run" -t 1 "$tmp/two.moe" -p "$start" -n 1 --prompt-cache "$cache"
error_line 2 "moe-run: $cache: the context was computed with another pack than $tmp/two.moe" "another pack's"
kept -p "$start" --expert-memory 6M --strategy lru --skip-below 10%
error_line 2 "moe-run: $cache: the context was computed exactly, and this run computes by the inexact *" "another way's"
check "... and it is as it was" cmp -s "$cache" "$tmp/first"
run "$bin/moe-run" "$tiny" -p x --prompt-cache "$cache" --beams 2
error_line 2 "moe-run: options --beams and --prompt-cache exclude each other *" "with beams"
chmod 644 "$cache"
kept -p "$start and more of it, so that it is written again" -n 1
check "a cache is its user's alone, whatever it was" [ "$(stat -c %a "$cache")" = 600 ]

# --learn: the second run finds more in its cache, and says the same.
learnt=$tmp/learnt
learns() { ask -n 40 --memory 20M --learn "$learnt" --stats-json "$json" -p "$start" "$@"; }
cached() { learns --strategy lru+cache=learned; }
ask -n 40 -p "$start" && cp "$out" "$tmp/long"
cached
expect_exit 0 "a file of what was learnt that is not there is made"
check "... without a change" cmp -s "$out" "$tmp/long"
hits=$(figure cache_hits)
cp "$learnt" "$tmp/first"
cached
check "the next run finds more in its cache ($hits, then $(figure cache_hits))" [ "$(figure cache_hits)" -gt $((hits * 21 / 20)) ]
check "... and says the same" cmp -s "$out" "$tmp/long"
check "... and has learnt more" [ "$(cmp -s "$learnt" "$tmp/first" || echo more)" = more ]
check "it is its user's alone" [ "$(stat -c %a "$learnt")" = 600 ]
learns && cp "$learnt" "$tmp/first"
check "the default strategy learns, too" [ "$(wc -c <"$learnt")" -gt 20000 ]
listen "$bin/moe-serve" -t 1 "$tiny" --strategy lru+cache=learned --learn "$learnt" || exit 1
printf '{"prompt": "%s", "temperature": 0, "max_tokens": 8}' "$start" >"$tmp/body"
run "$load" -p "$port" -P /v1/completions -f "$tmp/body" -o "$tmp/got"
kill -TERM "$server"
wait "$server"
check "a server goes on with it, and leaves it at its end" [ "$(cmp -s "$learnt" "$tmp/first" || echo more)" = more ]
cp "$tmp/first" "$learnt"
printf X | dd of="$learnt" bs=1 seek=9000 conv=notrunc 2>"$tmp/dd"
cached
error_line 3 "moe-run: $learnt: the file of what was learnt is damaged: *" "a damaged file"
check "... which stays" [ "$(cmp "$learnt" "$tmp/first" | wc -l)" = 1 ]
echo "not one, though it is long enough for a header" >"$learnt"
cached
error_line 3 "moe-run: $learnt: not a file of what was learnt *" "one of another kind"
: >"$learnt"
cached
error_line 3 "moe-run: $learnt: the file of what was learnt is damaged: it is empty (without it a run writes a new one)" "an empty one"
head -c 40 "$tmp/first" >"$learnt"
cached
error_line 3 "moe-run: $learnt: the file of what was learnt is damaged: it is cut off *" "the beginning of one"
cp "$tmp/first" "$learnt"
ask -n 1 --learn "$learnt" -p "$start"
expect_exit 0 "where all experts are in memory it is left alone"
expect_stderr_like "*moe-run: --learn $learnt: nothing is learnt, because every expert is in memory*" "... and that is said"
learns --strategy lru
error_line 2 "moe-run: $learnt: the cache lru learns nothing *" "a cache that does not learn"
run "$bin/moe-run" -t 1 "$models/tiny-switch" --memory 40M --learn "$learnt" -p x -n 1 --strategy lru+cache=learned
error_line 2 "moe-run: $learnt: this was learnt from another model than *" "another model's"

# moe-serve --cache-dir: what was computed of prompts outlives the server, for whoever asked; what cannot be read
# or written costs a line. Prompts of 80 tokens.
kept=$tmp/kept
long='Once upon a time there was a girl who had a dog, and the dog had a friend, and the friend had a small red ball. They played in the park all day, and in the evening they went home to eat. Her mom said that the ball was lost, and the girl was sad, but then the dog came with the ball in its mouth, and they all were happy'
body() { printf '{"prompt": "%s", "temperature": 0, "max_tokens": 8}' "$1" >"$tmp/body"; }
serve() { listen "$bin/moe-serve" -t 1 "$tiny" --cache-dir "$kept" "$@" || exit 1; }
stop() {
    kill -TERM "$server"
    wait "$server" 2>/dev/null
}
request() { # OPTION...: sets $cached; the answer is in $tmp/answer
    run "$load" -p "$port" -P /v1/completions -f "$tmp/body" -o "$tmp/got" "$@"
    sed 's/.*"choices":\(.*\),"usage".*/\1/' "$tmp/got" >"$tmp/answer"
    cached=$(grep -o '"cached_tokens":[0-9]*' "$tmp/got" | cut -d: -f2)
}
file() { find "$kept" -name '*.context'; }
body "$long"
serve
request
cp "$tmp/answer" "$tmp/first.answer"
check "nothing is kept yet" [ "$cached" = 0 ]
stop
check "a server that ends has kept its prompts" [ -n "$(file)" ]
check "... for its user alone" [ "$(stat -c %a "$kept") $(stat -c %a "$(file)")" = "700 600" ]
serve
request
check "the next server takes them over" [ "$cached" = 79 ]
check "... with the same answer" cmp -s "$tmp/answer" "$tmp/first.answer"
check "... and counts them" [ "$(served kept_prompt_hits_total) $(served kept_prompt_tokens_total)" = "1 79" ]
stop
body "$long$(sed 's/.*"text":"\([^"]*\)".*/\1/' "$tmp/first.answer") and more"
serve
request
check "... a longer prompt, as far as it goes" [ "$cached" -gt 80 ]
stop
check "a longer text takes the shorter one's place" [ "$(file | wc -l)" = 1 ]
cp "$(file)" "$tmp/good"
entry=$(file)
body "$long"

damaged() { # NAME LINE
    serve
    request
    check "$1: computed anew" [ "$cached" = 0 ]
    check "... with the same answer" cmp -s "$tmp/answer" "$tmp/first.answer"
    check "... and a line" grep -q "moe-serve: $kept/.*: $2" "$tmp/log"
    check "... one" [ "$(grep -c "$kept" "$tmp/log")" = 1 ]
    stop
}
printf X | dd of="$entry" bs=1 seek=9000 conv=notrunc 2>/dev/null
damaged "a damaged file" 'the context file is damaged: a checksum'
check "... which is gone" [ "$(file)" != "$entry" ]
rm -f "$kept"/*
head -c 5000 "$tmp/good" >"$entry"
damaged "a cut one" 'the context file is damaged: its size'
rm -f "$kept"/*
{
    head -c 4 "$tmp/good"
    printf '\011'
    tail -c +6 "$tmp/good"
} >"$entry"
damaged "one of another version" 'a context file of version 9, and this program reads version'
check "... which stays" [ -e "$entry" ]
rm -f "$kept"/*
echo mine >"$kept/notes.context"

printf 'sk-one\nsk-two\n' >"$tmp/keys"
chmod 600 "$tmp/keys"
serve --api-key-file "$tmp/keys"
request -H "Authorization: Bearer sk-one"
stop
printf 'sk-new\nsk-two\nsk-one\n' >"$tmp/keys"
serve --api-key-file "$tmp/keys"
request -H "Authorization: Bearer sk-two"
check "another key's prompt is not there" [ "$cached" = 0 ]
request -H "Authorization: Bearer sk-one"
check "the key's own is, in another place of the list" [ "$cached" = 79 ]
stop
check "two keys, two files" [ "$(find "$kept" -name '*-*.context' | wc -l)" = 2 ]

size=$(stat -c %s "$(find "$kept" -name '*-*.context' | head -1)")
serve --cache-size $((size * 3 / 2))
request
stop
check "--cache-size: the oldest go" [ "$(find "$kept" -name '*-*.context' | wc -l)" = 1 ]
check "... and what is no file of these stays" [ "$(cat "$kept/notes.context")" = mine ]
rm -f "$kept"/*
serve --cache-size 64K
request
stop
check "... a text that does not fit is not kept" [ -z "$(file)" ]

# Two servers with one directory.
serve
first=$server first_port=$port
serve
second=$server second_port=$port
for i in 1 2 3; do
    for port in $first_port $second_port; do
        body "$long $i"
        request
    done
    check "two servers answer $i" grep -q '"finish_reason"' "$tmp/got"
done
kill -TERM "$first" "$second"
wait "$first" "$second" 2>/dev/null
check "... and keep each text once" [ "$(file | wc -l)" = 3 ]
serve
request
check "... for a third" [ "$cached" -ge 80 ]
stop

if small_disk 200K; then
    kept=$disk/kept
    serve
    request
    body "$long, and so on, and on, until they fell asleep"
    request
    check "a full disk: answers all the same" grep -q '"finish_reason"' "$tmp/got"
    stop
    check "... and one line for both" [ "$(grep -c "$kept.*No space left" "$tmp/log")" = 1 ]
fi
run "$bin/moe-serve" "$tiny" --port 0 --cache-dir "$tmp/no/such"
error_line 1 "moe-serve: $tmp/no/such: cannot make the directory for prompts: No such file or directory" "a directory that cannot be"
finish
