/* Writes the grammar of answers that call tools, in the form of the model's template. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "prompt/chat_answer.h"
#include "prompt/chat_internal.h"

struct writer {
    const struct moe_chat *chat;
    const struct call_form *form;
    const struct moe_calls_wanted *wanted;
    struct moe_buf *out;
    uint32_t n_rules; /* of texts up to a mark */
};

/* ---- Literals ---- */

static void put_character(struct moe_buf *out, uint32_t c)
{
    if (c >= 0x80 || c < 0x20 || strchr("\"\\[]-^", (int)c))
        moe_buf_printf(out, c > 0xffff ? "\\U%08x" : "\\u%04x", c);
    else
        moe_buf_u8(out, (uint8_t)c);
}

static void put_literal(struct moe_buf *out, const char *text, uint64_t n)
{
    int length = 1;
    moe_buf_text(out, " \"");
    for (uint64_t i = 0; i < n; i += (uint64_t)length)
        put_character(out, moe_utf8_decode((const uint8_t *)text + i, n - i, &length));
    moe_buf_text(out, "\"");
}

enum { MAX_WORD = 12 }; /* "object", "boolean": a model may not go on in one for ever */

/* Writes any short word of small letters but this one. */
static void put_other_word(struct moe_buf *out, const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        moe_buf_text(out, " ([");
        if (word[i] > 'a')
            moe_buf_printf(out, "a-%c", word[i] - 1);
        if (word[i] < 'z')
            moe_buf_printf(out, "%c-z", word[i] + 1);
        moe_buf_printf(out, "] [a-z]{0,%zu} | \"%c\"", i + 1 < MAX_WORD ? MAX_WORD - 1 - i : 0,
                       word[i]);
    }
    moe_buf_printf(out, " [a-z]{1,%zu}", n < MAX_WORD ? MAX_WORD - n : 1);
    for (size_t i = 0; i < n; i++)
        moe_buf_text(out, i + 1 < n ? ")?" : ")");
}

/* The word that marks texts where others have a CALL_WORD, up to what is no small letter. */
static const char *word_of_texts(const struct call_form *f)
{
    const size_t at = strcspn(f->other.key_ends, "\6");
    return strlen(f->text.key_ends) > at ? f->text.key_ends + at : "";
}

/* Writes a piece of a form, its holes filled for this function and parameter. */
static void put_piece(struct writer *w, const char *piece, const char *name, const char *key)
{
    while (*piece) {
        size_t n = strcspn(piece, "\1\2\3\4\5\6");
        if (n)
            put_literal(w->out, piece, n);
        piece += n;
        if (!*piece)
            return;
        switch (*piece++) {
        case CALL_ID:
            moe_buf_text(w->out, " [a-zA-Z0-9]{9}");
            break;
        case CALL_WORD:
            put_other_word(w->out, word_of_texts(w->form),
                           strspn(word_of_texts(w->form), "abcdefghijklmnopqrstuvwxyz"));
            break;
        case CALL_NUMBER:
            moe_buf_text(w->out, " [0-9] [0-9]?");
            break;
        case CALL_NAME:
            put_literal(w->out, name, strlen(name));
            break;
        case CALL_KEY:
            put_literal(w->out, key, strlen(key));
            break;
        default:
            break; /* any text: none */
        }
    }
}

/* ---- Texts up to a mark ---- */

enum { MAX_MARK_CHARACTERS = 64, MAX_MARKS = MAX_CALL_FORMS };

struct mark {
    const char *text, *then; /* what follows it in the answer, a rule; NULL: it may not be there */
    uint32_t c[MAX_MARK_CHARACTERS], n;
    uint32_t first; /* the rule of a text that ends with none of it; the next ones: with so much */
};

/* The rule of the longest beginning of a mark that n characters and c end with; *whole: that is all
 * of this mark. */
