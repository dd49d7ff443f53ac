# Checkpoints in place: a GGUF file and a Hugging Face directory run as the packs made of them do; files that change or
# are damaged.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
gguf=tests/fixtures/gguf/qwen2moe.gguf

# What a program says and decides, without what depends on the machine.
decided() { sed -E 's/ in [0-9.]+ s:.*//; /^(first token|weights|memory|energy| *one token|exact)/d; s/, [0-9.]+ [KM]iB read.*//' "$1"; }

"$bin/moe-quantize" -q -o "$tmp/gguf.moe" "$gguf"
"$bin/moe-quantize" -q -o "$tmp/hf.moe" --experts 16 --dense 16 "$checkpoint"
for kind in gguf hf; do
    case $kind in gguf) source=$gguf context=64 ;; *) source=$checkpoint context=256 ;; esac
    set -- -t 1 -c $context -p "Once upon a time" -n 8 --temp 0
    run "$bin/moe-run" "$tmp/$kind.moe" "$@"
    expected=$(base64 "$out")
    run "$bin/moe-run" "$source" "$@"
    check "$kind, resident: the pack's tokens" [ "$code $expected" = "0 $(base64 "$out")" ]
    least=$(smallest_memory "$bin/moe-run" "$source" "$@" --strategy lru)
    run "$bin/moe-run" "$source" "$@" --strategy lru --memory "${least}M" --stats-json "$json"
    check "... at the smallest budget too" [ "$code $expected" = "0 $(base64 "$out")" ]
    check "... where experts are read" some loads
done
for model in "$tmp/hf.moe" "$checkpoint"; do
    run "$bin/moe-run" "$model" "$@" --strategy fate --expert-memory 6M --lockstep --link-rate 1G --stats
    decided "$err" >"$tmp/decided.$(basename "$model" .moe)"
done
check "in lockstep experts are loaded" grep -q loads "$tmp/decided.hf"
check "... and every decision is the pack's" cmp -s "$tmp/decided.hf" "$tmp/decided.tiny-moe"

cp "$gguf" "$tmp/x.gguf"
run "$bin/moe-quantize" --verify "$tmp/x.gguf"
error_line 2 "moe-quantize: $tmp/x.gguf: has no checksums to verify*" "nothing to verify"
run "$bin/moe-plan" "$tmp/x.gguf" --memory 1G
expect_exit 0 "moe-plan plans it"
head -c 60000 "$gguf" >"$tmp/x.gguf"
run "$bin/moe-run" "$tmp/x.gguf" -p x
error_line 3 "moe-run: $tmp/x.gguf: *" "a file that is cut short"
run "$bin/moe-run" "$drawn/fp8-rows" -p x
error_line 3 "moe-run: $drawn/fp8-rows: tensor*cannot be used as it lies in the file; make a pack with 'moe-quantize $drawn/fp8-rows'" \
    "what would have to be rounded is refused, with the command to use"

# Where other programs keep models; names are found in any case of letters.
home=$tmp/home
hub=$home/.cache/huggingface/hub/models--org--Tiny/snapshots/abc
mkdir -p "$home/.lmstudio/models/who/Some-GGUF" "$home/.cache/llama.cpp" "$hub" "$home/.ollama/models/blobs" \
    "$home/.ollama/models/manifests/registry.ollama.ai/library/qwen"
