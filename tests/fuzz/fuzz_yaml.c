/*
 * Any YAML document: walked, each node asked for as every type. What it says comes back the same
 * when written as our files are, as YAML and as JSON.
 */
/* Readers: fmt/yaml*.c fmt/emit.c */
#define _GNU_SOURCE
#include "fmt/emit.h"
#include "fmt/yaml_internal.h"
#include "mutate.h"

/* A value as every type that it can be read as, in a list. */
static void put_scalar(struct moe_emit *e, struct moe_yaml *doc, struct moe_yaml_node *node)
{
    struct moe_err err;
    const char *text;
    uint64_t whole;
    int64_t signed_whole;
    double real;
    if (moe_yaml_item_text(doc, node, &text, &err) == MOE_OK)
        moe_emit_text(e, NULL, text);
    if (moe_yaml_item_u64(doc, node, UINT64_MAX, &whole, &err) == MOE_OK)
        moe_emit_u64(e, NULL, whole);
    if (moe_yaml_item_i64(doc, node, &signed_whole, &err) == MOE_OK)
        moe_emit_i64(e, NULL, signed_whole);
    if (moe_yaml_item_double(doc, node, &real, &err) == MOE_OK)
        moe_emit_double(e, NULL, real);
    if (moe_yaml_item_fingerprint(doc, node, &whole, &err) == MOE_OK)
        moe_emit_fingerprint(e, NULL, whole);
}

/* Members by their keys, which are known then; lists as lists of numbers. */
static void ask(struct moe_yaml *doc, struct moe_yaml_node *map, struct moe_yaml_node *member)
{
    enum { MOST = 64 };
    struct moe_err err;
    struct moe_yaml_node *node = NULL;
    uint64_t n = 0;
    uint32_t small = 0, smalls[MOST];
    double reals[MOST];
    bool flag;
    const char *text;
    if (member->key) {
        moe_yaml_get_u32(doc, map, member->key, UINT32_MAX, true, &small, &err);
        moe_yaml_get_double(doc, map, member->key, false, reals, &err);
        moe_yaml_get_bool(doc, map, member->key, true, &flag, &err);
        moe_yaml_get_text(doc, map, member->key, false, &text, &err);
        moe_yaml_get_fingerprint(doc, map, member->key, true, &n, &err);
        moe_yaml_get_map(doc, map, member->key, true, &node, &err);
        moe_yaml_get_list_of(doc, map, member->key, 2, &node, &err);
        moe_yaml_get_list(doc, map, member->key, false, &node, &n, &err);
    }
    if (member->kind == MOE_YAML_LIST && member->key && moe_yaml_length(member) <= MOST) {
        moe_yaml_list_u32s(doc, member, 1000, true, smalls, &err);
        moe_yaml_list_doubles(doc, member, -1, reals, &err);
    }
}

/* The tree as lists, as deep as files of ours may be: a mapping's keys and values by turns. */
static void put_tree(struct moe_emit *e, struct moe_yaml *doc, struct moe_yaml_node *node)
{
    struct moe_err err;
    moe_emit_open_line_list(e, NULL);
    if (moe_yaml_item_map(doc, node, &err) != MOE_OK &&
        moe_yaml_item_list(doc, node, &err) != MOE_OK)
        put_scalar(e, doc, node);
    else
        for (struct moe_yaml_node *m = moe_yaml_first(node); m; m = moe_yaml_next(m)) {
            ask(doc, node, m);
            if (m->key)
                moe_emit_text(e, NULL, moe_yaml_key(m));
            if (e->depth < MOE_EMIT_MAX_DEPTH)
                put_tree(e, doc, m);
        }
    moe_emit_close(e);
}

/* What was written is what was read. depth: of `written`, as put_tree counts. */
static void same_tree(const struct moe_yaml_node *node, const struct moe_yaml_node *written,
                      int depth)
{
    const struct moe_yaml_node *w = moe_yaml_members(written);
    if (node->kind == MOE_YAML_SCALAR) {
        if (strcmp(node->text, w->text) != 0)
            abort();
        return;
    }
    for (const struct moe_yaml_node *m = node->first; m; m = m->next) {
        if (m->key && strcmp(m->key, w->text) != 0)
            abort();
        w = m->key ? w->next : w;
        if (depth < MOE_EMIT_MAX_DEPTH) {
            same_tree(m, w, depth + 1);
            w = w->next;
        }
    }
    if (w)
        abort();
}

static void check_round_trip(struct moe_yaml *doc, bool json)
{
    struct moe_err err;
    struct moe_emit e;
    struct moe_yaml *again;
    struct moe_buf text = {0};
    moe_emit_begin(&e, &text, json, "A tree.", "fuzz", 1);
    moe_emit_open_line_list(&e, "tree");
    put_tree(&e, doc, moe_yaml_root(doc));
    moe_emit_close(&e);
    if (moe_emit_end(&e, &err) != MOE_OK ||
        moe_yaml_parse(&again, "again", text.data, text.size, &err) != MOE_OK ||
        moe_yaml_check_format(again, "fuzz", 1, &err) != MOE_OK)
        abort();
    same_tree(moe_yaml_root(doc), moe_yaml_first(moe_yaml_get(moe_yaml_root(again), "tree")), 2);
    if (json)
        fuzz_check_json(&text);
    moe_yaml_free(again);
    moe_buf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_yaml *doc;
    n = fuzz_begin(data, n);
    const char *path = fuzz_file(data, n);
    moe_yaml_file_is(path, "moe-plan");
    if (FUZZ_TRY(moe_yaml_read(&doc, path, UINT64_MAX, &err)) != MOE_OK)
        return 0;
    moe_yaml_check_format(doc, "moe-plan", 1, &err);
    moe_yaml_check_known(doc, &err);
    check_round_trip(doc, false);
    check_round_trip(doc, true);
    moe_yaml_free(doc);
    return 0;
}

FUZZ_MUTATE_TEXT
