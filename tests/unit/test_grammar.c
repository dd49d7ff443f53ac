/* Grammars: what is read and what is refused; which tokens may come next, compared with a matcher
 * that tries each by itself on random grammars. */
#define _DEFAULT_SOURCE /* mkdtemp */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <stdbool.h>

#include "base/mem.h"
#include "base/text.h"
#include "fmt/json.h"
#include "grammar/automaton_internal.h"
#include "grammar/constraint.h"
#include "grammar/grammar.h"
#include "text/vocab.h"

#include "../scratch_dir.h"

/* ---- A vocabulary of any bytes ---- */

/* A byte as byte-level vocabularies write it: a character of its own. */
static void add_byte(struct moe_buf *to, unsigned byte)
{
    unsigned c = byte, n = 0;
    uint8_t utf8[4];
    for (unsigned b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte && !itself)
            c = 256 + n;
        n += !itself;
    }
    if (c == '"' || c == '\\')
        moe_buf_text(to, "\\");
    moe_buf_append(to, utf8, (uint64_t)moe_utf8_encode(c, utf8));
}

/* A tokenizer with these texts as tokens 1, 2, ...; 0 is special: <end>. */
static struct moe_tokenizer *make_tokenizer(const char *const *texts, uint32_t n)
{
    struct moe_buf json = {0};
    struct moe_tokenizer *tok;
    struct moe_err err = {0};
    moe_buf_text(&json, "{\"added_tokens\":[{\"id\":0,\"content\":\"<end>\",\"special\":true}],"
                        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                        "\"decoder\":{\"type\":\"ByteLevel\"},"
                        "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"<end>\":0");
    for (uint32_t i = 0; i < n; i++) {
        moe_buf_text(&json, ",\"");
        for (const char *p = texts[i]; *p; p++)
            add_byte(&json, (uint8_t)*p);
        moe_buf_printf(&json, "\":%u", i + 1);
    }
    moe_buf_text(&json, "}}}");
    assert_false(json.failed);
    assert_ok(moe_file_write_all(in_dir("tokenizer.json"), json.data, json.size, &err), &err);
    assert_ok(moe_tokenizer_read_hf(&tok, dir, &err), &err);
    moe_buf_release(&json);
    unlink(in_dir("tokenizer.json"));
    return tok;
}

static bool is_zero(const void *ctx, uint32_t id)
{
    (void)ctx;
    return id == 0;
}

static bool is_none(const void *ctx, uint32_t id)
{
    (void)ctx;
    (void)id;
    return false;
}

static bool has(const struct moe_allowed *a, uint32_t id)
{
    return a->bits[id / 64] >> id % 64 & 1;
}

/* ---- Reading ---- */

static int parse(struct moe_grammar **g, const char *text, struct moe_err *err)
{
    return moe_grammar_parse(g, "g", text, strlen(text), NULL, err);
}

static void what_llama_cpp_reads_is_read(void **state)
{
    static const char *const texts[] = {
        "root ::= \"a\"",
        "# comment\n\nroot ::= # more\n  \"a\" | # after an alternative\n \"b\"\n",
        "root ::= (\n \"a\"\n \"b\"\n | [^\\n\\x00-\\x1f\\]\\-é-ü]+ )* .\r\nx1-y ::= root?",
        "root ::= \"\\u00e9\\U0001F600\\t\\\"\" [a-zA-Z0-9_-]{2} [\"]{0,3} \"b\"{2,}",
        "root ::= a b\na ::= | \"x\" a\nb ::= \"\"\n",
        "root ::= ( \"a\" | ( \"b\" ( \"c\" )? )+ ){0,2}",
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(texts); i++) {
        struct moe_grammar *g;
        struct moe_err err = {0};
        assert_ok(parse(&g, texts[i], &err), &err);
        moe_grammar_free(g);
    }
}

static void what_is_none_is_refused_where_it_stands(void **state)
{
    static const struct {
        const char *text, *words;
        int status;
    } cases[] = {
        {"", "no rule 'root'", MOE_ERR_FORMAT},
        {"a ::= \"x\"", "no rule 'root'", MOE_ERR_FORMAT},
        {"root ::= \"x\" y", "line 1, column 14: the rule 'y' is not defined", MOE_ERR_FORMAT},
        {"root ::= \"x", "ends too early", MOE_ERR_FORMAT},
        {"root ::= [a-", "ends too early", MOE_ERR_FORMAT},
        {"root ::= [z-a]", "line 1, column 11: a range whose end", MOE_ERR_FORMAT},
        {"root ::= \"\\q\"", "line 1, column 11: an escape", MOE_ERR_FORMAT},
        {"root ::= \"\\u12\"", "hexadecimal", MOE_ERR_FORMAT},
        {"root ::= \"\\uD800\"", "no such character", MOE_ERR_FORMAT},
        {"root ::= \"\xff\"", "no UTF-8", MOE_ERR_FORMAT},
        {"root = \"x\"", "line 1, column 6: '::=' was expected", MOE_ERR_FORMAT},
        {"root ::= *", "nothing to repeat", MOE_ERR_FORMAT},
        {"root ::= \"a\"**", "is repeated", MOE_ERR_FORMAT},
        {"root ::= \"a\"{3,2}", "below their minimum", MOE_ERR_FORMAT},
        {"root ::= \"a\"{x}", "a number of repetitions", MOE_ERR_FORMAT},
        {"root ::= \"a\"{1,2", "ends too early", MOE_ERR_FORMAT},
        {"root ::= \"a\"{1 2}", "'}' was expected", MOE_ERR_FORMAT},
        {"root ::= \"a\"{9999999}", "131072 repetitions", MOE_ERR_LIMIT},
        {"root ::= ((\"a\"{1000}){1000}){1000}", "too large", MOE_ERR_LIMIT},
        {"root ::= (\"a\"", "ends too early", MOE_ERR_FORMAT},
        {"root ::= \"a\")", "a new line was expected", MOE_ERR_FORMAT},
        {"root ::= \"a\"\n\nroot ::= \"b\"", "line 3, column 1: this rule is defined",
         MOE_ERR_FORMAT},
        {"root ::= <think>", "line 1, column 10: tokens by name", MOE_ERR_UNSUPPORTED},
        {"root ::= root \"a\" | \"b\"", "'root' is left-recursive", MOE_ERR_UNSUPPORTED},
        {"root ::= a\na ::= \"\" b?\nb ::= \"x\"* c\nc ::= a \"y\"\n", "left-recursive",
         MOE_ERR_UNSUPPORTED},
        {"root ::= (\"a\"? root \"b\")*", "'root' is left-recursive", MOE_ERR_UNSUPPORTED},
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_grammar *g;
        struct moe_err err = {0};
        assert_fails(parse(&g, cases[i].text, &err), cases[i].status, cases[i].words, &err);
        assert_null(g);
    }
    struct moe_buf deep = {0};
    struct moe_grammar *g;
    struct moe_err err = {0};
    moe_buf_text(&deep, "root ::= ");
    for (int i = 0; i < 100000; i++)
        moe_buf_text(&deep, "(");
    assert_fails(parse(&g, (char *)deep.data, &err), MOE_ERR_LIMIT, "200 nested groups", &err);
    moe_buf_release(&deep);
}

/* ---- The naive matcher ---- */

enum { TREE_NODES = 64, MAX_TEXT = 63 };

/* A random grammar as a tree, which also writes itself as GBNF. */
struct node {
    enum { LITERAL, CLASS, SEQUENCE, CHOICE, REPEAT, RULE } kind;
    const char *literal;
    uint32_t low, high; /* of a class; or how often: high 9 is for ever */
    bool negated;
    int children[3], n;
};

struct tree {
    struct node nodes[TREE_NODES];
    int n, rules[3], n_rules;
    uint64_t random;
};

static const char *const literals[] = {"a", "b", "ab", "", "é", "a€", "😀b", "\"", "aab"};
static const struct {
    uint32_t low, high;
} classes[] = {{'a', 'b'}, {'a', 'a'}, {0x80, 0x7ff}, {0xe9, 0x20ac}, {'b', 0x1f600}, {'"', 'z'}};

static uint32_t below(struct tree *t, uint32_t n)
{
    return (uint32_t)(test_random(&t->random) % n);
}

