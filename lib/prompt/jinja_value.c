/* The values of templates: memory, text building, letters, comparison, order. */
#define _GNU_SOURCE /* memmem */

#include "prompt/jinja_value.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/text.h"
#include "fmt/json.h"

enum { BLOCK_BYTES = 64 << 10, UNIT = 16 };

struct jinja_block {
    struct jinja_block *next;
    uint64_t size, used; /* of the memory after it */
    _Alignas(UNIT) uint8_t bytes[];
};

_Noreturn static void leave(struct jinja_heap *heap, int status)
{
    heap->status = status;
    longjmp(heap->out, 1);
}

void jinja_fail(struct jinja_heap *heap, struct jinja_place at, int status, const char *format, ...)
{
    char text[384];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    leave(heap, moe_fail(heap->err, status, "%s, line %u, column %u: %s", heap->name, at.line,
                         at.column, text));
}

void *jinja_take(struct jinja_heap *heap, uint64_t n, uint64_t item_bytes)
{
    uint64_t bytes = 0;
    if (!moe_mul_u64(n, item_bytes, &bytes) || bytes > heap->limit ||
        heap->used > heap->limit - bytes)
        leave(heap, moe_fail(heap->err, MOE_ERR_LIMIT,
                             "%s: the template needs more than %llu bytes of memory", heap->name,
                             (unsigned long long)heap->limit));
    bytes = moe_round_up(bytes ? bytes : 1, UNIT);
    struct jinja_block *block = heap->blocks;
    if (!block || block->size - block->used < bytes) {
        uint64_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        block = calloc(1, sizeof *block + size);
        if (!block)
            leave(heap, moe_fail(heap->err, MOE_ERR_MEMORY, "%s: out of memory", heap->name));
        block->size = size;
        block->next = heap->blocks;
        heap->blocks = block;
    }
    void *at = block->bytes + block->used;
    block->used += bytes;
    heap->used += bytes;
    return at;
}

void *jinja_grow(struct jinja_heap *heap, const void *items, uint64_t n, uint64_t room,
                 uint64_t item_bytes)
{
    void *larger = jinja_take(heap, room, item_bytes);
    if (n)
        memcpy(larger, items, n * item_bytes);
    return larger;
}

