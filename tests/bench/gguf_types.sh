#!/bin/sh
# Files of ggml's types beside llama.cpp or ik_llama.cpp: bytes of file and pack, nats per token, tokens/s of decoding.
#
#   LLAMA=DIR QUANTIZE=PROGRAM tests/bench/gguf_types.sh TEXT [TYPE]...
#
# DIR has its shared libraries, and llama.h and its kin in DIR/include; PROGRAM is its llama-quantize. The bundled
# model is widened to rows of 768 and 256 (write_gguf, f16), then quantized to each TYPE (iq1_s to iq3_s, iq4_xs, q2_k)
# with an importance of 1 for all columns (PYTHON has the gguf package), which types below 2 bits insist on. MODEL=FILE
# is a .gguf file to quantize instead, without importance. TEXT, a text without ends of documents, is cut into windows
# of WINDOW (500) tokens, WINDOWS (9) of them: all of one text on both sides, so that the nats differ by what the peer
# rounds activations to, q8_K, where here blocks of 32 columns have a scale; "of f32" are the peer's nats of the same
# weights made f32, where activations are not rounded. Rates are medians of ROUNDS (3) runs in turn with THREADS (all
# cores). Other work changes rates, of llama.cpp's with several threads most of all, since these wait for each other
# busily; bytes and nats stay.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
text=$1
shift
work=${WORK:-$BUILD/bench/types}
python=${PYTHON:-python3}
window=${WINDOW:-500}
threads=${THREADS:-$(nproc)}
mkdir -p "$work"
export LD_LIBRARY_PATH="$LLAMA"
from=${MODEL:-$work/f16.gguf}
if [ ! -e "$from" ]; then
    "$BUILD/tests/tools/widen" --hidden 4 --ff 4 --heads 4 "$BUILD/models/tiny-moe" "$work/wide"
    "$BUILD/tests/tools/write_gguf" --type f16 "$work/wide" "$from" >/dev/null
    "$python" - "$from" "$work/importance" <<'END'
import struct, sys, gguf
out = []
for t in gguf.GGUFReader(sys.argv[1]).tensors:
    if len(t.shape) > 1:
        n = int(t.shape[0]) * (int(t.shape[2]) if len(t.shape) > 2 else 1)
        name = t.name.encode()
        out.append(struct.pack("<i", len(name)) + name + struct.pack("<ii", 1, n) + struct.pack(f"<{n}f", *[1.0] * n))