static uint32_t rule_behind(const struct mark *marks, uint32_t n_marks, const uint32_t *text,
                            uint32_t n, uint32_t c, const struct mark **whole)
{
    *whole = NULL;
    for (uint32_t length = n + 1; length > 0; length--)
        for (const struct mark *m = marks; m < marks + n_marks; m++)
            if (length <= m->n && m->c[length - 1] == c &&
                memcmp(m->c, text + n + 1 - length, (length - 1) * sizeof *text) == 0) {
                *whole = length == m->n ? m : NULL;
                return m->first + length;
            }
    return marks->first;
}

/* Writes rules for any text that ends with one of the marks and holds them nowhere else, or that
 * ends without them if it may. Returns the first rule's number. */
static uint32_t put_text_until(struct writer *w, struct mark *marks, uint32_t n_marks, bool may_end)
{
    uint32_t all[MAX_MARKS * MAX_MARK_CHARACTERS], n_all = 0;
    for (struct mark *m = marks; m < marks + n_marks; m++) {
        const uint64_t bytes = strlen(m->text);
        int length = 1;
        for (uint64_t i = 0; i < bytes && m->n < MAX_MARK_CHARACTERS; i += (uint64_t)length) {
            const uint32_t c = moe_utf8_decode((const uint8_t *)m->text + i, bytes - i, &length);
            uint32_t k = 0;
            while (k < n_all && all[k] != c)
                k++;
            all[k] = c;
            n_all += k == n_all;
            m->c[m->n++] = c;
        }
        m->first = w->n_rules;
        w->n_rules += m->n;
    }
    for (const struct mark *m = marks; m < marks + n_marks; m++)
        for (uint32_t k = m > marks; k < m->n; k++) {
            uint32_t others[MAX_MARKS * MAX_MARK_CHARACTERS], n_others = 0;
            moe_buf_printf(w->out, "until-%u ::=%s", m->first + k, may_end ? " \"\" |" : "");
            for (uint32_t i = 0; i < n_all; i++) {
                const struct mark *whole;
                const uint32_t rule = rule_behind(marks, n_marks, m->c, k, all[i], &whole);
                if (rule == marks->first)
                    continue;
                others[n_others++] = all[i];
                if (whole && !whole->then)
                    continue;
                moe_buf_text(w->out, " [");
                put_character(w->out, all[i]);
                if (whole)
                    moe_buf_printf(w->out, "] %s |", whole->then);
                else
                    moe_buf_printf(w->out, "] until-%u |", rule);
            }
            moe_buf_text(w->out, " [^");
            for (uint32_t i = 0; i < n_others; i++)
                put_character(w->out, others[i]);
            moe_buf_printf(w->out, "] until-%u\n", marks->first);
        }
    return marks->first;
}

static uint32_t put_text_until_one(struct writer *w, const char *mark, bool may_end,
                                   const char *then)
{
    struct mark m = {.text = mark, .then = then};
    return put_text_until(w, &m, 1, may_end);
}

/* ---- Calls ---- */

static const char *name_of(const json_t *tool)
{
    const char *name = json_string_value(json_object_get(moe_chat_function(tool), "name"));
    return name ? name : "";
}

static bool is_required(const json_t *schema, const char *key)
{
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(schema, "required"), i,
                       one) if (strcmp(key, json_string_value(one) ? json_string_value(one) : "") ==
                                0) return true;
    return false;
}

/* ---- How parameters are written ---- */

const char *moe_chat_text_ends(const struct moe_chat *chat)
{
    const struct call_form *f = &chat->calls[0];
    if (chat->n_calls == 0 || f->style != CALLS_PARAMETERS)
        return NULL;
    const char *end = f->quote ? f->quote : f->text.value_ends;
    return end + strspn(end, " \t\r\n");
}

enum { MAX_SCHEMA_DEPTH = 8 };