void jinja_heap_free(struct jinja_heap *heap)
{
    for (struct jinja_block *block = heap->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    heap->blocks = NULL;
}

/* ---- Texts as they are built: building ---- */

static void make_room(struct jinja_run *run, struct jinja_builder *b, uint64_t n)
{
    uint64_t want = b->n + n, room = b->room ? b->room : 64;
    if (want <= b->room)
        return;
    while (room < want)
        room *= 2;
    if (room > UINT32_MAX) /* far above any memory limit */
        room = UINT32_MAX;
    b->bytes = jinja_grow(&run->heap, b->bytes, b->n, room, 1);
    b->room = (uint32_t)room;
}

static void add_callers(struct jinja_run *run, struct jinja_builder *b, uint32_t begin,
                        uint32_t end)
{
    if (begin == end)
        return;
    if (b->n_parts && b->parts[b->n_parts - 1].end == begin) {
        b->parts[b->n_parts - 1].end = end;
        return;
    }
    if (b->n_parts == b->parts_room) {
        b->parts_room = b->parts_room ? 2 * b->parts_room : 4;
        b->parts = jinja_grow(&run->heap, b->parts, b->n_parts, b->parts_room, sizeof *b->parts);
    }
    b->parts[b->n_parts++] = (struct jinja_part){begin, end};
}

void jinja_add(struct jinja_run *run, struct jinja_builder *b, const char *bytes, uint64_t n,
               bool caller)
{
    if (n == 0)
        return;
    make_room(run, b, n);
    memcpy(b->bytes + b->n, bytes, n);
    b->n += (uint32_t)n;
    if (caller)
        add_callers(run, b, b->n - (uint32_t)n, b->n);
}

void jinja_add_words(struct jinja_run *run, struct jinja_builder *b, const char *words)
{
    jinja_add(run, b, words, strlen(words), false);
}

void jinja_add_part(struct jinja_run *run, struct jinja_builder *b, const struct jinja_text *text,
                    uint32_t begin, uint32_t end)
{
    uint32_t at = b->n;
    jinja_add(run, b, text->bytes + begin, end - begin, false);
    for (uint32_t i = 0; i < text->n_parts; i++) {
        uint32_t first = text->parts[i].begin > begin ? text->parts[i].begin : begin;
        uint32_t last = text->parts[i].end < end ? text->parts[i].end : end;
        if (first < last)
            add_callers(run, b, at + first - begin, at + last - begin);
    }
}

void jinja_add_text(struct jinja_run *run, struct jinja_builder *b, const struct jinja_text *text)
{
    jinja_add_part(run, b, text, 0, text->n);
}

struct jinja_value jinja_built(struct jinja_run *run, struct jinja_builder *b)
{
    struct jinja_text *text = jinja_take(&run->heap, 1, sizeof *text);
    *text = (struct jinja_text){b->bytes ? b->bytes : "", b->n, b->n_parts, b->parts, false};
    return (struct jinja_value){JINJA_TEXT, {.text = text}};
}

struct jinja_value jinja_built_safe(struct jinja_run *run, struct jinja_builder *b)
{
    struct jinja_text *text = jinja_take(&run->heap, 1, sizeof *text);
    *text = *jinja_built(run, b).as.text;
    text->safe = true;
    return (struct jinja_value){JINJA_TEXT, {.text = text}};
}

/* ---- Parts ---- */

bool jinja_is_callers(const struct jinja_text *text, uint32_t i)
{
    for (uint32_t k = 0; k < text->n_parts; k++)
        if (i >= text->parts[k].begin && i < text->parts[k].end)
            return true;
    return false;
}

struct jinja_value jinja_part_of(struct jinja_run *run, const struct jinja_text *text,
                                 uint32_t begin, uint32_t end)
{
    struct jinja_builder b = {0};
    jinja_add_part(run, &b, text, begin, end);
    return text->safe ? jinja_built_safe(run, &b) : jinja_built(run, &b);
}

struct jinja_value jinja_escape(struct jinja_run *run, const struct jinja_text *text)
{
    static const char special[] = "&<>'\"";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct jinja_builder b = {0};
    uint32_t plain = 0;
    for (uint32_t i = 0; i < text->n; i++) {
        const char *at = text->bytes[i] ? strchr(special, text->bytes[i]) : NULL;
        if (!at)
            continue;
        jinja_add_part(run, &b, text, plain, i);
        jinja_add_words(run, &b, names[at - special]);
        plain = i + 1;
    }
    jinja_add_part(run, &b, text, plain, text->n);
    return jinja_built_safe(run, &b);
}

/* Whether a character begins with this byte. */
static bool begins(char byte)
{
    return ((unsigned char)byte & 0xc0) != 0x80;
}

uint32_t jinja_count(const struct jinja_text *text, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += begins(text->bytes[i]);
    return count;
}

uint32_t jinja_byte_of(const struct jinja_text *text, uint64_t i)
{
    uint32_t at = 0;
    for (uint64_t seen = 0; at < text->n; at++)
        if (begins(text->bytes[at]) && seen++ == i)
            break;
    return at;
}

int64_t jinja_find_text(const struct jinja_text *text, uint32_t from, const struct jinja_text *what)
{
    if (what->n == 0)
        return from <= text->n ? (int64_t)from : -1;
    if (from > text->n)
        return -1;
    const char *found = memmem(text->bytes + from, text->n - from, what->bytes, what->n);
    return found ? found - text->bytes : -1;
}

int64_t jinja_find_last(const struct jinja_text *text, uint32_t to, const struct jinja_text *what)
{
    if (what->n > to)
        return -1;
    for (int64_t at = to - what->n; at >= 0; at--)
        if (what->n == 0 || memcmp(text->bytes + at, what->bytes, what->n) == 0)
            return at;
    return -1;
}

/* ---- Upper and lower case ---- */

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

bool jinja_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0x2028 || c == 0x2029 ||
           category(c) == UTF8PROC_CATEGORY_ZS;
}

bool jinja_is_printable(uint32_t c)
{
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return true;
    }
}

