/* Reads what a collection's models cost, and derives costs of other team sizes. */
#include "serve/coe_costs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_FILE_BYTES = 16 << 20, MAX_REQUESTS = 1 << 20 };
/* Keeps sums over all experts within 64 bits, and sums of times finite. */
#define MAX_BYTES 1e15
#define MAX_SECONDS 1e9

/* ---- The file ---- */

static uint32_t find_kind(const struct moe_coe_costs *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_kinds; i++)
        if (strcmp(c->kinds[i].name, name) == 0)
            return i;
    return MOE_COE_NONE;
}

uint32_t moe_coe_costs_processor(const struct moe_coe_costs *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_processors; i++)
        if (strcmp(c->processors[i].name, name) == 0)
            return i;
    return MOE_COE_NONE;
}

/* The cost for the team with all of the processor's threads. */
static const struct moe_coe_kind_cost *find_cost(const struct moe_coe_costs *c, uint32_t kind,
                                                 uint32_t on)
{
    for (uint32_t i = 0; i < c->n_costs; i++)
        if (c->costs[i].kind == kind && c->costs[i].on == on &&
            c->costs[i].threads == c->processors[on].threads)
            return &c->costs[i];
    return NULL;
}

/* Refuses an entry that is listed twice; entries are counted once checked, so a match is an earlier
 * one. */
static int twice(struct moe_record_reader *r, struct moe_yaml_node *map, const char *key,
                 const char *name)
{
    return moe_yaml_fail(r->doc, moe_yaml_get(map, key), r->err, "'%s' occurs twice", name);
}

static int check_processor(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_coe_processor *p = record;
    if (strcmp(p->name, "cpu") != 0 && strcmp(p->name, "cuda") != 0)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, "name"), r->err,
                             "a processor is cpu or cuda, not '%s'", p->name);
    return moe_coe_costs_processor(r->whole, p->name) == MOE_COE_NONE
               ? MOE_OK
               : twice(r, map, "name", p->name);
}

static int check_kind(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_coe_kind *k = record;
    return find_kind(r->whole, k->name) == MOE_COE_NONE ? MOE_OK : twice(r, map, "name", k->name);
}

static int find_names(struct moe_record_reader *r, struct moe_yaml_node *map,
                      const char *architecture, const char *processor, uint32_t *kind, uint32_t *on)
{
    *kind = find_kind(r->whole, architecture);
    *on = moe_coe_costs_processor(r->whole, processor);
    if (*kind == MOE_COE_NONE)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, "architecture"), r->err,
                             "'%s' is not one of the architectures", architecture);
    if (*on == MOE_COE_NONE)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, "processor"), r->err,
                             "'%s' is not one of the processors", processor);
    return MOE_OK;
}

/* Sets missing threads to all. */
static int check_threads(struct moe_record_reader *r, struct moe_yaml_node *map, uint32_t on,
                         uint32_t *threads)
{
    const struct moe_coe_processor *p = &((struct moe_coe_costs *)r->whole)->processors[on];
    if (*threads > p->threads)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, "threads"), r->err,
                             "'threads' is %u, and processor '%s' has %u", *threads, p->name,
                             p->threads);
    *threads = *threads ? *threads : p->threads;
    return MOE_OK;
}

