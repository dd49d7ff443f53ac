/*
 * Routing traces of other engines. Two formats, distinguished by their first bytes: the CSV
 * "route_trace v1" (a line per chosen expert), and JSON lines (an object per token with expert ids
 * by layer).
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/json.h"
#include "profile/trace_internal.h"

#define MAX_FILE_BYTES (UINT64_C(4) << 30)
#define MAX_TURN_BYTES (UINT64_C(1) << 30)
#define CSV_BEGINNING "# route_trace v1"
#define CSV_COLUMNS "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"

enum { NOT_MOE = UINT32_MAX, FIELD_CHARS = 32 };

struct import {
    const char *path, *to;
    const char *text, *end; /* what is left of the file */
    uint64_t line;
    struct moe_trace_shape shape;
    struct moe_trace_writer *writer;

    /* CSV: numbers among MoE layers, their experts' bytes, and the turn being gathered. */
    uint32_t n_file_layers, moe_layer[MOE_MAX_LAYERS];
    uint64_t layer_bytes[MOE_MAX_LAYERS];
    uint64_t *expert_bytes;
    uint32_t turn, first_step, n_tokens, room;
    uint32_t n_prompt;
    uint32_t *chosen; /* [room][n_layers][top_k]; UINT32_MAX: no line yet */
    float *weights;
    /* JSON lines */
    float *equal; /* [top_k] */
};

static int fail_at_line(const struct import *in, struct moe_err *err, const char *format, ...)
    MOE_PRINTF(3, 4);
static int fail_at_line(const struct import *in, struct moe_err *err, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return moe_fail(err, MOE_ERR_FORMAT, "%s: line %" PRIu64 ": %s", in->path, in->line, what);
}

/* The next line without its end; false after the last. */
static bool next_line(struct import *in, const char **line, uint64_t *n)
{
    if (in->text == in->end)
        return false;
    const char *newline = memchr(in->text, '\n', (size_t)(in->end - in->text));
    const char *stop = newline ? newline : in->end;
    *line = in->text;
    *n = (uint64_t)(stop - in->text);
    if (*n > 0 && stop[-1] == '\r')
        --*n;
    in->text = newline ? newline + 1 : in->end;
    in->line++;
    return true;
}

static int create(struct import *in, struct moe_err *err)
{
    const char *problem = trace_shape_problem(&in->shape);
    return problem ? fail_at_line(in, err, "%s", problem)
                   : moe_trace_create(&in->writer, in->to, &in->shape, err);
}

/* Passes one layer of a token to the writer. */
static void put_choice(struct import *in, uint32_t token, uint32_t layer, const uint32_t *chosen,
                       const float *weights)
{
    const struct moe_layer_observation seen = {.chosen = chosen, .weights = weights};
    moe_trace_put(in->writer, layer, token, 1, &seen, NULL, 0);
}

/* ---- CSV ---- */

/* The text of a field as a whole number. */
static bool parse_u64(const char *text, uint64_t n, uint64_t *out)
{
    char copy[FIELD_CHARS];
    if (n == 0 || n >= sizeof copy)
        return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    return moe_parse_u64(copy, out);
}

/* The number after "KEY=" in a comment; false when there is none. */
static bool comment_number(const char *line, uint64_t n, const char *key, uint64_t *out)
{
    uint64_t length = strlen(key);
    for (uint64_t at = 0; at + length < n; at++) {
        if (line[at] != ' ' || memcmp(line + at + 1, key, length) != 0)
            continue;
        uint64_t begin = at + 1 + length, end = begin;
        while (end < n && line[end] != ' ')
            end++;
        return parse_u64(line + begin, end - begin, out);
    }
    return false;
}

static int read_comment(struct import *in, const char *line, uint64_t n, struct moe_err *err)
{
    uint64_t layer, bytes, layers, experts, used;
    if (comment_number(line, n, "layer=", &layer)) {
        if (layer >= MOE_MAX_LAYERS || !comment_number(line, n, "expert_bytes=", &bytes) ||
            in->layer_bytes[layer] != 0)
            return fail_at_line(in, err, "a layer without expert_bytes, twice or beyond the last");
        in->layer_bytes[layer] = bytes;
    } else if (comment_number(line, n, "n_layer=", &layers)) {
        if (!comment_number(line, n, "n_expert=", &experts) ||
            !comment_number(line, n, "n_expert_used=", &used) || layers > MOE_MAX_LAYERS ||
            experts > MOE_MAX_EXPERTS || used > experts)
            return fail_at_line(in, err, "n_layer, n_expert or n_expert_used missing or too large");
        in->n_file_layers = (uint32_t)layers;
        in->shape.n_experts = (uint32_t)experts;
        in->shape.top_k = (uint32_t)used;
    }
    return MOE_OK;
}