bool jinja_is_alpha(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool jinja_is_digit(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_ND || c == 0xb2 || c == 0xb3 || c == 0xb9 ||
           (c >= 0x2070 && c <= 0x2089 && c != 0x2071 && category(c) == UTF8PROC_CATEGORY_NO);
}

bool jinja_is_numeric(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

bool jinja_is_upper(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_LU;
}

bool jinja_is_lower(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba;
}

bool jinja_ends_line(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

/* ---- Case ---- */

enum letter_case { TO_LOWER, TO_UPPER, TO_TITLE };

static void add_letter(struct jinja_run *run, struct jinja_builder *b,
                       const struct jinja_text *text, uint32_t i, int length, enum letter_case to)
{
    uint32_t c = moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
    uint8_t bytes[8];
    int n = 0;
    bool caller = jinja_is_callers(text, i);
    if (c == 0xdf && to != TO_LOWER) { /* the only letter that becomes two */
        memcpy(bytes, to == TO_UPPER ? "SS" : "Ss", 2);
        n = 2;
    } else if (c == 0xfffd && length == 1) { /* not a character */
        bytes[n++] = (uint8_t)text->bytes[i];
    } else {
        utf8proc_int32_t from = (utf8proc_int32_t)c;
        utf8proc_int32_t became = to == TO_LOWER   ? utf8proc_tolower(from)
                                  : to == TO_UPPER ? utf8proc_toupper(from)
                                                   : utf8proc_totitle(from);
        n = moe_utf8_encode((uint32_t)became, bytes);
    }
    jinja_add(run, b, (const char *)bytes, (uint64_t)n, caller);
}

static struct jinja_value all_letters(struct jinja_run *run, const struct jinja_text *text,
                                      enum letter_case first, enum letter_case rest)
{
    struct jinja_builder b = {0};
    int length;
    for (uint32_t i = 0; i < text->n; i += (uint32_t)length) {
        moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
        add_letter(run, &b, text, i, length, i ? rest : first);
    }
    return jinja_built(run, &b);
}

struct jinja_value jinja_lower(struct jinja_run *run, const struct jinja_text *text)
{
    return all_letters(run, text, TO_LOWER, TO_LOWER);
}

struct jinja_value jinja_upper(struct jinja_run *run, const struct jinja_text *text)
{
    return all_letters(run, text, TO_UPPER, TO_UPPER);
}

struct jinja_value jinja_capitalize(struct jinja_run *run, const struct jinja_text *text)
{
    return all_letters(run, text, TO_TITLE, TO_LOWER);
}

struct jinja_value jinja_title(struct jinja_run *run, const struct jinja_text *text, bool words)
{
    struct jinja_builder b = {0};
    bool begins = true;
    int length;
    for (uint32_t i = 0; i < text->n; i += (uint32_t)length) {
        uint32_t c = moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
        add_letter(run, &b, text, i, length, !begins ? TO_LOWER : words ? TO_UPPER : TO_TITLE);
        begins = words ? jinja_is_space(c) || (c < 0x80 && c && strchr("-([{<", (int)c))
                       : !jinja_is_alpha(c);
    }
    return jinja_built(run, &b);
}

/* Printing, comparing and truth of each kind of value. */

void jinja_step(struct jinja_run *run, struct jinja_place at, uint64_t n)
{
    if (run->steps_left < n)
        jinja_fail(&run->heap, at, MOE_ERR_LIMIT, "the template computes without an end in sight");
    run->steps_left -= n;
    const atomic_bool *cancelled = run->input->limits.cancelled;
    if (cancelled && atomic_load_explicit(cancelled, memory_order_relaxed))
        jinja_fail(&run->heap, at, MOE_ERR_INTERRUPTED, "stopped while it was rendered");
}

void jinja_enter(struct jinja_run *run, struct jinja_place at)
{
    if (run->depth_left == 0)
        jinja_fail(&run->heap, at, MOE_ERR_LIMIT, "calls within calls are nested too deep");
    run->depth_left--;
}

void jinja_leave(struct jinja_run *run)
{
    run->depth_left++;
}

/* ---- Making values ---- */

struct jinja_value jinja_text(struct jinja_run *run, const char *bytes, uint64_t n)
{
    struct jinja_text *text = jinja_take(&run->heap, 1, sizeof *text);
    char *copy = jinja_take(&run->heap, n, 1);
    if (n)
        memcpy(copy, bytes, n);
    *text = (struct jinja_text){.bytes = copy, .n = (uint32_t)n};
    return (struct jinja_value){JINJA_TEXT, {.text = text}};
}

struct jinja_value jinja_words(struct jinja_run *run, const char *text)
{
    return jinja_text(run, text, strlen(text));
}

struct jinja_value jinja_list(struct jinja_run *run, enum jinja_kind kind, uint32_t room)
{
    struct jinja_list *list = jinja_take(&run->heap, 1, sizeof *list);
    list->room = room;
    list->items = room ? jinja_take(&run->heap, room, sizeof *list->items) : NULL;
    return (struct jinja_value){kind, {.list = list}};
}

void jinja_append(struct jinja_run *run, struct jinja_value to, struct jinja_value item)
{
    struct jinja_list *list = to.as.list;
    if (list->n == list->room) {
        list->room = list->room ? 2 * list->room : 8;
        list->items = jinja_grow(&run->heap, list->items, list->n, list->room, sizeof *list->items);
    }
    list->items[list->n++] = item;
}

struct jinja_value jinja_dict(struct jinja_run *run, enum jinja_kind kind)
{
    return (struct jinja_value){kind,
                                {.dict = jinja_take(&run->heap, 1, sizeof(struct jinja_dict))}};
}

static void add_entry(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                      struct jinja_value value)
{
    if (dict->n == dict->room) {
        dict->room = dict->room ? 2 * dict->room : 8;
        dict->entries =
            jinja_grow(&run->heap, dict->entries, dict->n, dict->room, sizeof *dict->entries);
    }
    dict->entries[dict->n++] = (struct jinja_entry){key, value};
}

void jinja_set(struct jinja_run *run, struct jinja_place at, struct jinja_value to,
               struct jinja_value key, struct jinja_value value)
{
    if (key.kind == JINJA_LIST || key.kind == JINJA_DICT)
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a %s cannot be a key", jinja_kind_name(key));
    const struct jinja_value *there = jinja_find(run, at, to.as.dict, key);
    if (there)
        *(struct jinja_value *)there = value;
    else
        add_entry(run, to.as.dict, key, value);
}

void jinja_set_name(struct jinja_run *run, struct jinja_value dict, const char *name,
                    struct jinja_value value)
{
    const struct jinja_value *there = jinja_find_name(dict.as.dict, name);
    if (there)
        *(struct jinja_value *)there = value;
    else
        add_entry(run, dict.as.dict, jinja_words(run, name), value);
}

struct jinja_value jinja_function(struct jinja_run *run, const char *name, jinja_call_fn *call,
                                  struct jinja_value of, const void *data)
{
    struct jinja_function *f = jinja_take(&run->heap, 1, sizeof *f);
    *f = (struct jinja_function){.name = name, .call = call, .of = of, .data = data};
    return (struct jinja_value){JINJA_FUNCTION, {.function = f}};
}

struct jinja_value jinja_stream(struct jinja_run *run, jinja_call_fn *items,
                                const struct jinja_args *args)
{
    struct jinja_stream *s = jinja_take(&run->heap, 1, sizeof *s);
    *s = (struct jinja_stream){.items = items, .args = *args};
    return (struct jinja_value){JINJA_STREAM, {.stream = s}};
}

static struct jinja_value text_from_json(struct jinja_run *run, const char *text, size_t n,
                                         bool caller)
{
    struct jinja_builder b = {0};
    jinja_add(run, &b, text, n, caller);
    return jinja_built(run, &b);
}

struct jinja_value jinja_from_json(struct jinja_run *run, const json_t *json, bool caller)
{
    const char *key, *digits = moe_json_digits(json);
    json_t *item;
    size_t i;
    struct jinja_value v;
    if (digits) {
        v = text_from_json(run, digits, strlen(digits), caller);
        v.kind = JINJA_LARGE;
        return v;
    }
    switch (json_typeof(json)) {
    case JSON_NULL:
        return jinja_none();
    case JSON_TRUE:
    case JSON_FALSE:
        return jinja_bool(json_is_true(json));
    case JSON_INTEGER:
        return jinja_int(json_integer_value(json));
    case JSON_REAL:
        return jinja_float(json_real_value(json));
    case JSON_STRING:
        return text_from_json(run, json_string_value(json), json_string_length(json), caller);
    case JSON_ARRAY:
        v = jinja_list(run, JINJA_LIST, (uint32_t)json_array_size(json));
        v.as.list->given = true;
        json_array_foreach(json, i, item) jinja_append(run, v, jinja_from_json(run, item, caller));
        return v;
    case JSON_OBJECT:
        v = jinja_dict(run, JINJA_DICT);
        json_object_foreach((json_t *)json, key, item)
        {
            add_entry(run, v.as.dict, text_from_json(run, key, strlen(key), caller),
                      jinja_from_json(run, item, caller)); /* keys of an object differ */
        }
        return v;
    }
    return jinja_none();
}

/* ---- Looking at values ---- */

const char *jinja_kind_name(struct jinja_value v)
{
    static const char *const names[] = {
        [JINJA_UNDEFINED] = "undefined value",
        [JINJA_NONE] = "NoneType",
        [JINJA_BOOL] = "bool",
        [JINJA_INT] = "int",
        [JINJA_LARGE] = "int",
        [JINJA_FLOAT] = "float",
        [JINJA_TEXT] = "str",
        [JINJA_LIST] = "list",
        [JINJA_TUPLE] = "tuple",
        [JINJA_DICT] = "dict",
        [JINJA_NAMESPACE] = "Namespace",
        [JINJA_LOOP] = "LoopContext",
        [JINJA_FUNCTION] = "function",
        [JINJA_STREAM] = "generator",
    };
    return names[v.kind];
}

bool jinja_true(struct jinja_value v)
{
    switch (v.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v.as.truth;
    case JINJA_INT:
        return v.as.whole != 0;
    case JINJA_FLOAT:
        return v.as.number != 0;
    case JINJA_TEXT:
        return v.as.text->n > 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v.as.list->n > 0;
    case JINJA_DICT:
        return v.as.dict->n > 0;
    case JINJA_LARGE:
    case JINJA_NAMESPACE:
    case JINJA_LOOP:
    case JINJA_FUNCTION:
    case JINJA_STREAM:
        return true;
    }
    return false;
}

int64_t jinja_whole(struct jinja_value v)
{
    return v.kind == JINJA_BOOL ? v.as.truth : v.as.whole;
}

double jinja_number(struct jinja_value v)
{
    return v.kind == JINJA_FLOAT ? v.as.number : (double)jinja_whole(v);
}

bool jinja_is_name(struct jinja_value v, const char *name)
{
    return v.kind == JINJA_TEXT && v.as.text->n == strlen(name) &&
           memcmp(v.as.text->bytes, name, v.as.text->n) == 0;
}

static int compare_numbers(struct jinja_value a, struct jinja_value b)
{
    if (jinja_is_whole(a) && jinja_is_whole(b)) {
        int64_t x = jinja_whole(a), y = jinja_whole(b);
        return (x > y) - (x < y);
    }
    double x = jinja_number(a), y = jinja_number(b);
    return (x > y) - (x < y);
}

static int compare_texts(const struct jinja_text *a, const struct jinja_text *b)
{
    uint32_t n = a->n < b->n ? a->n : b->n;
    int order = n ? memcmp(a->bytes, b->bytes, n) : 0;
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

static bool lists_equal(struct jinja_run *run, struct jinja_place at, const struct jinja_list *a,
                        const struct jinja_list *b)
{
    bool equal = a->n == b->n;
    jinja_enter(run, at);
    for (uint32_t i = 0; equal && i < a->n; i++)
        equal = jinja_equal(run, at, a->items[i], b->items[i]);
    jinja_leave(run);
    return equal;
}

static bool dicts_equal(struct jinja_run *run, struct jinja_place at, const struct jinja_dict *a,
                        const struct jinja_dict *b)
{
    bool equal = a->n == b->n;
    jinja_enter(run, at);
    for (uint32_t i = 0; equal && i < a->n; i++) {
        const struct jinja_value *other = jinja_find(run, at, b, a->entries[i].key);
        equal = other && jinja_equal(run, at, a->entries[i].value, *other);
    }
    jinja_leave(run);
    return equal;
}

bool jinja_same(struct jinja_value a, struct jinja_value b)
{
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case JINJA_BOOL:
        return a.as.truth == b.as.truth;
    case JINJA_INT:
        return a.as.whole == b.as.whole;
    case JINJA_FLOAT:
        return a.as.number == b.as.number;
    case JINJA_TEXT:
    case JINJA_LARGE:
        return a.as.text == b.as.text;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return a.as.list == b.as.list;
    case JINJA_DICT:
    case JINJA_NAMESPACE:
    case JINJA_LOOP:
        return a.as.dict == b.as.dict;
    case JINJA_FUNCTION:
        return a.as.function == b.as.function;
    case JINJA_STREAM:
        return a.as.stream == b.as.stream;
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        break;
    }
    return true;
}

bool jinja_equal(struct jinja_run *run, struct jinja_place at, struct jinja_value a,
                 struct jinja_value b)
{
    jinja_step(run, at, 1);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (!(jinja_is_whole(a) && jinja_is_whole(b)) &&
            (isnan(jinja_number(a)) || isnan(jinja_number(b))))
            return false;
        return compare_numbers(a, b) == 0;
    }
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case JINJA_TEXT:
    case JINJA_LARGE:
        return compare_texts(a.as.text, b.as.text) == 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return lists_equal(run, at, a.as.list, b.as.list);
    case JINJA_DICT:
        return dicts_equal(run, at, a.as.dict, b.as.dict);
    default:
        return jinja_same(a, b);
    }
}

int jinja_compare(struct jinja_run *run, struct jinja_place at, struct jinja_value a,
                  struct jinja_value b)
{
    jinja_step(run, at, 1);
    if (jinja_is_number(a) && jinja_is_number(b))
        return compare_numbers(a, b);
    if (a.kind == JINJA_TEXT && b.kind == JINJA_TEXT)
        return compare_texts(a.as.text, b.as.text);
    if (a.kind != b.kind || !jinja_is_sequence(a))
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a %s and a %s have no order",
                   jinja_kind_name(a), jinja_kind_name(b));
    const struct jinja_list *x = a.as.list, *y = b.as.list;
    uint32_t i = 0, n = x->n < y->n ? x->n : y->n;
    int order = 0;
    jinja_enter(run, at);
    while (i < n && jinja_equal(run, at, x->items[i], y->items[i]))
        i++;
    if (i < n)
        order = jinja_compare(run, at, x->items[i], y->items[i]);
    jinja_leave(run);
    return i < n ? order : (x->n > y->n) - (x->n < y->n);
}

