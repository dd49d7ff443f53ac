/*
 * Values of parts as text (strategy_values.h).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "model/config.h" /* MOE_MAX_TOP_K */
#include "sched/strategy_values.h"

enum {
    LEAST_EXPONENT = -5, /* of 10: beyond these people write exponents */
    MOST_EXPONENT = 15,
    PERCENT_DIGITS = 6, /* a share of more digits is shorter without the percent sign */
};

/* ---- Words ---- */

/* Whether `text` is `word`, alone or followed by a colon and an argument: *arg, NULL for none. */
static bool is_word(const char *text, const char *word, const char **arg)
{
    size_t n = strlen(word);
    if (strncmp(text, word, n) != 0 || (text[n] && text[n] != ':'))
        return false;
    *arg = text[n] ? text + n + 1 : NULL;
    return true;
}

static int find_word(const char *const *words, int n, const char *text, const char **arg)
{
    for (int i = 0; i < n; i++)
        if (is_word(text, words[i], arg))
            return i;
    return -1;
}

/* Cuts the next item off a list with commas; false at its end, or when an item is too long to be
 * valid. */
static bool next_item(const char **list, char item[64])
{
    size_t n = *list ? strcspn(*list, ",") : 64;
    if (n >= 64)
        return false;
    memcpy(item, *list, n);
    item[n] = 0;
    *list = (*list)[n] ? *list + n + 1 : NULL;
    return true;
}

bool moe_part_count(const char *text, uint32_t least, uint32_t most, uint32_t *out)
{
    uint64_t n;
    if (!moe_parse_u64(text, &n) || n < least || n > most)
        return false;
    *out = (uint32_t)n;
    return true;
}

/* A number to so many significant digits, without an exponent unless it is very large or small. */
static void write_digits(double x, int digits, char *out, size_t size)
{
    snprintf(out, size, "%.*e", digits - 1, x);
    int exponent = atoi(strchr(out, 'e') + 1), decimals = digits - 1 - exponent;
    if (exponent >= LEAST_EXPONENT && exponent <= MOST_EXPONENT)
        snprintf(out, size, "%.*f", decimals > 0 ? decimals : 0, x);
}

/* The shortest text that reads back as the same number. */
static void number_text(double x, char *out, size_t size)
{
    double back = NAN;
    for (int digits = 1; digits <= 17 && back != x; digits++) {
        write_digits(x, digits, out, size);
        if (!moe_parse_double(out, &back))
            break;
    }
}

void moe_part_share_text(double x, char *out, size_t size)
{
    char percent[32];
    double back = NAN;
    for (int digits = 1; digits <= PERCENT_DIGITS && back != x; digits++) {
        write_digits(100 * x, digits, percent, sizeof percent);
        snprintf(out, size, "%s%%", percent);
        if (!moe_parse_share(out, &back))
            break;
    }
    if (back != x)
        number_text(x, out, size);
}

/* ---- Values of the parts ---- */

static const struct {
    const char *word;
    enum moe_predict_by by;
    uint32_t depth; /* where the text has none */
    bool takes_depth;
    bool first_by_token;
} predictors[] = {
    {"none", MOE_PREDICT_BY_NOTHING, 0, false, false},
    {"previous", MOE_PREDICT_BY_PREVIOUS, 1, false, false},
    {"token", MOE_PREDICT_BY_TOKEN, 1, true, false},
    {"path", MOE_PREDICT_BY_PATH, 1, false, false},
    {"keys", MOE_PREDICT_BY_KEYS, 1, false, false},
    {"requests", MOE_PREDICT_BY_REQUESTS, 1, true, false},
    {"gate-next", MOE_PREDICT_BY_GATE, 1, false, false},
    {"gate-next,token", MOE_PREDICT_BY_GATE, 1, false, true},
    {"gate-ahead", MOE_PREDICT_BY_GATE, 3, true, false},
    {"gate-residual", MOE_PREDICT_BY_RESIDUAL, 1, true, false},
    {"gate-attention", MOE_PREDICT_BY_ATTENTION, 1, false, false},
    {"gate-attention-before", MOE_PREDICT_BY_ATTENTION_BEFORE, 1, false, false},
};