/* A node; `consumed`: something was read before it in its rule, so that it may call a rule. */
static int grow(struct tree *t, int depth, bool consumed)
{
    if (t->n == TREE_NODES)
        return 0; /* node 0 is a literal */
    int at = t->n++;
    uint32_t kind = depth > 4 ? below(t, 2) : below(t, 6);
    if (t->n > TREE_NODES - 8)
        kind = 0;
    if (kind == RULE && !consumed)
        kind = LITERAL;
    struct node node = {.kind = kind};
    if (kind == LITERAL) {
        node.literal = literals[below(t, N_ITEMS(literals))];
    } else if (kind == CLASS) {
        uint32_t which = below(t, N_ITEMS(classes));
        node.low = classes[which].low;
        node.high = classes[which].high;
        node.negated = below(t, 3) == 0;
    } else if (kind == RULE) {
        node.low = below(t, (uint32_t)t->n_rules);
    } else if (kind == REPEAT) {
        node.low = below(t, 3);
        node.high = below(t, 3) == 0 ? 9 : node.low + below(t, 3);
    }
    node.n = kind == SEQUENCE || kind == CHOICE ? 2 + (int)below(t, 2) : kind == REPEAT;
    for (int i = 0; i < node.n; i++) {
        /* In a sequence what follows a class has read something. */
        node.children[i] = grow(t, depth + 1, consumed);
        const struct node *c = &t->nodes[node.children[i]];
        if (kind == SEQUENCE && (c->kind == CLASS || (c->kind == LITERAL && *c->literal)))
            consumed = true;
    }
    t->nodes[at] = node;
    return at;
}

static void write_node(const struct tree *t, int at, struct moe_buf *to)
{
    const struct node *n = &t->nodes[at];
    switch (n->kind) {
    case LITERAL:
        moe_buf_text(to, "\"");
        for (const char *p = n->literal; *p; p++)
            moe_buf_printf(to, *p == '"' ? "\\%c" : "%c", *p);
        moe_buf_text(to, "\"");
        break;
    case CLASS:
        moe_buf_printf(to, n->negated ? "[^\\U%08X-\\U%08X]" : "[\\U%08X-\\U%08X]", n->low,
                       n->high);
        break;
    case RULE:
        moe_buf_printf(to, "r%u", n->low);
        break;
    case REPEAT:
        moe_buf_text(to, "(");
        write_node(t, n->children[0], to);
        moe_buf_printf(to, n->high == 9 ? "){%u,}" : "){%u,%u}", n->low, n->high);
        break;
    default:
        moe_buf_text(to, "(");
        for (int i = 0; i < n->n; i++) {
            moe_buf_text(to, i && n->kind == CHOICE ? " | " : " ");
            write_node(t, n->children[i], to);
        }
        moe_buf_text(to, ")");
    }
}

struct match {
    const struct tree *t;
    const uint8_t *text;
    int n;
    bool more; /* at the text's end something could still be read */
    int depth;
    bool too_deep;
};

/* Bits of the places where a character of the class that begins at `at` may end. */
static uint64_t match_class(struct match *m, const struct node *c, int at)
{
    int have = m->n - at;
    if (have == 0) {
        m->more = true;
        return 0;
    }
    uint8_t first = m->text[at];
    int length = first < 0x80 ? 1 : first < 0xc0 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    uint32_t low = length == 1 ? first : first & (0x7fu >> length), high;
    for (int i = 1; i < length && i < have; i++) {
        if ((m->text[at + i] & 0xc0) != 0x80)
            return 0;
        low = low << 6 | (m->text[at + i] & 0x3f);
    }
    high = low;
    for (int i = have; i < length; i++) {
        low <<= 6;
        high = high << 6 | 0x3f;
    }
    /* Some character from low to high, of this length, is one of the class. */
    static const uint32_t least[] = {1, 0, 0x80, 0x800, 0x10000};
    bool found = false;
    for (uint64_t ch = low; length && ch <= high && ch <= 0x10ffff && !found; ch++) {
        bool inside = ch >= c->low && ch <= c->high;
        found = ch >= least[length] && (ch < 0xd800 || ch > 0xdfff) && inside != c->negated;
        if (!found && ch + 300 < c->low)
            ch += c->negated ? 0 : 255;
    }
    if (!found)
        return 0;
    if (have < length) {
        m->more = true;
        return 0;
    }
    return (uint64_t)1 << (at + length);
}

static uint64_t match_all(struct match *m, int node, uint64_t from);

static uint64_t match_at(struct match *m, int at_node, int at)
{
    const struct node *n = &m->t->nodes[at_node];
    uint64_t ends = 0;
    int length;
    switch (n->kind) {
    case LITERAL:
        length = (int)strlen(n->literal);
        for (int i = 0; i < length; i++) {
            if (at + i == m->n)
                m->more = true;
            if (at + i == m->n || m->text[at + i] != (uint8_t)n->literal[i])
                return 0;
        }
        return (uint64_t)1 << (at + length);
    case CLASS:
        return match_class(m, n, at);
    case RULE:
        if (m->depth > 100) {
            m->too_deep = true;
            return 0;
        }
        m->depth++;
        ends = match_at(m, m->t->rules[n->low], at);
        m->depth--;
        return ends;
    case SEQUENCE:
        ends = (uint64_t)1 << at;
        for (int i = 0; i < n->n; i++)
            ends = match_all(m, n->children[i], ends);
        return ends;
    case CHOICE:
        for (int i = 0; i < n->n; i++)
            ends |= match_at(m, n->children[i], at);
        return ends;
    case REPEAT:
        break;
    }
    uint64_t now = (uint64_t)1 << at, all = n->low == 0 ? now : 0, seen = 0;
    for (uint32_t i = 1; i <= n->high || n->high == 9; i++) {
        now = match_all(m, n->children[0], now);
        if (i >= n->low)
            all |= now;
        if (n->high == 9 && i > n->low && !(now & ~seen))
            break;
        seen |= i >= n->low ? now : 0;
        if (!now)
            break;
    }
    return all;
}

static uint64_t match_all(struct match *m, int node, uint64_t from)
{
    uint64_t ends = 0;
    for (int at = 0; at <= m->n; at++)
        if (from >> at & 1)
            ends |= match_at(m, node, at);
    return ends;
}

/* Whether an answer may begin with the text; *whole: be it. */
static bool match(const struct tree *t, const uint8_t *text, int n, bool *whole, bool *too_deep)
{
    struct match m = {.t = t, .text = text, .n = n};
    uint64_t ends = match_at(&m, t->rules[0], 0);
    *whole = ends >> n & 1;
    *too_deep |= m.too_deep;
    return *whole || m.more;
}

/* ---- Masks ---- */

static const char *const tokens[] = {
    "a",    "b",        "ab",   "ba",       "aa",       "aab",      "é",    "\xc3",     "\xa9",
    "€",    "\xe2\x82", "\xac", "a\xe2",    "😀",        "\xf0\x9f", "\x98", "\x98\x80", "\x80",
    "\"",   "\"a",      "b\"",  "z",        "\xed",     "\xa0\x80", "c",    "abab",     "éa",
    "\x82", "bé",       "\xf4", "\xf4\x8f", "\xbf\xbf", "\xc0",     "\xff", "\xe0\xa0", " ",
};

