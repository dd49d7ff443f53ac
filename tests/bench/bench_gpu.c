/*
 * A GPU against its own limits, all from one run:
 *
 *   device    copies inside it and from page-locked host memory: what the rest is compared with
 *   decode    products for 1 to 8 inputs in bytes of weights per second
 *   layer     a layer of decoding in the launches that a model makes
 *   prompts   products for 512 and 2048 inputs against bf16 by cuBLAS
 *   attention one row over caches of 1024 to 32768 positions, in bytes per second
 *   overlap   an expert's upload beside computation, with a timeline
 *   launches  kernels asked for one by one against the same recorded as a graph
 *   a model   tokens/s, all experts in GPU memory (as a graph, and launch by launch), then 10, 25,
 *             50 and 100% of them by ondemand, fate, hobbit, daop and prefetch
 *
 *     bench_gpu [--smoke] [PACK [--statistics FILE] [--text FILE]]
 *
 * Times are the device's own, between two timed marks around so much work that it takes 5 ms or
 * more; each figure is the median of 9 runs (3 with a model), +- half the way between their ends.
 * Weights and caches are taken in turn from more memory than any device's cache has. Without a
 * device it says so in one line and ends.
 *
 * --smoke: tiny shapes and one run, on the tests' shim (build/shim/tests/bench/bench_gpu); the exit
 * status is 1 unless every figure is a positive number. Its figures mean nothing.
 *
 * The model of 14 GB is the bundled one, widened 16 times and its experts 64 times, at 4 bits with
 * 2 as second precision (tests/bench/gpu.sh makes it; 50 GB of disk meanwhile):
 *
 *     widen --hidden 16 --ff 64 build/models/tiny-moe DIR/model
 *     moe-quantize --method rtn --experts 4,2 -o DIR/42.moe DIR/model
 *     moe-profile DIR/42.moe --text tests/data/stories.calib.txt --max-tokens 96 -o DIR/stats.yaml
 *     bench_gpu DIR/42.moe --statistics DIR/stats.yaml --text tests/data/stories.valid.txt
 */
#include "base/par.h"
#include "gpu_layer.h"
#include "gpu_model.h"
#include "gpu_streams.h"
#include "kern/kern.h"

enum { RUNS = 9, COLD_BYTES = 512 << 20, SMOKE_COLD_BYTES = 1 << 16 };

static int open_bench(struct bench *b, struct moe_err *err)
{
    b->n_runs = b->smoke ? 1 : RUNS;
    b->cold_bytes = b->smoke ? SMOKE_COLD_BYTES : COLD_BYTES;
    b->random = moe_alloc(RANDOM_BYTES, 1, err);
    int status = b->random ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        draw_random(b->random, RANDOM_BYTES);
    for (int i = 0; i < N_MARKS && status == MOE_OK; i++)
        status = moe_gpu_mark_open(&b->marks[i], b->gpu, true, err);
    return status;
}

static void close_bench(struct bench *b)
{
    for (int i = 0; i < N_MARKS; i++)
        moe_gpu_mark_close(b->marks[i]);
    moe_gpu_close(b->gpu);
    free(b->random);
}

/* What needs no model. */
static int bench_kernels(struct bench *b)
{
    const struct moe_gpu_info *info = moe_gpu_info(b->gpu);
    printf("%s: compute capability %d.%d, %d processors, %.1f GB, CUDA %s\n", info->name,
           info->compute_major, info->compute_minor, info->n_processors,
           (double)info->memory_bytes * 1e-9, moe_gpu_build());
    void (*const sections[])(struct bench *) = {bench_device,  bench_decode,    bench_layer,
                                                bench_prompts, bench_attention, bench_overlap,
                                                bench_launches};
    for (size_t i = 0; i < sizeof sections / sizeof *sections && well(b); i++)
        sections[i](b);
    return b->err.status;
}

static bool parse(int argc, char **argv, struct bench *b, struct model_bench *m)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--smoke") == 0)
            b->smoke = true;
        else if (strcmp(argv[i], "--statistics") == 0 && i + 1 < argc)
            m->statistics_path = argv[++i];
        else if (strcmp(argv[i], "--text") == 0 && i + 1 < argc)
            m->text_path = argv[++i];
        else if (argv[i][0] != '-' && !m->pack)
            m->pack = argv[i];
        else
            return false;
    }
    return true;
}

static int run(struct bench *b, struct model_bench *m, struct moe_err *err)
{
    int status = open_bench(b, err);
    if (status == MOE_OK) {
        status = bench_kernels(b);
        *err = b->err;
    }
    close_bench(b); /* and its memory is the model's */
    if (status == MOE_OK)
        status = moe_kern_select(moe_cpu_detect(), err);
    if (status != MOE_OK || !m->pack)
        return status;
    moe_par_set_threads(moe_cores_available());
    m->n_prompt = m->n_decode = b->smoke ? 2 : 64;
    return bench_model(b, m, err);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct model_bench m = {0};
    struct moe_err err = {0};
    if (!parse(argc, argv, &b, &m)) {
        fprintf(stderr, "usage: bench_gpu [--smoke] [PACK [--statistics FILE] [--text FILE]]\n");
        return 2;
    }
    if (moe_gpu_open(&b.gpu, 0, &err) != MOE_OK) {
        printf("nothing is measured: %s\n", err.text);
        return b.smoke;
    }
    int status = run(&b, &m, &err);
    if (status != MOE_OK)
        fprintf(stderr, "bench_gpu: %s\n", err.text);
    printf("\n%u sections, %u figures, %u of them no positive number\n", b.n_sections, b.n_figures,
           b.n_wrong);
    return status != MOE_OK || b.n_wrong > 0;
}
