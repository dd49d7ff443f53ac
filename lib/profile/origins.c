/* What a file was made from: shards, and origins with their texts and options. */
#include "profile/origins.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int moe_shards_set(struct moe_shards *s, uint32_t shard, uint32_t n, struct moe_err *err)
{
    uint32_t *held = moe_alloc(1, sizeof *held, err);
    *s = (struct moe_shards){0};
    if (!held)
        return MOE_ERR_MEMORY;
    *held = shard;
    *s = (struct moe_shards){.n = n, .n_held = 1, .held = held};
    return MOE_OK;
}

static int copy_shards(struct moe_shards *to, const struct moe_shards *from, struct moe_err *err)
{
    *to = (struct moe_shards){0};
    if (from->n == 0)
        return MOE_OK;
    uint32_t *held = moe_alloc(from->n_held, sizeof *held, err);
    if (!held)
        return MOE_ERR_MEMORY;
    memcpy(held, from->held, from->n_held * sizeof *held);
    *to = (struct moe_shards){.n = from->n, .n_held = from->n_held, .held = held};
    return MOE_OK;
}

void moe_shards_release(struct moe_shards *s)
{
    free(s->held);
    *s = (struct moe_shards){0};
}

bool moe_shards_same(const struct moe_shards *a, const struct moe_shards *b)
{
    return a->n == b->n && a->n_held == b->n_held &&
           (a->n_held == 0 || memcmp(a->held, b->held, a->n_held * sizeof *a->held) == 0);
}

static int compare_shards(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

bool moe_shards_hold(const struct moe_shards *s, uint32_t shard)
{
    return s->n_held && bsearch(&shard, s->held, s->n_held, sizeof *s->held, compare_shards);
}

uint64_t moe_shards_items(const struct moe_shards *s, uint64_t items)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->n_held; i++)
        sum += items > s->held[i] ? (items - s->held[i] - 1) / s->n + 1 : 0;
    return sum;
}

const char *moe_shards_problem(const struct moe_shards *s)
{
    if (s->n == 0 || s->n > MOE_MAX_SHARDS)
        return "no or too many shards";
    if (s->n_held == 0 || s->n_held > s->n)
        return "none of its shards is held, or more than there are";
    for (uint32_t i = 0; i < s->n_held; i++)
        if (s->held[i] >= s->n || (i > 0 && s->held[i] <= s->held[i - 1]))
            return "the shards held must be in ascending order, from 1 to all there are";
    return NULL;
}

/* ---- Merging ---- */

static int check_apart(const struct moe_shards *sum, const struct moe_shards *part,
                       struct moe_err *err)
{
    if (moe_shards_whole(sum))
        return moe_fail(err, MOE_ERR_USAGE,
                        part->n == 1 ? "would count twice: all of it is there already"
                                     : "would count twice: all shards of it are there already");
    if (moe_shards_whole(part))
        return moe_fail(err, MOE_ERR_USAGE,
                        "would count twice: it is whole, and shard %" PRIu32 " of %" PRIu32
                        " is there already",
                        sum->held[0] + 1, sum->n);
    if (sum->n != part->n)
        return moe_fail(err, MOE_ERR_USAGE,
                        "was cut into %" PRIu32 " shards, those before into %" PRIu32, part->n,
                        sum->n);
    for (uint32_t i = 0; i < part->n_held; i++)
        if (moe_shards_hold(sum, part->held[i]))
            return moe_fail(err, MOE_ERR_USAGE,
                            "would count twice: shard %" PRIu32 " of %" PRIu32 " is there already",
                            part->held[i] + 1, part->n);
    return MOE_OK;
}