/* Walks along random tokens that are allowed, and compares every mask. */
static void check_tree(struct tree *t, const struct moe_vocabulary *v, uint64_t *n_compared)
{
    struct moe_buf text = {0};
    struct moe_grammar *g;
    struct moe_constraint *c;
    struct moe_err err = {0};
    t->n = 0;
    t->n_rules = 1 + (int)below(t, 3);
    for (int i = 0; i < t->n_rules; i++)
        t->rules[i] = grow(t, 0, false);
    for (int i = 0; i < t->n_rules; i++) {
        moe_buf_printf(&text, "r%d ::= ", i);
        write_node(t, t->rules[i], &text);
        moe_buf_text(&text, "\n");
    }
    moe_buf_text(&text, "root ::= r0\n");
    int status = moe_grammar_parse(&g, "g", text.data, text.size, NULL, &err);
    if (status == MOE_ERR_UNSUPPORTED) { /* what is read before a rule may have been nothing */
        moe_buf_release(&text);
        return;
    }
    assert_ok(status, &err);
    assert_ok(moe_constraint_new(&c, g, v, &err), &err);
    moe_constraint_prepare(c, false, is_zero, NULL);
    uint8_t said[MAX_TEXT + 8];
    int n_said = 0;
    for (int step = 0; step < 12 && n_said < 40; step++) {
        struct moe_allowed allowed;
        bool whole, too_deep = false;
        uint32_t n_allowed = 0, chosen = 0;
        assert_ok(moe_constraint_allowed(c, &allowed, &err), &err);
        match(t, said, n_said, &whole, &too_deep);
        assert_false(too_deep);
        if (whole != allowed.may_end || has(&allowed, 0) != whole)
            fail_msg("%s: after '%.*s' it may end: %d", (char *)text.data, n_said, said, whole);
        for (uint32_t i = 0; i < N_ITEMS(tokens); i++) {
            uint32_t n = (uint32_t)strlen(tokens[i]);
            memcpy(said + n_said, tokens[i], n);
            bool fits = match(t, said, n_said + (int)n, &whole, &too_deep);
            if (fits != has(&allowed, i + 1))
                fail_msg("%s: after '%.*s' token %u ('%s') fits: %d", (char *)text.data, n_said,
                         said, i, tokens[i], fits);
            n_allowed += fits;
            if (fits && below(t, n_allowed) == 0)
                chosen = i + 1;
            ++*n_compared;
        }
        assert_int_equal(allowed.n, n_allowed + allowed.may_end);
        if (!chosen)
            break;
        uint32_t n = (uint32_t)strlen(tokens[chosen - 1]);
        memcpy(said + n_said, tokens[chosen - 1], n);
        assert_ok(moe_constraint_take(c, said + n_said, n, &err), &err);
        n_said += (int)n;
        if (moe_constraint_is_complete(c))
            break;
    }
    moe_constraint_free(c);
    moe_grammar_free(g);
    moe_buf_release(&text);
}

static void masks_are_those_of_a_naive_matcher(void **state)
{
    struct moe_err err = {0};
    struct moe_tokenizer *tok = make_tokenizer(tokens, N_ITEMS(tokens));
    struct moe_vocabulary *v;
    struct tree t = {.random = 22};
    uint64_t n_compared = 0;
    (void)state;
    assert_ok(moe_vocabulary_new(&v, tok, N_ITEMS(tokens) + 1, NULL, &err), &err);
    for (int i = 0; i < 400; i++)
        check_tree(&t, v, &n_compared);
    assert_true(n_compared > 40000);
    moe_vocabulary_free(v);
    moe_tokenizer_free(tok);
}

/* ---- Along an answer ---- */

struct walk {
    struct moe_tokenizer *tok;
    struct moe_vocabulary *v;
    struct moe_grammar *g;
    struct moe_constraint *c;
};

static void begin_walk(struct walk *w, const char *grammar)
{
    struct moe_err err = {0};
    *w = (struct walk){.tok = make_tokenizer(tokens, N_ITEMS(tokens))};
    assert_ok(moe_vocabulary_new(&w->v, w->tok, 100, NULL, &err), &err);
    assert_ok(parse(&w->g, grammar, &err), &err);
    assert_ok(moe_constraint_new(&w->c, w->g, w->v, &err), &err);
    moe_constraint_prepare(w->c, false, is_zero, NULL);
}

static void end_walk(struct walk *w)
{
    moe_constraint_free(w->c);
    moe_grammar_free(w->g);
    moe_vocabulary_free(w->v);
    moe_tokenizer_free(w->tok);
}

static struct moe_allowed allowed_now(struct walk *w)
{
    struct moe_allowed a;
    struct moe_err err = {0};
    assert_ok(moe_constraint_allowed(w->c, &a, &err), &err);
    return a;
}

static void say(struct walk *w, const char *text)
{
    struct moe_err err = {0};
    assert_ok(moe_constraint_take(w->c, (const uint8_t *)text, strlen(text), &err), &err);
}

static void an_answer_ends_where_it_may(void **state)
{
    struct walk w;
    struct moe_err err = {0};
    (void)state;
    begin_walk(&w, "root ::= \"a\" \"b\"{1,2}");
    struct moe_allowed a = allowed_now(&w);
    assert_int_equal(a.n, 2); /* a, ab */
    assert_true(has(&a, 1) && has(&a, 3) && !has(&a, 0) && !a.may_end);
    say(&w, "ab");
    assert_false(moe_constraint_is_complete(w.c));
    a = allowed_now(&w);
    assert_int_equal(a.n, 2); /* b, the end */
    assert_true(has(&a, 0) && has(&a, 2) && a.may_end);
    assert_fails(moe_constraint_take(w.c, (const uint8_t *)"a", 1, &err), MOE_ERR_USAGE,
                 "does not follow", &err);
    say(&w, "b");
    assert_true(moe_constraint_is_complete(w.c));

    /* Another answer; no token ends it. */
    moe_constraint_restart(w.c);
    moe_constraint_prepare(w.c, false, is_none, NULL);
    say(&w, "ab");
    a = allowed_now(&w);
    assert_true(!has(&a, 0) && a.may_end && a.n == 1);
    end_walk(&w);
}

static void masks_are_kept_and_counted(void **state)
{
    struct walk w;
    (void)state;
    begin_walk(&w, "root ::= [ab]*");
    for (int i = 0; i < 10; i++) {
        struct moe_allowed a = allowed_now(&w);
        assert_int_equal(a.n, 8); /* a b ab ba aa aab abab, the end */
        say(&w, "ab");
    }
    struct moe_constraint_figures f = moe_constraint_count(w.c);
    assert_int_equal(f.tokens, 10);
    assert_true(f.masks <= 2);
    assert_true(f.seconds >= 0 && f.waited >= 0);
    assert_int_equal(moe_constraint_count(w.c).tokens, 0);
    end_walk(&w);
}

/* Rules that end with themselves cost no memory; those that nest do, and end with a sentence. */
static void places_are_bounded(void **state)
{
    struct walk w;
    struct moe_err err = {0};
    struct moe_allowed a;
    int status = MOE_OK, n = 0;
    (void)state;
    begin_walk(&w, "root ::= \"a\" root | \"b\"");
    for (int i = 0; i < 100000; i++)
        say(&w, "a");
    assert_int_equal(allowed_now(&w).n, 5); /* a b ab aa aab */
    end_walk(&w);

    begin_walk(&w, "root ::= \"a\" root \"b\" | \"z\"");
    for (; n < 200000 && status == MOE_OK; n++)
        status = moe_constraint_take(w.c, (const uint8_t *)"a", 1, &err);
    assert_true(n > 20000);
    assert_fails(status, MOE_ERR_LIMIT, "nested too deep", &err);
    assert_fails(moe_constraint_allowed(w.c, &a, &err), MOE_ERR_LIMIT, "nested too deep", &err);
    moe_constraint_restart(w.c);
    moe_constraint_prepare(w.c, false, is_zero, NULL);
    assert_int_equal(allowed_now(&w).n, 3); /* a aa z */
    end_walk(&w);

    begin_walk(&w, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"z\"");
    for (status = MOE_OK, n = 0; n < 100 && status == MOE_OK; n++)
        status = moe_constraint_take(w.c, (const uint8_t *)"a", 1, &err);
    assert_true(n > 8 && n < 30);
    assert_int_equal(status, MOE_ERR_LIMIT);
    end_walk(&w);
}

/* ---- Schemas ---- */

static int of_schema(struct moe_grammar **g, const char *text, struct moe_err *err)
{
    struct json_t *schema;
    assert_ok(moe_json_parse(&schema, "s", text, strlen(text), MOE_JSON_CONFIG_MEMORY, err), err);
    int status = moe_grammar_of_schema(g, "s", schema, NULL, err);
    moe_json_free(schema);
    return status;
}

/* Whether the grammar takes the text, and nothing of it is missing. */
static bool reads(struct automaton *a, const char *text)
{
    uint32_t place;
    assert_int_equal(automaton_start(a, &place), MOE_OK);
    for (; *text; text++)
        assert_int_equal(automaton_step(a, place, (uint8_t)*text, &place), MOE_OK);
    return automaton_ends(a, place);
}