static int begin_csv(struct import *in, struct moe_err *err)
{
    struct moe_trace_shape *s = &in->shape;
    for (uint32_t i = 0; i < MOE_MAX_LAYERS; i++) {
        bool moe = in->layer_bytes[i] > 0;
        if (moe && i >= in->n_file_layers)
            return fail_at_line(in, err, "layer %" PRIu32 " of %" PRIu32, i, in->n_file_layers);
        in->moe_layer[i] = moe ? s->n_layers++ : NOT_MOE;
    }
    if (s->n_layers == 0 || s->top_k == 0)
        return fail_at_line(in, err, "no comments that name layers, n_expert and n_expert_used");
    s->n_variants = 1;
    snprintf(s->variants[0], sizeof s->variants[0], "imported");
    in->expert_bytes =
        moe_alloc((uint64_t)s->n_layers * s->n_experts, sizeof *in->expert_bytes, err);
    if (!in->expert_bytes)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < in->n_file_layers; i++)
        for (uint32_t e = 0; in->moe_layer[i] != NOT_MOE && e < s->n_experts; e++)
            in->expert_bytes[(uint64_t)in->moe_layer[i] * s->n_experts + e] = in->layer_bytes[i];
    s->expert_bytes = in->expert_bytes;
    return create(in, err);
}

/* Writes the turn that was gathered. */
static int end_turn(struct import *in, struct moe_err *err)
{
    uint64_t layers = in->shape.n_layers, k = in->shape.top_k;
    int status;
    MOE_STEP(moe_trace_begin(in->writer, err));
    for (uint32_t t = 0; t < in->n_tokens; t++) {
        MOE_STEP(moe_trace_add(in->writer, 1, t < in->n_prompt, err));
        for (uint32_t l = 0; l < layers; l++) {
            const uint32_t *chosen = in->chosen + (t * layers + l) * k;
            uint32_t n = 0;
            for (uint32_t i = 0; i < k; i++)
                n += chosen[i] != UINT32_MAX;
            if (n == k)
                put_choice(in, t, l, chosen, in->weights + (t * layers + l) * k);
            else if (n > 0)
                MOE_STEP(fail_at_line(in, err,
                                      "turn %" PRIu32 " step %" PRIu32 " ended with %" PRIu32
                                      " of %" PRIu64 " experts in a layer",
                                      in->turn, in->first_step + t, n, k));
        }
    }
out:
    in->n_tokens = in->n_prompt = 0;
    return status;
}

/* Makes room for one more token, without experts yet. */
static int add_token(struct import *in, struct moe_err *err)
{
    uint64_t per_token = (uint64_t)in->shape.n_layers * in->shape.top_k;
    if (in->n_tokens == in->room) {
        uint64_t room = in->room ? 2 * (uint64_t)in->room : 16;
        if (room * per_token * (sizeof *in->chosen + sizeof *in->weights) > MAX_TURN_BYTES)
            return fail_at_line(in, err, "a turn of more tokens than can be held");
        void *chosen = realloc(in->chosen, room * per_token * sizeof *in->chosen);
        in->chosen = chosen ? chosen : in->chosen;
        void *weights = realloc(in->weights, room * per_token * sizeof *in->weights);
        in->weights = weights ? weights : in->weights;
        if (!chosen || !weights)
            return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", in->path);
        in->room = (uint32_t)room;
    }
    memset(in->chosen + in->n_tokens * per_token, 0xff, per_token * sizeof *in->chosen);
    in->n_tokens++;
    return MOE_OK;
}

enum { TURN, PHASE, STEP, LAYER, SLOT, EXPERT, N_NUMBERS };

/* turn,phase,step,layer,slot,expert,weight and more that is not used. */
static bool split_row(const char *line, uint64_t n, uint64_t numbers[N_NUMBERS], double *weight)
{
    uint64_t at = 0;
    for (int i = 0; i <= N_NUMBERS; i++) {
        const char *comma = at < n ? memchr(line + at, ',', n - at) : NULL;
        uint64_t length = comma ? (uint64_t)(comma - line) - at : 0;
        char copy[FIELD_CHARS];
        if (length == 0 || length >= sizeof copy)
            return false;
        memcpy(copy, line + at, length);
        copy[length] = '\0';
        if (i < N_NUMBERS ? !moe_parse_u64(copy, &numbers[i]) || numbers[i] >= UINT32_MAX
                          : !moe_parse_double(copy, weight))
            return false;
        at += length + 1;
    }
    return true;
}