/* Whether a schema says more of its texts than that they are some. */
static bool limits_texts(const json_t *parameters, const json_t *schema, int depth)
{
    static const char *const keys[] = {"enum",      "const",     "pattern", "format",
                                       "minLength", "maxLength", "not"};
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    const json_t *target = chat_referenced(parameters, schema), *one;
    size_t i;
    bool limits =
        target != schema && depth < MAX_SCHEMA_DEPTH && limits_texts(parameters, target, depth + 1);
    for (i = 0; i < sizeof keys / sizeof keys[0]; i++)
        limits |= json_object_get(schema, keys[i]) != NULL;
    for (int l = 0; l < 3 && depth < MAX_SCHEMA_DEPTH; l++)
        json_array_foreach(json_object_get(schema, lists[l]), i, one) limits |=
            limits_texts(parameters, one, depth + 1);
    return limits;
}

/* Whether texts have marks of their own, by which they are told from other values. */
static bool marks_texts(const struct call_form *f)
{
    return strcmp(f->text.key_ends, f->other.key_ends) != 0;
}

struct moe_chat_parameter moe_chat_parameter(const struct moe_chat *chat, const json_t *parameters,
                                             const json_t *schema)
{
    const unsigned values = moe_chat_values(parameters, schema);
    const struct call_form *f = &chat->calls[0];
    const bool marked = marks_texts(f), as_json = chat_texts_are_json(f);
    /* Without marks that only texts have, what may be a text is written as one. */
    const bool text = !as_json && values & MOE_VALUE_TEXT &&
                      (marked || !(values & (MOE_VALUE_LIST | MOE_VALUE_OBJECT)));
    const bool held = text && limits_texts(parameters, schema, 0);
    return (struct moe_chat_parameter){
        text, held, (values != MOE_VALUE_TEXT || !text) && (marked || !text || held)};
}

/* Writes rules for the parameters from each on, in the schema's order: the first of a call (f), or
 * further ones (m). */
static void put_parameters(struct writer *w, size_t tool, const char *name, const json_t *schema)
{
    const struct call_form *f = w->form;
    json_t *properties = json_object_get(schema, "properties"), *property;
    const char *key;
    uint32_t j = 0, n = (uint32_t)json_object_size(properties);
    bool one_at_least = n > 0 && json_number_value(json_object_get(schema, "minProperties")) >= 1;
    json_object_foreach(properties, key, property)
    {
        const struct moe_chat_parameter as = moe_chat_parameter(w->chat, schema, property);
        const bool among_texts = as.text && as.json && !marks_texts(f);
        /* In a quote of its own, which JSON does not have: as Python writes it. */
        const bool quoted = chat_texts_are_json(f) && *f->quote != '"' &&
                            moe_chat_values(schema, property) & MOE_VALUE_TEXT &&
                            !limits_texts(schema, property, 0);
        char rest[64], bare[64] = "any";
        snprintf(rest, sizeof rest, "rest-%zu-%u-m", tool, j + 1);
        if (as.held)
            snprintf(bare, sizeof bare, "bare-%zu-%u", tool, j);
        if (among_texts)
            snprintf(bare + strlen(bare), sizeof bare - strlen(bare), " | value-%zu-%u", tool, j);
        for (int more = 0; more < 2; more++) {
            moe_buf_printf(w->out, "rest-%zu-%u-%s ::=", tool, j, more ? "m" : "f");
            if (more)
                put_piece(w, f->parameter_between, name, key);
            put_piece(w, f->key_begins, name, key);
            put_literal(w->out, key, strlen(key));
            moe_buf_text(w->out, " (");
            if (as.text || quoted) {
                put_piece(w, f->text.key_ends, name, key);
                moe_buf_printf(w->out, " (%s)", bare);
                put_piece(w, f->text.value_ends, name, key);
                moe_buf_printf(w->out, " %s", rest);
            }
            if (as.json && !among_texts) {
                moe_buf_text(w->out, as.text || quoted ? " |" : "");
                put_piece(w, f->other.key_ends, name, key);
                moe_buf_printf(w->out, " value-%zu-%u", tool, j);
                put_piece(w, f->other.value_ends, name, key);
                moe_buf_printf(w->out, " %s", rest);
            }
            moe_buf_text(w->out, ")");
            if (!is_required(schema, key))
                moe_buf_printf(w->out, " | rest-%zu-%u-%s", tool, j + 1, more ? "m" : "f");
            moe_buf_text(w->out, "\n");
        }
        j++;
    }
    for (int more = 0; more < 2; more++) {
        moe_buf_printf(w->out, "rest-%zu-%u-%s ::=", tool, n, more ? "m" : "f");
        if (more || !one_at_least)
            put_piece(w, f->close, name, "");
        moe_buf_text(w->out, more || !one_at_least ? " \"\"\n" : " []\n");
    }
}

