/*
 * Reading Hugging Face's tokenizer.json and the files beside it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "vocab/hf.h"

enum { FILE_BYTES_MAX = 256 << 20 };

/* ---- tokenizer_config.json ---- */

/* A token named in the configuration, as a text or as {"content": text}; *id stays as it was when
 * none is named. */
static int named_token(struct moe_hf_reader *r, const char *key, uint32_t *id)
{
    const json_t *value = moe_hf_named(r, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (!moe_hf_absent(value) && !json_is_string(value))
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: %s is not a text", r->config_name, key);
    int64_t found =
        json_is_string(value) ? moe_tokenizer_find(r->tok, json_string_value(value)) : -1;
    if (found >= 0)
        *id = (uint32_t)found;
    return MOE_OK;
}

/* A token of the post-processor's. */
static int added_token(struct moe_hf_reader *r, const char *text, uint32_t *id)
{
    int64_t found = moe_tokenizer_find(r->tok, text);
    if (found < 0)
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: post_processor names no token: '%.60s'",
                        r->name, text);
    *id = (uint32_t)found;
    return MOE_OK;
}

static int read_named(struct moe_hf_reader *r)
{
    struct moe_tokenizer *tok = r->tok;
    bool adds_bos = r->prefix != NULL, adds_eos = r->suffix != NULL;
    int status = MOE_OK;
    if (r->prefix)
        status = added_token(r, r->prefix, &tok->bos);
    else
        status = named_token(r, "bos_token", &tok->bos);
    if (status == MOE_OK && r->suffix)
        status = added_token(r, r->suffix, &tok->tail);
    if (status == MOE_OK && tok->model == MOE_TOKENIZER_UNIGRAM) {
        int64_t pad = moe_tokenizer_find(tok, "<pad>");
        tok->pad =
            pad >= 0 && moe_tokenizer_is_special(tok, (uint32_t)pad) ? (uint32_t)pad : MOE_NO_TOKEN;
        status = named_token(r, "pad_token", &tok->pad);
    }
    if (status != MOE_OK)
        return status;
    tok->eos = tok->separator; /* found by its usual names while no eos was known */
    status = named_token(r, "eos_token", &tok->eos);
    if (status == MOE_OK && r->config)
        status =
            moe_json_get_bool(r->config_name, r->config, "add_bos_token", false, &adds_bos, r->err);
    if (status == MOE_OK && r->config)
        status =
            moe_json_get_bool(r->config_name, r->config, "add_eos_token", false, &adds_eos, r->err);
    if (adds_bos && tok->bos != MOE_NO_TOKEN)
        tok->flags |= MOE_TOKENIZER_ADDS_BOS;
    if (!adds_eos)
        tok->tail = MOE_NO_TOKEN;
    else if (!r->suffix)
        tok->tail = tok->eos;
    if (tok->separator == MOE_NO_TOKEN)
        tok->separator = tok->eos;
    return status;
}

/* ---- The whole ---- */

static int read_root(struct moe_hf_reader *r, const json_t *root)
{
    if (!json_is_object(root))
        return moe_hf_damaged(r, "not a tokenizer");
    int status = moe_hf_read_steps(r, root);
    return status == MOE_OK ? moe_hf_read_model(r, root) : status;
}

/* The files beside tokenizer.json. */
static int parse_others(struct moe_hf_reader *r, const struct moe_hf_texts *texts)
{
    const struct {
        const struct moe_hf_text *text;
        json_t **to;
        const char *what;
    } others[] = {{&texts->config, &r->config, "not a configuration"},
                  {&texts->added, &r->added, "not a list of added tokens"},
                  {&texts->special_map, &r->special_map, "not a list of special tokens"}};
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof others / sizeof *others && status == MOE_OK; i++) {
        const struct moe_hf_text *text = others[i].text;
        if (!text->data)
            continue;
        status = moe_json_parse(others[i].to, text->name, text->data, text->n,
                                MOE_JSON_TOKENIZER_CONFIG_MEMORY, r->err);
        if (status == MOE_OK && !json_is_object(*others[i].to))
            status = moe_fail(r->err, MOE_ERR_FORMAT, "%s: %s", text->name, others[i].what);
    }
    return status;
}