const struct jinja_value *jinja_find(struct jinja_run *run, struct jinja_place at,
                                     const struct jinja_dict *dict, struct jinja_value key)
{
    for (uint32_t i = 0; i < dict->n; i++)
        if (jinja_equal(run, at, dict->entries[i].key, key))
            return &dict->entries[i].value;
    return NULL;
}

const struct jinja_value *jinja_find_name(const struct jinja_dict *dict, const char *name)
{
    for (uint32_t i = 0; i < dict->n; i++)
        if (jinja_is_name(dict->entries[i].key, name))
            return &dict->entries[i].value;
    return NULL;
}

bool jinja_contains(struct jinja_run *run, struct jinja_place at, struct jinja_value b,
                    struct jinja_value a)
{
    switch (b.kind) {
    case JINJA_TEXT:
        if (a.kind != JINJA_TEXT)
            jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a %s cannot be in a text",
                       jinja_kind_name(a));
        jinja_step(run, at, b.as.text->n / 64 + 1);
        return jinja_find_text(b.as.text, 0, a.as.text) >= 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        for (uint32_t i = 0; i < b.as.list->n; i++)
            if (jinja_equal(run, at, b.as.list->items[i], a))
                return true;
        return false;
    case JINJA_DICT:
        return jinja_find(run, at, b.as.dict, a) != NULL;
    case JINJA_STREAM:
        return jinja_contains(run, at, jinja_items(run, at, b), a);
    case JINJA_UNDEFINED:
        return false;
    default:
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "nothing can be in a %s", jinja_kind_name(b));
    }
}