static int check_cost(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_coe_costs *c = r->whole;
    struct moe_coe_kind_cost *k = record;
    uint32_t teams = 0;
    MOE_TRY(find_names(r, map, k->architecture, k->processor, &k->kind, &k->on));
    MOE_TRY(check_threads(r, map, k->on, &k->threads));
    for (uint32_t i = 0; i < c->n_costs; i++) {
        const struct moe_coe_kind_cost *other = &c->costs[i];
        if (other->kind != k->kind || other->on != k->on)
            continue;
        teams++;
        if (other->threads == k->threads)
            return moe_yaml_fail(r->doc, map, r->err, "'%s' on '%s' occurs twice", k->architecture,
                                 k->processor);
    }
    if (teams == MOE_COE_MAX_TEAMS)
        return moe_yaml_fail(r->doc, map, r->err, "'%s' on '%s': there are more than %d 'threads'",
                             k->architecture, k->processor, MOE_COE_MAX_TEAMS);
    bool apart = c->processors[k->on].memory_bytes > 0;
    if (apart != (k->cost.load_from_host > 0))
        return moe_yaml_fail(r->doc, map, r->err,
                             apart ? "'load_from_host_seconds' is missing: '%s' has memory of its "
                                     "own"
                                   : "'load_from_host_seconds' without memory of its own: '%s' "
                                     "shares the host's",
                             k->processor);
    return MOE_OK;
}

static int check_batch(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    struct moe_coe_kind_batch *b = record;
    uint32_t kind, on;
    MOE_TRY(find_names(r, map, b->architecture, b->processor, &kind, &on));
    return check_threads(r, map, on, &b->threads);
}

static int check_model(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_coe_costs *c = r->whole;
    struct moe_coe_model_cost *m = record;
    for (uint32_t i = 0; i < c->n_models; i++)
        if (strcmp(c->models[i].name, m->name) == 0)
            return twice(r, map, "name", m->name);
    m->kind = find_kind(c, m->architecture);
    return m->kind != MOE_COE_NONE
               ? MOE_OK
               : moe_yaml_fail(r->doc, moe_yaml_get(map, "architecture"), r->err,
                               "'%s' is not one of the architectures", m->architecture);
}

static int check_costs(struct moe_record_reader *r, struct moe_yaml_node *root, void *record)
{
    const struct moe_coe_costs *c = record;
    for (uint32_t i = 0; i < c->n_costs; i++)
        if (!find_cost(c, c->costs[i].kind, c->costs[i].on))
            return moe_yaml_fail(r->doc, moe_yaml_get(root, "costs"), r->err,
                                 "'%s' on '%s' has no costs for all %u threads",
                                 c->costs[i].architecture, c->costs[i].processor,
                                 c->processors[c->costs[i].on].threads);
    for (uint32_t k = 0; k < c->n_kinds; k++) {
        bool any = false;
        for (uint32_t on = 0; on < c->n_processors; on++)
            any = any || find_cost(c, k, on);
        if (!any)
            return moe_yaml_fail(r->doc, moe_yaml_get(root, "architectures"), r->err,
                                 "'%s' has no costs", c->kinds[k].name);
    }
    return c->n_kinds ? MOE_OK : moe_yaml_fail(r->doc, root, r->err, "there are no costs");
}

#define TEXT(type, key, field) MOE_FIELD(MOE_IF_SET, struct type, key, field)
#define NAME(type, key, field) MOE_FIELD(MOE_ALWAYS, struct type, key, field)
#define SECONDS(type, key, field) MOE_FIELD_IN(MOE_ALWAYS, struct type, key, field, 0, MAX_SECONDS)
#define BYTES(presence, type, key, field, min)                                                     \
    MOE_FIELD_IN(presence, struct type, key, field, min, MAX_BYTES)
#define THREADS(type)                                                                              \
    MOE_FIELD_IN(MOE_IF_SET, struct type, "threads", threads, 1, MOE_COE_MAX_THREADS)