open(sys.argv[2], "wb").write(struct.pack("<i", len(out)) + b"".join(out))
END
fi
# llama.cpp's side: mean nats of windows, then tokens/s of decoding 64 tokens after the first window.
cat >"$work/peer.c" <<'END'
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "llama.h"
#ifdef IK /* ik_llama.cpp has the interface of 2024 */
#define CLEAR(x) llama_kv_cache_clear(x)
#define TOKENIZER(model) (model)
#define WITHOUT_FLASH(params) ((params).flash_attn = false, (params).type_v = GGML_TYPE_F16) /* no f32 without it */
#else
#define CLEAR(x) llama_memory_clear(llama_get_memory(x), true)
#define TOKENIZER(model) llama_model_get_vocab(model)
#define WITHOUT_FLASH(params) ((params).flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED)
#endif
static void quiet(enum ggml_log_level level, const char *text, void *user) { (void)level; (void)text; (void)user; }
static double seconds(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
static llama_token ids[1 << 20];
static char text[1 << 21];
int main(int argc, char **argv)
{
    int window = atoi(argv[3]), windows = atoi(argv[4]), threads = atoi(argv[5]);
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model *m = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = window + 80, cp.n_batch = cp.n_ubatch = window, cp.n_threads = cp.n_threads_batch = threads;
    cp.type_k = cp.type_v = GGML_TYPE_F32, WITHOUT_FLASH(cp);
    struct llama_context *x = m ? llama_init_from_model(m, cp) : NULL;
    FILE *f = fopen(argv[2], "rb");
    if (argc < 6 || !x || !f)
        return 1;
    const struct llama_vocab *vocab = llama_model_get_vocab(m);
    int n_vocab = llama_vocab_n_tokens(vocab), n = 0;
    int bytes = (int)fread(text, 1, sizeof text, f);
    int all = llama_tokenize(TOKENIZER(m), text, bytes, ids, 1 << 20, false, false);
    double sum = 0;
    struct llama_batch b = llama_batch_init(window, 0, 1);
    /* The separator of documents that windows begin with here, whatever the file calls its first token. */
    llama_token first = llama_vocab_eos(vocab);
    if (llama_tokenize(TOKENIZER(m), "<|endoftext|>", 13, ids + all, 8, false, true) == 1)
        first = ids[all];
    for (int w = 0; w < windows && (w + 1) * (window - 1) <= all; w++) {
        llama_token *of = ids + w * (window - 1) - 1; /* behind the token that windows begin with */
        CLEAR(x);
        for (b.n_tokens = 0; b.n_tokens < window; b.n_tokens++) {
            int i = b.n_tokens;
            b.token[i] = i ? of[i] : first, b.pos[i] = i, b.n_seq_id[i] = 1, b.seq_id[i][0] = 0, b.logits[i] = 1;
        }
        if (llama_decode(x, b))
            return 2;
        for (int i = 0; i + 1 < window; i++, n++) {
            const float *l = llama_get_logits_ith(x, i);
            double most = l[0], total = 0;
            for (int k = 1; k < n_vocab; k++)
                most = l[k] > most ? l[k] : most;
            for (int k = 0; k < n_vocab; k++)
                total += exp(l[k] - most);
            sum += most + log(total) - l[of[i + 1]];
        }
    }
    double start = seconds();
    for (int i = 0; i < 64; i++) {
        b.n_tokens = 1, b.token[0] = ids[i], b.pos[0] = window + i;
        if (llama_decode(x, b))
            return 2;
    }
    printf("%.4f %.1f\n", sum / n, 64 / (seconds() - start));
    return 0;
}
END
! grep -q llama_kv_cache_clear "$LLAMA/include/llama.h" || ik=-DIK
${CC:-cc} -O2 -w ${ik:+"$ik"} -I"$LLAMA/include" "$work/peer.c" -o "$work/peer" -L"$LLAMA" -lllama -lm \
    -Wl,--unresolved-symbols=ignore-in-shared-libs
quantize() { # FILE TYPE
    if [ -n "${MODEL:-}" ]; then
        set -- --allow-requantize --pure --token-embedding-type q8_0 "$MODEL" "$@"
    else
        set -- --imatrix "$work/importance" --pure --token-embedding-type f16 --output-tensor-type f16 "$from" "$@"
    fi
    "$QUANTIZE" "$@" "$(nproc)" >"$work/$type.log" 2>&1
}
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
[ $# -gt 0 ] || set -- iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq4_xs q2_k q3_k_s
windows=${WINDOWS:-9}
echo "type       file      pack  nats here       peer  of f32  tokens/s here       peer"
for type; do
    file=$work/$type.gguf pack=$work/$type.moe
    [ -e "$file" ] || quantize "$file" "$(echo "$type" | tr '[:lower:]' '[:upper:]')"
    [ -e "$pack" ] || "$BUILD/bin/moe-quantize" -q "$file" -o "$pack"
    here=$("$BUILD/bin/moe-run" -q "$pack" --perplexity "$text" --max-doc-tokens "$window" --max-windows "$windows" \
        --json 2>/dev/null | sed 's/.*"nll": \([0-9.]*\).*/\1/')
    : >"$work/ours"
    : >"$work/theirs"
    for round in $(seq "${ROUNDS:-3}"); do
        "$BUILD/bin/moe-run" -q -t "$threads" "$pack" --bench --bench-runs 1 --json -n 64 --prompt-tokens 64 2>/dev/null |
            sed 's/.*"decode_tokens_per_s": {"median": \([0-9.]*\).*/\1/' >>"$work/ours"
        "$work/peer" "$file" "$text" "$window" "$([ "$round" = 1 ] && echo "$windows" || echo 1)" "$threads" >"$work/peer.out"
        [ "$round" -gt 1 ] || peer_nats=$(cut -d' ' -f1 "$work/peer.out")
        cut -d' ' -f2 "$work/peer.out" >>"$work/theirs"
    done
    "$QUANTIZE" --allow-requantize --pure "$file" "$work/f32.gguf" F32 >"$work/$type.log" 2>&1
    exact=$("$work/peer" "$work/f32.gguf" "$text" "$window" "$windows" "$threads" | cut -d' ' -f1)
    printf '%-8s %9d %9d %10s %10s %7s %14s %10s\n' "$type" "$(stat -c %s "$file")" "$(stat -c %s "$pack")" "$here" \
        "$peer_nats" "$exact" "$(median <"$work/ours")" "$(median <"$work/theirs")"
done