int moe_tokenizer_parse_hf_files(struct moe_tokenizer **out, const struct moe_hf_texts *texts,
                                 struct moe_err *err)
{
    const struct moe_hf_text *file = &texts->tokenizer;
    struct moe_hf_reader r = {.name = file->name,
                              .config_name = texts->config.name,
                              .added_name = texts->added.name,
                              .err = err};
    struct moe_err why = {0};
    json_t *root = NULL;

    int status =
        moe_json_parse(&root, file->name, file->data, file->n, MOE_JSON_TOKENIZER_MEMORY, err);
    if (status == MOE_OK)
        status = parse_others(&r, texts);
    if (status == MOE_OK && !(r.tok = moe_tokenizer_new(err)))
        status = MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = read_root(&r, root);
    if (status == MOE_OK) {
        status = moe_tokenizer_prepare(r.tok, &why);
        if (status != MOE_OK)
            moe_fail(err, status, "%s: %s", file->name, why.text);
    }
    if (status == MOE_OK)
        status = read_named(&r);
    json_decref(root);
    json_decref(r.config);
    json_decref(r.added);
    json_decref(r.special_map);
    if (status == MOE_OK)
        *out = r.tok;
    else
        moe_tokenizer_free(r.tok);
    return status;
}

int moe_tokenizer_parse_hf(struct moe_tokenizer **out, const char *name, const void *json,
                           uint64_t n, const char *config_name, const void *config,
                           uint64_t config_n, struct moe_err *err)
{
    const struct moe_hf_texts texts = {.tokenizer = {name, json, n},
                                       .config = {config_name, config, config_n}};
    return moe_tokenizer_parse_hf_files(out, &texts, err);
}

/* The files of a directory; those from CONFIG on it may lack. */
enum { WORDS, EMOJI, CONFIG, ADDED, SPECIAL_MAP, N_FILES };

static int read_files(const char *dir, const char *const names[N_FILES], char *paths[N_FILES],
                      struct moe_buf files[N_FILES], struct moe_err *err)
{
    int status = MOE_OK;
    for (int i = 0; i < N_FILES && status == MOE_OK; i++) {
        if (!names[i])
            continue;
        paths[i] = moe_path_join(dir, names[i], err);
        if (!paths[i])
            status = MOE_ERR_MEMORY;
        else if (i < CONFIG || moe_path_exists(paths[i]))
            status = moe_file_read_all(paths[i], FILE_BYTES_MAX, &files[i], err);
    }
    return status;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = moe_path_join(dir, name, NULL);
    bool has = path && moe_path_exists(path);
    free(path);
    return has;
}

int moe_tokenizer_read_hf(struct moe_tokenizer **out, const char *dir, struct moe_err *err)
{
    static const char *const usual[N_FILES] = {"tokenizer.json", NULL, "tokenizer_config.json",
                                               "added_tokens.json", "special_tokens_map.json"};
    static const char *const gptsan[N_FILES] = {"vocab.txt", "emoji.json", "tokenizer_config.json",
                                                NULL, NULL};
    struct moe_buf files[N_FILES] = {{0}};
    char *paths[N_FILES] = {NULL};
    bool is_gptsan = !has_file(dir, usual[WORDS]) && has_file(dir, gptsan[WORDS]) &&
                     has_file(dir, gptsan[EMOJI]);
    int status = read_files(dir, is_gptsan ? gptsan : usual, paths, files, err);
    struct moe_hf_text texts[N_FILES];
    for (int i = 0; i < N_FILES; i++)
        texts[i] = (struct moe_hf_text){paths[i], files[i].data, files[i].size};
    if (status == MOE_OK && is_gptsan) {
        status = moe_tokenizer_parse_gptsan(out, paths[WORDS], &files[WORDS], paths[EMOJI],
                                            &files[EMOJI], paths[CONFIG],
                                            files[CONFIG].data ? &files[CONFIG] : NULL, err);
    } else if (status == MOE_OK) {
        const struct moe_hf_texts all = {.tokenizer = texts[WORDS],
                                         .config = texts[CONFIG],
                                         .added = texts[ADDED],
                                         .special_map = texts[SPECIAL_MAP]};
        status = moe_tokenizer_parse_hf_files(out, &all, err);
    }
    for (int i = 0; i < N_FILES; i++) {
        moe_buf_release(&files[i]);
        free(paths[i]);
    }
    return status;
}
