/* Finding models where other programs keep them. */
#define _DEFAULT_SOURCE /* d_type, strcasecmp */
#include "kept_models.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli.h"
#include "fmt/checkpoint.h"
#include "fmt/json.h"
#include "model/config.h"
#include "model/read.h"
#include "pack/pack.h"

enum {
    MAX_MODELS = 4096,
    DEPTH = 4, /* of directories below a place: publisher, model, snapshot */
    MANIFEST_BYTES = 1 << 20,
    NAMED = 8, /* candidates of a name that a message lists */
};

struct model {
    char *path, *name;
    const char *place; /* whose it is */
    uint64_t bytes;
};

struct models {
    struct model *items;
    uint32_t n;
    bool failed; /* out of memory */
};

static void kept_release(struct models *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        free(m->items[i].path);
        free(m->items[i].name);
    }
    free(m->items);
    *m = (struct models){0};
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcasecmp(text + n - m, end) == 0;
}

static void add_model(struct models *m, const char *place, const char *name, const char *path,
                      uint64_t bytes)
{
    if (!m->items)
        m->items = moe_alloc(MAX_MODELS, sizeof *m->items, NULL);
    struct model new = {moe_strndup(path, strlen(path), NULL),
                        moe_strndup(name, strlen(name), NULL), place, bytes};
    m->failed |= !m->items || !new.path || !new.name;
    if (!m->failed && m->n < MAX_MODELS) {
        m->items[m->n++] = new;
        return;
    }
    free(new.path);
    free(new.name);
}

/* 0: it is empty, not there, no file of bytes, or a Git LFS pointer in place of one. */
static uint64_t file_bytes(const char *path)
{
    static const char pointer[] = "version https://git-lfs";
    enum { POINTER_BYTES = 1024 /* at most */ };
    char begin[sizeof pointer] = "";
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return 0;
    FILE *file = st.st_size <= POINTER_BYTES ? fopen(path, "r") : NULL;
    bool stands_for = file && fgets(begin, sizeof begin, file) && strcmp(begin, pointer) == 0;
    if (file)
        fclose(file);
    return stands_for ? 0 : (uint64_t)st.st_size;
}

/* ---- Directories of files ---- */

/* Cuts "-00001-of-00005" off a name without its ending; returns the number of the part, 0 where
 * the file is whole, and sets *of to how many there are. */
static unsigned cut_part(char *name, unsigned *of)
{
    unsigned part;
    int end = 0;
    size_t n = strlen(name);
    *of = 1;
    if (n < 15 || sscanf(name + n - 15, "-%5u-of-%5u%n", &part, of, &end) != 2 || end != 15)
        return 0;
    name[n - 15] = '\0';
    return part;
}

/* Adds a .gguf or .moe file with all of its parts; those after the first belong to that, and a file
 * "mmproj" sees images for another. */
static void add_file(struct models *m, const char *place, const char *path, const char *file)
{
    char name[256], part[PATH_MAX];
    unsigned of;
    uint64_t bytes = file_bytes(path);
    bool gguf = ends_with(file, ".gguf");
    if ((!gguf && !ends_with(file, ".moe")) || strlen(file) >= sizeof name || bytes == 0 ||
        strncasecmp(file, "mmproj", 6) == 0)
        return;
    strcpy(name, file);
    *strrchr(name, '.') = '\0';
    if (cut_part(name, &of) > 1)
        return;
    for (unsigned i = 2; i <= of; i++) {
        int stem = (int)(strlen(path) - strlen(file) + strlen(name));
        snprintf(part, sizeof part, "%.*s-%05u-of-%05u.gguf", stem, path, i, of);
        uint64_t more = file_bytes(part);
        if (more == 0)
            return;
        bytes += more;
    }
    add_model(m, place, name, path, bytes);
}