static int read_row(struct import *in, const char *line, uint64_t n, struct moe_err *err)
{
    uint64_t v[N_NUMBERS], layers = in->shape.n_layers, k = in->shape.top_k;
    double weight;
    int status = MOE_OK;
    if (!split_row(line, n, v, &weight))
        return fail_at_line(in, err, "not a line of " CSV_COLUMNS);
    if (v[PHASE] > 1 || v[LAYER] >= in->n_file_layers || in->moe_layer[v[LAYER]] == NOT_MOE ||
        v[SLOT] >= k || v[EXPERT] >= in->shape.n_experts || !(weight >= 0))
        return fail_at_line(in, err,
                            "phase, layer, slot, expert or weight is not one of those there are");
    if (in->n_tokens > 0 && v[TURN] != in->turn)
        status = end_turn(in, err);
    if (in->n_tokens == 0) {
        in->turn = (uint32_t)v[TURN];
        in->first_step = (uint32_t)v[STEP];
    }
    uint64_t t = v[STEP] - in->first_step;
    if (status == MOE_OK && (v[STEP] < in->first_step || t > in->n_tokens))
        return fail_at_line(in, err, "step %" PRIu64 " comes before those between it and the last",
                            v[STEP]);
    if (status == MOE_OK && t == in->n_tokens) {
        if (v[PHASE] == 0 && in->n_prompt < in->n_tokens)
            return fail_at_line(in, err, "a prompt's token after decoded ones");
        in->n_prompt += v[PHASE] == 0;
        status = add_token(in, err);
    }
    if (status != MOE_OK)
        return status;
    uint64_t first = (t * layers + in->moe_layer[v[LAYER]]) * k;
    bool twice = in->chosen[first + v[SLOT]] != UINT32_MAX;
    for (uint64_t i = 0; i < k; i++)
        twice = twice || in->chosen[first + i] == v[EXPERT];
    if (twice || (v[PHASE] == 0) != (t < in->n_prompt))
        return fail_at_line(in, err, "contradicts a line before it");
    in->chosen[first + v[SLOT]] = (uint32_t)v[EXPERT];
    in->weights[first + v[SLOT]] = (float)weight;
    return MOE_OK;
}

static int import_csv(struct import *in, struct moe_err *err)
{
    const char *line;
    uint64_t n;
    while (next_line(in, &line, &n)) {
        if (n == 0)
            continue;
        if (line[0] == '#' && !in->writer)
            MOE_TRY(read_comment(in, line, n, err));
        else if (in->writer)
            MOE_TRY(read_row(in, line, n, err));
        else if (n == strlen(CSV_COLUMNS) && memcmp(line, CSV_COLUMNS, n) == 0)
            MOE_TRY(begin_csv(in, err));
        else
            MOE_TRY(fail_at_line(in, err, "is not the columns' names, " CSV_COLUMNS));
    }
    if (!in->writer)
        MOE_TRY(fail_at_line(in, err, "the file ends before its columns' names"));
    return end_turn(in, err);
}

/* ---- JSON lines ---- */

/* A line's object in *out, with one list per layer. */
static int parse_token(struct import *in, const char *line, uint64_t n, json_t **out,
                       uint32_t *number, json_t **layers, struct moe_err *err)
{
    char name[FIELD_CHARS];
    json_t *token;
    snprintf(name, sizeof name, "line %" PRIu64, in->line);
    *out = NULL;
    if (moe_json_parse(&token, name, line, n, MOE_JSON_CONFIG_MEMORY, err) != MOE_OK)
        return moe_err_prefix(err, "%s", in->path);
    *layers = json_object_get(token, "layers");
    if (moe_json_get_u32(name, token, "tok", UINT32_MAX - 1, true, number, err) != MOE_OK)
        moe_err_prefix(err, "%s", in->path);
    else if (json_array_size(*layers) == 0 || json_array_size(json_array_get(*layers, 0)) == 0)
        fail_at_line(in, err, "has no lists of experts by layer");
    else
        *out = token;
    if (*out)
        return MOE_OK;
    moe_json_free(token);
    return err->status;
}