static const struct moe_member processor_members[] = {
    NAME(moe_coe_processor, "name", name),
    BYTES(MOE_IF_SET, moe_coe_processor, "memory_bytes", memory_bytes, 0),
    BYTES(MOE_IF_SET, moe_coe_processor, "executor_bytes", executor_bytes, 0),
    THREADS(moe_coe_processor),
};
static const struct moe_member kind_members[] = {
    NAME(moe_coe_kind, "name", name),
    TEXT(moe_coe_kind, "source", source),
};
static const struct moe_member cost_members[] = {
    NAME(moe_coe_kind_cost, "architecture", architecture),
    NAME(moe_coe_kind_cost, "processor", processor),
    THREADS(moe_coe_kind_cost),
    SECONDS(moe_coe_kind_cost, "per_request_seconds", cost.per_request),
    SECONDS(moe_coe_kind_cost, "per_batch_seconds", cost.per_batch),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_coe_kind_cost, "max_batch", cost.max_batch, 1,
                 MAX_REQUESTS),
    SECONDS(moe_coe_kind_cost, "load_seconds", cost.load),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_coe_kind_cost, "load_from_host_seconds",
                 cost.load_from_host, 0, MAX_SECONDS),
    BYTES(MOE_ALWAYS, moe_coe_kind_cost, "expert_bytes", expert_bytes, 1),
    BYTES(MOE_IF_SET, moe_coe_kind_cost, "request_bytes", cost.request_bytes, 0),
};
static const struct moe_member batch_members[] = {
    NAME(moe_coe_kind_batch, "architecture", architecture),
    NAME(moe_coe_kind_batch, "processor", processor),
    THREADS(moe_coe_kind_batch),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_coe_kind_batch, "requests", requests, 1, MAX_REQUESTS),
    SECONDS(moe_coe_kind_batch, "seconds", seconds),
    BYTES(MOE_IF_SET, moe_coe_kind_batch, "bytes", bytes, 0),
};
static const struct moe_member model_members[] = {
    NAME(moe_coe_model_cost, "name", name),
    NAME(moe_coe_model_cost, "architecture", architecture),
    MOE_FIELD_IN(MOE_IF_KNOWN, struct moe_coe_model_cost, "probability", probability, 0, 1),
};

static const struct moe_record processor_record = {MOE_RECORD(processor_members), check_processor};
static const struct moe_record kind_record = {MOE_RECORD(kind_members), check_kind};
static const struct moe_record cost_record = {MOE_RECORD(cost_members), check_cost};
static const struct moe_record batch_record = {MOE_RECORD(batch_members), check_batch};
static const struct moe_record model_record = {MOE_RECORD(model_members), check_model};

#define LIST(key, field, n_field, record, max)                                                     \
    MOE_OWNED_LINE_LIST(struct moe_coe_costs, key, field, n_field, record, max)

static const struct moe_member members[] = {
    TEXT(moe_coe_costs, "machine", machine),
    TEXT(moe_coe_costs, "source", source),
    BYTES(MOE_ALWAYS, moe_coe_costs, "memory_bytes", memory_bytes, 1),
    LIST("processors", processors, n_processors, processor_record, MOE_COE_MAX_PROCESSORS),
    LIST("architectures", kinds, n_kinds, kind_record, MOE_COE_MAX_KINDS),
    LIST("costs", costs, n_costs, cost_record, MOE_COE_MAX_COSTS),
    LIST("batches", batches, n_batches, batch_record, MOE_COE_MAX_BATCHES),
    LIST("models", models, n_models, model_record, MOE_COE_MAX_MODELS),
};
static const struct moe_record whole = {MOE_RECORD(members), check_costs};

static void release_costs(void *record)
{
    struct moe_coe_costs *c = record;
    free(c->processors);
    free(c->kinds);
    free(c->costs);
    free(c->batches);
    free(c->models);
}

const struct moe_record_format moe_coe_costs_format = {.name = "moe-coe-costs",
                                                       .title = "Costs of expert models",
                                                       .version = 1,
                                                       .max_bytes = MAX_FILE_BYTES,
                                                       .record = &whole,
                                                       .page = "moe-coe",
                                                       .bytes = sizeof(struct moe_coe_costs),
                                                       .release = release_costs};

/* ---- Reading and writing ---- */

int moe_coe_costs_read(struct moe_coe_costs **out, const char *path, struct moe_err *err)
{
    return moe_record_read(&moe_coe_costs_format, out, path, err);
}