static bool takes(const struct moe_grammar *g, const char *text)
{
    struct automaton *a;
    struct moe_err err = {0};
    assert_ok(automaton_new(&a, g, &err), &err);
    bool taken = reads(a, text);
    automaton_free(a);
    return taken;
}

static void schemas_take_what_they_say(void **state)
{
    static const struct {
        const char *schema, *right[5], *wrong[6];
    } cases[] = {
        {"{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":105}",
         {"-12", "0", "9", "104", "-1"},
         {"-13", "105", "00", "-0", "1.0", ""}},
        {"{\"enum\":[18446744073709551615,-9223372036854775809,7],\"type\":\"integer\"}",
         {"18446744073709551615", "-9223372036854775809", "7"},
         {"18446744073709551616", "1.8446744073709552e19", "{}"}},
        {"{\"const\":0.1}", {"0.1"}, {"0.10000000000000001"}},
        {"{\"type\":\"number\",\"minimum\":0.25,\"maximum\":2}",
         {"0.25", "1", "2.00", "1.9999", "0.2500"},
         {"0.2", "0.2499", "2.01", "3", "2.", "-1"}},
        {"{\"properties\":{\"a\":{\"const\":1},\"b\":{\"enum\":[null,\"x\"]}},\"required\":[\"b\"]"
         "}",
         {"{\"a\":1,\"b\":null}", "{\"b\":\"x\"}", "{ \"b\": \"x\" }"},
         {"{}", "{\"a\":1}", "{\"b\":null,\"a\":1}", "{\"b\":null,\"c\":1}", "{\"b\":null,}"}},
        {"{\"properties\":{\"ab\":true},\"additionalProperties\":{\"type\":\"null\"}}",
         {"{}", "{\"ab\":1}", "{\"a\":null}", "{\"abc\":null}", "{\"ab\":[],\"c\":null}"},
         {"{\"c\":1}", "{\"ab\":1,\"ab\":null}", "{\"c\":null,\"\\u0061b\":null}"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":2}",
         {"[true]", "[true, false]"},
         {"[]", "[true,true,true]", "[1]", "[true", "[,true]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":2},\"minItems\":"
         "2}",
         {"[1,2]", "[1,2,2,2]"},
         {"[1]", "[2,2]", "[1,1]"}},
        {"{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}",
         {"\"a\"", "\"\\n\xc3\xa9\"", "\"\\uD83D\\uDE00\\u00e9\""},
         {"\"\"", "\"abc\"", "\"\\uD83D\"", "\"\\u0000\"", "\"\n\""}},
        {"{\"pattern\":\"^(a|b\\\\d){1,2}$|z\"}",
         {"\"a\"", "\"ab7\"", "\"qzq\"", "\"z\""},
         {"\"\"", "\"aaa\"", "\"b\"", "\"q\""}},
        {"{\"format\":\"date\"}",
         {"\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""},
         {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"0000-01-01\"",
          "\"2024-13-01\""}},
        {"{\"$ref\":\"#/$defs/"
         "t\",\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"array\","
         "\"items\":{\"$ref\":\"#/$defs/t\"}}]}}}",
         {"null", "[]", "[[null],[[]]]"},
         {"[1]", "[[]"}},
        {"{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
         {"0", "-5", "999999999999999"},
         {"1.5", "9007199254740992"}},
        {"{\"properties\":{\"a\":{\"not\":{}},\"b\":{\"anyOf\":[{\"not\":{}},{\"const\":1}]}},"
         "\"additionalProperties\":{\"not\":{}}}",
         {"{}", "{\"b\":1}"},
         {"{\"a\":1}", "{\"b\":2}", "{\"c\":1}"}},
        {"{\"type\":\"string\",\"maxLength\":2147483647,\"format\":\"duration\"}",
         {"\"\"", "\"P1D\""},
         {"1"}},
        {"{\"pattern\":\"^[a-z]+$\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"abc\""},
         {"\"a\"", "\"abcd\"", "\"aB\""}},
        {"{\"pattern\":\"^(ab|cde)[0-9]{1,2}$\",\"minLength\":3,\"maxLength\":5}",
         {"\"ab1\"", "\"cde12\""},
         {"\"ab\"", "\"cde123\""}},
        {"{\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}", {"\"http://a.de\""}, {"\"a\""}},
        {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\"},"
         "\"additionalProperties\":{\"type\":\"null\"}}",
         {"{}", "{\"x\":null}"},
         {"{\"x\":1}"}},
        {"{\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"additionalProperties\":{\"const\":1},"
         "\"required\":[\"b\"]}",
         {"{\"b\":1}", "{\"a\":1,\"b\":1}"},
         {"{\"a\":1}", "{\"b\":1,\"c\":1}"}},
        {"{\"patternProperties\":{\"^x[0-9]$\":{\"const\":1}},\"additionalProperties\":false}",
         {"{}", "{\"x1\":1,\"x2\":1}"},
         {"{\"y\":1}", "{\"x1\":2}", "{\"x12\":1}"}},
        {"{\"type\":\"number\",\"multipleOf\":0.01}",
         {"1", "-0.5", "12.34", "0"},
         {"1.234", "1e5"}},
        {"{\"type\":\"number\",\"multipleOf\":0.1,\"minimum\":0,\"maximum\":1}",
         {"0.5", "1", "1.0"},
         {"0.25", "1.1", "-0.1"}},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":1,\"items\":{\"const\":1}}",
         {"[]", "[1]"},
         {"[1,1]"}},
        {"{\"pattern\":\"^[A-Z][a-z]+$\",\"minLength\":3,\"maxLength\":4}",
         {"\"Abc\"", "\"Abcd\""},
         {"\"Ab\"", "\"Abcde\"", "\"abc\"", "\"ABc\""}},
        {"{\"pattern\":\"^\\\\S+@\\\\S+$\",\"maxLength\":4}",
         {"\"a@b\"", "\"a@@\"", "\"@@bc\"", "\"\\\"@Ã©\""},
         {"\"a@bcd\"", "\"abcd\"", "\"@b\"", "\"a @b\""}},
        {"{\"pattern\":\"a\",\"maxLength\":3}",
         {"\"a\"", "\"bab\"", "\"\\na\\n\""},
         {"\"bab\\n\"", "\"bbb\"", "\"\""}},
        {"{\"pattern\":\"^(a|bc)+$\",\"minLength\":2,\"maxLength\":3}",
         {"\"aa\"", "\"bc\"", "\"abc\"", "\"bca\""},
         {"\"a\"", "\"bcbc\"", "\"ab\"", "\"ac\""}},
        {"{\"pattern\":\"^[a-z]+(-[a-z]+)*$\",\"maxLength\":60000}",
         {"\"a-b\""},
         {"\"a-\"", "\"-\""}},
        {"{\"pattern\":\"^(?!x)(?!.*--)[a-z-]+$\"}",
         {"\"a-b\"", "\"-x\""},
         {"\"xa\"", "\"a--b\"", "\"\""}},
        {"{\"pattern\":\"^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$\"}", /* pydantic's Decimal */
         {"\"1\"", "\"-0.5\"", "\"+.5\""},
         {"\"\"", "\"-\"", "\".\"", "\"1.1.1\""}},
        {"{\"pattern\":\"(?=.*\\\\d)^\\\\w+$|^(?<year>\\\\d{4})$\"}",
         {"\"a1\"", "\"2024\""},
         {"\"ab\"", "\"1 \""}},
        {"{\"pattern\":\"^(?!\\\\D)..$\"}", {"\"1a\""}, {"\"a1\"", "\"Ã©z\""}},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"},{\"pattern\":\"^.{2}$\"}]}",
         {"\"ab\"", "\"ba\""},
         {"\"aa\"", "\"abc\"", "\"b\""}},
        {"{\"format\":\"email\",\"maxLength\":7}",
         {"\"a@b.de\"", "\"ab@c.de\""},
         {"\"abc@d.ef\"", "\"a@b\""}},
        {"{\"format\":\"uri\",\"minLength\":13,\"maxLength\":20}",
         {"\"http://a.de/x\"", "\"https://ab.cd/ef/gh\""},
         {"\"http://a.de\"", "\"https://ab.cd/ef/gh/i\""}},
        {"{\"format\":\"date-time\",\"minLength\":20,\"maxLength\":20}",
         {"\"2024-02-29T10:00:00Z\""},
         {"\"2024-02-29T10:00:00.5Z\"", "\"2024-02-29T10:00:00+01:00\""}},
        {"{\"type\":\"string\",\"maxLength\":2,\"not\":{\"enum\":[\"\",\"ab\"]}}",
         {"\"a\"", "\"ba\""},
         {"\"\"", "\"ab\"", "\"abc\"", "\"\\u0061b\""}},
        {"{\"not\":{\"enum\":[true,null,0,1.5,\"x\"]},\"type\":[\"boolean\",\"null\",\"number\","
         "\"string\"]}",
         {"false", "1", "0.5", "\"y\"", "1.51"},
         {"true", "null", "0", "0.0", "1.50", "\"x\""}},
        {"{\"type\":[\"integer\",\"null\"],\"not\":{\"type\":\"null\"}}", {"1"}, {"null"}},
        {"{\"enum\":[\"a\",\"bc\",5,50],\"minLength\":2,\"maximum\":10}",
         {"\"bc\"", "5"},
         {"\"a\"", "50"}},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-20,\"maximum\":1000}",
         {"-14", "0", "7", "994", "70"},
         {"-21", "8", "1001", "-0", "07", "7.0"}},
        {"{\"type\":\"number\",\"multipleOf\":0.25,\"maximum\":100}",
         {"0.25", "-1.5", "100", "7.75", "1.50"},
         {"0.3", "0.1", "100.25", "1.250"}},
        {"{\"type\":\"integer\",\"multipleOf\":3600}",
         {"0", "3600", "-7200", "36000"},
         {"360", "1800", "36"}},
        {"{\"type\":\"integer\",\"multipleOf\":0.3}", {"3", "0", "-6"}, {"1", "0.3"}},
        {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]+$\",\"maxLength\":3},"
         "\"properties\":{\"ab\":{\"const\":1},\"X\":true},\"additionalProperties\":{\"type\":"
         "\"null\"}}",
         {"{}", "{\"ab\":1}", "{\"abc\":null}", "{\"ab\":1,\"a\":null}"},
         {"{\"ab\":null}", "{\"abcd\":null}", "{\"X\":null}", "{\"x1\":null}"}},
        {"{\"patternProperties\":{\"^a\":{\"const\":1},\"b$\":{\"const\":2},\"z\":{\"type\":"
         "\"integer\"}},"
         "\"properties\":{\"az\":{\"maximum\":3}},\"additionalProperties\":{\"const\":3}}",
         {"{\"a\":1}", "{\"bb\":2,\"c\":3,\"ac\":1}", "{\"az\":1}"},
         {"{\"a\":2}", "{\"ab\":1}", "{\"ab\":3}", "{\"c\":1}", "{\"az\":2}"}},
        {"{\"properties\":{\"a\":false},\"additionalProperties\":true}",
         {"{\"b\":1}"},
         {"{\"a\":1}"}},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"b\",3]},"
         "\"minItems\":1}",
         {"[\"a\"]", "[3,\"a\",\"b\"]", "[ \"b\", 3 ]"},
         {"[]", "[\"a\",\"a\"]", "[3,\"a\",3]"}},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":2,\"items\":{\"anyOf\":[{\"type\":"
         "\"boolean\"},{\"enum\":[1,2,3,4,5,6,7,8]}]}}",
         {"[]", "[true]", "[true,8]", "[1,2]"},
         {"[1,1]", "[true,1,2]", "[8,7]", "[true,true]"}},
        {"{\"properties\":{\"k\":{\"enum\":[\"a\",\"b\",\"c\"]},\"x\":{\"type\":\"null\"}},"
         "\"required\":[\"k\"],"
         "\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}}},\"then\":{\"required\":[\"x\"]},"
         "\"else\":{\"properties\":{\"x\":false}}}",
         {"{\"k\":\"a\",\"x\":null}", "{\"k\":\"b\"}", "{\"k\":\"c\"}"},
         {"{\"k\":\"a\"}", "{\"k\":\"b\",\"x\":null}", "{}"}},
        {"{\"properties\":{\"k\":{\"type\":\"string\"},\"x\":{\"const\":1},\"y\":{\"const\":2}},"
         "\"allOf\":["
         "{\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":[\"k\"]},\"then\":{"
         "\"required\":[\"x\"]}},"
         "{\"if\":{\"properties\":{\"k\":{\"not\":{\"const\":\"b\"}}},\"required\":[\"k\"]},"
         "\"then\":{\"required\":[\"y\"]}}],\"dependentRequired\":{\"x\":[\"k\"]}}",
         {"{\"k\":\"a\",\"x\":1,\"y\":2}", "{\"k\":\"b\"}", "{\"k\":\"q\",\"y\":2}", "{}",
          "{\"y\":2}"},
         {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"q\"}", "{\"x\":1}", "{\"k\":\"a\",\"y\":2}"}},
        {"{\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},\"not\":{\"required\":[\"a\","
         "\"b\"]}}",
         {"{}", "{\"a\":1}", "{\"b\":2}"},
         {"{\"a\":1,\"b\":2}"}},
        {"{\"properties\":{\"a\":{\"enum\":[1,2]}},\"not\":{\"properties\":{\"a\":{\"const\":1}}}}",
         {"{\"a\":2}"},
         {"{\"a\":1}", "{}"}},
        {"{\"allOf\":[{\"properties\":{\"a\":{\"const\":1}},\"additionalProperties\":false},"
         "{\"properties\":{\"a\":true,\"b\":true}}]}",
         {"{}", "{\"a\":1}"},
         {"{\"b\":1}", "{\"a\":2}"}},
        {"{\"anyOf\":[{\"enum\":[1],\"type\":\"string\"},{\"minLength\":2,\"maxLength\":1},{"
         "\"const\":2}]}",
         {"2"},
         {"1", "\"\""}},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", {"1", "1.5"}, {"\"1\""}},
        {"{\"allOf\":[{\"type\":[\"integer\",\"string\"]},{\"minimum\":3},{\"type\":\"number\","
         "\"maximum\":4}]}",
         {"3", "4"},
         {"2", "5", "\"a\"", "3.5"}},
        {"{\"type\":\"string\",\"if\":{},\"then\":{\"minLength\":3},\"else\":false}",
         {"\"abc\""},
         {"\"ab\"", "1"}},
        {"{\"type\":\"integer\",\"if\":{\"not\":{}},\"then\":false,\"else\":{\"minimum\":3}}",
         {"3"},
         {"2"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"if\":true,\"then\":{"
         "\"required\":[\"a\"]},\"dependentRequired\":{\"a\":[\"b\"]}}",
         {"{\"a\":1,\"b\":2}"},
         {"{}", "{\"a\":1}"}},
        {"{\"format\":\"date\",\"pattern\":\"^2024\"}",
         {"\"2024-02-29\""},
         {"\"2024\"", "\"20243h2\"", "\"2023-01-01\"", "\"2024-02-30\""}},
        {"{\"type\":\"object\",\"propertyNames\":false}", {"{}"}, {"{\"a\":1}"}},
        {"{\"allOf\":[{\"properties\":{\"a\":true}},{\"propertyNames\":{\"not\":{}}}]}",
         {"{}"},
         {"{\"a\":1}"}},
        {"{\"properties\":{\"b\":{\"type\":\"integer\"}},\"additionalProperties\":false,\"if\":{"
         "\"properties\":{\"x\":{\"const\":true}}},\"then\":{\"required\":[\"b\"]}}",
         {"{\"b\":0}"},
         {"{\"b\":0,\"x\":true}", "{\"x\":true}", "{}"}},
        {"{\"properties\":{\"b\":{\"const\":1},\"x\":{\"not\":{}}},\"if\":{\"properties\":{\"x\":{"
         "\"const\":1}},\"required\":[\"x\"]},\"then\":{\"required\":[\"b\"]}}",
         {"{}", "{\"b\":1}"},
         {"{\"b\":1,\"x\":1}"}},
        {"{\"additionalProperties\":{\"maximum\":3},\"if\":{\"properties\":{\"x\":{\"enum\":[2,5]}}"
         ",\"required\":[\"x\"]},\"then\":{\"required\":[\"y\"]}}",
         {"{\"x\":2,\"y\":1}", "{\"x\":3}"},
         {"{\"x\":5,\"y\":1}", "{\"x\":2}", "{\"x\":4}"}},
        {"{\"patternProperties\":{\"^x\":{\"type\":\"string\"}},\"additionalProperties\":false,"
         "\"if\":{\"properties\":{\"x\":{\"const\":\"s\"}},\"required\":[\"x\"]},\"then\":{"
         "\"required\":[\"xb\"]}}",
         {"{\"x\":\"t\"}", "{\"x\":\"s\",\"xb\":\"u\"}", "{}"},
         {"{\"x\":\"s\"}", "{\"x\":1}"}},
        {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"ab\",\"c\"]},\"properties\":{\"ab\":{"
         "\"maximum\":3}},\"patternProperties\":{\"a\":{\"type\":\"integer\"}},"
         "\"additionalProperties\":false}",
         {"{\"ab\":2}", "{}"},
         {"{\"ab\":1.82}", "{\"ab\":4}", "{\"c\":1}"}},
        {"{\"propertyNames\":{\"enum\":[\"a\",\"b\"],\"const\":\"b\"},\"type\":\"object\"}",
         {"{\"b\":1}", "{}"},
         {"{\"a\":1}"}},
        {"{\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"null\"}},"
         "\"patternProperties\":{\"^a\":{\"type\":\"integer\"}},\"additionalProperties\":false}",
         {"{}", "{\"b\":null}"},
         {"{\"a\":1}", "{\"a\":\"x\"}"}},
        {"{\"anyOf\":[{\"type\":\"null\"},{\"allOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]"
         "}]}",
         {"null"},
         {"1", "\"a\""}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"if\":{\"required\":[\"a\"]},"
         "\"then\":{\"type\":\"string\"}}",
         {"{}"},
         {"{\"a\":1}"}},
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_grammar *g;
        struct moe_err err = {0};
        assert_ok(of_schema(&g, cases[i].schema, &err), &err);
        for (int k = 0; k < 5 && cases[i].right[k]; k++)
            if (!takes(g, cases[i].right[k]))
                fail_msg("%s: not %s", cases[i].schema, cases[i].right[k]);
        for (int k = 0; k < 6 && cases[i].wrong[k]; k++)
            if (takes(g, cases[i].wrong[k]))
                fail_msg("%s: takes %s", cases[i].schema, cases[i].wrong[k]);
        moe_grammar_free(g);
    }
}