int moe_shards_join(struct moe_shards *sum, const struct moe_shards *part, struct moe_err *err)
{
    MOE_TRY(check_apart(sum, part, err));
    uint32_t n = sum->n_held + part->n_held;
    uint32_t *held = moe_alloc(n, sizeof *held, err);
    if (!held)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0, a = 0, b = 0; i < n; i++) {
        bool first = b == part->n_held || (a < sum->n_held && sum->held[a] < part->held[b]);
        held[i] = first ? sum->held[a++] : part->held[b++];
    }
    free(sum->held);
    *sum = (struct moe_shards){.n = sum->n, .n_held = n, .held = held};
    if (moe_shards_whole(sum))
        *sum = (struct moe_shards){.n = 1, .n_held = 1, .held = held};
    return MOE_OK;
}

/* "1, 3-5": numbers from 0 to n that are held, or those that are not. */
static void print_numbers(const struct moe_shards *s, bool held, struct moe_buf *out)
{
    enum { MOST = 8 };
    uint32_t shown = 0, at = 0; /* at: of the first held one from i on */
    for (uint32_t i = 0, end; i < s->n; i = end) {
        while (at < s->n_held && s->held[at] < i)
            at++;
        bool is_held = at < s->n_held && s->held[at] == i;
        uint32_t next = at;
        for (end = i + 1; end < s->n; end++) {
            while (next < s->n_held && s->held[next] < end)
                next++;
            if ((next < s->n_held && s->held[next] == end) != is_held)
                break;
        }
        if (is_held != held)
            continue;
        if (shown++ == MOST) {
            moe_buf_text(out, ", ...");
            return;
        }
        moe_buf_printf(out, end - i > 1 ? "%s%" PRIu32 "%s%" PRIu32 : "%s%" PRIu32,
                       shown > 1 ? ", " : "", i + 1, end - i > 2 ? "-" : ", ", end);
    }
}

int moe_shards_check_whole(const struct moe_shards *s, struct moe_err *err)
{
    struct moe_buf missing = {0};
    if (moe_shards_whole(s))
        return MOE_OK;
    print_numbers(s, false, &missing);
    moe_buf_u8(&missing, 0);
    int status =
        moe_fail(err, MOE_ERR_USAGE,
                 "shard%s %s of %" PRIu32 " %s missing (--partial merges those there are)",
                 s->n - s->n_held > 1 ? "s" : "", missing.failed ? "?" : (const char *)missing.data,
                 s->n, s->n - s->n_held > 1 ? "are" : "is");
    moe_buf_release(&missing);
    return status;
}

void moe_shards_print(const struct moe_shards *s, struct moe_buf *out)
{
    if (moe_shards_whole(s)) {
        moe_buf_text(out, "all");
        return;
    }
    moe_buf_text(out, s->n_held > 1 ? "shards " : "shard ");
    print_numbers(s, true, out);
    moe_buf_printf(out, " of %" PRIu32, s->n);
}

/* ---- In files ---- */

static int read_shards(struct moe_record_reader *r, struct moe_yaml_node *map,
                       const struct moe_member *m, void *record)
{
    struct moe_shards *s = (struct moe_shards *)((char *)record + m->at);
    struct moe_yaml_node *section = NULL, *list = NULL;
    uint64_t n = 0;
    MOE_TRY(moe_yaml_get_map(r->doc, map, m->key, true, &section, r->err));
    MOE_TRY(moe_yaml_get_u32(r->doc, section, "of", MOE_MAX_SHARDS, true, &s->n, r->err));
    if (s->n == 0)
        return moe_yaml_fail(r->doc, section, r->err, "'of' must be from 1 to %d", MOE_MAX_SHARDS);
    MOE_TRY(moe_yaml_get_list(r->doc, section, "held", true, &list, &n, r->err));
    if (n == 0 || n > s->n)
        return moe_yaml_fail(r->doc, list, r->err,
                             "'held' must have 1 to %" PRIu32 " items, the shards there are", s->n);
    if (!(s->held = moe_alloc(n, sizeof *s->held, r->err)))
        return MOE_ERR_MEMORY;
    MOE_TRY(moe_yaml_list_u32s(r->doc, list, s->n, true, s->held, r->err));
    s->n_held = (uint32_t)n;
    if (s->held[0] == 0)
        return moe_yaml_fail(r->doc, list, r->err, "'held' counts shards from 1");
    for (uint32_t i = 0; i < s->n_held; i++)
        s->held[i]--;
    return MOE_OK;
}