/* The name of a directory's model: "ORG/NAME" of the Hugging Face cache, else the directory's. */
static void directory_name(const char *path, char out[PATH_MAX])
{
    const char *cached = strstr(path, "/models--"), *slash = strrchr(path, '/');
    snprintf(out, PATH_MAX, "%s", cached ? cached + 9 : slash ? slash + 1 : path);
    if (!cached)
        return;
    out[strcspn(out, "/")] = '\0';
    char *two = strstr(out, "--");
    if (two) {
        *two = '/';
        memmove(two + 1, two + 2, strlen(two + 2) + 1);
    }
}

static bool has_file(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", dir, name) < PATH_MAX && moe_path_exists(path);
}

/* Adds what a directory and those below it hold. */
static void scan(struct models *m, const char *place, const char *dir, int depth)
{
    char path[PATH_MAX];
    uint64_t weights = 0, more;
    bool whole = true;
    DIR *d = depth > 0 ? opendir(dir) : NULL;
    if (!d)
        return;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.' || snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= PATH_MAX)
            continue;
        if (moe_path_is_directory(path)) {
            /* Of the Hugging Face cache, snapshots are links to blobs. */
            if (strcmp(e->d_name, "blobs") != 0 && strcmp(e->d_name, "refs") != 0)
                scan(m, place, path, depth - 1);
        } else {
            add_file(m, place, path, e->d_name);
        }
        if (!ends_with(e->d_name, ".safetensors"))
            continue;
        more = file_bytes(path);
        weights += more;
        whole = whole && more > 0;
    }
    closedir(d);
    if (weights && whole && has_file(dir, "config.json") &&
        (has_file(dir, "model.safetensors") || has_file(dir, "model.safetensors.index.json"))) {
        directory_name(dir, path);
        add_model(m, place, path, dir, weights);
    }
}

/* ---- ollama ---- */

/* Adds the model of a manifest: the blob of its weights. name: "qwen3:30b". */
static void add_manifest(struct models *m, const char *root, const char *manifest, const char *name)
{
    static const char type[] = "application/vnd.ollama.image.model";
    json_t *json = NULL, *layer;
    size_t i;
    if (moe_json_read(&json, manifest, MANIFEST_BYTES, MOE_JSON_CONFIG_MEMORY, NULL) != MOE_OK)
        return;
    json_array_foreach(json_object_get(json, "layers"), i, layer)
    {
        const char *media = json_string_value(json_object_get(layer, "mediaType"));
        const char *digest = json_string_value(json_object_get(layer, "digest"));
        char path[PATH_MAX];
        if (!media || strcmp(media, type) != 0 || !digest || strncmp(digest, "sha256:", 7) != 0 ||
            strchr(digest, '/') ||
            snprintf(path, sizeof path, "%s/blobs/sha256-%s", root, digest + 7) >= PATH_MAX)
            continue;
        if (moe_path_exists(path))
            add_model(m, "ollama", name, path, file_bytes(path));
    }
    moe_json_free(json);
}

/* Goes through manifests/HOST/NAMESPACE/MODEL/TAG; `name` so far without the usual host and
 * namespace. */
static void scan_manifests(struct models *m, const char *root, const char *dir, const char *name,
                           int level)
{
    char path[PATH_MAX], longer[512];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
        bool usual = (level == 0 && strcmp(e->d_name, "registry.ollama.ai") == 0) ||
                     (level == 1 && strcmp(e->d_name, "library") == 0);
        int n = snprintf(longer, sizeof longer, "%s%s%s", name, usual ? "" : e->d_name,
                         usual        ? ""
                         : level == 2 ? ":"
                         : level == 3 ? ""
                                      : "/");
        if (e->d_name[0] == '.' || n >= (int)sizeof longer ||
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= PATH_MAX)
            continue;
        if (level == 3)
            add_manifest(m, root, path, longer);
        else
            scan_manifests(m, root, path, longer, level + 1);
    }
    if (d)
        closedir(d);
}

/* ---- All ---- */