/* ---- Patterns beside PCRE2's ---- */

/* Appends a random regular expression; `looks`: it may look ahead here. */
static void random_pattern(struct tree *t, struct moe_buf *to, int depth, bool looks)
{
    static const char *const items[] = {"a", "b", "-", "[ab]", "[^a]", ".", "\\\\d", "\\\\w", "1"};
    static const char *const times[] = {"", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "+?"};
    static const char *const ahead[] = {"(?=", "(?!", "(?!.*", "(?=.*"};
    const uint32_t n = 1 + below(t, 3), n_or = depth < 3 && below(t, 3) == 0 ? 2 : 1;
    for (uint32_t alternative = 0; alternative < n_or; alternative++) {
        moe_buf_text(to, alternative ? "|" : "");
        if (depth == 0 && below(t, 2) > 0)
            moe_buf_text(to, "^");
        for (uint32_t i = 0; i < n; i++) {
            if (looks && below(t, 4) == 0) {
                moe_buf_text(to, ahead[below(t, N_ITEMS(ahead))]);
                random_pattern(t, to, 3, false);
                moe_buf_text(to, below(t, 3) ? ")" : "$)");
            }
            const bool group = depth < 2 && below(t, 4) == 0;
            const char *times_of = times[below(t, N_ITEMS(times))];
            moe_buf_text(to, group ? "(" : items[below(t, N_ITEMS(items))]);
            if (group)
                random_pattern(t, to, depth + 1, looks && !*times_of);
            moe_buf_text(to, group ? ")" : "");
            moe_buf_text(to, times_of);
        }
        if (depth == 0 && below(t, 2) > 0)
            moe_buf_text(to, "$");
    }
}

