#!/bin/sh
# A model that is not here, rehearsed: packs of drawn weights, what they are called, what is refused.
. tests/cli/lib.sh
shape=$checkpoint/config.json
drawn=$tmp/drawn.moe
words='its weights were drawn by moe-quantize --synthesize'

run "$bin/moe-quantize" --synthesize "$shape" -o "$drawn"
expect_exit 0 "a description becomes a pack"
expect_stderr_like '*384 experts at 4 bits*drawn weights*' "... and is called what it is"
run "$bin/moe-quantize" --verify "$drawn"
expect_exit 0 "its checksums hold"
run "$bin/moe-quantize" --list "$drawn"
expect_stdout_like '*weights    drawn by --synthesize*drawn *' "a list says that its weights were drawn"
run "$bin/moe-quantize" --list --json "$drawn"
expect_stdout_like '*"synthesized": true*' "... and as JSON"
run "$bin/moe-plan" --explain "$drawn"
expect_stdout_like '*Its weights were drawn*' "moe-plan says so"
run "$bin/moe-plan" "$drawn" --memory 30M --device-profile profiles/apple-m2.yaml -o "$tmp/plan.yaml"
expect_exit 0 "it can be planned for"
check "a plan says so" grep -q 'drawn.moe (drawn weights)' "$tmp/plan.yaml"
run "$bin/moe-run" "$drawn" --bench -n 4 --prompt-tokens 8 --stats --stats-json "$json"
expect_exit 0 "it can be measured"
expect_stderr_like '*weights  drawn*' "statistics say so"
check "... and as JSON" grep -q '"synthesized": true' "$json"

run "$bin/moe-run" "$drawn" -p hello -n 4
error_line 2 "*$words*--bench*" "moe-run writes no text"
run "$bin/moe-run" "$drawn" --show-prompt -p hello
error_line 2 "*$words*" "... nor a prompt"
run "$bin/moe-run" "$drawn" --perplexity tests/data/stories.valid.txt
error_line 2 "*$words*" "... nor judges one"
run "$bin/moe-profile" "$drawn" --text tests/data/stories.valid.txt -o "$tmp/s.yaml"
error_line 2 "*$words*" "moe-profile measures no text"
run "$bin/moe-calibrate" "$drawn" --text tests/data/stories.valid.txt -o "$tmp/m.yaml"
error_line 2 "*$words*" "nor does moe-calibrate"

run "$bin/moe-quantize" --synthesize "$shape" --sparse -o "$tmp/sparse.moe"
expect_stderr_like '*drawn weights (sparse)*' "sparse is said"
check "... and takes less room" [ "$(du -k "$tmp/sparse.moe" | cut -f1)" -lt \
    "$(($(du -k "$drawn" | cut -f1) / 2))" ]
run "$bin/moe-quantize" --synthesize "$shape" --zstd 3 -o "$tmp/x.moe"
error_line 2 '*--synthesize and --zstd exclude each other*' "drawn weights are not compressed"
run "$bin/moe-quantize" --sparse "$checkpoint" -o "$tmp/x.moe"
error_line 2 '*go with --synthesize*' "a checkpoint is not sparse"
run "$bin/moe-quantize" --synthesize "$shape" "$checkpoint"
error_line 2 '*takes a description*' "a description and a checkpoint are too much"
head -c 200 "$shape" >"$tmp/cut.json"
run "$bin/moe-quantize" --synthesize "$tmp/cut.json" -o "$tmp/x.moe"
error_line 3 "*$tmp/cut.json*" "a damaged description is named"
check "nothing is left of it" [ ! -e "$tmp/x.moe" ]
finish
