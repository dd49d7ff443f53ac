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
    struct moe_sampling_field is;
    const char *hf, *gguf; /* in generation_config.json, GGUF files */
    size_t at;
    double fallback;
} fields[] = {
    {{"temperature", "temperature", "temp", "0: always the likeliest token", false, 0, 100, NULL},
     "temperature",
     GGUF("temp"),
     AT(temperature),
     0.8},
    {{"top_k", "top_k", "top-k", "0, -1: all", true, -1, 1000000, NULL},
     "top_k",
     GGUF("top_k"),
     AT(top_k),
     40},
    {{"top_p", "top_p", "top-p", "1: all", false, 0, 1, NULL},
     "top_p",
     GGUF("top_p"),
     AT(top_p),
     0.95},
    {{"min_p", "min_p", "min-p", "0: all", false, 0, 1, NULL},
     "min_p",
     GGUF("min_p"),
     AT(min_p),
     0.05},
    {{"repeat_penalty", "repeat_penalty", "repeat-penalty", "1: none", false, 0.1, 10,
      "repetition_penalty"},
     "repetition_penalty",
     GGUF("penalty_repeat"),
     AT(repeat_penalty),
     1},
    {{"repeat_window", "repeat_last_n", "repeat-last-n", "0: no penalties, -1: all", true, -1,
      1000000, NULL},
     NULL,
     GGUF("penalty_last_n"),
     AT(repeat_window),
     64},
    {{"presence_penalty", "presence_penalty", "presence-penalty", "0: none", false, -2, 2, NULL},
     NULL,
     NULL,
     AT(presence_penalty),
     0},
    {{"frequency_penalty", "frequency_penalty", "frequency-penalty", "0: none", false, -2, 2, NULL},
     NULL,
     NULL,
     AT(frequency_penalty),
     0},
    {{"dry_multiplier", "dry_multiplier", "dry-multiplier", "0: off", false, 0, 100, NULL},
     NULL,
     NULL,
     AT(dry_multiplier),
     0},
    {{"dry_base", "dry_base", "dry-base", "1: the same for all lengths", false, 1, 100, NULL},
     NULL,
     NULL,
     AT(dry_base),
     1.75},
    {{"dry_allowed_length", "dry_allowed_length", "dry-allowed-length", "tokens", true, 0, 1000,
      NULL},
     NULL,
     NULL,
     AT(dry_allowed_length),
     2},
    {{"dry_window", "dry_penalty_last_n", "dry-penalty-last-n", "0: off, -1: all", true, -1,
      1000000, NULL},
     NULL,
     NULL,
     AT(dry_window),
     1000000},
    {{"top_n_sigma", "top_n_sigma", "top-n-sigma", "0, -1: all", false, -1, 1000, NULL},
     NULL,
     NULL,
     AT(top_n_sigma),
     0},
    {{"typical_p", "typical_p", "typical", "0, 1: all", false, 0, 1, "typ_p"},
     "typical_p",
     NULL,
     AT(typical_p),
     1},
    {{"xtc_probability", "xtc_probability", "xtc-probability", "0: off", false, 0, 1, NULL},
     NULL,
     GGUF("xtc_probability"),
     AT(xtc_probability),
     0},
    {{"xtc_threshold", "xtc_threshold", "xtc-threshold", "above 0.5: off", false, 0, 1, NULL},
     NULL,
     GGUF("xtc_threshold"),
     AT(xtc_threshold),
     0.1},
    {{"dynatemp_range", "dynatemp_range", "dynatemp-range", "0: off", false, 0, 100, NULL},
     NULL,
     NULL,
     AT(dynatemp_range),
     0},
    {{"dynatemp_exponent", "dynatemp_exponent", "dynatemp-exp", "1: linear", false, 0, 100, NULL},
     NULL,
     NULL,
     AT(dynatemp_exponent),
     1},
    {{"mirostat", "mirostat", "mirostat", "0: off; 1 is not supported", true, 0, 2,
      "mirostat_mode"},
     NULL,
     GGUF("mirostat"),
     AT(mirostat),
     0},
    {{"mirostat_tau", "mirostat_tau", "mirostat-ent", "bits", false, 0, 100, NULL},
     NULL,
     GGUF("mirostat_tau"),
     AT(mirostat_tau),
     5},
    {{"mirostat_eta", "mirostat_eta", "mirostat-lr", "0: the limit stays", false, 0, 1, NULL},
     NULL,
     GGUF("mirostat_eta"),
     AT(mirostat_eta),
     0.1},
};
enum { N_FIELDS = sizeof fields / sizeof fields[0], N_ALWAYS = 6 /* in statistics */ };

/* NAN where it is not said. */
static double field_value(const struct moe_sampler_options *o, const struct field *f)
{
    const void *at = (const char *)o + f->at;
    if (!f->is.whole)
        return *(const double *)at;
    return *(const uint32_t *)at == UINT32_MAX ? (double)NAN : *(const uint32_t *)at;
}

static void set(struct moe_sampler_options *o, const struct field *f, double value)
{
    void *at = (char *)o + f->at;
    if (f->is.whole)
        *(uint32_t *)at = isnan(value) ? UINT32_MAX : (uint32_t)value;
    else
        *(double *)at = value;
}

/* ---- What holds ---- */

void moe_sampling_unsaid(struct moe_sampler_options *out)
{
    *out = (struct moe_sampler_options){0};
    for (int i = 0; i < N_FIELDS; i++)
        set(out, &fields[i], (double)NAN);
}