static struct jinja_value characters(struct jinja_run *run, const struct jinja_text *text)
{
    struct jinja_value list = jinja_list(run, JINJA_LIST, text->n);
    int length;
    for (uint32_t i = 0; i < text->n; i += (uint32_t)length) {
        moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
        jinja_append(run, list, jinja_part_of(run, text, i, i + (uint32_t)length));
    }
    return list;
}

struct jinja_value jinja_items(struct jinja_run *run, struct jinja_place at, struct jinja_value v)
{
    struct jinja_value list;
    switch (v.kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
        jinja_step(run, at, v.as.list->n);
        return v;
    case JINJA_TEXT:
        jinja_step(run, at, v.as.text->n);
        return characters(run, v.as.text);
    case JINJA_DICT:
        jinja_step(run, at, v.as.dict->n);
        list = jinja_list(run, JINJA_LIST, v.as.dict->n);
        for (uint32_t i = 0; i < v.as.dict->n; i++)
            jinja_append(run, list, v.as.dict->entries[i].key);
        return list;
    case JINJA_STREAM:
        if (v.as.stream->spent)
            return jinja_list(run, JINJA_LIST, 0);
        v.as.stream->spent = true;
        jinja_enter(run, at);
        list = v.as.stream->items(run, NULL, &v.as.stream->args);
        jinja_leave(run);
        return list;
    case JINJA_UNDEFINED:
        return jinja_list(run, JINJA_LIST, 0);
    default:
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a %s has no items", jinja_kind_name(v));
    }
}