/* Patterns take the texts that PCRE2 finds a match in, within lengths; what they are combined with
 * by allOf takes its part. */
static void patterns_are_those_of_pcre2(void **state)
{
    struct tree t = {.random = 47};
    uint32_t n_taken = 0, n_not = 0, n_none = 0;
    (void)state;
    for (int i = 0; i < 400; i++) {
        struct moe_buf pattern[2] = {{0}, {0}}, schema = {0};
        pcre2_code *code[2] = {NULL, NULL};
        const uint32_t least = below(&t, 3), most = least + below(&t, 8),
                       n = 1 + (below(&t, 4) == 0);
        struct moe_grammar *g;
        struct moe_err err = {0};
        moe_buf_printf(&schema,
                       "{\"type\":\"string\",\"minLength\":%u,\"maxLength\":%u,\"allOf\":[true",
                       least, most);
        for (uint32_t k = 0; k < n; k++) {
            int error;
            PCRE2_SIZE at;
            random_pattern(&t, &pattern[k], 0, true);
            moe_buf_u8(&pattern[k], 0);
            moe_buf_printf(&schema, ",{\"pattern\":\"%s\"}", (const char *)pattern[k].data);
            char *from = (char *)pattern[k].data, *to = from;
            for (; *from; *to++ = *from++) /* as JSON says it */
                from += from[0] == '\\' && from[1] == '\\';
            code[k] = pcre2_compile(pattern[k].data, (PCRE2_SIZE)((uint8_t *)to - pattern[k].data),
                                    PCRE2_DOLLAR_ENDONLY, &error, &at, NULL);
            assert_non_null(code[k]);
        }
        moe_buf_text(&schema, "]}");
        moe_buf_u8(&schema, 0);
        int status = of_schema(&g, (const char *)schema.data, &err);
        if (status != MOE_OK && !strstr(err.text, "no text follows it"))
            fail_msg("%s: %s", (const char *)schema.data, err.text);
        n_none += status != MOE_OK;
        struct automaton *a = NULL;
        if (status == MOE_OK)
            assert_ok(automaton_new(&a, g, &err), &err);
        for (int k = 0; k < 60; k++) {
            char text[12] = "\"";
            const uint32_t length = below(&t, 8);
            for (uint32_t c = 0; c < length; c++)
                text[1 + c] = "ab-1ab "[below(&t, 7)];
            bool fits = length >= least && length <= most;
            for (uint32_t p = 0; p < n; p++) {
                pcre2_match_data *match = pcre2_match_data_create_from_pattern(code[p], NULL);
                fits = fits &&
                       pcre2_match(code[p], (PCRE2_SPTR)text + 1, length, 0, 0, match, NULL) >= 0;
                pcre2_match_data_free(match);
            }
            text[1 + length] = '"';
            const bool taken = a && reads(a, text);
            if (taken != fits)
                fail_msg("%s: %s is taken: %d", (const char *)schema.data, text, taken);
            n_taken += taken;
            n_not += !taken;
        }
        automaton_free(a);
        moe_grammar_free(g);
        for (uint32_t k = 0; k < n; k++)
            pcre2_code_free(code[k]);
        moe_buf_release(&pattern[0]);
        moe_buf_release(&pattern[1]);
        moe_buf_release(&schema);
    }
    assert_true(n_taken > 1500 && n_not > 5000 && n_none > 10 && n_none < 200);
}