static bool parse_predict(const char *text, struct moe_strategy *s)
{
    const char *arg;
    for (size_t i = 0; i < sizeof predictors / sizeof predictors[0]; i++) {
        if (!is_word(text, predictors[i].word, &arg))
            continue;
        uint32_t depth = predictors[i].depth;
        if (arg && (!predictors[i].takes_depth || !moe_part_count(arg, 1, MOE_MAX_DEPTH, &depth)))
            return false;
        s->predict = predictors[i].by;
        s->depth = depth;
        s->first_by_token = predictors[i].first_by_token;
        return true;
    }
    return false;
}

static void write_predict(const struct moe_strategy *s, char *out, size_t size)
{
    for (size_t i = 0; i < sizeof predictors / sizeof predictors[0]; i++) {
        if (predictors[i].by != s->predict || predictors[i].first_by_token != s->first_by_token)
            continue;
        if (predictors[i].takes_depth)
            snprintf(out, size, "%s:%u", predictors[i].word, s->depth);
        else
            snprintf(out, size, "%s", predictors[i].word);
        if (predictors[i].depth == s->depth)
            return;
    }
}

static bool parse_limit(const char *text, struct moe_prefetch_limits *limits)
{
    static const char *const words[] = {"percentile",   "count", "slack",
                                        "until-router", "all",   "measured"};
    const char *arg;
    int word = find_word(words, 6, text, &arg);
    bool needs_arg = word == 0 || word == 1, takes_arg = needs_arg || word == 2;
    if ((needs_arg && !arg) || (arg && !takes_arg))
        return false;
    switch (word) {
    case 0:
        return moe_parse_double(arg, &limits->percentile) && limits->percentile > 0 &&
               limits->percentile < 100;
    case 1:
        return moe_part_count(arg, 1, UINT32_MAX, &limits->count);
    case 2:
        limits->slack = true;
        return !arg || moe_part_count(arg, 1, UINT32_MAX, &limits->slack_least);
    case 3:
        return limits->until_router = true;
    case 4:
        return limits->top_k = true;
    case 5:
        return limits->measured = true;
    default:
        return false;
    }
}

static bool parse_prefetch(const char *text, struct moe_strategy *s)
{
    struct moe_prefetch_limits limits = {0};
    char item[64];
    bool ok = true;
    if (strcmp(text, "none") != 0)
        while (ok && text)
            ok = next_item(&text, item) && parse_limit(item, &limits);
    if (ok)
        s->prefetch = limits;
    return ok;
}

static void write_prefetch(const struct moe_strategy *s, char *out, size_t size)
{
    const struct moe_prefetch_limits *p = &s->prefetch;
    char number[32], percentile[48] = "", count[32] = "", least[16] = "";
    if (p->percentile > 0) {
        number_text(p->percentile, number, sizeof number);
        snprintf(percentile, sizeof percentile, ",percentile:%s", number);
    }
    if (p->count)
        snprintf(count, sizeof count, ",count:%u", p->count);
    if (p->slack && p->slack_least)
        snprintf(least, sizeof least, ":%u", p->slack_least);
    char all[MOE_PART_TEXT_BYTES];
    snprintf(all, sizeof all, "%s%s%s%s%s%s%s", percentile, count, p->slack ? ",slack" : "", least,
             p->until_router ? ",until-router" : "", p->top_k ? ",all" : "",
             p->measured ? ",measured" : "");
    snprintf(out, size, "%s", all[0] ? all + 1 : "none");
}

/* Tokens: of less a use is forgotten before the next one. */
static const double LEAST_HALF_LIFE = 0.1, MOST_HALF_LIFE = 1e6;

static bool parse_cache(const char *text, struct moe_strategy *s)
{
    const char *arg = strchr(text, ':');
    char name[MOE_PART_TEXT_BYTES];
    double half_life = 0;
    snprintf(name, sizeof name, "%.*s", (int)(arg ? arg - text : (long)strlen(text)), text);
    const struct moe_policy_ops *policy = moe_policy_find(name);
    if (!policy && strcmp(text, "none") != 0)
        return false;
    if (arg && (policy != &moe_policy_lrfu || !moe_parse_double(arg + 1, &half_life) ||
                !(half_life >= LEAST_HALF_LIFE && half_life <= MOST_HALF_LIFE)))
        return false;
    s->cache = policy;
    s->half_life = half_life;
    return true;
}

static void write_cache(const struct moe_strategy *s, char *out, size_t size)
{
    char half_life[64];
    if (!s->cache || !(s->half_life > 0)) {
        snprintf(out, size, "%s", s->cache ? s->cache->name : "none");
        return;
    }
    number_text(s->half_life, half_life, sizeof half_life);
    snprintf(out, size, "%s:%s", s->cache->name, half_life);
}