static void put_tool(struct writer *w, size_t i, const json_t *tool)
{
    const struct call_form *f = w->form;
    const char *name = name_of(tool);
    if (f->style == CALLS_PARAMETERS)
        put_parameters(w, i, name, json_object_get(moe_chat_function(tool), "parameters"));
    moe_buf_printf(w->out, "tool-%zu ::=", i);
    if (f->style == CALLS_OBJECT) {
        if (f->object_begins)
            put_piece(w, f->object_begins, name, "");
        else
            moe_buf_printf(w->out, " \"{\\\"%s\\\": \\\"\"", f->name_key);
        put_literal(w->out, name, strlen(name));
        if (f->object_begins)
            put_piece(w, f->named, name, "");
        else
            moe_buf_printf(w->out, " \"\\\", \\\"%s\\\": \"", f->arguments_key);
        moe_buf_printf(w->out, " arguments-%zu", i);
        put_piece(w, f->object_begins ? f->object_ends : "}", name, "");
        put_piece(w, f->close, name, "");
    } else {
        put_literal(w->out, name, strlen(name));
        put_piece(w, f->named, name, "");
        if (f->style == CALLS_JSON) {
            moe_buf_printf(w->out, " arguments-%zu", i);
            put_piece(w, f->close, name, "");
        } else {
            moe_buf_printf(w->out, " rest-%zu-0-f", i);
        }
    }
    moe_buf_text(w->out, "\n");
}

/* The part of a form's beginning that no text of an answer has: a mark. */
static size_t mark_of(const char *piece)
{
    size_t n = strcspn(piece, " \t\r\n{\1\2\3\4\5\6");
    return n > 2 && strchr("<[", *piece) ? n : 0;
}

/* Whether a lead is that of the content with which an answer ends. */
static bool leads_to_end(const struct moe_chat *chat, const char *lead)
{
    const size_t n = strcspn(lead, "\1\2\3\4\5\6");
    return strncmp(chat->thought_ends_content + strlen(chat->thought_ends), lead, n) == 0;
}

/* Writes another message that a rule begins with, up to its end. */
static void put_message(struct writer *w, const char *lead, uint32_t text)
{
    moe_buf_text(w->out, " |");
    put_literal(w->out, lead, strlen(lead));
    moe_buf_printf(w->out, " until-%u", text);
}

/* Writes a call behind what begins it, as a form has it that may leave a text free up to a mark. */
static void put_held(struct writer *w, const struct call_form *f, uint32_t i)
{
    const size_t n = strcspn(f->named, "\5\6");
    const char *mark = f->named + n + strcspn(f->named + n, "<[");
    const uint32_t free = f->named[n] ? put_text_until_one(w, mark, false, "\"\"") : 0;
    const json_t *tool;
    size_t t;
    moe_buf_printf(w->out, "held-%u ::=", i);
    json_array_foreach(w->wanted->tools, t, tool)
    {
        moe_buf_text(w->out, t ? " |" : "");
        put_literal(w->out, name_of(tool), strlen(name_of(tool)));
        if (n)
            put_literal(w->out, f->named, n);
        if (f->named[n])
            moe_buf_printf(w->out, " until-%u", free);
        moe_buf_printf(w->out, " arguments-%zu", t);
        put_piece(w, f->close, "", "");
    }
    moe_buf_text(w->out, "\n");
}

