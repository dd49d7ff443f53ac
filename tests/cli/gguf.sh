# GGUF files as checkpoints: carried over, re-packed, run; damaged ones are refused in one line.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
sound=tests/fixtures/gguf/qwen2moe.gguf

run "$bin/moe-quantize" -t 1 -o "$tmp/x.moe" --experts 8,4 --dense 8 "$sound"
expect_exit 0 "a GGUF file becomes a pack"
expect_stderr_like '*of the source*s quantized weights 123072 carried over, 24576 quantized again*' \
    "... and the closing lines say what became of its codes"
run "$bin/moe-quantize" --list "$tmp/x.moe"
expect_stdout_like '*experts 8    carried *experts 4    blocks *' "... --list tells the variants apart"
run "$bin/moe-quantize" --list -v "$tmp/x.moe"
expect_stdout_like '*embed * q4 *32 * 259 x 64 *' "... and what has fewer bits keeps them"
run "$bin/moe-quantize" --verify "$tmp/x.moe"
expect_exit 0 "... it verifies"
run "$bin/moe-run" "$tmp/x.moe" --ids 'hex'
expect_stdout '258 120' "... the tokenizer came along"
run "$bin/moe-run" "$tmp/x.moe" -p hello -n 4 --temp 0
expect_exit 0 "... and it runs"
check "... with its chat template" sh -c "! grep -q template '$err'"
run "$bin/moe-quantize" -q -o "$tmp/y.moe" --experts 8 "$tmp/x.moe"
expect_exit 0 "the carried variant is re-packed"
run "$bin/moe-quantize" --list "$tmp/y.moe"
expect_stdout_like '*experts 8    carried *' "... as it is"

run "$bin/moe-quantize" -o "$tmp/own.moe" "$sound"
expect_exit 0 "without bits the file keeps its own"
expect_stderr_like '*98496 carried over, 0 quantized again' "... nothing is rounded, and the last line says so"
run "$bin/moe-quantize" --list "$tmp/own.moe"
expect_stdout_like '*experts map  carried *' "... each expert has the bits of its matrices"
run "$bin/moe-run" "$tmp/own.moe" -p hello -n 4 --temp 0
expect_exit 0 "... and it runs"
run "$bin/moe-quantize" -o "$tmp/own.moe" --experts 4 "$sound"
expect_stderr_like '*24576 quantized again
*: 1 ffn_gate_exps: Q8_0 -> 4 bits, error *%
*: 1 ffn_down_exps: Q5_0 -> 4 bits, error *%' "with bits, what was rounded again is named last"
check "... and nothing of the dense part" sh -c "! grep -q attn '$err'"
run "$bin/moe-quantize" -o "$tmp/own.moe" --dense 4 "$sound"
expect_stderr_like '*2 attn_v: F16 -> 4 bits, error *%*' "bits of the dense part are for that alone"
check "... the experts keep theirs" sh -c "! grep -q _exps '$err'"
run "$bin/moe-quantize" -t 1 -o "$tmp/own.moe" --method gptq --text tests/data/math.calib.txt --max-tokens 8 --max-windows 1 \
    --dense 4 "$sound"
expect_exit 0 "with method gptq too"
check "... the experts keep theirs" sh -c "'$bin/moe-quantize' --list '$tmp/own.moe' | grep -q 'map  *carried'"

run sh -c "cp '$sound' '$tmp/model.gguf' && cd '$tmp' && '$PWD/$bin/moe-quantize' -q model.gguf"
expect_exit 0 "the pack is named after the file"
check "... without its ending" test -f "$tmp/model.moe"
run "$bin/moe-quantize" -q -o "$tmp/model.gguf" "$tmp/model.gguf"
expect_exit 2 "the input itself is not overwritten"

refused() { # FILE GLOB NAME
    echo old >"$tmp/x.moe"
    run "$bin/moe-quantize" -q -t 1 -o "$tmp/x.moe" "$1"
    if [ "$(cat "$tmp/x.moe")" != old ] || [ "$(ls "$tmp"/x.moe*)" != "$tmp/x.moe" ]; then
        result 1 "$3: the old output is lost, or something is left over"
        return
    fi
    error_line 3 "moe-quantize: $2" "$3"
}
# Replaces an extended expression (the same number of bytes).
edit() { # EXPRESSION
    LC_ALL=C sed -E "$1" "$sound" >"$tmp/bad.gguf"
    if cmp -s "$tmp/bad.gguf" "$sound"; then result 1 "the file has nothing like $1"; fi
}
bytes=$(wc -c <"$sound")
for n in 4 8 23 24 100 2000 8000 9500 $((bytes / 2)) $((bytes - 1)); do
    head -c "$n" "$sound" >"$tmp/bad.gguf"
    refused "$tmp/bad.gguf" '*cut short?*' "cut to $n bytes"
done
edit 's/^GGUF\x03/GGUF\x01/'
refused "$tmp/bad.gguf" '*GGUF version 1; versions 2 and 3 are read' "version 1"
edit 's/^GGUF\x03\x00\x00\x00/GGUF\x00\x00\x00\x03/'
refused "$tmp/bad.gguf" '*big-endian*' "a big-endian file"
edit '1,/qwen2moe/s/qwen2moe/qwen9moe/'
refused "$tmp/bad.gguf" "*architecture 'qwen9moe' is not implemented*" "an unknown architecture"
edit 's/qwen2moe\.block_count/qwen2moe.clock_bount/'
refused "$tmp/bad.gguf" "*key 'qwen2moe.block_count' is missing" "a missing key"
edit 's/blk\.1\.attn_k\.weight/blk.1.attn_z.weight/'
refused "$tmp/bad.gguf" "*tensor 'blk.1.attn_k.weight' * is missing" "a missing tensor"
edit 's/blk\.1\.attn_k\.bias/blk.1.attn_v.bias/'
refused "$tmp/bad.gguf" "*tensor 'blk.1.attn_v.bias' occurs twice" "a tensor twice"
edit 's/tokenizer\.ggml\.model/tokenizer.ggml.nodel/'
refused "$tmp/bad.gguf" "*tokenizer.ggml.model*" "no tokenizer"
refused tests/fixtures/gguf/types.gguf "*architecture 'test' is not implemented*" "no model at all"
finish