static bool parse_weights(const char *text, struct moe_strategy *s)
{
    double weights[MOE_HOBBIT_WEIGHTS] = {0}, sum = 0;
    char item[64];
    if (strcmp(text, "default") != 0) {
        for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++) {
            if (!next_item(&text, item) || !moe_parse_double(item, &weights[i]) || weights[i] < 0)
                return false;
            sum += weights[i];
        }
        if (text || !(sum > 0) || !isfinite(sum))
            return false;
        if (fabs(sum - 1) > 1e-12) /* weights that sum to 1 stay exactly as they are */
            for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
                weights[i] /= sum;
    }
    memcpy(s->weights, weights, sizeof weights);
    return true;
}

static void write_weights(const struct moe_strategy *s, char *out, size_t size)
{
    char w[MOE_HOBBIT_WEIGHTS][32];
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
        number_text(s->weights[i], w[i], sizeof w[i]);
    if (moe_strategy_weights(s))
        snprintf(out, size, "%s,%s,%s,%s", w[0], w[1], w[2], w[3]);
    else
        snprintf(out, size, "default");
}

static const char *const allocations[] = {"global", "per-layer", "shallow", "frequency"};

static bool parse_alloc(const char *text, struct moe_strategy *s)
{
    const char *arg;
    uint32_t boundary = 0;
    int word = find_word(allocations, 4, text, &arg);
    if (word < 0 || (arg && word != MOE_ALLOC_SHALLOW))
        return false;
    if (word == MOE_ALLOC_SHALLOW && (!arg || strcmp(arg, "auto") == 0))
        boundary = MOE_SHALLOW_AUTO;
    else if (arg && !moe_part_count(arg, 0, MOE_SHALLOW_AUTO - 1, &boundary))
        return false;
    s->alloc = (enum moe_alloc)word;
    s->boundary = boundary;
    s->boundary_from = MOE_BOUNDARY_NAMED;
    return true;
}

static void write_alloc(const struct moe_strategy *s, char *out, size_t size)
{
    if (s->alloc == MOE_ALLOC_SHALLOW && s->boundary != MOE_SHALLOW_AUTO)
        snprintf(out, size, "shallow:%u", s->boundary);
    else
        snprintf(out, size, "%s", allocations[s->alloc]);
}

static const char *const initials[] = {"empty", "frequency", "layerwise", "encoder-first"};

static bool parse_init(const char *text, struct moe_strategy *s)
{
    const char *arg;
    int word = find_word(initials, 4, text, &arg);
    if (word < 0 || arg)
        return false;
    s->init = (enum moe_init)word;
    return true;
}

static void write_init(const struct moe_strategy *s, char *out, size_t size)
{
    snprintf(out, size, "%s", initials[s->init]);
}

/* An absent expert's place and precision, in any order; by default it is loaded at the best one. */
enum { ON_LOAD = 0, ON_COMPUTE_HOST, ON_OR_LOAD, ON_LOAD_LOW, ON_EMERGENCY, N_ON_MISS };
static const char *const misses[N_ON_MISS] = {"load", "compute-host", "or-load", "load-low",
                                              "emergency"};

static bool parse_on_miss(const char *text, struct moe_strategy *s)
{
    char item[64];
    const char *arg;
    bool has[N_ON_MISS] = {false};
    double high_up_to = 0.6; /* HOBBIT 3.2 */
    while (text) {
        int word = next_item(&text, item) ? find_word(misses, N_ON_MISS, item, &arg) : -1;
        if (word < 0 || has[word] ||
            (arg && (word != ON_LOAD_LOW || !moe_parse_double(arg, &high_up_to) || high_up_to < 0 ||
                     high_up_to > 1)))
            return false;
        has[word] = true;
    }
    if ((has[ON_LOAD] && has[ON_COMPUTE_HOST]) || (has[ON_LOAD_LOW] && has[ON_EMERGENCY]) ||
        (has[ON_OR_LOAD] && !has[ON_COMPUTE_HOST]))
        return false;
    s->miss_place = has[ON_COMPUTE_HOST] ? MOE_MISS_COMPUTE_HOST : MOE_MISS_LOAD;
    s->miss_precision = has[ON_LOAD_LOW]    ? MOE_MISS_BY_SCORE
                        : has[ON_EMERGENCY] ? MOE_MISS_EMERGENCY
                                            : MOE_MISS_BEST;
    s->high_up_to = has[ON_LOAD_LOW] ? high_up_to : 0;
    s->host_falls_back = has[ON_OR_LOAD];
    return true;
}

