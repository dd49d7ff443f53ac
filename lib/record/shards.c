#include "record/shards.h"

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

int moe_shards_copy(struct moe_shards *to, const struct moe_shards *from, struct moe_err *err)
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

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

bool moe_shards_hold(const struct moe_shards *s, uint32_t shard)
{
    return s->n_held && bsearch(&shard, s->held, s->n_held, sizeof *s->held, compare);
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
            return "the shards held must rise, from 1 to all there are";
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
    int status = check_apart(sum, part, err);
    if (status != MOE_OK)
        return status;
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
    int status = moe_yaml_get_map(r->doc, map, m->key, false, &section, r->err);
    if (!section)
        return status;
    status = moe_yaml_get_u32(r->doc, section, "of", MOE_MAX_SHARDS, true, &s->n, r->err);
    if (status == MOE_OK && s->n == 0)
        status =
            moe_yaml_fail(r->doc, section, r->err, "'of' must be from 1 to %d", MOE_MAX_SHARDS);
    if (status == MOE_OK)
        status = moe_yaml_get_list(r->doc, section, "held", true, &list, &n, r->err);
    if (status == MOE_OK && (n == 0 || n > s->n))
        status =
            moe_yaml_fail(r->doc, list, r->err,
                          "'held' must have 1 to %" PRIu32 " items, the shards there are", s->n);
    if (status == MOE_OK && !(s->held = moe_alloc(n, sizeof *s->held, r->err)))
        status = MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_yaml_list_u32s(r->doc, list, s->n, true, s->held, r->err);
    if (status != MOE_OK)
        return status;
    s->n_held = (uint32_t)n;
    if (s->held[0] == 0)
        return moe_yaml_fail(r->doc, list, r->err, "'held' counts shards from 1");
    for (uint32_t i = 0; i < s->n_held; i++)
        s->held[i]--;
    return MOE_OK;
}

static bool shards_are_there(const struct moe_member *m, const void *record)
{
    return ((const struct moe_shards *)((const char *)record + m->at))->n > 0;
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

const struct moe_member_own moe_shards_member = {read_shards, write_shards, shards_are_there};