/* Whether it is a head that drafts for a model, and none itself. */
static bool is_head(const char *path)
{
    struct moe_config *config = moe_alloc(1, sizeof *config, NULL);
    struct moe_checkpoint *ck = NULL;
    struct moe_pack *pack = NULL;
    uint64_t n = 0;
    int status = MOE_ERR_MEMORY;
    if (config && moe_path_is_directory(path)) {
        status = moe_config_read_hf(config, path, NULL);
    } else if (config && ends_with(path, ".moe")) {
        status = moe_pack_open(&pack, path, NULL);
        const uint8_t *text = pack ? moe_pack_section(pack, MOE_PACK_MODEL, &n) : NULL;
        if (status == MOE_OK)
            status = moe_config_read(config, path, text, n, NULL);
    } else if (config) {
        status = moe_checkpoint_open(&ck, path, NULL);
        if (status == MOE_OK && moe_checkpoint_gguf(ck))
            status = moe_config_read_gguf(config, ck, NULL);
    }
    const bool head = status == MOE_OK && config->drafter_kind != MOE_DRAFTS_NOT;
    moe_pack_close(pack);
    moe_checkpoint_close(ck);
    free(config);
    return head;
}

/* "BASE/REST" or, where the variable is set, what that says. */
static bool place_of(char out[PATH_MAX], const char *variable, const char *base, const char *rest)
{
    const char *named = variable ? getenv(variable) : NULL;
    if (named && *named)
        return snprintf(out, PATH_MAX, "%s", named) < PATH_MAX;
    return base && snprintf(out, PATH_MAX, "%s/%s", base, rest) < PATH_MAX;
}

static void find_usual(struct models *m)
{
    const char *home = getenv("HOME"), *hf = getenv("HF_HOME");
    char dir[PATH_MAX], manifests[PATH_MAX];
    if (place_of(dir, NULL, home, ".lmstudio/models"))
        scan(m, "LM Studio", dir, DEPTH);
    if (place_of(dir, NULL, home, ".cache/lm-studio/models"))
        scan(m, "LM Studio", dir, DEPTH);
    if (place_of(dir, "LLAMA_CACHE", home, ".cache/llama.cpp"))
        scan(m, "llama.cpp", dir, DEPTH);
    for (int i = 0; i < 2; i++) /* the user's, the service's */
        if (place_of(dir, i ? NULL : "OLLAMA_MODELS", i ? "/usr/share/ollama" : home,
                     ".ollama/models") &&
            snprintf(manifests, sizeof manifests, "%.4000s/manifests", dir) < PATH_MAX)
            scan_manifests(m, dir, manifests, "", 0);
    if (place_of(dir, "HF_HUB_CACHE", hf ? hf : home, hf ? "hub" : ".cache/huggingface/hub"))
        scan(m, "Hugging Face", dir, DEPTH);
}

static int compare_models(const void *a, const void *b)
{
    const struct model *x = a, *y = b;
    int order = strcasecmp(x->name, y->name);
    return order ? order : strcmp(x->path, y->path);
}

/* Those in a directory, or NULL: in the usual places; sorted by name. */
static void find(struct models *m, const char *dir)
{
    if (dir)
        scan(m, "", dir, DEPTH);
    else
        find_usual(m);
    if (m->n)
        qsort(m->items, m->n, sizeof *m->items, compare_models);
}

int kept_models_list(const char *dir, struct moe_buf *out, struct moe_err *err)
{
    struct models m = {0};
    int status = MOE_OK;
    size_t widest = 0;
    if (dir && !moe_path_is_directory(dir))
        return moe_fail(err, MOE_ERR_USAGE, "%s: not a directory", dir);
    find(&m, dir);
    if (m.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < m.n; i++)
        widest = strlen(m.items[i].name) > widest ? strlen(m.items[i].name) : widest;
    for (uint32_t i = 0; i < m.n && status == MOE_OK; i++) {
        char bytes[32];
        const struct model *x = &m.items[i];
        moe_buf_printf(out, "%-*s  %10s  %s%s%s%s\n", (int)widest, x->name,
                       moe_format_bytes(x->bytes, bytes), x->place, *x->place ? ": " : "", x->path,
                       is_head(x->path) ? " (no model: drafts for one, as --draft)" : "");
    }
    if (m.n == 0 && status == MOE_OK)
        moe_buf_printf(out, "no models in %s\n",
                       dir ? dir
                           : "the places of LM Studio, llama.cpp, ollama and the Hugging Face "
                             "libraries (moe-run(1) names them)");
    kept_release(&m);
    return status;
}