static void what_schemas_cannot_keep_is_refused_by_its_place(void **state)
{
    static const struct {
        const char *schema, *words;
    } cases[] = {
        {"{\"not\":{}}", "s: #: no value is allowed here"},
        {"{\"not\":{\"minLength\":1}}", "s: #/not: only of types"},
        {"{\"not\":{\"enum\":[[1]]},\"type\":\"array\"}", "s: #/not: of objects"},
        {"{\"if\":{\"minProperties\":1},\"then\":{\"required\":[\"a\"]}}",
         "s: #/if: only tests of what properties are"},
        {"{\"if\":{\"properties\":{\"a\":{\"type\":\"string\"}}},\"then\":{\"required\":[\"a\"]}}",
         "s: #/if: only tests of what properties are"},
        {"{\"type\":[\"object\",\"null\"],\"if\":{\"required\":[\"a\"]},\"then\":{}}",
         "s: #/if: it is supported for type object only"},
        {"{\"required\":[\"k\"],\"properties\":{\"k\":{\"const\":1}},\"if\":{\"properties\":{\"k\":"
         "{\"const\":1}}},\"then\":false}",
         "s: #/if: no case allows a value"},
        {"{\"contains\":{\"const\":1}}", "s: #/contains: this keyword is not supported"},
        {"{\"enum\":[[1]],\"minItems\":1}", "s: #/minItems: not supported beside an enum"},
        {"{\"anyOf\":[{\"not\":{}},false]}", "none of them allows a value"},
        {"{\"propertyNames\":{\"anyOf\":[{\"pattern\":\"a\"}]}}",
         "s: #/propertyNames/anyOf: of names"},
        {"{\"propertyNames\":{\"type\":\"integer\"}}", "s: #/propertyNames/type: names are"},
        {"{\"propertyNames\":{\"minLength\":3},\"required\":[\"a\"]}", "s: #/required: 'a'"},
        {"{\"minLength\":100001}", "at most 100000"},
        {"{\"pattern\":\"a\\\\p{L}\"}", "escape is not supported (at '\\p{L}')"},
        {"{\"format\":\"date\",\"maxLength\":9}", "s: #/format: no text follows it"},
        {"{\"properties\":{\"a/~\":{\"items\":{\"uniqueItems\":true}}}}",
         "s: #/properties/a~1~0/items/uniqueItems: "},
        {"{\"type\":\"str\"}", "s: #/type: "},
        {"{\"if\":{\"$ref\":\"#/a\"},\"then\":{}}", "s: #/if: a schema was expected"},
        {"{\"type\":\"null\",\"anyOf\":[{\"type\":\"str\"}]}", "s: #/anyOf/0/type: there is no"},
        {"{\"$ref\":\"#/$defs/x\"}", "s: #/$ref: "},
        {"{\"$ref\":\"http://x/y\"}", "s: #/$ref: "},
        {"{\"$ref\":\"#\"}", "leads back to itself"},
        {"{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#\"}]}", "leads back to itself"},
        {"{\"properties\":{\"n\":{\"$ref\":\"#\"}},\"required\":[\"n\"]}", "leads back to itself"},
        {"{\"items\":{\"$ref\":\"#\"},\"minItems\":1,\"type\":\"array\"}", "leads back to itself"},
        {"{\"properties\":{\"a\":{\"$ref\":\"#/$defs/a\"}},\"$defs\":{"
         "\"a\":{\"properties\":{\"b\":{\"$ref\":\"#/$defs/b\"}},\"required\":[\"b\"]},"
         "\"b\":{\"prefixItems\":[{\"$ref\":\"#/$defs/a\"}],\"minItems\":1}}}",
         "leads back to itself"},
        {"{\"pattern\":\"(?<=a)b\"}", "s: #/pattern: looking behind"},
        {"{\"pattern\":\"^((?!ab).)*$\"}", "s: #/pattern: ^ is only supported"},
        {"{\"pattern\":\"a^b\"}", "s: #/pattern: ^ is only supported"},
        {"{\"pattern\":\"^(?=a)b\"}", "s: #/pattern: no text follows it"},
        {"{\"pattern\":\"a{3,2}\"}", "s: #/pattern: "},
        {"{\"pattern\":\"^aa(bc)+$\",\"maxLength\":3}", "s: #/pattern: no text follows it"},
        {"{\"minimum\":5,\"maximum\":4}", "no number lies between"},
        {"{\"multipleOf\":1009}", "s: #/multipleOf: multiples are kept of 1 to 1000"},
        {"{\"multipleOf\":0}", "s: #/multipleOf: a number from 1e-9"},
        {"{\"multipleOf\":5,\"minimum\":6,\"maximum\":9}", "s: #/multipleOf: no multiple lies"},
        {"{\"uniqueItems\":true,\"items\":{\"enum\":[1,2]},\"minItems\":3}",
         "s: #/minItems: only 2"},
        {"{\"enum\":[1],\"type\":\"string\"}", "s: #/enum: no value"},
        {"{\"required\":[\"a\"],\"additionalProperties\":false}", "s: #/required: 'a'"},
        {"{\"minProperties\":2,\"properties\":{\"a\":true}}", "s: #/minProperties: "},
        {"{\"pattern\":\"^(a{9999}){999}$\"}", "too large"},
        {"{\"allOf\":[{\"format\":\"date\"},{\"format\":\"time\"}]}",
         "s: #/format: no text follows it"},
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_grammar *g;
        struct moe_err err = {0};
        int status = of_schema(&g, cases[i].schema, &err);
        if (status == MOE_OK || !strstr(err.text, cases[i].words))
            fail_msg("%s: %d: '%s' should contain '%s'", cases[i].schema, status, err.text,
                     cases[i].words);
        assert_null(g);
    }
}

static void what_is_kept_in_a_wider_sense_is_said(void **state)
{
    struct moe_grammar *g;
    struct moe_err err = {0};
    (void)state;
    assert_ok(
        of_schema(&g,
                  "{\"properties\":{\"a\":{\"oneOf\":[{\"format\":\"date\"},{\"type\":"
                  "\"string\"}]},\"b\":{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"integer\"}]}}}",
                  &err),
        &err);
    assert_string_equal(moe_grammar_notes(g),
                        "#/properties/a/oneOf: kept as anyOf: 0 and 1 may both take a value");
    moe_grammar_free(g);
    assert_ok(of_schema(&g, "{\"format\":\"date\",\"pattern\":\"^x+$\"}", &err), &err);
    assert_non_null(strstr(moe_grammar_notes(g), "#/format: beside this pattern"));
    assert_true(takes(g, "\"xx\"") && !takes(g, "\"2024-02-29\""));
    moe_grammar_free(g);
    assert_ok(of_schema(&g, "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", &err),
              &err);
    assert_null(moe_grammar_notes(g));
    moe_grammar_free(g);
}

/* ---- What reading costs ---- */

/* Appends a pattern n times; a % in it becomes the number of the time. */
static void repeat(struct moe_buf *to, const char *pattern, int n)
{
    for (int i = 0; i < n; i++)
        for (const char *c = pattern; *c; c++) {
            if (*c == '%')
                moe_buf_printf(to, "%d", i);
            else
                moe_buf_u8(to, (uint8_t)*c);
        }
}

/* A schema of objects nested five deep, each requiring its property n times. */
static void require_often(struct moe_buf *to, int n, int least)
{
    repeat(to, "{\"type\":\"object\",\"properties\":{\"a\":", 5);
    moe_buf_printf(to, "{\"type\":\"string\",\"minLength\":%d}", least);
    for (int i = 0; i < 5; i++) {
        moe_buf_text(to, "},\"required\":[");
        repeat(to, "\"a\",", n);
        moe_buf_text(to, "\"a\"]}");
    }
}

static void alternatives_that_require_often(struct moe_buf *to)
{
    moe_buf_text(to, "{\"oneOf\":[");
    require_often(to, 200, 0);
    moe_buf_text(to, ",");
    require_often(to, 200, 1);
    moe_buf_text(to, "]}");
}

/* Five levels of a hundred references each: 100^5 pairs of leaves. */
static void alternatives_of_references(struct moe_buf *to)
{
    moe_buf_text(to,
                 "{\"oneOf\":[{\"$ref\":\"#/$defs/x5\"},{\"$ref\":\"#/$defs/y5\"}],\"$defs\":{");
    for (int level = 0; level <= 5; level++)
        for (int side = 'x'; side <= 'y'; side++) {
            moe_buf_printf(to, "%s\"%c%d\":", level + side > 'x' ? "," : "", side, level);
            if (level == 0) {
                moe_buf_printf(to, "{\"type\":\"string\",\"minLength\":%d}", side - 'x');
                continue;
            }
            moe_buf_text(to, "{\"type\":\"object\",\"required\":[\"p0\"");
            repeat(to, ",\"p%\"", 100);
            moe_buf_text(to, "],\"properties\":{\"z\":true");
            for (int i = 0; i < 100; i++)
                moe_buf_printf(to, ",\"p%d\":{\"$ref\":\"#/$defs/%c%d\"}", i, side, level - 1);
            moe_buf_text(to, "}}");
        }
    moe_buf_text(to, "}}");
}