int moe_coe_costs_write(const struct moe_coe_costs *c, bool json, struct moe_buf *out,
                        struct moe_err *err)
{
    return moe_record_write(&moe_coe_costs_format, c, json, out, err);
}

void moe_coe_costs_free(struct moe_coe_costs *c)
{
    moe_record_free(&moe_coe_costs_format, c);
}

/* ---- A collection's experts ---- */

/* Sets its architecture, probability, bytes and processors. */
static int describe_expert(struct moe_coe_expert *e, const struct moe_coe_costs *c,
                           const struct moe_coe_model *m, struct moe_err *err)
{
    const char *architecture = m->architecture;
    for (uint32_t i = 0; i < c->n_models; i++)
        if (strcmp(c->models[i].name, m->name) == 0) {
            architecture = c->models[i].architecture;
            e->probability =
                c->models[i].probability >= 0 ? c->models[i].probability : e->probability;
        }
    if (!architecture[0])
        return moe_fail(err, MOE_ERR_USAGE,
                        "expert '%s' has no architecture, in the collection or among the models "
                        "of the costs; moe-profile --coe measures it",
                        m->name);
    e->kind = find_kind(c, architecture);
    if (e->kind == MOE_COE_NONE)
        return moe_fail(err, MOE_ERR_USAGE,
                        "expert '%s': the costs have no architecture '%s'; moe-profile --coe "
                        "measures it",
                        m->name, architecture);
    uint32_t n = 0;
    for (uint32_t on = 0; on < c->n_processors; on++) {
        const struct moe_coe_kind_cost *cost = find_cost(c, e->kind, on);
        if (!cost || (m->device[0] && strcmp(m->device, c->processors[on].name) != 0)) {
            e->not_on |= 1U << on;
            continue;
        }
        e->bytes = cost->expert_bytes > e->bytes ? cost->expert_bytes : e->bytes;
        n++;
    }
    return n ? MOE_OK
             : moe_fail(err, MOE_ERR_USAGE,
                        "expert '%s' may run on '%s', and the costs have no such processor for "
                        "'%s'",
                        m->name, m->device, architecture);
}

/* Adds an expert to those before another, once even if several rules lead there. */
static void list_before(struct moe_coe_expert *e, uint32_t expert, uint32_t *before, uint32_t *n,
                        const struct moe_coe_collection *c)
{
    e->first_before = *n;
    for (uint32_t i = 0; i < c->n_follows; i++) {
        bool again = c->follows[i].to != expert;
        for (uint32_t k = e->first_before; k < *n && !again; k++)
            again = before[k] == c->follows[i].from;
        if (!again)
            before[(*n)++] = c->follows[i].from;
    }
    e->n_before = *n - e->first_before;
}

/* Whether requests may begin with the expert: then it waits for no other and is no subsequent
 * expert (4.3). */
static bool requests_begin(const struct moe_coe_collection *c, uint32_t expert)
{
    for (uint32_t i = 0; i < c->n_routes; i++)
        if (c->routes[i].to == expert)
            return true;
    for (uint32_t i = 0; i < c->n_scores; i++)
        if (c->scores[i].to == expert)
            return true;
    return false;
}

int moe_coe_costs_experts(struct moe_coe_experts **out, const struct moe_coe_costs *c,
                          const struct moe_coe_collection *collection, bool *probable,
                          struct moe_err *err)
{
    uint32_t n = collection->n_models, n_before = 0;
    struct moe_coe_experts *all = moe_alloc(1, sizeof *all, err);
    struct moe_coe_expert *experts = moe_alloc(n, sizeof *experts, err);
    uint32_t *before = moe_alloc(collection->n_follows, sizeof *before, err);
    double *p = moe_alloc(n, sizeof *p, err);
    int status = all && experts && before && p ? MOE_OK : MOE_ERR_MEMORY;
    bool known = status == MOE_OK && moe_coe_probabilities(collection, p);
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        experts[i].probability = known ? p[i] : -1;
        status = describe_expert(&experts[i], c, &collection->models[i], err);
        if (!requests_begin(collection, i))
            list_before(&experts[i], i, before, &n_before, collection);
    }
    known = true;
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        known = known && experts[i].probability >= 0;
        experts[i].probability = experts[i].probability >= 0 ? experts[i].probability : 0;
    }
    if (probable)
        *probable = known;
    free(p);
    if (status != MOE_OK) {
        free(all);
        free(experts);
        free(before);
        *out = NULL;
        return status;
    }
    *all = (struct moe_coe_experts){n, c->n_kinds, experts, before};
    *out = all;
    return MOE_OK;
}