/* Whether `name` is the last parts of a path, `n` bytes. */
static bool ends_path(const char *path, size_t n, const char *name)
{
    size_t m = strlen(name);
    return n > m && path[n - m - 1] == '/' && strncasecmp(path + n - m, name, m) == 0;
}

/* How well a name says the model. 2: it is the model's, its last part, that of its repository in
 * the Hugging Face cache, or, of ollama, without ":latest". 1: the repository's directory, or how a
 * name begins: "qwen3" of "qwen3:30b" or "Qwen3-Q4_0". 0: another's. */
static int says(const char *name, const struct model *x)
{
    const char *last = strrchr(x->name, '/');
    char repository[PATH_MAX];
    size_t n = strlen(name);
    last = last ? last + 1 : x->name;
    if (strcasecmp(x->name, name) == 0 || strcasecmp(last, name) == 0)
        return 2;
    if (strstr(x->path, "/models--")) {
        directory_name(x->path, repository);
        if (strcasecmp(repository, name) == 0)
            return 2;
    }
    if (strncasecmp(x->name, name, n) == 0 && strcmp(x->name + n, ":latest") == 0)
        return 2;
    if (ends_path(x->path, (size_t)(strrchr(x->path, '/') - x->path), name))
        return 1;
    return (strncasecmp(x->name, name, n) == 0 && strchr("-:.", x->name[n])) ||
           (strncasecmp(last, name, n) == 0 && strchr("-:.", last[n]));
}

/* A path, or a file by its ending, rather than a model's short name. */
static bool names_a_file(const char *name)
{
    static const char *const endings[] = {".moe", ".gguf", ".yaml", ".json"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_with(name, endings[i]))
            return true;
    return *name == '/' || *name == '.';
}

int kept_model_resolve(const char **name)
{
    static char path[PATH_MAX];
    struct models m = {0};
    struct moe_buf candidates = {0};
    struct moe_err err;
    uint32_t n = 0;
    int status = -1, best = 1;
    /* A directory that is no checkpoint stands for the model in it. */
    const bool directory = moe_path_is_directory(*name) && !has_file(*name, "config.json");
    if (strlen(*name) == 0 || (moe_path_exists(*name) && !directory))
        return -1;
    find(&m, directory ? *name : NULL);
    for (uint32_t i = 0; i < m.n && !directory && best < 2; i++)
        best = says(*name, &m.items[i]) == 2 ? 2 : 1;
    for (uint32_t i = 0; i < m.n; i++)
        if (directory || says(*name, &m.items[i]) >= best) {
            snprintf(path, sizeof path, "%s", m.items[i].path);
            if (n++ < NAMED)
                moe_buf_printf(&candidates, "%s%s", n > 1 ? ", " : "", m.items[i].path);
        }
    if (n > 1)
        status = cli_misuse(
            "'%s' %s %u models, name one: %s%s", *name, directory ? "holds" : "is the name of", n,
            candidates.failed ? "" : (const char *)candidates.data, n > NAMED ? ", ..." : "");
    else if (n == 1)
        *name = path;
    else if (!directory && !names_a_file(*name)) {
        moe_fail(&err, MOE_ERR_IO,
                 "%s: cannot open: no such file, nor a model of that name in the places of other "
                 "programs (see moe-run --list)",
                 *name);
        status = cli_error(&err);
    }
    moe_buf_release(&candidates);
    kept_release(&m);
    return cli_mute ? -1 : status; /* another rank than 0 is asked why when it opens the file */
}