static void write_shards(struct moe_record_writer *w, const struct moe_member *m,
                         const void *record)
{
    const struct moe_shards *s = (const struct moe_shards *)((const char *)record + m->at);
    moe_emit_open_line_map(&w->emit, m->key);
    moe_emit_u64(&w->emit, "of", s->n);
    moe_emit_open_line_list(&w->emit, "held");
    for (uint32_t i = 0; i < s->n_held; i++)
        moe_emit_u64(&w->emit, NULL, s->held[i] + 1);
    moe_emit_close(&w->emit);
    moe_emit_close(&w->emit);
}

const struct moe_member_own moe_shards_member = {read_shards, write_shards, NULL};

/* ---- Origins ---- */

static void release_origin(struct moe_origin *o)
{
    free(o->texts);
    moe_shards_release(&o->shards);
}

void moe_origins_release(struct moe_origins *o)
{
    for (uint32_t i = 0; i < o->n; i++)
        release_origin(&o->items[i]);
    free(o->items);
    *o = (struct moe_origins){0};
}

static int copy_origin(struct moe_origin *to, const struct moe_origin *from, struct moe_err *err)
{
    *to = *from;
    to->shards = (struct moe_shards){0};
    to->texts = moe_alloc(from->n_texts, sizeof *to->texts, err);
    if (!to->texts)
        return MOE_ERR_MEMORY;
    if (from->n_texts)
        memcpy(to->texts, from->texts, from->n_texts * sizeof *to->texts);
    return copy_shards(&to->shards, &from->shards, err);
}

int moe_origins_copy(struct moe_origins *to, const struct moe_origins *from, struct moe_err *err)
{
    *to = (struct moe_origins){.items = moe_alloc(from->n, sizeof *to->items, err)};
    int status = to->items ? MOE_OK : MOE_ERR_MEMORY;
    while (status == MOE_OK && to->n < from->n) {
        status = copy_origin(&to->items[to->n], &from->items[to->n], err);
        to->n++;
    }
    return status;
}

int moe_origins_begin(struct moe_origins *o, uint32_t n_texts, uint32_t shard, uint32_t n_shards,
                      struct moe_err *err)
{
    *o = (struct moe_origins){.n = 1, .items = moe_alloc(1, sizeof *o->items, err)};
    if (!o->items) {
        o->n = 0;
        return MOE_ERR_MEMORY;
    }
    o->items->texts = moe_alloc(n_texts, sizeof *o->items->texts, err);
    return o->items->texts ? moe_shards_set(&o->items->shards, shard, n_shards, err)
                           : MOE_ERR_MEMORY;
}

void moe_origins_name(struct moe_origins *o, const char *name)
{
    for (uint32_t i = 0; i < o->n; i++)
        o->items[i].name = name;
}

uint64_t moe_origins_documents(const struct moe_origins *o)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < o->n; i++)
        sum += moe_shards_items(&o->items[i].shards, o->items[i].documents);
    return sum;
}

/* ---- Comparing ---- */

static int compare_texts(const struct moe_origin *a, const struct moe_origin *b)
{
    if (a->n_texts != b->n_texts)
        return a->n_texts < b->n_texts ? -1 : 1;
    for (uint32_t i = 0; i < a->n_texts; i++)
        if (a->texts[i] != b->texts[i])
            return a->texts[i] < b->texts[i] ? -1 : 1;
    return 0;
}

const struct moe_origin *moe_origins_find(const struct moe_origins *o,
                                          const struct moe_origin *like)
{
    for (uint32_t i = 0; i < o->n; i++)
        if (compare_texts(&o->items[i], like) == 0)
            return &o->items[i];
    return NULL;
}