uint32_t jinja_length(struct jinja_run *run, struct jinja_place at, struct jinja_value v)
{
    switch (v.kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v.as.list->n;
    case JINJA_TEXT:
        jinja_step(run, at, v.as.text->n / 64);
        return jinja_count(v.as.text, v.as.text->n);
    case JINJA_DICT:
        return v.as.dict->n;
    case JINJA_UNDEFINED:
        return 0;
    default:
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a %s has no length", jinja_kind_name(v));
    }
}

int64_t jinja_index(int64_t i, uint32_t n)
{
    i = i < 0 ? i + n : i;
    return i >= 0 && i < n ? i : -1;
}

/* ---- Sorting ---- */

struct jinja_value jinja_folded(struct jinja_run *run, struct jinja_value v)
{
    return v.kind == JINJA_TEXT ? jinja_lower(run, v.as.text) : v;
}

/* Merges the sorted halves [0, half) and [half, n) of items through `room`. */
static void merge_halves(struct jinja_run *run, struct jinja_place at, struct jinja_entry *items,
                         uint32_t half, uint32_t n, bool reverse, struct jinja_entry *room)
{
    uint32_t a = 0, b = half, k = 0;
    memcpy(room, items, n * sizeof *items);
    while (a < half && b < n) {
        int order = jinja_compare(run, at, room[b].key, room[a].key);
        items[k++] = (reverse ? order > 0 : order < 0) ? room[b++] : room[a++];
    }
    while (a < half)
        items[k++] = room[a++];
    while (b < n)
        items[k++] = room[b++];
}

