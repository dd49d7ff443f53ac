# moe-run --perplexity in both forms, on the bundled model at full precision, and the log of tokens.
. tests/cli/lib.sh
full=$tmp/full.moe
run "$bin/moe-quantize" -q -o "$full" --experts 16 --dense 16 "$checkpoint"
expect_exit 0 "a pack at full precision"
# The first documents keep the test short.
awk '/^<\|endoftext\|>$/ { if (++n == 6) exit } { print }' tests/data/stories.valid.txt >"$tmp/text"

run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/text" --token-log "$tmp/log" --logits "$tmp/logits"
expect_exit 0 "--perplexity exits with 0"
expect_stdout_like 'nll [0-9].[0-9][0-9][0-9][0-9] nats/token, [0-9]* tokens, 6 documents' \
    "--perplexity prints the line"
expect_stderr_lines 0 "--perplexity is silent on stderr"
line=$(cat "$out")
tokens=$(echo "$line" | sed 's/.*token, \([0-9]*\) tokens.*/\1/')
check "--token-log has a line per token" [ "$(wc -l <"$tmp/log")" = "$tokens" ]
mean=$(awk '{ sum += $1 } END { printf "%.4f", sum / NR }' "$tmp/log")
check "... whose mean is the figure" [ "${line#nll "$mean" }" != "$line" ]
run "$bin/moe-run" -t 2 "$full" --perplexity "$tmp/text" --batch 7 --against "$tmp/logits"
expect_stdout "$line, divergence 0.00000 +- 0.00000 nats, same top token 100.00%" \
    "threads and batch size change nothing, and predictions are those that --logits wrote"
run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/text" --prompt-share 25% \
    --stats-json "$tmp/share.json"
expect_stdout "$line" "a document decoded token by token costs the same"
decoded=$(awk '/"decode": {/ { on = 1 } on && /"tokens"/ { gsub(/[^0-9]/, ""); print; exit }' \
    "$tmp/share.json")
check "... three quarters of it" [ "$decoded" -ge $((tokens * 7 / 10)) ] &&
    check "... and no more" [ "$decoded" -le $((tokens * 8 / 10)) ]
run "$bin/moe-run" "$full" -p x --prompt-share 25%
error_line 2 'moe-run: option --prompt-share goes with --perplexity*' "--prompt-share without a text"
pack
run "$bin/moe-run" -t 1 "$tiny" --perplexity "$tmp/text" --json --against "$tmp/logits" --token-log "$tmp/log"
expect_stdout_like "{\"nll\": *\"tokens\": $tokens, \"documents\": 6, \"divergence\": 0.0*, \"divergence_error\": 0.0*, \"same_top\": 0.9*}" "--json, another pack's divergence"
mean=$(awk '{ sum += $3 } END { printf "%.5f", sum / NR }' "$tmp/log")
check "... is the mean of --token-log's ($mean)" grep -q "\"divergence\": $mean" "$out"
head -c 100000 "$tmp/logits" >"$tmp/short"
for against in short text none; do
    run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/text" --max-doc-tokens 64 --against "$tmp/$against"
    case $against in
        short) error_line 2 "moe-run: */short: has predictions of fewer tokens than these texts" "predictions cut off" ;;
        text) error_line 3 "moe-run: */text: *not a file of moe-run --logits*" "another file" ;;
        none) error_line 1 "moe-run: */none: *" "no such file" ;;
    esac
done
{ head -c 42 "$tmp/logits"; printf '\377\377'; tail -c +45 "$tmp/logits"; } >"$tmp/damaged"
run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/text" --against "$tmp/damaged"
error_line 3 "moe-run: */damaged: is damaged: make it again with --logits" "a prediction that is none"
run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/text" --max-doc-tokens 9 --against "$tmp/logits"
error_line 2 "moe-run: */logits: has predictions of other texts, or of other windows of them" "other windows"
run "$bin/moe-run" "$full" --perplexity "$tmp/text" --against "$tmp/logits" --logits "$tmp/x"
error_line 2 'moe-run: options --logits and --against exclude each other*' "--logits and --against"
run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/text" --max-doc-tokens 9 --max-windows 1
expect_stdout_like 'nll * 48 tokens, 6 documents' "--max-windows leaves out what follows"
all=$tokens # no document is longer than 256
expect_stderr_like "moe-run: * of $all tokens (*%) of the texts were left out, in 6 documents: --max-windows N takes more of each" "... in numbers"
run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/text" --max-doc-tokens 9
expect_stdout_like "nll * $all tokens, * documents" "--max-doc-tokens cuts into windows: every token is predicted"
expect_stderr_lines 0 "... and none left out"
run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/text" --window 9 --max-windows 1
error_line 2 'moe-run: options --window and --max-windows exclude each other*' "windows of two kinds"
run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/text" --window 64
expect_stdout_like 'nll * windows' "--window counts windows"
run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/text" --window 4000
error_line 2 'moe-run: *' "a window beyond the model's context"
: >"$tmp/empty"
run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/empty"
error_line 3 'moe-run: *empty*' "a file without text"
run "$bin/moe-run" -t 1 "$full" --perplexity "$tmp/none"
error_line 1 'moe-run: *none*' "a file that is not there"

# A model whose logits overflow.
mkdir "$tmp/wild"
cp "$drawn"/granitemoe/*.json "$drawn"/granitemoe/*.safetensors "$tmp/wild"
sed -E 's/("logits_scaling":) [^,]*/\1 1e-38/' "$drawn/granitemoe/config.json" >"$tmp/wild/config.json"
"$bin/moe-quantize" -q -t 1 -o "$tmp/wild/wild.moe" "$tmp/wild"
for json in '' --json; do
    # shellcheck disable=SC2086
    run "$bin/moe-run" -t 1 "$tmp/wild/wild.moe" --perplexity "$tmp/text" --max-doc-tokens 30 $json
    error_line 3 "moe-run: */wild.moe: the cost of */text is not a number: *" \
        "a cost that is not a number${json:+, }$json"
done
finish
