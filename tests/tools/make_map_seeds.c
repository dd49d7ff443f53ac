/*
 * Writes the seeds of fuzz_map: a map with every member under each metric, one judged by answers, a
 * shard, estimates, one that knows nothing; the same with one thing changed that is refused; pairs
 * that belong together and pairs that differ in one thing. Run it in tests/fuzz/corpus/map.
 */
#include "../map_fixture.h"
#include "base/file.h"

static int put(const char *name, struct moe_map *m, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = moe_map_write(m, false, &text, err);
    if (status == MOE_OK)
        status = moe_file_write_all(name, text.data, text.size, err);
    moe_buf_release(&text);
    moe_map_free(m);
    return status;
}

/* The text of a map, its first `from` replaced by `to` (NULL: nothing). Frees the map. */
static int put_changed(struct moe_map *m, const char *from, const char *to, struct moe_buf *out,
                       struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = moe_map_write(m, false, &text, err);
    moe_buf_u8(&text, 0);
    const char *whole = (const char *)text.data, *at = whole;
    if (status == MOE_OK && from) {
        at = strstr(whole, from);
        if (!at)
            abort();
        moe_buf_append(out, whole, (uint64_t)(at - whole));
        moe_buf_text(out, to);
        at += strlen(from);
    }
    if (status == MOE_OK)
        moe_buf_text(out, at);
    moe_buf_release(&text);
    moe_map_free(m);
    return status;
}

static int put_refused(const char *name, const char *from, const char *to, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = put_changed(full_map(2), from, to, &text, err);
    if (status == MOE_OK)
        status = moe_file_write_all(name, text.data, text.size, err);
    moe_buf_release(&text);
    return status;
}

/* Knows one of two experts, (2) both or (3) none. */
static struct moe_map *part_map(uint32_t part)
{
    uint64_t seed = 5;
    struct moe_map *m = new_map(1, 2, 1);
    m->n_texts = 1;
    m->texts[0] = (struct moe_map_text){.name = "t", .documents = 1, .tokens = 9, .hash = 1};
    if (part < 3)
        fill_importances(m, &seed);
    for (uint32_t i = 0; i < 2 && part < 2; i++)
        if (i != part) {
            m->importances.known[i] = 0;
            m->importances.nats[i] = m->importances.error[i] = 0;
            m->importances.changed[i] = m->importances.visited[i] = 0;
        }
    if (part < 2)
        set_shard(m, part, 2);
    return m;
}

struct pair {
    const char *name;
    uint32_t first, second; /* as part_map */
    const char *from, *to;  /* changed in the second */
    bool adopts;            /* an odd length */
};

static int put_pair(const struct pair *p, struct moe_err *err)
{
    struct moe_buf first = {0}, second = {0};
    int status = put_changed(part_map(p->first), NULL, NULL, &first, err);
    if (status == MOE_OK)
        status = put_changed(part_map(p->second), p->from, p->to, &second, err);
    if (second.size % 2 != p->adopts)
        moe_buf_u8(&second, '\n');
    moe_buf_u8(&first, '\f');
    moe_buf_append(&first, second.data, second.size);
    if (status == MOE_OK)
        status = moe_file_write_all(p->name, first.data, first.size, err);
    moe_buf_release(&first);
    moe_buf_release(&second);
    return status;
}

int main(void)
{
    static const struct {
        const char *name, *from, *to;
    } refused[] = {
        {"short-layer", "- [\"2\", ", "- ["},
        {"wrong-scores", "  scores: [0.", "  scores: [1."},
        {"no-scores", "  scores:", "  scores_: [1]\n  other:"},
        {"wrong-shares", "  high_share: 0.", "  high_share: 1.5 # 0."},
        {"thresholds-fall", "  t2: ", "  t2: 0 # "},
        {"wrong-weights", "lru: 0.", "lru: 0.9"},
    };
    static const struct pair pairs[] = {
        {.name = "merge-shards", .second = 1},
        {.name = "merge-shards-back", .first = 1},
        {.name = "merge-same-shard"},
        {.name = "merge-shard-with-whole", .first = 2},
        {.name = "adopt-half", .first = 2, .adopts = true},
        {.name = "adopt-another", .from = "documents: [", .to = "documents: [1", .adopts = true},
        {.name = "merge-onto-nothing", .first = 3},
        {.name = "adopt-other-model", .from = "\"0123", .to = "\"9123", .adopts = true},
        {.name = "merge-model", .second = 1, .from = "\"0123", .to = "\"9123"},
        {.name = "merge-pack", .second = 1, .from = "\"ffff", .to = "\"9fff"},
        {.name = "merge-variants", .second = 1, .from = "[\"8\"", .to = "[\"6\""},
        {.name = "merge-dense", .second = 1, .from = "dense_bits: 8", .to = "dense_bits: 4"},
        {.name = "merge-metric", .second = 1, .from = "metric: nll", .to = "metric: top1"},
        {.name = "merge-lengths", .second = 1, .from = "tokens: 256", .to = "tokens: 9"},
        {.name = "merge-texts", .second = 1, .from = "documents: 1", .to = "documents: 2"},
        {.name = "merge-shape", .second = 1, .from = "per_token: 1", .to = "per_token: 2"},
        {.name = "merge-upper", .second = 1, .from = "upper: \"4d8\"", .to = "upper: \"8\""},
        {.name = "merge-lower", .second = 1, .from = "lower: \"2\"", .to = "lower: \"4d8\""},
        {.name = "merge-beside", .second = 1, .from = "  dense_bits: 4", .to = "  dense_bits: 8"},
    };
    struct moe_err err;
    int status = put("full-nll", full_map(2), &err);
    if (status == MOE_OK)
        status = put("full-top1", full_map(3), &err);
    if (status == MOE_OK)
        status = put("full-judged", full_map(4), &err);
    if (status == MOE_OK)
        status = put("shard", shard_map(2, 0), &err);
    if (status == MOE_OK)
        status = put("estimated", estimated_map(2), &err);
    if (status == MOE_OK)
        status = put("empty", new_map(1, 1, 1), &err);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0] && status == MOE_OK; i++)
        status = put_refused(refused[i].name, refused[i].from, refused[i].to, &err);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0] && status == MOE_OK; i++)
        status = put_pair(&pairs[i], &err);
    if (status != MOE_OK)
        fprintf(stderr, "make_map_seeds: %s\n", err.text);
    return status != MOE_OK;
}
