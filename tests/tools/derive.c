/*
 * derive: a collection of experts from one model, for tests and benchmarks of many models.
 *
 *     derive [OPTION]... SRC_DIR OUT_DIR
 *
 * Writes OUT_DIR/c000.moe, c001.moe, ... (first stage), d000.moe, ... (second stage),
 * collection.yaml (moe-coe(5)) and requests.jsonl. Every weight of every matrix of a pack is the
 * source's (bf16) times 1 + noise, drawn anew for each pack: models of one shape that speak about
 * as well, say different things, and share no byte of their matrices. The same options give the
 * same files.
 *
 * Requests name a component, "c000" and so on, whose expert they go to. How many there are of each
 * falls by a power law, as component types of a circuit board do (CoServe 4.5, figure 11). The
 * results of a share of the experts go on to one of the second stage, which several have in common
 * (5.1).
 *
 *     --experts N    of the first stage (4)           --checks N      of the second (0)
 *     --follow P     experts that go on (50%)         --passes REGEX  results that do (all)
 *     --requests N   (40)                             --skew S        number ~ 1 / rank^S (1)
 *     --words N      of a prompt at most (12)         --tokens N      of an answer at most (16)
 *     --text FILE    prompts are pieces of it         --second DIR    model of the second stage
 *     --noise P      relative, deviation (4%)         --bits N        of matrices (8)
 *     --seed N       (1)
 */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/text.h"
#include "fmt/checkpoint.h"
#include "kern/kern.h"
#include "pack/convert.h"
#include "serve/coe_collection.h"

enum { MAX_EXPERTS = 999, WEIGHTS = 1 << 20, MAX_TEXT = 64 << 20 };

struct deriving {
    uint64_t experts, checks, requests, words, tokens, bits, seed;
    double follow, skew, noise;
    const char *passes, *text, *src, *second, *dst;
};

/* 0 <= x < 1. */
static double draw(uint64_t *state)
{
    return (double)(moe_random_next(state) >> 11) * 0x1p-53;
}

/* ---- A checkpoint with noise ---- */

static void add_noise(uint8_t *weights, uint64_t n, double noise, uint64_t *state)
{
    const float step = (float)(noise * sqrt(3) / 32768); /* uniform: from -sqrt(3) to sqrt(3) */
    uint64_t bits = 0;
    for (uint64_t i = 0; i < n; i++) {
        bits = i % 4 ? bits >> 16 : moe_random_next(state);
        float w = moe_bf16_to_f32(moe_get_u16(weights + 2 * i));
        w *= 1 + step * (float)((int32_t)(bits & 0xffff) - 32768);
        moe_put_u16(weights + 2 * i, moe_f32_to_bf16(w));
    }
}

/* The length and JSON header of model.safetensors; all tensors follow one another. */
static int put_header(const struct moe_checkpoint *ck, struct moe_buf *header, struct moe_err *err)
{
    struct moe_buf json = {0};
    uint64_t at = 0;
    moe_buf_text(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck); i++) {
        const struct moe_tensor *t = moe_checkpoint_at(ck, i);
        if (t->dtype != MOE_DTYPE_BF16) {
            moe_buf_release(&json);
            return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: tensor '%s' is not bf16",
                            moe_checkpoint_dir(ck), t->name);
        }
        moe_buf_printf(&json, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[", t->name);
        for (int d = 0; d < t->n_dims; d++)
            moe_buf_printf(&json, "%s%" PRIu64, d ? "," : "", t->dims[d]);
        moe_buf_printf(&json, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t->bytes);
        at += t->bytes;
    }
    moe_buf_text(&json, "}");
    while (json.size % 8 && !json.failed)
        moe_buf_text(&json, " ");
    moe_buf_u64(header, json.size);
    moe_buf_append(header, json.data, json.size);
    bool failed = json.failed || header->failed;
    moe_buf_release(&json);
    return failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

static int put_tensors(const struct moe_checkpoint *ck, double noise, uint64_t *state,
                       struct moe_outfile *out, uint64_t at, struct moe_err *err)
{
    uint8_t *weights = moe_alloc(WEIGHTS, 2, err);
    int status = weights ? MOE_OK : MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck) && status == MOE_OK; i++) {
        const struct moe_tensor *t = moe_checkpoint_at(ck, i);
        for (uint64_t first = 0; first < t->n_items && status == MOE_OK; first += WEIGHTS) {
            uint64_t n = t->n_items - first < WEIGHTS ? t->n_items - first : WEIGHTS;
            status = moe_checkpoint_read_blocks(ck, t, first, n, weights, err);
            if (status == MOE_OK && t->n_dims > 1)
                add_noise(weights, n, noise, state);
            if (status == MOE_OK)
                status = moe_outfile_write(out, weights, 2 * n, at, err);
            at += 2 * n;
        }
    }
    free(weights);
    return status;
}

