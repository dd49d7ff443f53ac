/* Reads collections of expert models, moe-coe(5), and routes requests. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "serve/coe_collection.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct ranked {
    double probability;
    uint32_t expert;
};

static int by_falling_probability(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->probability != y->probability)
        return x->probability < y->probability ? 1 : -1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

uint32_t *moe_coe_rank(const struct moe_coe_experts *all, struct moe_err *err)
{
    struct ranked *by = moe_alloc(all->n, sizeof *by, err);
    uint32_t *ranked = moe_alloc(all->n, sizeof *ranked, err);
    for (uint32_t i = 0; i < all->n && by; i++)
        by[i] = (struct ranked){all->experts[i].probability, i};
    if (by)
        qsort(by, all->n, sizeof *by, by_falling_probability);
    for (uint32_t i = 0; i < all->n && by && ranked; i++)
        ranked[i] = by[i].expert;
    if (!by) {
        free(ranked);
        ranked = NULL;
    }
    free(by);
    return ranked;
}

enum {
    MAX_FILE_BYTES = 16 << 20,
    MATCH_LIMIT = 1000 * 1000, /* steps of one match; a pattern that takes more does not match */
};

/* ---- The file ---- */

static int compile_test(struct moe_record_reader *r, struct moe_yaml_node *map,
                        struct moe_coe_test *test)
{
    int code;
    PCRE2_SIZE offset;
    if (test->equals[0] && test->matches[0])
        return moe_yaml_fail(r->doc, map, r->err, "'equals' and 'matches' exclude each other");
    if (!test->matches[0])
        return MOE_OK;
    test->pattern = pcre2_compile((PCRE2_SPTR)test->matches, PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
                                  &code, &offset, NULL);
    if (test->pattern)
        return MOE_OK;
    char why[128];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return moe_yaml_fail(r->doc, moe_yaml_get(map, "matches"), r->err, "%s (character %zu)", why,
                         (size_t)offset);
}

static int find_expert(struct moe_record_reader *r, struct moe_yaml_node *map, const char *key,
                       const char *name, uint32_t *index)
{
    *index = moe_coe_find(r->whole, name);
    return *index != MOE_COE_NONE ? MOE_OK
                                  : moe_yaml_fail(r->doc, moe_yaml_get(map, key), r->err,
                                                  "'%s' is none of the experts", name);
}

static int check_model(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_coe_collection *c = r->whole;
    const struct moe_coe_model *m = record;
    uint32_t first = moe_coe_find(c, m->name);
    if (first != MOE_COE_NONE && &c->models[first] != m)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, "name"), r->err,
                             "there is another expert '%s'", m->name);
    if (m->device[0] && strcmp(m->device, "cpu") != 0 && strcmp(m->device, "cuda") != 0)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, "device"), r->err,
                             "'device' is cpu or cuda, not '%s'", m->device);
    return MOE_OK;
}

static int check_route(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    struct moe_coe_route *route = record;
    bool tests = route->test.equals[0] || route->test.matches[0];
    if (tests != (route->field[0] != '\0'))
        return moe_yaml_fail(r->doc, map, r->err,
                             tests ? "a test without a 'field'" : "a 'field' without a test");
    MOE_TRY(find_expert(r, map, "expert", route->expert, &route->to));
    return compile_test(r, map, &route->test);
}

static int check_score(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    struct moe_coe_score *score = record;
    return find_expert(r, map, "expert", score->expert, &score->to);
}

static int check_follow(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    struct moe_coe_follow *f = record;
    MOE_TRY(find_expert(r, map, "after", f->after, &f->from));
    MOE_TRY(find_expert(r, map, "expert", f->expert, &f->to));
    return compile_test(r, map, &f->test);
}

#define FIELD(type, key, field) MOE_FIELD(MOE_IF_SET, struct type, key, field)
#define NAME(type, key, field) MOE_FIELD(MOE_ALWAYS, struct type, key, field)
#define TEST(type) FIELD(type, "equals", test.equals), FIELD(type, "matches", test.matches)

static const struct moe_member model_members[] = {
    NAME(moe_coe_model, "name", name),
    NAME(moe_coe_model, "pack", pack),
    MOE_FIELD_IN(MOE_IF_KNOWN, struct moe_coe_model, "probability", probability, 0, 1),
    FIELD(moe_coe_model, "device", device),
    FIELD(moe_coe_model, "architecture", architecture),
};
static const struct moe_member route_members[] = {
    FIELD(moe_coe_route, "field", field),
    TEST(moe_coe_route),
    NAME(moe_coe_route, "expert", expert),
    MOE_FIELD(MOE_IF_KNOWN, struct moe_coe_route, "quantity", quantity),
};
static const struct moe_member score_members[] = {
    NAME(moe_coe_score, "value", value),
    NAME(moe_coe_score, "expert", expert),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_coe_score, "score", score, -HUGE_VAL, HUGE_VAL),
};
static const struct moe_member follow_members[] = {
    NAME(moe_coe_follow, "after", after),
    TEST(moe_coe_follow),
    NAME(moe_coe_follow, "expert", expert),
    MOE_FIELD_IN(MOE_IF_KNOWN, struct moe_coe_follow, "share", share, 0, 1),
};