static const char *difference(const struct moe_origin *a, const struct moe_origin *b)
{
    return compare_texts(a, b) != 0 || a->documents != b->documents ? "other texts"
           : a->pack_fingerprint != b->pack_fingerprint             ? "another pack"
           : a->options_fingerprint != b->options_fingerprint       ? "other options"
                                                                    : NULL;
}

const char *moe_origins_difference(const struct moe_origins *a, const struct moe_origins *b)
{
    const char *differs = a->n == b->n ? NULL : "other texts";
    for (uint32_t i = 0; i < a->n && !differs; i++)
        differs = difference(&a->items[i], &b->items[i]);
    for (uint32_t i = 0; i < a->n && !differs; i++)
        if (!moe_shards_same(&a->items[i].shards, &b->items[i].shards))
            differs = "another shard";
    return differs;
}

const char *moe_origins_problem(const struct moe_origins *o)
{
    for (uint32_t i = 0; i < o->n; i++) {
        const char *problem = moe_shards_problem(&o->items[i].shards);
        if (problem)
            return problem;
        if (i > 0 && compare_texts(&o->items[i - 1], &o->items[i]) >= 0)
            return "its origins must be in ascending order of their texts";
        if (o->n > 1 && !moe_shards_whole(&o->items[i].shards))
            return "of several origins each must be whole";
    }
    return NULL;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Whether some text that is not empty is in both. */
static int share_a_text(const struct moe_origin *a, const struct moe_origin *b, bool *share,
                        struct moe_err *err)
{
    uint64_t *known = moe_alloc(a->n_texts, sizeof *known, err);
    if (!known)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < a->n_texts; i++)
        known[i] = a->texts[i];
    qsort(known, a->n_texts, sizeof *known, compare_u64);
    *share = false;
    for (uint32_t i = 0; i < b->n_texts; i++)
        *share |=
            b->texts[i] && bsearch(&b->texts[i], known, a->n_texts, sizeof *known, compare_u64);
    free(known);
    return MOE_OK;
}

/* ---- Merging ---- */

static const char *name_of(const struct moe_origin *o)
{
    return o->name ? o->name : "those before";
}

static int join_one(struct moe_origins *sum, const struct moe_origin *part, struct moe_err *err)
{
    uint32_t place = 0;
    for (uint32_t i = 0; i < sum->n; i++) {
        struct moe_origin *o = &sum->items[i];
        int order = compare_texts(o, part);
        bool share = false;
        const char *differs = order == 0 ? difference(o, part) : NULL;
        if (differs)
            return moe_fail(err, MOE_ERR_USAGE, "was made from the texts of %s with %s", name_of(o),
                            differs);
        if (order == 0)
            return moe_shards_join(&o->shards, &part->shards, err);
        int status = share_a_text(o, part, &share, err);
        if (status == MOE_OK && share)
            status = moe_fail(err, MOE_ERR_USAGE,
                              "was made from other texts than %s, or the same in another order, "
                              "and a text of both would count twice",
                              name_of(o));
        if (status != MOE_OK)
            return status;
        place += order < 0;
    }
    if (sum->n == MOE_MAX_ORIGINS)
        return moe_fail(err, MOE_ERR_USAGE, "too many different texts: at most %d",
                        MOE_MAX_ORIGINS);
    struct moe_origin *more = realloc(sum->items, (sum->n + 1) * sizeof *more);
    if (!more)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    sum->items = more;
    memmove(more + place + 1, more + place, (sum->n - place) * sizeof *more);
    sum->n++;
    return copy_origin(&more[place], part, err);
}

int moe_origins_join(struct moe_origins *sum, const struct moe_origins *part, struct moe_err *err)
{
    for (uint32_t i = 0; i < part->n; i++)
        MOE_TRY(join_one(sum, &part->items[i], err));
    return MOE_OK;
}