static void sort_items(struct jinja_run *run, struct jinja_place at, struct jinja_entry *items,
                       uint32_t n, bool reverse, struct jinja_entry *room)
{
    if (n < 2)
        return;
    sort_items(run, at, items, n / 2, reverse, room);
    sort_items(run, at, items + n / 2, n - n / 2, reverse, room);
    merge_halves(run, at, items, n / 2, n, reverse, room);
}

void jinja_sort(struct jinja_run *run, struct jinja_place at, struct jinja_entry *items, uint32_t n,
                bool fold, bool reverse)
{
    for (uint32_t i = 0; fold && i < n; i++)
        items[i].key = jinja_folded(run, items[i].key);
    sort_items(run, at, items, n, reverse, jinja_take(&run->heap, n, sizeof *items));
}

struct jinja_entry *jinja_sorted_entries(struct jinja_run *run, struct jinja_place at,
                                         const struct jinja_dict *dict, bool by_value, bool fold)
{
    uint32_t n = dict->n;
    struct jinja_entry *order = jinja_take(&run->heap, n, sizeof *order);
    struct jinja_entry *sorted = jinja_take(&run->heap, n, sizeof *sorted);
    for (uint32_t i = 0; i < n; i++)
        order[i] = (struct jinja_entry){by_value ? dict->entries[i].value : dict->entries[i].key,
                                        jinja_int(i)};
    jinja_sort(run, at, order, n, fold, false);
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = dict->entries[order[i].value.as.whole];
    return sorted;
}