void moe_coe_experts_free(struct moe_coe_experts *all)
{
    if (!all)
        return;
    free((void *)(uintptr_t)all->experts);
    free((void *)(uintptr_t)all->before);
    free(all);
}

/* Costs of teams of threads. */

/* The smallest team of at least `threads` threads; NULL: none is that large. */
static const struct moe_coe_kind_cost *above(const struct moe_coe_costs *c, uint32_t kind,
                                             uint32_t on, uint32_t threads)
{
    const struct moe_coe_kind_cost *best = NULL;
    for (uint32_t i = 0; i < c->n_costs; i++) {
        const struct moe_coe_kind_cost *k = &c->costs[i];
        if (k->kind == kind && k->on == on && k->threads >= threads &&
            (!best || k->threads < best->threads))
            best = k;
    }
    return best;
}

/* The largest team of fewer threads. */
static const struct moe_coe_kind_cost *below(const struct moe_coe_costs *c, uint32_t kind,
                                             uint32_t on, uint32_t threads)
{
    const struct moe_coe_kind_cost *best = NULL;
    for (uint32_t i = 0; i < c->n_costs; i++) {
        const struct moe_coe_kind_cost *k = &c->costs[i];
        if (k->kind == kind && k->on == on && k->threads < threads &&
            (!best || k->threads > best->threads))
            best = k;
    }
    return best;
}

/* A time between that of more threads and that of fewer. */
static double between(double more, double fewer, double share)
{
    return more + share * (fewer - more);
}

/* The cost of a team. Loading and memory are the larger team's: sessions have scratch for each
 * thread. */
static struct moe_coe_cost cost_of(const struct moe_coe_costs *c, uint32_t kind, uint32_t on,
                                   uint32_t threads)
{
    const struct moe_coe_kind_cost *more = above(c, kind, on, threads);
    const struct moe_coe_kind_cost *fewer = below(c, kind, on, threads);
    if (!more)
        return (struct moe_coe_cost){0};
    struct moe_coe_cost cost = more->cost;
    if (more->threads == threads)
        return cost;
    double at = 1.0 / threads, most = 1.0 / more->threads;
    if (fewer) {
        double share = (at - most) / (1.0 / fewer->threads - most);
        cost.per_request = between(cost.per_request, fewer->cost.per_request, share);
        cost.per_batch = between(cost.per_batch, fewer->cost.per_batch, share);
    } else {
        cost.per_request *= at / most;
        cost.per_batch *= at / most;
    }
    return cost;
}

void moe_coe_costs_table(const struct moe_coe_costs *c, uint32_t processor, uint32_t threads,
                         struct moe_coe_cost *table)
{
    uint32_t all = c->processors[processor].threads;
    threads = threads == 0 || threads > all ? all : threads;
    for (uint32_t kind = 0; kind < c->n_kinds; kind++)
        table[kind] = cost_of(c, kind, processor, threads);
}

void moe_coe_costs_teams(const struct moe_coe_costs *c, uint32_t processor, uint32_t n,
                         uint32_t *threads, uint32_t *at_a_time)
{
    uint32_t all = c->processors[processor].threads;
    *threads = all > n ? all / n : all > 0;
    *at_a_time = all == 0 ? 1 : n < all ? n : all;
}