static int write_weights(const struct moe_checkpoint *ck, double noise, uint64_t seed,
                         const char *dir, struct moe_err *err)
{
    struct moe_buf header = {0};
    struct moe_outfile out;
    char *path = moe_path_join(dir, "model.safetensors", err);
    int status = path ? put_header(ck, &header, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_outfile_open(&out, path, err);
    if (status == MOE_OK) {
        status = moe_outfile_write(&out, header.data, header.size, 0, err);
        if (status == MOE_OK)
            status = put_tensors(ck, noise, &seed, &out, header.size, err);
        status = moe_outfile_end(&out, status, err);
    }
    moe_buf_release(&header);
    free(path);
    return status;
}

/* Calls fn with the name and path of every file in dir that is not hidden. */
static int each_file(const char *dir, int (*fn)(const char *name, const char *path, const char *to),
                     const char *to, struct moe_err *err)
{
    DIR *d = opendir(dir);
    int status = d ? MOE_OK : moe_fail(err, MOE_ERR_IO, "%s: %s", dir, strerror(errno));
    for (struct dirent *e; status == MOE_OK && (e = readdir(d));) {
        char *path = e->d_name[0] == '.' ? NULL : moe_path_join(dir, e->d_name, err);
        if (path && fn(e->d_name, path, to) != 0)
            status = moe_fail(err, MOE_ERR_IO, "%s: %s", path, strerror(errno));
        free(path);
    }
    if (d)
        closedir(d);
    return status;
}

/* Configuration and tokenizer are the source's own. */
static int link_file(const char *name, const char *path, const char *to)
{
    struct moe_err ignored;
    if (strstr(name, ".safetensors"))
        return 0;
    char *real = realpath(path, NULL), *link = moe_path_join(to, name, &ignored);
    int status = real && link ? symlink(real, link) : -1;
    free(real);
    free(link);
    return status;
}

static int remove_file(const char *name, const char *path, const char *to)
{
    (void)name, (void)to;
    return unlink(path);
}

/* dir is a checkpoint while its pack is made. */
static int make_pack(const struct deriving *d, const struct moe_checkpoint *ck, const char *dir,
                     const char *pack, uint64_t seed, struct moe_err *err)
{
    const struct moe_convert_options how = {
        .experts = {{(uint8_t)d->bits, (uint8_t)d->bits}},
        .n_experts = 1,
        .dense_bits = (int)d->bits,
        .method = moe_quant_method_find("rtn"),
        .group = 64,
    };
    struct moe_convert_report report;
    struct moe_err ignored;
    if (mkdir(dir, 0777) != 0)
        return moe_fail(err, MOE_ERR_IO, "%s: %s", dir, strerror(errno));
    int status = each_file(moe_checkpoint_dir(ck), link_file, dir, err);
    if (status == MOE_OK)
        status = write_weights(ck, d->noise, seed, dir, err);
    if (status == MOE_OK)
        status = moe_convert_checkpoint(dir, pack, &how, &report, err);
    each_file(dir, remove_file, NULL, &ignored);
    rmdir(dir);
    return status;
}

static int make_packs(const struct deriving *d, const char *src, char stage, uint64_t n,
                      struct moe_err *err)
{
    struct moe_checkpoint *ck = NULL;
    int status = moe_checkpoint_open(&ck, src, err);
    for (uint64_t i = 0; i < n && status == MOE_OK; i++) {
        char name[32], file[40];
        snprintf(name, sizeof name, "%c%03" PRIu64, stage, i);
        snprintf(file, sizeof file, "%s.moe", name);
        uint64_t seed = d->seed * 2 * MAX_EXPERTS + (stage == 'd' ? MAX_EXPERTS : 0) + i;
        seed = moe_random_next(&seed); /* streams of neighbours would overlap */
        char *dir = moe_path_join(d->dst, name, err), *pack = moe_path_join(d->dst, file, err);
        status = dir && pack ? make_pack(d, ck, dir, pack, seed, err) : MOE_ERR_MEMORY;
        free(dir);
        free(pack);
    }
    moe_checkpoint_close(ck);
    return status;
}

/* ---- The collection ---- */

/* Falling numbers that add up to `requests`; the last get none where there are too few. */
static void share_out(const struct deriving *d, uint64_t *quantity)
{
    double sum = 0, before = 0;
    for (uint64_t i = 0; i < d->experts; i++)
        sum += pow((double)i + 1, -d->skew);
    uint64_t given = 0;
    for (uint64_t i = 0; i < d->experts; i++) {
        before += pow((double)i + 1, -d->skew);
        uint64_t up_to = (uint64_t)(before / sum * (double)d->requests + 0.5);
        quantity[i] = up_to - given;
        given = up_to;
    }
}

static int write_collection(const struct deriving *d, const uint64_t *quantity, struct moe_err *err)
{
    struct moe_coe_collection c = {0};
    struct moe_buf text = {0};
    uint64_t state = d->seed, n = d->experts + d->checks;
    c.models = moe_alloc(n, sizeof *c.models, err);
    c.routes = moe_alloc(d->experts, sizeof *c.routes, err);
    c.follows = moe_alloc(d->experts, sizeof *c.follows, err);
    char *path = moe_path_join(d->dst, "collection.yaml", err);
    int status = c.models && c.routes && c.follows && path ? MOE_OK : MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n && status == MOE_OK; i++) {
        struct moe_coe_model *m = &c.models[c.n_models++];
        bool first = i < d->experts;
        m->probability = -1;
        snprintf(m->name, sizeof m->name, "%c%03u", first ? 'c' : 'd',
                 (unsigned)(first ? i : i - d->experts));
        snprintf(m->pack, sizeof m->pack, "%s.moe", m->name);
        if (!first)
            continue;
        struct moe_coe_route *r = &c.routes[c.n_routes++];
        r->quantity = (double)quantity[i];
        snprintf(r->field, sizeof r->field, "component");
        snprintf(r->test.equals, sizeof r->test.equals, "%s", m->name);
        snprintf(r->expert, sizeof r->expert, "%s", m->name);
        /* Every one of the second stage follows some expert. */
        if (d->checks == 0 || (draw(&state) >= d->follow && i >= d->checks))
            continue;
        struct moe_coe_follow *f = &c.follows[c.n_follows++];
        f->share = d->passes[0] ? -1 : 1;
        snprintf(f->after, sizeof f->after, "%s", m->name);
        snprintf(f->expert, sizeof f->expert, "d%03u", (unsigned)(i % d->checks));
        snprintf(f->test.matches, sizeof f->test.matches, "%s", d->passes);
    }
    if (status == MOE_OK)
        status = moe_coe_collection_write(&c, false, &text, err);
    if (status == MOE_OK)
        status = moe_file_write_all(path, text.data, text.size, err);
    free(path);
    free(c.models);
    free(c.routes);
    free(c.follows);
    moe_buf_release(&text);
    return status;
}

