# --prompt-cache: a prompt's context kept on disk changes no answer, is used as far as it goes, grows with
# the prompt, and is refused where it is damaged, of another pack or computed another way.
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
"$bin/moe-quantize" -q -t 1 --experts 2 -o "$tmp/two.moe" "$checkpoint" || exit 1
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
finish