void moe_sampling_complete(struct moe_sampler_options *options,
                           const struct moe_sampler_options *model)
{
    for (int i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        if (isnan(field_value(options, f)) && model)
            set(options, f, field_value(model, f));
        if (isnan(field_value(options, f)))
            set(options, f, f->fallback);
    }
}

/* Whether the others leave a value without effect. */
static bool is_idle(const struct moe_sampler_options *o, size_t at)
{
    const bool penalises =
        o->repeat_window &&
        (o->repeat_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0);
    const bool dry = o->dry_multiplier != 0 && o->dry_window;
    switch (at) {
    case AT(temperature):
        return false;
    case AT(repeat_penalty):
        return o->repeat_penalty == 1 || !o->repeat_window;
    case AT(repeat_window):
        return !penalises;
    case AT(presence_penalty):
        return o->presence_penalty == 0 || !o->repeat_window;
    case AT(frequency_penalty):
        return o->frequency_penalty == 0 || !o->repeat_window;
    case AT(dry_multiplier):
    case AT(dry_base):
    case AT(dry_allowed_length):
    case AT(dry_window):
        return !dry;
    case AT(mirostat):
    case AT(mirostat_tau):
    case AT(mirostat_eta):
        return !o->mirostat || o->temperature == 0;
    case AT(dynatemp_range):
    case AT(dynatemp_exponent):
        return o->dynatemp_range == 0 || o->mirostat;
    case AT(xtc_probability):
    case AT(xtc_threshold):
        return o->xtc_probability == 0 || o->xtc_threshold > 0.5 || o->mirostat;
    case AT(typical_p):
        return o->typical_p == 0 || o->typical_p == 1 || o->mirostat;
    case AT(top_n_sigma):
        return o->top_n_sigma <= 0 || o->temperature == 0 || o->mirostat;
    default: /* top-k, top-p, min-p keep the likeliest, which a temperature of 0 takes */
        return o->mirostat || (o->temperature == 0 && is_idle(o, AT(typical_p)) &&
                               is_idle(o, AT(xtc_probability)) && o->dynatemp_range == 0);
    }
}

int moe_sampling_check(const struct moe_sampler_options *complete, struct moe_err *err)
{
    for (int i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        const double v = field_value(complete, f);
        if (isnan(v) || (!is_idle(complete, f->at) && !(v >= f->is.low && v <= f->is.high)) ||
            (f->at == AT(mirostat) && v == 1))
            return moe_fail(err, MOE_ERR_USAGE, "%s %.10g: %g to %.10g was expected", f->is.name, v,
                            f->is.low, f->is.high);
    }
    return MOE_OK;
}

const struct moe_sampling_field *moe_sampling_field(int i)
{
    return i < N_FIELDS ? &fields[i].is : NULL;
}

bool moe_sampling_value(const struct moe_sampler_options *asked,
                        const struct moe_sampler_options *model, int i,
                        struct moe_sampling_value *out)
{
    struct moe_sampler_options all = *asked;
    if (i >= N_FIELDS)
        return false;
    const struct field *f = &fields[i];
    moe_sampling_complete(&all, model);
    *out = (struct moe_sampling_value){
        .field = &f->is,
        .value = field_value(&all, f),
        .origin = !isnan(field_value(asked, f))            ? MOE_SAMPLING_ASKED
                  : model && !isnan(field_value(model, f)) ? MOE_SAMPLING_OF_MODEL
                                                           : MOE_SAMPLING_DEFAULT,
        .idle = is_idle(&all, f->at),
    };
    return true;
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
        if (i >= N_ALWAYS && v.idle)
            continue;
        moe_emit_open_map(e, v.field->name);
        moe_emit_rounded(e, "value", DIGITS, v.value);
        moe_emit_text(e, "from", moe_sampling_origin_name(v.origin));
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

/* ---- What makers publish ---- */

/* -1 is what makers and clients write for "all". */
int moe_sampling_take(struct moe_sampler_options *out, int i, const char *file, const char *key,
                      double value, struct moe_err *err)
{
    const struct field *f = &fields[i];
    if (value == -1 && f->at == AT(top_k))
        value = 0;
    else if (value == -1 && (f->at == AT(repeat_window) || f->at == AT(dry_window)))
        value = f->is.high;
    if (f->at == AT(mirostat) && value == 1)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: '%s' is 1, which is not supported: expected 0 or 2", file, key);
    if (!(value >= f->is.low && value <= f->is.high) || (f->is.whole && value != floor(value)))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is %.10g, expected %s%g to %.10g", file, key,
                        value, f->is.whole ? "a whole number, " : "", f->is.low, f->is.high);
    set(out, f, value);
    return MOE_OK;
}

static int read_json(struct moe_sampler_options *out, const char *file, const json_t *json,
                     bool is_hf, struct moe_err *err)
{
    for (int i = 0; i < N_FIELDS; i++) {
        const char *key = is_hf ? fields[i].hf : fields[i].is.name;
        double value = (double)NAN;
        if (key)
            MOE_TRY(moe_json_get_double(file, json, key, false, &value, err));
        if (!isnan(value))
            MOE_TRY(moe_sampling_take(out, i, file, key, value, err));
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
        if (fields[i].gguf)
            MOE_TRY(moe_gguf_get_double(gguf, fields[i].gguf, false, &value, err));
        if (fields[i].at == AT(mirostat) && value == 1)
            value = 0; /* a usual draw is nearer to what was meant than none */
        if (!isnan(value))
            MOE_TRY(moe_sampling_take(out, i, moe_gguf_path(gguf), fields[i].gguf, value, err));
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
            moe_emit_rounded(&e, fields[i].is.name, DIGITS, field_value(options, &fields[i]));
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
