# The trained model with an encoder says what transformers computed with its weights (its reference.json, where the
# logits are; here the texts), whatever computes it.
. tests/cli/lib.sh
model=$tmp/tiny-switch.moe
run "$bin/moe-quantize" tests/models/tiny-switch -o "$model" --experts 16 --dense 16
expect_exit 0 "moe-quantize takes tiny-switch"

says() { # SOURCE ANSWER OPTION...
    source=$1
    answer=$2
    shift 2
    run "$bin/moe-run" -t 1 "$model" -p "$source" -n 48 --temp 0 "$@"
    expect_exit 0 "'$source' $*"
    expect_stdout "$answer" "'$source' $*: the reference's answer"
}
says 'sum: 3 + 97' '100'
says 'sum: 9 + 4' '10'
says 'last: They picked some flowers.' 'They saw many toys.'
says 'lower: AND LET THE KNIGHT PASS.' 'and the light. the fappender'
says 'sort: so choice' 'coot so warm soice so'
says 'sort: sea feet flowers thee' 'flowers the string feet' --cpu scalar
says 'sum: 3 + 97' '100' --batch 1 --strategy sti
finish
