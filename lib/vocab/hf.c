/*
 * Reading Hugging Face's tokenizer.json and tokenizer_config.json.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "vocab/hf.h"

enum { FILE_BYTES_MAX = 256 << 20 };

/* ---- tokenizer_config.json ---- */

/* A token named in the configuration, as a text or as {"content": text}; *id stays as it was when
 * none is named or the tokenizer does not have it. */
static int named_token(struct moe_hf_reader *r, const json_t *config, const char *key, uint32_t *id)
{
    const json_t *value = json_object_get(config, key);
    const char *text = NULL;
    if (json_is_object(value)) {
        config = value;
        key = "content";
    }
    int status = config ? moe_hf_text(r, config, key, &text) : MOE_OK;
    int64_t found = text ? moe_tokenizer_find(r->tok, text) : -1;
    if (found >= 0)
        *id = (uint32_t)found;
    return status;
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

static int read_named(struct moe_hf_reader *r, const json_t *config)
{
    struct moe_tokenizer *tok = r->tok;
    bool adds_bos = r->prefix != NULL;
    int status = MOE_OK;
    if (r->prefix)
        status = added_token(r, r->prefix, &tok->bos);
    else if (config)
        status = named_token(r, config, "bos_token", &tok->bos);
    if (status == MOE_OK && r->suffix)
        status = added_token(r, r->suffix, &tok->tail);
    if (status == MOE_OK && tok->model == MOE_TOKENIZER_UNIGRAM) {
        int64_t pad = moe_tokenizer_find(tok, "<pad>");
        tok->pad =
            pad >= 0 && moe_tokenizer_is_special(tok, (uint32_t)pad) ? (uint32_t)pad : MOE_NO_TOKEN;
        status = named_token(r, config, "pad_token", &tok->pad);
    }
    if (status != MOE_OK)
        return status;
    tok->eos = tok->separator; /* found by its usual names while no eos was known */
    status = named_token(r, config, "eos_token", &tok->eos);
    if (status == MOE_OK && config)
        status = moe_hf_bool(r, config, "add_bos_token", &adds_bos);
    if (adds_bos && tok->bos != MOE_NO_TOKEN)
        tok->flags |= MOE_TOKENIZER_ADDS_BOS;
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

int moe_tokenizer_parse_hf(struct moe_tokenizer **out, const char *name, const void *json,
                           uint64_t n, const char *config_name, const void *config,
                           uint64_t config_n, struct moe_err *err)
{
    struct moe_hf_reader r = {.name = name, .err = err};
    struct moe_err why = {0};
    json_t *root = NULL, *named = NULL;

    int status = moe_json_parse(&root, name, json, n, MOE_JSON_TOKENIZER_MEMORY, err);
    if (status == MOE_OK && config)
        status = moe_json_parse(&named, config_name, config, config_n,
                                MOE_JSON_TOKENIZER_CONFIG_MEMORY, err);
    if (status != MOE_OK)
        goto out;
    r.tok = moe_tokenizer_new(err);
    status = r.tok ? read_root(&r, root) : MOE_ERR_MEMORY;
    if (status != MOE_OK)
        goto out;
    status = moe_tokenizer_prepare(r.tok, &why);
    if (status != MOE_OK) {
        moe_fail(err, status, "%s: %s", name, why.text);
        goto out;
    }
    if (named) {
        r.name = config_name;
        if (!json_is_object(named))
            status = moe_hf_damaged(&r, "not a configuration");
    }
    if (status == MOE_OK)
        status = read_named(&r, named);
out:
    json_decref(root);
    json_decref(named);
    if (status == MOE_OK)
        *out = r.tok;
    else
        moe_tokenizer_free(r.tok);
    return status;
}

/* The files of a directory, the last of which it may lack. */
enum { WORDS, EMOJI, CONFIG, N_FILES };

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
        else if (i != CONFIG || moe_path_exists(paths[i]))
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
    static const char *const usual[N_FILES] = {"tokenizer.json", NULL, "tokenizer_config.json"};
    static const char *const gptsan[N_FILES] = {"vocab.txt", "emoji.json", "tokenizer_config.json"};
    struct moe_buf files[N_FILES] = {{0}};
    char *paths[N_FILES] = {NULL};
    bool is_gptsan = !has_file(dir, usual[WORDS]) && has_file(dir, gptsan[WORDS]) &&
                     has_file(dir, gptsan[EMOJI]);
    int status = read_files(dir, is_gptsan ? gptsan : usual, paths, files, err);
    const struct moe_buf *config = files[CONFIG].data ? &files[CONFIG] : NULL;
    if (status == MOE_OK && is_gptsan)
        status = moe_tokenizer_parse_gptsan(out, paths[WORDS], &files[WORDS], paths[EMOJI],
                                            &files[EMOJI], paths[CONFIG], config, err);
    else if (status == MOE_OK)
        status = moe_tokenizer_parse_hf(out, paths[WORDS], files[WORDS].data, files[WORDS].size,
                                        paths[CONFIG], config ? config->data : NULL,
                                        config ? config->size : 0, err);
    for (int i = 0; i < N_FILES; i++) {
        moe_buf_release(&files[i]);
        free(paths[i]);
    }
    return status;
}