/* ---- The requests ---- */

/* The first words of a line that is drawn; lines of few words, as separators are, are not. */
static uint64_t draw_prompt(const struct moe_buf *text, uint64_t most, uint64_t *state,
                            const char **prompt)
{
    const char *begin = (const char *)text->data, *end = begin + text->size;
    for (;;) {
        const char *line = begin + (uint64_t)(draw(state) * (double)text->size);
        while (line > begin && line[-1] != '\n')
            line--;
        uint64_t words = 0, wanted = most / 2 + (uint64_t)(draw(state) * (double)(most - most / 2));
        const char *p = line;
        for (; p < end && *p != '\n'; p++)
            if (*p == ' ' && ++words > wanted)
                break;
        if (words > wanted || words > 3) {
            *prompt = line;
            return (uint64_t)(p - line);
        }
    }
}

static bool has_prompts(const struct moe_buf *text)
{
    uint64_t words = 0;
    for (uint64_t i = 0; i < text->size && words <= 3; i++)
        words = text->data[i] == '\n' ? 0 : words + (text->data[i] == ' ');
    return words > 3;
}

static int put_request(const struct deriving *d, const struct moe_buf *text, uint64_t number,
                       uint32_t component, uint64_t *state, struct moe_buf *out,
                       struct moe_err *err)
{
    const char *prompt;
    char id[32], name[32];
    uint64_t n = draw_prompt(text, d->words, state, &prompt);
    snprintf(id, sizeof id, "q%05" PRIu64, number);
    snprintf(name, sizeof name, "c%03" PRIu32, component);
    json_t *line = json_pack("{s:s, s:s%, s:I, s:i, s:{s:s}}", "custom_id", id, "prompt", prompt,
                             (size_t)n, "max_tokens", (json_int_t)d->tokens, "temperature", 0,
                             "metadata", "component", name);
    char *dumped = line ? json_dumps(line, JSON_COMPACT) : NULL;
    int status = dumped ? MOE_OK
                        : moe_fail(err, MOE_ERR_FORMAT,
                                   "%s: a line is not UTF-8, or memory is short", d->text);
    if (dumped)
        moe_buf_printf(out, "%s\n", dumped);
    free(dumped);
    json_decref(line);
    return status;
}