/* Each level twice as many ways: 2^40. */
static void alternatives_that_double(struct moe_buf *to)
{
    repeat(to, "{\"type\":\"object\",\"properties\":{\"a\":", 40);
    moe_buf_text(to, "true");
    repeat(to,
           "},\"anyOf\":[{\"properties\":{\"a\":{\"maxLength\":5}}},"
           "{\"properties\":{\"a\":{\"maxLength\":6}}}]}",
           40);
}

static void alternatives_with_enums(struct moe_buf *to)
{
    moe_buf_text(to, "{\"oneOf\":[{\"const\":\"z\"}");
    for (int i = 0; i < 999; i++) {
        moe_buf_printf(to, ",{\"enum\":[%d", 60 * i);
        for (int k = 1; k < 60; k++)
            moe_buf_printf(to, ",%d", 60 * i + k);
        moe_buf_text(to, "]}");
    }
    moe_buf_text(to, "]}");
}

static void what_is_read_costs_no_more_than_it_may(void **state)
{
    static const struct {
        const char *what, *before, *pattern;
        int n;
        const char *after;
        void (*make)(struct moe_buf *to);
        const char *answer, *words; /* taken; or refused with these */
    } cases[] = {
        {.what = "required again and again",
         .make = alternatives_that_require_often,
         .answer = "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":\"\"}}}}}"},
        {.what = "references that multiply", .make = alternatives_of_references, .answer = ""},
        {.what = "alternatives that multiply",
         .make = alternatives_that_double,
         .words = "reading it takes more than"},
        {.what = "a thousand lists of values", .make = alternatives_with_enums, .answer = "59939"},
        {"allOf of unknown keys", "{\"type\":\"string\",\"allOf\":[{}", ",{\"k%\":1}", 9000, "]}",
         .answer = "\"\""},
        {"allOf of requirements", "{\"type\":\"object\",\"allOf\":[{}", ",{\"required\":[\"k%\"]}",
         9000, "]}", .answer = ""},
        {"allOf of values", "{\"allOf\":[{}", ",{\"enum\":[1,2,3,%,5]}", 9000, "]}", .answer = "5"},
        {"as many properties as are required", "{\"properties\":{\"z\":true", ",\"k%\":true", 20000,
         "},\"additionalProperties\":false}", .words = "4000"},
        {"an enum of 100,000", "{\"enum\":[0", ",\"value %\"", 100000, "]}",
         .answer = "\"value 99999\""},
        {"a long pattern", "{\"pattern\":\"a", "\\\\S", 1300000, "\"}",
         .words = "reading it takes more than"},
        {"a long plain pattern", "{\"pattern\":\"a", "b", 1000000, "\"}",
         .words = "reading it takes more than"},
        {"names that others may not be",
         "{\"additionalProperties\":true,\"properties\":{\"z\":true",
         ",\"a%abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\":true", 3900, "}}",
         .words = "reading it takes more than"},
        {"twenty long texts", "{\"prefixItems\":[true",
         ",{\"type\":\"string\",\"maxLength\":65535}", 20, "]}", .answer = ""},
        {"a pattern whose states double", "{\"pattern\":\"^(a|b)*a(a|b){15}$\",\"maxLength\":4000",
         "", 0, "}", .words = "reading it takes more than"},
        {"lengths of many patterns", "{\"properties\":{\"z\":true",
         ",\"k%\":{\"pattern\":\"^[a-z]+x(b|%)*$\",\"maxLength\":4000}", 500, "}}",
         .words = "reading it takes more than"},
        {"texts that look ahead", "{\"maxLength\":3000,\"pattern\":\"^[a-z]*", "(?!.*%.{9}%)", 30,
         "\"}", .words = "reading it takes more than"},
        {"many values that are left out", "{\"not\":{\"enum\":[0", ",\"value %\"", 4000,
         "]},\"type\":\"string\"}", .answer = "\"value 4000\""},
        {"a choice of many kinds", "{\"required\":[\"k\"],\"allOf\":[{}",
         ",{\"if\":{\"properties\":{\"k\":{\"const\":%}}},\"then\":{\"required\":[\"p%\"]}}", 200,
         "]}", .answer = "{\"k\":7,\"p7\":null}"},
        {"more cases of choices than are kept", "{\"allOf\":[{}",
         ",{\"if\":{\"properties\":{\"k\":{\"const\":%},\"j\":{\"const\":%}}},\"then\":{}}", 50,
         "]}", .words = "more than 300 cases"},
        {"nothing, again and again", "root ::= \"a\"", " \"\"{131072}", 4000, "", .answer = "a"},
        {"much, and then not at all", "root ::= \"a\"", " (\"a\"{100000}){0}", 20000, "",
         .words = "reading it takes more than"},
        {"a class of everything", "root ::= [a", "b-cd", 1000000, "]", .words = "a class of more"},
        {"five thousand ways to begin", "root ::= \"a\"", " | \"%\"", 5000, "",
         .words = "where an answer begins"},
        {"a chain of rules", "root ::= r0 \"x\"\nr30000 ::= \"y\"?\n", "r% ::= r30000 r30000\n",
         30000, "", .answer = "yyx"},
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_allowance allowance = moe_allowance_usual();
        struct moe_buf text = {0};
        struct moe_grammar *g = NULL;
        struct moe_err err = {0};
        struct json_t *schema;
        if (cases[i].make) {
            cases[i].make(&text);
        } else {
            moe_buf_text(&text, cases[i].before);
            repeat(&text, cases[i].pattern, cases[i].n);
            moe_buf_text(&text, cases[i].after);
        }
        int status;
        if (text.data[0] == 'r') {
            status = moe_grammar_parse(&g, "s", text.data, text.size, &allowance, &err);
        } else {
            assert_ok(moe_json_parse(&schema, "s", text.data, text.size, 64 << 20, &err), &err);
            status = moe_grammar_of_schema(&g, "s", schema, &allowance, &err);
            moe_json_free(schema);
        }
        if (cases[i].words ? !strstr(err.text, cases[i].words) : status != MOE_OK)
            fail_msg("%s: %d: '%s'", cases[i].what, status, err.text);
        if (cases[i].answer && cases[i].answer[0] && !takes(g, cases[i].answer))
            fail_msg("%s: not %s", cases[i].what, cases[i].answer);
        if (allowance.steps > MOE_READ_STEPS + 100000)
            fail_msg("%s: %llu steps", cases[i].what, (unsigned long long)allowance.steps);
        moe_grammar_free(g);
        moe_buf_release(&text);
    }
}

static void reading_ends_when_it_is_cancelled(void **state)
{
    static const char *const texts[] = {"{\"type\":\"string\"}", "root ::= \"a\"\n"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        atomic_bool cancelled = true;
        struct moe_allowance allowance = moe_allowance_usual();
        struct moe_grammar *g;
        struct moe_err err;
        struct json_t *schema;
        allowance.cancelled = &cancelled;
        assert_ok(moe_json_parse(&schema, "s", texts[0], strlen(texts[0]), 1 << 20, &err), &err);
        int status = i ? moe_grammar_parse(&g, "s", texts[1], strlen(texts[1]), &allowance, &err)
                       : moe_grammar_of_schema(&g, "s", schema, &allowance, &err);
        assert_fails(status, MOE_ERR_INTERRUPTED, "stopped while it was read", &err);
        moe_json_free(schema);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_llama_cpp_reads_is_read),
        cmocka_unit_test(what_is_none_is_refused_where_it_stands),
        cmocka_unit_test(masks_are_those_of_a_naive_matcher),
        cmocka_unit_test(an_answer_ends_where_it_may),
        cmocka_unit_test(masks_are_kept_and_counted),
        cmocka_unit_test(places_are_bounded),
        cmocka_unit_test(schemas_take_what_they_say),
        cmocka_unit_test(patterns_are_those_of_pcre2),
        cmocka_unit_test(what_schemas_cannot_keep_is_refused_by_its_place),
        cmocka_unit_test(what_is_kept_in_a_wider_sense_is_said),
        cmocka_unit_test(what_is_read_costs_no_more_than_it_may),
        cmocka_unit_test(reading_ends_when_it_is_cancelled),
    };
    return cmocka_run_group_tests_name("grammar", tests, make_dir, remove_empty_dir);
}