static const struct moe_record model_record = {MOE_RECORD(model_members), check_model};
static const struct moe_record route_record = {MOE_RECORD(route_members), check_route};
static const struct moe_record score_record = {MOE_RECORD(score_members), check_score};
static const struct moe_record follow_record = {MOE_RECORD(follow_members), check_follow};

#define LIST(key, field, n_field, record, max)                                                     \
    MOE_OWNED_LINE_LIST(struct moe_coe_collection, key, field, n_field, record, max)

static const struct moe_member members[] = {
    LIST("experts", models, n_models, model_record, MOE_COE_MAX_MODELS),
    LIST("routes", routes, n_routes, route_record, MOE_COE_MAX_RULES),
    FIELD(moe_coe_collection, "score_field", score_field),
    LIST("scores", scores, n_scores, score_record, MOE_COE_MAX_RULES),
    LIST("follows", follows, n_follows, follow_record, MOE_COE_MAX_RULES),
};

/* ---- The graph ---- */

/* Finds an expert whose results may return to it. Each round drops the experts all of whose
 * followers were dropped before: as many rounds as rules follow one another. blocked: scratch for a
 * round. */
static uint32_t find_circle(const struct moe_coe_collection *c, bool *left, bool *blocked)
{
    for (bool moved = true; moved;) {
        moved = false;
        memset(blocked, 0, c->n_models * sizeof *blocked);
        for (uint32_t i = 0; i < c->n_follows; i++)
            if (!left[c->follows[i].to])
                blocked[c->follows[i].from] = true;
        for (uint32_t e = 0; e < c->n_models; e++) {
            moved = moved || left[e] == blocked[e];
            left[e] = !blocked[e];
        }
    }
    for (uint32_t e = 0; e < c->n_models; e++)
        if (!left[e])
            return e;
    return MOE_COE_NONE;
}

static uint32_t find_unreachable(const struct moe_coe_collection *c, bool *reached)
{
    for (uint32_t i = 0; i < c->n_routes; i++)
        reached[c->routes[i].to] = true;
    for (uint32_t i = 0; i < c->n_scores; i++)
        reached[c->scores[i].to] = true;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < c->n_follows; i++)
            if (reached[c->follows[i].from] && !reached[c->follows[i].to])
                moved = reached[c->follows[i].to] = true;
    }
    for (uint32_t e = 0; e < c->n_models; e++)
        if (!reached[e])
            return e;
    return MOE_COE_NONE;
}

static int check_collection(struct moe_record_reader *r, struct moe_yaml_node *root, void *record)
{
    const struct moe_coe_collection *c = record;
    if (c->n_models == 0)
        return moe_yaml_fail(r->doc, root, r->err, "there are no experts");
    if ((c->n_scores > 0) != (c->score_field[0] != '\0'))
        return moe_yaml_fail(r->doc, root, r->err, "'scores' and 'score_field' go together");
    bool *left = moe_alloc(c->n_models, sizeof *left, r->err);
    bool *reached = moe_alloc(c->n_models, sizeof *reached, r->err);
    int status = left && reached ? MOE_OK : MOE_ERR_MEMORY;
    uint32_t e;
    if (status == MOE_OK && (e = find_circle(c, left, reached)) != MOE_COE_NONE)
        status = moe_yaml_fail(r->doc, moe_yaml_get(root, "follows"), r->err,
                               "results of '%s' may return to it", c->models[e].name);
    if (reached)
        memset(reached, 0, c->n_models * sizeof *reached);
    if (status == MOE_OK && (e = find_unreachable(c, reached)) != MOE_COE_NONE)
        status = moe_yaml_fail(r->doc, moe_yaml_get(root, "experts"), r->err,
                               "nothing leads to '%s'", c->models[e].name);
    free(left);
    free(reached);
    return status;
}

static const struct moe_record whole = {MOE_RECORD(members), check_collection};

static void release_collection(void *record)
{
    struct moe_coe_collection *c = record;
    for (uint32_t i = 0; c->routes && i < c->n_routes; i++)
        pcre2_code_free(c->routes[i].test.pattern);
    for (uint32_t i = 0; c->follows && i < c->n_follows; i++)
        pcre2_code_free(c->follows[i].test.pattern);
    free(c->models);
    free(c->routes);
    free(c->scores);
    free(c->follows);
}

const struct moe_record_format moe_coe_collection_format = {.name = "moe-coe",
                                                            .title = "a collection of experts",
                                                            .version = 1,
                                                            .max_bytes = MAX_FILE_BYTES,
                                                            .record = &whole,
                                                            .bytes =
                                                                sizeof(struct moe_coe_collection),
                                                            .release = release_collection};