/* Writes "message", the rule of what an answer of several messages goes on with where one begins:
 * where a call must come, thoughts, if there may be any, and texts, up to a call in any of the
 * forms; else anything up to where one begins. False: no form can be held to. */
static bool put_messages(struct writer *w, bool thinks)
{
    enum { MARK_BYTES = 256, RULE_BYTES = 16 };
    const struct moe_chat *chat = w->chat;
    const bool must = w->wanted->must;
    const char *const next = chat_next_mark(chat->thought_ends), *const *texts = NULL;
    char begins[MAX_MARKS][MARK_BYTES], rules[MAX_MARKS][RULE_BYTES];
    struct mark marks[MAX_MARKS] = {0};
    uint32_t n = 0, begun = 0; /* characters of a mark that are before each message */
    const struct mark *own = NULL;
    for (uint32_t i = 0; i < chat->n_calls; i++) {
        const struct call_form *f = &chat->calls[i];
        const char *open = *f->begin ? f->begin : f->open;
        const bool behind = *open != '<' && next;
        bool taken = f->style != CALLS_JSON || !*open || strpbrk(open, "\1\2\3\4\5\6");
        texts = texts ? texts : f->contents;
        snprintf(begins[n], MARK_BYTES, "%s%s", behind && !must ? next : "", open);
        snprintf(rules[n], RULE_BYTES, "held-%u", n);
        for (uint32_t k = 0; k < n; k++)
            taken |= strcmp(begins[k], begins[n]) == 0;
        if (taken)
            continue;
        marks[n] = (struct mark){.text = begins[n], .then = rules[n]};
        if (behind)
            own = &marks[n];
        put_held(w, f, n++);
    }
    if (n == 0)
        return false;
    if (!must) {
        const uint32_t free = put_text_until(w, marks, n, true);
        for (const char *c = next; own && *c; c++)
            begun += (*c & 0xc0) != 0x80;
        const bool at_begin = own && w->wanted->thought == MOE_THOUGHT_NONE && begun < own->n;
        moe_buf_printf(w->out, "message ::= until-%u\n", at_begin ? own->first + begun : free);
        return true;
    }
    const uint32_t text = put_text_until_one(w, chat->thought_ends, false, "message");
    moe_buf_text(w->out, "message ::=");
    for (uint32_t i = 0; i < n; i++) {
        moe_buf_text(w->out, i ? " |" : "");
        put_literal(w->out, begins[i], strlen(begins[i]));
        moe_buf_printf(w->out, " %s", rules[i]);
    }
    if (thinks && chat->thought_begins)
        put_message(w, chat->thought_begins, text);
    for (; texts && *texts; texts++)
        if (!leads_to_end(chat, *texts))
            put_message(w, *texts, text);
    moe_buf_text(w->out, "\n");
    return true;
}

