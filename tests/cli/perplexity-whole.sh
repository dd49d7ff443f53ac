# moe-run --perplexity over a whole text: the figure of tests/data/nll.json.
. tests/cli/lib.sh
full=$tmp/full.moe
run "$bin/moe-quantize" -q -o "$full" --experts 16 --dense 16 "$checkpoint"
expect_exit 0 "a pack at full precision"
run "$bin/moe-run" -t 2 "$full" --perplexity tests/data/stories.valid.txt
expect_stdout_like 'nll 1.86[56][0-9] nats/token, 13145 tokens, 60 documents' \
    "stories.valid: the reference's figure"
finish