/* ---- Reading and writing ---- */

int moe_coe_collection_read(struct moe_coe_collection **out, const char *path, struct moe_err *err)
{
    return moe_record_read(&moe_coe_collection_format, out, path, err);
}

int moe_coe_collection_write(const struct moe_coe_collection *c, bool json, struct moe_buf *out,
                             struct moe_err *err)
{
    return moe_record_write(&moe_coe_collection_format, c, json, out, err);
}

void moe_coe_collection_free(struct moe_coe_collection *c)
{
    moe_record_free(&moe_coe_collection_format, c);
}

uint32_t moe_coe_find(const struct moe_coe_collection *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_models; i++)
        if (strcmp(c->models[i].name, name) == 0)
            return i;
    return MOE_COE_NONE;
}

/* ---- Routing ---- */

static bool passes(const struct moe_coe_test *t, const char *text, uint64_t n)
{
    if (t->equals[0])
        return strlen(t->equals) == n && memcmp(t->equals, text, n) == 0;
    if (!t->pattern)
        return true;
    pcre2_match_data *found = pcre2_match_data_create(1, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    if (limits)
        pcre2_set_match_limit(limits, MATCH_LIMIT);
    bool yes =
        found && limits && pcre2_match(t->pattern, (PCRE2_SPTR)text, n, 0, 0, found, limits) >= 0;
    pcre2_match_data_free(found);
    pcre2_match_context_free(limits);
    return yes;
}

uint32_t moe_coe_route(const struct moe_coe_collection *c,
                       const char *(*field)(void *ctx, const char *name), void *ctx)
{
    const char *value = c->n_scores ? field(ctx, c->score_field) : NULL;
    const struct moe_coe_score *best = NULL;
    for (uint32_t i = 0; i < c->n_scores && value; i++)
        if (strcmp(c->scores[i].value, value) == 0 && (!best || c->scores[i].score > best->score))
            best = &c->scores[i];
    if (best)
        return best->to;
    for (uint32_t i = 0; i < c->n_routes; i++) {
        const struct moe_coe_route *r = &c->routes[i];
        value = r->field[0] ? field(ctx, r->field) : "";
        if (value && passes(&r->test, value, strlen(value)))
            return r->to;
    }
    return MOE_COE_NONE;
}

uint32_t moe_coe_next_expert(const struct moe_coe_collection *c, uint32_t expert,
                             const char *result, uint64_t n)
{
    for (uint32_t i = 0; i < c->n_follows; i++)
        if (c->follows[i].from == expert && passes(&c->follows[i].test, result, n))
            return c->follows[i].to;
    return MOE_COE_NONE;
}

/* ---- Probabilities ---- */

/* Adds the probabilities from routes; false: a route has no quantity. */
static bool add_quantities(const struct moe_coe_collection *c, double *p)
{
    double all = 0;
    for (uint32_t i = 0; i < c->n_routes; i++) {
        if (c->routes[i].quantity < 0)
            return false;
        all += c->routes[i].quantity;
    }
    for (uint32_t i = 0; i < c->n_routes && all > 0; i++)
        p[c->routes[i].to] += c->routes[i].quantity / all;
    return all > 0 && c->n_scores == 0;
}

/* Adds the probabilities from results, those of the first experts first: there are no circles. */
static bool add_shares(const struct moe_coe_collection *c, double *p)
{
    for (uint32_t i = 0; i < c->n_follows; i++)
        if (c->follows[i].share < 0)
            return false;
    /* Depth by depth: what reached an expert in one round moves on in the next. */
    double *now = calloc(c->n_models, sizeof *now), *next = calloc(c->n_models, sizeof *next);
    bool ok = now && next, some = ok;
    for (uint32_t e = 0; e < c->n_models && ok; e++)
        now[e] = p[e];
    while (some) {
        some = false;
        memset(next, 0, c->n_models * sizeof *next);
        for (uint32_t i = 0; i < c->n_follows; i++) {
            double more = now[c->follows[i].from] * c->follows[i].share;
            next[c->follows[i].to] += more;
            p[c->follows[i].to] += more;
            some = some || more > 0;
        }
        double *other = now;
        now = next;
        next = other;
    }
    free(now);
    free(next);
    return ok;
}

bool moe_coe_probabilities(const struct moe_coe_collection *c, double *probabilities)
{
    bool computed, all = true;
    memset(probabilities, 0, c->n_models * sizeof *probabilities);
    computed = add_quantities(c, probabilities) && add_shares(c, probabilities);
    for (uint32_t e = 0; e < c->n_models; e++) {
        const struct moe_coe_model *m = &c->models[e];
        probabilities[e] = probabilities[e] < 1 ? probabilities[e] : 1;
        if (m->probability >= 0)
            probabilities[e] = m->probability;
        else
            all = all && computed;
    }
    return all;
}