bool moe_chat_write_calls(const struct moe_chat *chat, const struct moe_calls_wanted *wanted,
                          struct moe_buf *out)
{
    struct writer w = {.chat = chat, .form = &chat->calls[0], .wanted = wanted, .out = out};
    const struct call_form *f = w.form;
    if (chat->n_calls == 0)
        return false;
    const char *begin = f->begin + strspn(f->begin, " \t\r\n"),
               *open = *begin ? f->open : f->open + strspn(f->open, " \t\r\n");
    const char *lead = *begin ? begin : open, *text_ends = moe_chat_text_ends(chat);
    size_t n_mark = mark_of(lead), i;
    const char *then;
    if (moe_chat_call_stop(chat, &then)) /* by itself it ends an answer */
        for (n_mark = strlen(lead); n_mark && strchr(" \t\r\n", lead[n_mark - 1]);)
            n_mark--;
    const json_t *tool;
    char mark[256];
    /* An answer is several messages, and one of them a call. */
    const bool several =
        chat->thought_ends_content && f->style == CALLS_JSON && f->single && !*begin;
    if (!wanted->must && !several && (!n_mark || n_mark >= sizeof mark))
        return false;
    if (text_ends && (uint8_t)*text_ends <= CALL_WORD) /* nothing ends them, or a name alone */
        return false;
    if (text_ends && chat_texts_are_json(f)) {
        moe_buf_text(out, "any ::= ( [^\\x00\\\\");
        put_character(out, (uint8_t)*text_ends);
        moe_buf_text(out, "] | \"\\\\\" [^\\x00] )*\n");
    } else if (text_ends) {
        snprintf(mark, sizeof mark, "%.*s", (int)strcspn(text_ends, "\1\2\3\4\5\6"), text_ends);
        for (size_t n = strlen(mark); n > 1 && strchr(" \t\r\n", mark[n - 1]);)
            mark[--n] = 0; /* the blanks before the end itself would make it whole */
        moe_buf_printf(out, "any ::= until-%u\n", put_text_until_one(&w, mark, true, NULL));
    }
    moe_buf_text(out, "calls ::= tool");
    if (!f->single && wanted->parallel) {
        moe_buf_text(out, " ([ \\n]? [ \\n]?");
        put_piece(&w, f->between, "", "");
        put_piece(&w, f->open, "", "");
        moe_buf_text(out, " tool)*");
    }
    put_piece(&w, f->end, "", "");
    moe_buf_text(out, "\ntool ::= ");
    json_array_foreach(wanted->tools, i, tool) moe_buf_printf(out, "%stool-%zu", i ? " | " : "", i);
    moe_buf_text(out, "\n");
    json_array_foreach(wanted->tools, i, tool) put_tool(&w, i, tool);
    if (wanted->must) {
        const char *stop, *const ends = moe_chat_thought_end(chat, true, &stop);
        moe_buf_text(out, "whole ::=");
        for (const char *at = begin; at;
             at = chat_next_mark(at)) { /* the prompt may have the first */
            moe_buf_text(out, at > begin ? " |" : "");
            put_piece(&w, at, "", "");
            put_piece(&w, open, "", "");
            moe_buf_text(out, " calls");
        }
        moe_buf_text(out, "\n");
        const bool opened = wanted->thought == MOE_THOUGHT_OPEN;
        const bool thinks =
            ends && wanted->thought != MOE_THOUGHT_OVER && (opened || !wanted->no_thought);
        /* Behind a thought the calls; in an answer of several messages further thoughts, too, and
         * texts that lead to no end. */
        const char *behind = several ? "message" : "[ \\n]? [ \\n]? whole";
        const uint32_t thought = thinks ? put_text_until_one(&w, ends, false, behind) : 0;
        if (several && !put_messages(&w, !wanted->no_thought))
            return false;
        if (thinks && opened && wanted->no_thought) {
            moe_buf_text(out, "root ::= [ \\n]? [ \\n]?");
            put_literal(out, ends, strlen(ends));
            moe_buf_printf(out, " %s\n", behind);
        } else if (thinks && opened) {
            moe_buf_printf(out, "root ::= until-%u\n", thought);
        } else if (thinks && !several) {
            moe_buf_text(out, "root ::= [ \\n]? [ \\n]? whole | [ \\n]? [ \\n]?");
            put_literal(out, chat->thought_begins, strlen(chat->thought_begins));
            moe_buf_printf(out, " until-%u\n", thought);
        } else {
            moe_buf_printf(out, "root ::= %s\n", behind);
        }
    } else if (several) {
        if (!put_messages(&w, true))
            return false;
        moe_buf_text(out, "root ::= message\n");
    } else {
        snprintf(mark, sizeof mark, "%.*s", (int)n_mark, lead);
        moe_buf_text(out, "held ::=");
        put_piece(&w, lead + n_mark, "", "");
        if (*begin)
            put_piece(&w, f->open, "", "");
        moe_buf_text(out, " calls\n");
        uint32_t free = put_text_until_one(&w, mark, true, "held");
        moe_buf_printf(out, "root ::= until-%u\n", free);
    }
    return json_array_size(wanted->tools) > 0 && !out->failed;
}