/* "load" stands alone: beside a precision it goes without saying. */
static void write_on_miss(const struct moe_strategy *s, char *out, size_t size)
{
    char number[32], precision[64] = "";
    number_text(s->high_up_to, number, sizeof number);
    if (s->miss_precision == MOE_MISS_BY_SCORE)
        snprintf(precision, sizeof precision, ",%s:%s", misses[ON_LOAD_LOW], number);
    else if (s->miss_precision == MOE_MISS_EMERGENCY)
        snprintf(precision, sizeof precision, ",%s", misses[ON_EMERGENCY]);
    if (s->miss_place == MOE_MISS_COMPUTE_HOST)
        snprintf(out, size, "%s%s%s%s", misses[ON_COMPUTE_HOST], s->host_falls_back ? "," : "",
                 s->host_falls_back ? misses[ON_OR_LOAD] : "", precision);
    else
        snprintf(out, size, "%s", precision[0] ? precision + 1 : misses[ON_LOAD]);
}

/* "0.5", or "0.5:2" where more than the strongest expert stays. */
static bool parse_prefer_cached(const char *text, struct moe_strategy *s)
{
    char number[64];
    size_t n = strcspn(text, ":");
    double lambda = 0;
    uint32_t keeps = 1;
    bool by_map = strcmp(text, "auto") == 0;
    if (n >= sizeof number)
        return false;
    memcpy(number, text, n);
    number[n] = 0;
    if (!by_map && (!moe_parse_double(number, &lambda) || !(lambda >= 0) || !isfinite(lambda)))
        return false;
    if (text[n] && !moe_part_count(text + n + 1, 1, MOE_MAX_TOP_K, &keeps))
        return false;
    s->prefer = lambda;
    s->prefer_keeps = lambda > 0 ? keeps : 0;
    s->prefer_by_map = by_map;
    return true;
}

static void write_prefer_cached(const struct moe_strategy *s, char *out, size_t size)
{
    char number[32], keeps[16] = "";
    number_text(s->prefer, number, sizeof number);
    if (s->prefer_keeps > 1)
        snprintf(keeps, sizeof keeps, ":%u", s->prefer_keeps);
    snprintf(out, size, "%s%s", s->prefer_by_map ? "auto" : number, s->prefer_by_map ? "" : keeps);
}

static const char *const prefills[] = {"routed-order", "popularity", "hybrid"};
static const char OR_POPULARITY[] = ",or-popularity";

static bool parse_prefill(const char *text, struct moe_strategy *s)
{
    char first[64];
    const char *rest = text, *arg;
    if (!next_item(&rest, first))
        return false;
    int word = find_word(prefills, 3, first, &arg);
    bool hybrid = word == MOE_PREFILL_HYBRID;
    double share = hybrid ? 0.25 : 0; /* Fate 4.5 */
    if (word < 0 || (rest && (!hybrid || strcmp(rest, OR_POPULARITY + 1) != 0)) ||
        (arg && (!hybrid || !moe_parse_share(arg, &share) || share > 1)))
        return false;
    s->prefill = (enum moe_prefill)word;
    s->low_share = share;
    s->prefill_falls_back = rest != NULL;
    return true;
}

static void write_prefill(const struct moe_strategy *s, char *out, size_t size)
{
    char share[32];
    moe_part_share_text(s->low_share, share, sizeof share);
    bool hybrid = s->prefill == MOE_PREFILL_HYBRID;
    snprintf(out, size, "%s%s%s%s", prefills[s->prefill], hybrid ? ":" : "", hybrid ? share : "",
             s->prefill_falls_back ? OR_POPULARITY : "");
}

const struct moe_part_codec moe_part_predict = {parse_predict, write_predict};
const struct moe_part_codec moe_part_prefetch = {parse_prefetch, write_prefetch};
const struct moe_part_codec moe_part_cache = {parse_cache, write_cache};
const struct moe_part_codec moe_part_cache_weights = {parse_weights, write_weights};
const struct moe_part_codec moe_part_alloc = {parse_alloc, write_alloc};
const struct moe_part_codec moe_part_init = {parse_init, write_init};
const struct moe_part_codec moe_part_on_miss = {parse_on_miss, write_on_miss};
const struct moe_part_codec moe_part_prefer_cached = {parse_prefer_cached, write_prefer_cached};
const struct moe_part_codec moe_part_prefill = {parse_prefill, write_prefill};