int moe_origins_check(const struct moe_origins *o, bool partial, struct moe_err *err)
{
    for (uint32_t i = 0; i < o->n; i++) {
        const struct moe_origin *this = &o->items[i], *other = &o->items[i == 0];
        if (moe_shards_whole(&this->shards))
            continue;
        if (o->n > 1)
            return moe_fail(err, MOE_ERR_USAGE,
                            "%s: is a shard of other texts than %s; only whole runs over different "
                            "texts add up",
                            name_of(this), name_of(other));
        return partial ? MOE_OK : moe_shards_check_whole(&this->shards, err);
    }
    return MOE_OK;
}

void moe_origins_print(const struct moe_origins *o, struct moe_buf *out)
{
    if (o->n == 0 || moe_shards_whole(&o->items->shards))
        return;
    moe_buf_text(out, "Holds ");
    moe_shards_print(&o->items->shards, out);
    moe_buf_printf(out, " of %" PRIu64 " documents\n", o->items->documents);
}

/* ---- In files ---- */

static int read_texts(struct moe_record_reader *r, struct moe_yaml_node *map,
                      const struct moe_member *m, void *record)
{
    struct moe_origin *o = record;
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0;
    MOE_TRY(moe_yaml_get_list(r->doc, map, m->key, true, &list, &n, r->err));
    if (n == 0 || n > MOE_MAX_ORIGIN_TEXTS)
        return moe_yaml_fail(r->doc, list, r->err, "'%s' must have 1 to %d items", m->key,
                             MOE_MAX_ORIGIN_TEXTS);
    if (!(o->texts = moe_alloc(n, sizeof *o->texts, r->err)))
        return MOE_ERR_MEMORY;
    for (struct moe_yaml_node *item = list ? moe_yaml_first(list) : NULL; item;
         item = moe_yaml_next(item))
        MOE_TRY(moe_yaml_item_fingerprint(r->doc, item, &o->texts[o->n_texts++], r->err));
    return MOE_OK;
}

static void write_texts(struct moe_record_writer *w, const struct moe_member *m, const void *record)
{
    const struct moe_origin *o = record;
    moe_emit_open_line_list(&w->emit, m->key);
    for (uint32_t i = 0; i < o->n_texts; i++)
        moe_emit_fingerprint(&w->emit, NULL, o->texts[i]);
    moe_emit_close(&w->emit);
}

static const struct moe_member_own texts_member = {read_texts, write_texts, NULL};

static const struct moe_member origin_members[] = {
    MOE_OWN("texts", 0, texts_member),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_origin, "documents", documents, 0,
                 MOE_MAX_ORIGIN_DOCUMENTS),
    MOE_FINGERPRINT(MOE_ALWAYS, struct moe_origin, "pack_fingerprint", pack_fingerprint),
    MOE_FINGERPRINT(MOE_IF_SET, struct moe_origin, "options_fingerprint", options_fingerprint),
    MOE_OWN("shards", offsetof(struct moe_origin, shards), moe_shards_member),
};

static const struct moe_record origin_record = {MOE_RECORD(origin_members)};

static const struct moe_member origins_members[] = {
    {.key = "origins",
     .type = MOE_MEMBER_LIST,
     .presence = MOE_IF_SET,
     .owned = true,
     .at = offsetof(struct moe_origins, items),
     .bytes = sizeof(struct moe_origin),
     .n_at = offsetof(struct moe_origins, n),
     .max = MOE_MAX_ORIGINS,
     .record = &origin_record},
};

static int check_origins(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_origins *o = record;
    const char *problem = o->n ? moe_origins_problem(o) : "'origins' is missing";
    return problem ? moe_yaml_fail(r->doc, o->n ? moe_yaml_get(map, "origins") : map, r->err, "%s",
                                   problem)
                   : MOE_OK;
}

/* To be read, too, into a struct that says nothing yet. */
static bool may_be_there(const void *record)
{
    (void)record;
    return true;
}

const struct moe_record moe_origins_record = {MOE_RECORD(origins_members), check_origins,
                                              may_be_there};
