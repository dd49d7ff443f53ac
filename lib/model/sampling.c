/* Sampling settings (sampling.h): defaults, and reading what makers publish. */
#include "model/sampling.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/file.h"
#include "fmt/emit.h"
#include "fmt/gguf.h"
#include "fmt/json.h"

enum { MAX_BYTES = 1 << 20, MAX_MEMORY = 16 << 20, DIGITS = 7 /* of a float */ };

#define AT(member) offsetof(struct moe_sampler_options, member)
#define GGUF(name) "general.sampling." name

static const struct field {
    const char *name, *hf, *gguf; /* in packs, generation_config.json, GGUF files */
    size_t at;
    bool whole;
    double fallback, low, high;
} fields[] = {
    {"temperature", "temperature", GGUF("temp"), AT(temperature), false, 0.8, 0, 100},
    {"top_k", "top_k", GGUF("top_k"), AT(top_k), true, 40, 0, 1000000},
    {"top_p", "top_p", GGUF("top_p"), AT(top_p), false, 0.95, 0, 1},
    {"min_p", "min_p", GGUF("min_p"), AT(min_p), false, 0.05, 0, 1},
    {"repeat_penalty", "repetition_penalty", GGUF("penalty_repeat"), AT(repeat_penalty), false, 1,
     0.1, 10},
    {"repeat_window", NULL, GGUF("penalty_last_n"), AT(repeat_window), true, 64, 0, 1000000},
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };

/* NAN where it is not said. */
static double field_value(const struct moe_sampler_options *o, const struct field *f)
{
    const void *at = (const char *)o + f->at;
    if (!f->whole)
        return *(const double *)at;
    return *(const uint32_t *)at == UINT32_MAX ? (double)NAN : *(const uint32_t *)at;
}

static void set(struct moe_sampler_options *o, const struct field *f, double value)
{
    void *at = (char *)o + f->at;
    if (f->whole)
        *(uint32_t *)at = isnan(value) ? UINT32_MAX : (uint32_t)value;
    else
        *(double *)at = value;
}

/* ---- What holds ---- */

void moe_sampling_unsaid(struct moe_sampler_options *out)
{
    out->seed = 0;
    for (int i = 0; i < N_FIELDS; i++)
        set(out, &fields[i], (double)NAN);
}

bool moe_sampling_value(const struct moe_sampler_options *asked,
                        const struct moe_sampler_options *model, int i,
                        struct moe_sampling_value *out)
{
    if (i >= N_FIELDS)
        return false;
    const struct field *f = &fields[i];
    const double own = field_value(asked, f),
                 published = model ? field_value(model, f) : (double)NAN;
    *out = (struct moe_sampling_value){f->name, own, MOE_SAMPLING_ASKED};
    if (isnan(own) && !isnan(published))
        *out = (struct moe_sampling_value){f->name, published, MOE_SAMPLING_OF_MODEL};
    else if (isnan(own))
        *out = (struct moe_sampling_value){f->name, f->fallback, MOE_SAMPLING_DEFAULT};
    return true;
}

void moe_sampling_complete(struct moe_sampler_options *options,
                           const struct moe_sampler_options *model)
{
    struct moe_sampling_value v;
    for (int i = 0; moe_sampling_value(options, model, i, &v); i++)
        set(options, &fields[i], v.value);
}

const char *moe_sampling_origin_name(enum moe_sampling_origin origin)
{
    static const char *const names[] = {
        [MOE_SAMPLING_DEFAULT] = "default",
        [MOE_SAMPLING_OF_MODEL] = "model",
        [MOE_SAMPLING_ASKED] = "asked",
    };
    return names[origin];
}

void moe_sampling_emit(struct moe_emit *e, const char *key, const struct moe_sampler_options *asked,
                       const struct moe_sampler_options *model)
{
    struct moe_sampling_value v;
    moe_emit_open_map(e, key);
    for (int i = 0; moe_sampling_value(asked, model, i, &v); i++) {
        moe_emit_open_map(e, v.name);
        moe_emit_rounded(e, "value", DIGITS, v.value);
        moe_emit_text(e, "from", moe_sampling_origin_name(v.origin));
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

/* ---- What makers publish ---- */

/* -1 is what makers write for "all". */
static int take_value(struct moe_sampler_options *out, const struct field *f, const char *file,
                      const char *key, double value, struct moe_err *err)
{
    if (f->whole && value == -1)
        value = f->at == AT(top_k) ? 0 : f->high;
    if (!(value >= f->low && value <= f->high) || (f->whole && value != floor(value)))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is %g, expected %s%g to %g", file, key,
                        value, f->whole ? "a whole number, " : "", f->low, f->high);
    set(out, f, value);
    return MOE_OK;
}

static int read_json(struct moe_sampler_options *out, const char *file, const json_t *json,
                     bool is_hf, struct moe_err *err)
{
    for (int i = 0; i < N_FIELDS; i++) {
        const char *key = is_hf ? fields[i].hf : fields[i].name;
        double value = (double)NAN;
        if (key)
            MOE_TRY(moe_json_get_double(file, json, key, false, &value, err));
        if (!isnan(value))
            MOE_TRY(take_value(out, &fields[i], file, key, value, err));
    }
    return MOE_OK;
}

int moe_sampling_read_hf(struct moe_sampler_options *out, const char *dir, struct moe_err *err)
{
    json_t *json = NULL;
    bool samples = true;
    int status = MOE_OK;
    moe_sampling_unsaid(out);
    char *path = moe_path_join(dir, "generation_config.json", err);
    if (!path)
        return MOE_ERR_MEMORY;
    if (moe_path_exists(path)) {
        status = moe_json_read(&json, path, MAX_BYTES, MAX_MEMORY, err);
        if (status == MOE_OK)
            status = read_json(out, path, json, true, err);
        if (status == MOE_OK)
            status = moe_json_get_bool(path, json, "do_sample", false, &samples, err);
        if (!samples)
            out->temperature = 0;
    }
    moe_json_free(json);
    free(path);
    return status;
}

int moe_sampling_read_gguf(struct moe_sampler_options *out, const struct moe_gguf *gguf,
                           struct moe_err *err)
{
    moe_sampling_unsaid(out);
    for (int i = 0; i < N_FIELDS; i++) {
        double value = (double)NAN;
        MOE_TRY(moe_gguf_get_double(gguf, fields[i].gguf, false, &value, err));
        if (!isnan(value))
            MOE_TRY(take_value(out, &fields[i], moe_gguf_path(gguf), fields[i].gguf, value, err));
    }
    return MOE_OK;
}

int moe_sampling_write(const struct moe_sampler_options *options, struct moe_buf *out,
                       struct moe_err *err)
{
    struct moe_emit e;
    bool said = false;
    for (int i = 0; i < N_FIELDS; i++)
        said = said || !isnan(field_value(options, &fields[i]));
    if (!said)
        return MOE_OK;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    for (int i = 0; i < N_FIELDS; i++)
        if (!isnan(field_value(options, &fields[i])))
            moe_emit_rounded(&e, fields[i].name, DIGITS, field_value(options, &fields[i]));
    return moe_emit_end_item(&e, err);
}

int moe_sampling_parse(struct moe_sampler_options *out, const char *name, const void *json,
                       uint64_t n, struct moe_err *err)
{
    json_t *root = NULL;
    moe_sampling_unsaid(out);
    if (n == 0)
        return MOE_OK;
    int status = moe_json_parse(&root, name, json, n, MAX_MEMORY, err);
    if (status == MOE_OK)
        status = read_json(out, name, root, false, err);
    moe_json_free(root);
    return status;
}