cp "$gguf" "$home/.lmstudio/models/who/Some-GGUF/Twice.gguf"
cp "$gguf" "$home/.cache/llama.cpp/twice.gguf"
cp "$gguf" "$home/.ollama/models/blobs/sha256-12ab"
ln -s "$(cd "$checkpoint" && pwd)"/* "$hub"
echo '{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:12ab"}]}' \
    >"$home/.ollama/models/manifests/registry.ollama.ai/library/qwen/latest"
at_home() { run env -u HF_HOME -u HF_HUB_CACHE -u LLAMA_CACHE -u OLLAMA_MODELS HOME="$home" "$@"; }
at_home "$bin/moe-run" --list
expect_stdout_like "org/Tiny *MiB  Hugging Face: $hub
qwen:latest *ollama: $home/.ollama/models/blobs/sha256-12ab
twice *llama.cpp: *twice.gguf
Twice *LM Studio: *Twice.gguf" "models of other programs are listed"
at_home "$bin/moe-run" tiny -p "Once upon a time" -n 8 --temp 0 -t 1 -c 256
check "... and opened by their names" [ "$code $expected" = "0 $(base64 "$out")" ]
at_home "$bin/moe-run" qwen --ids hex
expect_stdout '258 120' "... those of ollama without their tag"
at_home "$bin/moe-run" twice -p x
error_line 2 "moe-run: 'twice' is the name of 2 models, name one: *twice.gguf, *Twice.gguf (see moe-run --help)" "a name of two is refused"
at_home "$bin/moe-run" who/some-gguf --ids hex
expect_stdout '258 120' "... the directory of one is its name, too"
at_home "$bin/moe-run" other -p x
error_line 1 "moe-run: other: cannot open: no such file, nor a model of that name*(see moe-run --list)" "... and that of none with what lists them"
at_home "$bin/moe-run" other.moe -p x
error_line 1 "moe-run: other.moe: cannot open: *" "... but for a file's"
sole=$home/.cache/huggingface/hub/models--org--Sole-GGUF/snapshots/abc
mkdir -p "$sole"
cp "$gguf" "$sole/sole-q8.gguf"
at_home "$bin/moe-run" org/Sole-GGUF --ids hex
expect_stdout '258 120' "a repository with one file is its name"
at_home "$bin/moe-run" Sole --ids hex
expect_stdout '258 120' "... or how it begins"
run "$bin/moe-run" "$sole" --ids hex
expect_stdout '258 120' "... and a directory with one its path"
ln -s nowhere "$sole/link.gguf"
mkfifo "$sole/pipe.gguf"
: >"$sole/empty.moe"
cp "$gguf" "$sole/part-00001-of-00002.gguf"
mkdir "$sole/pointers"
pointer='version https://git-lfs.github.com/spec/v1'
for file in pointer.gguf pointers/model.safetensors; do
    printf '%s\noid sha256:00\nsize 5\n' "$pointer" >"$sole/$file"
done
echo '{}' >"$sole/pointers/config.json"
run "$bin/moe-run" --list "$sole"
expect_stdout_like "sole-q8 *sole-q8.gguf" "what cannot be opened is not listed"
cp "$gguf" "$sole/other.gguf"
run "$bin/moe-run" "$sole" -p x
error_line 2 "moe-run: '$sole' holds 2 models, name one: *other.gguf, *sole-q8.gguf (see moe-run --help)" "a directory of two is refused"

# Files of a checkpoint that stand for others, and parts of it in its place.
cp -r "$checkpoint" "$tmp/clone"
printf '%s\noid sha256:00\nsize 5\n' "$pointer" >"$tmp/clone/tokenizer.json"
run "$bin/moe-run" "$tmp/clone" -p x
error_line 3 "moe-run: $tmp/clone/tokenizer.json: is a Git LFS pointer, *git lfs pull*" "a tokenizer that is a Git LFS pointer"
echo '<html>no</html>' >"$tmp/clone/config.json"
run "$bin/moe-run" "$tmp/clone" -p x
error_line 3 "moe-run: $tmp/clone/config.json: is a page in HTML*" "settings that are a page"
run "$bin/moe-run" "$checkpoint/config.json" -p x
error_line 3 "moe-run: $checkpoint/config.json: not an expert pack*but a text: if it belongs to a checkpoint, give the directory" "a file of a checkpoint's"
printf 'Entry not found' >"$tmp/x.gguf"
run "$bin/moe-run" "$tmp/x.gguf" -p x
error_line 3 "moe-run: $tmp/x.gguf: *download the file again" "a server's short message"
finish