static int write_requests(const struct deriving *d, const uint64_t *quantity, struct moe_err *err)
{
    struct moe_buf text = {0}, out = {0};
    uint64_t state = d->seed ^ 0x5eed, n = 0;
    uint32_t *components = moe_alloc(d->requests, sizeof *components, err);
    char *path = moe_path_join(d->dst, "requests.jsonl", err);
    int status =
        components && path ? moe_file_read_all(d->text, MAX_TEXT, &text, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK && !has_prompts(&text))
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: no line has more than three words", d->text);
    for (uint32_t i = 0; i < d->experts && status == MOE_OK; i++)
        for (uint64_t k = 0; k < quantity[i]; k++)
            components[n++] = i;
    for (uint64_t i = n; i > 1; i--) {
        uint64_t k = (uint64_t)(draw(&state) * (double)i);
        uint32_t other = components[k];
        components[k] = components[i - 1];
        components[i - 1] = other;
    }
    for (uint64_t i = 0; i < n && status == MOE_OK; i++)
        status = put_request(d, &text, i, components[i], &state, &out, err);
    if (status == MOE_OK && out.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    if (status == MOE_OK)
        status = moe_file_write_all(path, out.data, out.size, err);
    moe_buf_release(&text);
    moe_buf_release(&out);
    free(components);
    free(path);
    return status;
}

/* ---- Program ---- */

static int derive(const struct deriving *d, struct moe_err *err)
{
    if (mkdir(d->dst, 0777) != 0 && errno != EEXIST)
        return moe_fail(err, MOE_ERR_IO, "%s: cannot make the directory", d->dst);
    uint64_t *quantity = moe_alloc(d->experts, sizeof *quantity, err);
    int status = quantity ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK) {
        share_out(d, quantity);
        status = write_collection(d, quantity, err);
    }
    if (status == MOE_OK)
        status = write_requests(d, quantity, err);
    if (status == MOE_OK)
        status = make_packs(d, d->src, 'c', d->experts, err);
    if (status == MOE_OK)
        status = make_packs(d, d->second ? d->second : d->src, 'd', d->checks, err);
    free(quantity);
    return status;
}

static bool parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    return moe_parse_u64(text, out) && *out >= least && *out <= most;
}

static bool parse(struct deriving *d, int c, const char *arg)
{
    switch (c) {
    case 'e':
        return parse_number(arg, 1, MAX_EXPERTS, &d->experts);
    case 'c':
        return parse_number(arg, 0, MAX_EXPERTS, &d->checks);
    case 'r':
        return parse_number(arg, 1, 99999, &d->requests);
    case 'w':
        return parse_number(arg, 1, 1000, &d->words);
    case 't':
        return parse_number(arg, 1, 100000, &d->tokens);
    case 'b':
        return parse_number(arg, 2, 16, &d->bits);
    case 'x':
        return moe_parse_u64(arg, &d->seed);
    case 'f':
        return moe_parse_share(arg, &d->follow);
    case 'n':
        return moe_parse_share(arg, &d->noise);
    case 's':
        return moe_parse_double(arg, &d->skew);
    case 'p':
        d->passes = arg;
        return true;
    case 'i':
        d->text = arg;
        return true;
    case '2':
        d->second = arg;
        return true;
    default:
        return false;
    }
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"experts", 1, NULL, 'e'},  {"checks", 1, NULL, 'c'},
                                            {"requests", 1, NULL, 'r'}, {"words", 1, NULL, 'w'},
                                            {"tokens", 1, NULL, 't'},   {"bits", 1, NULL, 'b'},
                                            {"seed", 1, NULL, 'x'},     {"follow", 1, NULL, 'f'},
                                            {"noise", 1, NULL, 'n'},    {"skew", 1, NULL, 's'},
                                            {"passes", 1, NULL, 'p'},   {"text", 1, NULL, 'i'},
                                            {"second", 1, NULL, '2'},   {0}};
    struct deriving d = {.experts = 4,
                         .requests = 40,
                         .words = 12,
                         .tokens = 16,
                         .bits = 8,
                         .seed = 1,
                         .follow = 0.5,
                         .skew = 1,
                         .noise = 0.04,
                         .passes = "",
                         .text = "tests/data/stories.valid.txt"};
    struct moe_err err = {0};
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        ok = parse(&d, c, optarg);
    if (!ok || argc - optind != 2 || d.checks > d.experts) {
        fputs("usage: derive [OPTION]... SRC_DIR OUT_DIR\n"
              "(no more --checks than --experts; the source says more)\n",
              stderr);
        return 2;
    }
    d.src = argv[optind];
    d.dst = argv[optind + 1];
    int status = moe_kern_select(moe_cpu_detect(), &err);
    if (status == MOE_OK)
        status = derive(&d, &err);
    if (status != MOE_OK)
        fprintf(stderr, "derive: %s\n", err.text);
    return status == MOE_OK ? 0 : 1;
}