/* The experts of a layer: distinct, and as many as in the first layer. */
static int take_experts(struct import *in, const json_t *list, uint32_t *chosen,
                        struct moe_err *err)
{
    uint32_t k = in->shape.top_k;
    if (json_array_size(list) != k)
        return fail_at_line(in, err,
                            "a layer without %" PRIu32 " experts, as many as the first has", k);
    for (uint32_t i = 0; i < k; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t e = json_is_integer(id) ? json_integer_value(id) : -1;
        if (e < 0 || e >= MOE_MAX_EXPERTS)
            return fail_at_line(in, err, "an expert that is not a number from 0 to %d",
                                MOE_MAX_EXPERTS - 1);
        chosen[i] = (uint32_t)e;
        for (uint32_t j = 0; j < i; j++)
            if (chosen[j] == chosen[i])
                return fail_at_line(in, err, "expert %" PRIu32 " is twice in a layer", chosen[i]);
        in->shape.n_experts = chosen[i] < in->shape.n_experts ? in->shape.n_experts : chosen[i] + 1;
    }
    return MOE_OK;
}

/* Reads all lines: to learn the shape, or (with a writer) to write the tokens. */
static int read_lines(struct import *in, struct moe_err *err)
{
    const char *line;
    uint64_t n;
    uint32_t number, last = UINT32_MAX, token = 0;
    int status = MOE_OK;
    while (status == MOE_OK && next_line(in, &line, &n)) {
        json_t *layers = NULL, *object;
        if (n == 0)
            continue;
        status = parse_token(in, line, n, &object, &number, &layers, err);
        if (status != MOE_OK)
            return status;
        if (in->shape.n_layers == 0) {
            in->shape.n_layers = (uint32_t)json_array_size(layers);
            in->shape.top_k = (uint32_t)json_array_size(json_array_get(layers, 0));
            in->chosen = moe_alloc(in->shape.top_k, sizeof *in->chosen, err);
            in->equal = moe_alloc(in->shape.top_k, sizeof *in->equal, err);
            for (uint32_t i = 0; in->equal && i < in->shape.top_k; i++)
                in->equal[i] = 1 / (float)in->shape.top_k;
            status = in->chosen && in->equal ? MOE_OK : MOE_ERR_MEMORY;
        }
        bool starts = last == UINT32_MAX || number <= last;
        if (status == MOE_OK && json_array_size(layers) != in->shape.n_layers)
            status = fail_at_line(in, err, "has not as many layers as the first line");
        else if (status == MOE_OK && !starts && number != last + 1)
            status = fail_at_line(in, err, "tok %" PRIu32 " follows %" PRIu32, number, last);
        token = starts ? 0 : token + 1;
        last = number;
        if (status == MOE_OK && in->writer && starts)
            status = moe_trace_begin(in->writer, err);
        if (status == MOE_OK && in->writer)
            status = moe_trace_add(in->writer, 1, 0, err);
        for (uint32_t l = 0; l < in->shape.n_layers && status == MOE_OK; l++) {
            status = take_experts(in, json_array_get(layers, l), in->chosen, err);
            if (status == MOE_OK && in->writer)
                put_choice(in, token, l, in->chosen, in->equal);
        }
        moe_json_free(object);
    }
    return status;
}

static int import_json(struct import *in, struct moe_err *err)
{
    const char *text = in->text;
    int status;
    MOE_STEP(read_lines(in, err));
    MOE_STEP(create(in, err));
out:
    in->text = text;
    in->line = 0;
    return status == MOE_OK ? read_lines(in, err) : status;
}

/* ---- Both ---- */

int moe_trace_import(const char *from, const char *to, struct moe_err *err)
{
    struct moe_err own;
    struct moe_buf file = {0};
    struct import in = {.path = from, .to = to};
    err = err ? err : &own;
    int status;
    MOE_STEP(moe_file_read_all(from, MAX_FILE_BYTES, &file, err));
    in.text = (const char *)file.data;
    in.end = in.text + file.size;
    if (file.size > strlen(CSV_BEGINNING) &&
        memcmp(in.text, CSV_BEGINNING, strlen(CSV_BEGINNING)) == 0)
        MOE_STEP(import_csv(&in, err));
    else if (file.size > 0 && in.text[0] == '{')
        MOE_STEP(import_json(&in, err));
    else
        MOE_STEP(moe_fail(err, MOE_ERR_FORMAT,
                          "%s: not a routing trace that can be imported (a CSV that begins "
                          "with '" CSV_BEGINNING "', or JSON lines)",
                          from));
out:
    if (status == MOE_OK)
        status = moe_trace_commit(in.writer, err);
    else
        moe_trace_abort(in.writer);
    moe_buf_release(&file);
    free(in.expert_bytes);
    free(in.chosen);
    free(in.weights);
    free(in.equal);
    return status;
}
