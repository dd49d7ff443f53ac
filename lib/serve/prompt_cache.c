/* Prompts kept on disk: which files there are, what they begin with, which give way. */
#define _POSIX_C_SOURCE 200809L /* dirent, utimensat */

#include "serve/prompt_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"

enum {
    STEP = 32,         /* ids between places where texts are compared by a hash */
    WORTH_A_FILE = 64, /* tokens */
    MOST_FILES = 512,
    KEY = 40,  /* of a name: what computed the text, for whom, which kind of cache */
    NAME = 72, /* the text's hash behind it, and the ending */
};
#define ENDING ".context"

/* A file. What it begins with is known once a session that can use it has looked at it. */
struct kept_file {
    char name[NAME];
    uint64_t bytes;
    struct timespec used;
    bool seen;   /* by the last look at the directory */
    bool looked; /* its head was read */
    uint64_t n;  /* positions; 0: it is of no use */
    uint64_t hash;
    uint64_t *marks; /* [n / STEP] hashes of the text up to there */
};

struct moe_prompt_cache {
    struct moe_prompt_cache_options options;
    pthread_mutex_t mutex;
    struct kept_file *files;
    uint32_t n_files;
    bool cannot_keep;  /* texts of a session, which was said */
    bool cannot_write; /* the last text, which was said */
    pthread_mutex_t counting;
    struct moe_prompt_cache_counts counts;
};

uint64_t moe_prompt_cache_bytes(uint32_t context, uint32_t n)
{
    const uint64_t marks = context / STEP * sizeof(uint64_t);
    const uint64_t each = 64; /* bytes of a token: of texts that wait, twice of a file's head */
    return MOST_FILES * (sizeof(struct kept_file) + marks) + n * each * context;
}

struct moe_prompt_cache_counts moe_prompt_cache_count(struct moe_prompt_cache *c)
{
    pthread_mutex_lock(&c->counting);
    struct moe_prompt_cache_counts counts = c->counts;
    pthread_mutex_unlock(&c->counting);
    return counts;
}

static void count(struct moe_prompt_cache *c, uint64_t hits, uint64_t tokens, uint64_t written,
                  uint64_t failed)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < c->n_files; i++)
        bytes += c->files[i].bytes;
    pthread_mutex_lock(&c->counting);
    c->counts.hits += hits;
    c->counts.tokens += tokens;
    c->counts.written += written;
    c->counts.failed += failed;
    c->counts.files = c->n_files;
    c->counts.bytes = bytes;
    pthread_mutex_unlock(&c->counting);
}

static void tell(struct moe_prompt_cache *c, const char *line)
{
    count(c, 0, 0, 0, 1);
    if (c->options.tell)
        c->options.tell(line);
}

/* ---- The directory ---- */

static bool is_name(const char *name)
{
    static const char form[] = "x-x-y-x" ENDING; /* 16 digits, or 4 */
    for (const char *f = form; *f; f++) {
        int n = *f == 'x' && f - form < 7 ? 16 : *f == 'y' ? 4 : 0;
        if (n == 0 && *name++ != *f)
            return false;
        for (; n > 0; n--, name++)
            if (!strchr("0123456789abcdef", *name) || !*name)
                return false;
    }
    return *name == '\0';
}

static void drop(struct moe_prompt_cache *c, struct kept_file *f)
{
    free(f->marks);
    *f = c->files[--c->n_files];
}

/* NULL: memory is short. */
static char *path_of(const struct moe_prompt_cache *c, const char *name)
{
    struct moe_err err;
    return moe_path_join(c->options.directory, name, &err);
}

static void remove_file(struct moe_prompt_cache *c, struct kept_file *f)
{
    char *path = path_of(c, f->name);
    if (path)
        unlink(path);
    free(path);
    drop(c, f);
}

/* Takes note of a file that is there. */
static void see(struct moe_prompt_cache *c, const char *name)
{
    struct stat st;
    struct moe_err err;
    struct kept_file *f = NULL;
    char *path = path_of(c, name);
    bool there = path && lstat(path, &st) == 0 && S_ISREG(st.st_mode);
    free(path);
    for (uint32_t i = 0; i < c->n_files && !f; i++)
        if (strcmp(c->files[i].name, name) == 0)
            f = &c->files[i];
    if (there && !f) {
        struct kept_file *more = realloc(c->files, (c->n_files + 1) * sizeof *more);
        if (!more) {
            moe_fail(&err, MOE_ERR_MEMORY, "out of memory: the list of kept prompts");
            return;
        }
        c->files = more;
        f = &c->files[c->n_files++];
        *f = (struct kept_file){0};
        snprintf(f->name, sizeof f->name, "%s", name);
    }
    if (there) {
        f->bytes = (uint64_t)st.st_size;
        f->used = st.st_mtim;
        f->seen = true;
    }
}

/* Looks which files there are: other servers bring and take some. */
static int look(struct moe_prompt_cache *c, struct moe_err *err)
{
    DIR *d = opendir(c->options.directory);
    if (!d)
        return moe_fail(err, MOE_ERR_IO, "%s: cannot read the directory of kept prompts: %s",
                        c->options.directory, strerror(errno));
    for (uint32_t i = 0; i < c->n_files; i++)
        c->files[i].seen = false;
    for (const struct dirent *e; (e = readdir(d));)
        if (is_name(e->d_name))
            see(c, e->d_name);
    closedir(d);
    for (uint32_t i = c->n_files; i-- > 0;)
        if (!c->files[i].seen)
            drop(c, &c->files[i]);
    return MOE_OK;
}

static bool is_older(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

/* Removes the files that were used longest ago until `more` bytes fit. */
static int make_room(struct moe_prompt_cache *c, uint64_t more, struct moe_err *err)
{
    MOE_TRY(look(c, err));
    for (;;) {
        uint64_t bytes = more;
        uint32_t oldest = 0;
        for (uint32_t i = 0; i < c->n_files; i++) {
            bytes += c->files[i].bytes;
            if (is_older(&c->files[i].used, &c->files[oldest].used))
                oldest = i;
        }
        if (c->n_files == 0 || (bytes <= c->options.bytes && c->n_files < MOST_FILES))
            return MOE_OK;
        remove_file(c, &c->files[oldest]);
    }
}

/* ---- Opening ---- */

int moe_prompt_cache_open(struct moe_prompt_cache **out,
                          const struct moe_prompt_cache_options *options, struct moe_err *err)
{
    *out = NULL;
    if (mkdir(options->directory, 0700) != 0 && errno != EEXIST)
        return moe_fail(err, MOE_ERR_IO, "%s: cannot make the directory for prompts: %s",
                        options->directory, strerror(errno));
    struct moe_prompt_cache *c = moe_alloc(1, sizeof *c, err);
    if (!c)
        return MOE_ERR_MEMORY;
    c->options = *options;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_mutex_init(&c->counting, NULL);
    int status = make_room(c, 0, err);
    if (status != MOE_OK) {
        moe_prompt_cache_close(c);
        return status;
    }
    count(c, 0, 0, 0, 0);
    *out = c;
    return MOE_OK;
}

void moe_prompt_cache_close(struct moe_prompt_cache *c)
{
    if (!c)
        return;
    while (c->n_files)
        drop(c, &c->files[0]);
    free(c->files);
    pthread_mutex_destroy(&c->mutex);
    pthread_mutex_destroy(&c->counting);
    free(c);
}

/* ---- Texts ---- */

static uint64_t hash_on(uint64_t before, const uint32_t *ids, uint64_t n)
{
    return moe_hash64_chain(before, ids, n * sizeof *ids);
}

/* How names of files begin that this session can use for this owner. */
static void file_key_of(const struct moe_engine *e, uint64_t owner, char key[KEY])
{
    const char *method = moe_engine_method(e);
    const uint64_t pack = moe_pack_fingerprint(e->model->pack);
    snprintf(key, KEY, "%016" PRIx64 "-%016" PRIx64 "-%04x-",
             moe_hash64_chain(pack, method, strlen(method)), owner, e->session->kv_kind);
}

/* The file's marks; false: memory is short. */
static bool mark(struct kept_file *f, const uint32_t *ids, uint64_t n)
{
    struct moe_err err;
    uint64_t hash = 0, at = 0;
    f->looked = true;
    f->n = 0;
    if (!(f->marks = moe_alloc(n / STEP + 1, sizeof *f->marks, &err)))
        return false;
    for (; at + STEP <= n; at += STEP)
        f->marks[at / STEP] = hash = hash_on(hash, ids + at, STEP);
    f->hash = hash_on(hash, ids + at, n - at);
    f->n = n;
    return true;
}

/* A file cannot be read. One that was damaged goes, others are left alone. */
static void give_up(struct moe_prompt_cache *c, struct kept_file *f, const char *path, int status,
                    const struct moe_err *err)
{
    bool gone = !moe_path_exists(path);
    if (!gone)
        tell(c, err->text);
    if (gone)
        drop(c, f);
    else if (status == MOE_ERR_FORMAT)
        remove_file(c, f);
    else
        f->looked = true;
}

/* How many of a text's first positions, n - 1 at most, a file begins with: by its marks, too few by
 * up to STEP. With recurrent states all of the file or nothing. */
static uint64_t in_common(const struct kept_file *f, const struct moe_prompt_text *text, bool whole)
{
    uint64_t hash = 0, at = 0;
    while (at + STEP <= f->n && at + STEP < text->n) {
        uint64_t next = hash_on(hash, text->ids + at, STEP);
        if (next != f->marks[at / STEP])
            break;
        hash = next;
        at += STEP;
    }
    if (f->n - at < STEP && f->n < text->n && hash_on(hash, text->ids + at, f->n - at) == f->hash)
        return f->n;
    return whole ? 0 : at;
}

/* ---- Loading ---- */

/* Reads the head of a file that no session has looked at. False: it is of no use, or gone. */
static bool look_into(struct moe_prompt_cache *c, struct kept_file *f, const struct moe_engine *e)
{
    struct moe_context_file file;
    struct moe_err err;
    char *path = path_of(c, f->name);
    bool kept = path != NULL;
    if (path) {
        int status = moe_context_open(&file, path, e->session, moe_engine_method(e), &err);
        if (status == MOE_OK) {
            mark(f, file.context.ids.ids, file.context.n_done);
            moe_context_close(&file);
        } else {
            uint32_t n = c->n_files;
            give_up(c, f, path, status, &err);
            kept = c->n_files == n;
        }
    }
    free(path);
    return kept;
}

static struct kept_file *find_kept_file(struct moe_prompt_cache *c, const struct moe_engine *e,
                                        const struct moe_prompt_text *text, uint64_t *n)
{
    char key[KEY];
    uint32_t best = UINT32_MAX;
    const bool whole = e->session->state_ends != NULL;
    file_key_of(e, text->owner, key);
    for (uint32_t i = 0; i < c->n_files;)
        if (c->files[i].looked || strncmp(c->files[i].name, key, strlen(key)) != 0 ||
            look_into(c, &c->files[i], e))
            i++; /* else another one is in its place */
    for (uint32_t i = 0; i < c->n_files; i++) {
        const struct kept_file *f = &c->files[i];
        bool ours = f->n && strncmp(f->name, key, strlen(key)) == 0;
        uint64_t some = ours ? in_common(f, text, whole) : 0;
        if (some > *n) {
            *n = some;
            best = i;
        }
    }
    return best == UINT32_MAX ? NULL : &c->files[best];
}

/* Has the KV cache hold what the file and the text have in common. */
static void take_kept_file(struct moe_prompt_cache *c, struct kept_file *f,
                           const struct moe_engine *e, uint32_t sequence,
                           const struct moe_prompt_text *text, uint64_t known)
{
    struct moe_session *s = e->session;
    struct moe_context_file file;
    struct moe_err err;
    uint64_t n = 0, most;
    char *path = path_of(c, f->name);
    int status =
        path ? moe_context_open(&file, path, s, moe_engine_method(e), &err) : MOE_ERR_MEMORY;
    if (status == MOE_OK) {
        most = moe_context_most(&file, s);
        most = most < text->n - 1 ? most : text->n - 1;
        while (n < most && file.context.ids.ids[n] == text->ids[n])
            n++;
        moe_sequence_own(s, sequence, text->owner);
        if (n > known && (!s->state_ends || n == file.context.n_done)) {
            status = moe_context_put(&file, s, sequence, n, &err);
            if (status == MOE_OK)
                moe_sequence_snapshot(s, sequence, true);
        }
        moe_context_close(&file);
        moe_sequence_rewind(s, sequence, 0);
    }
    const uint64_t now = moe_sequence_known(s, text->owner, text->ids, (uint32_t)text->n);
    if (status == MOE_OK && now > known) {
        utimensat(AT_FDCWD, path, NULL, 0);
        count(c, 1, now - known, 0, 0);
    } else if (path && status != MOE_OK && status != MOE_ERR_LIMIT) {
        give_up(c, f, path, status, &err);
    }
    free(path);
}

/* Whether the session's texts can be kept at all. */
static bool can_keep(struct moe_prompt_cache *c, const struct moe_session *s)
{
    struct moe_kept p;
    struct moe_err err;
    if (moe_sequence_save(s, 0, 0, &p, &err) == MOE_OK)
        return true;
    if (!c->cannot_keep)
        tell(c, err.text);
    c->cannot_keep = true;
    return false;
}

void moe_prompt_cache_load(struct moe_prompt_cache *c, const struct moe_engine *e,
                           uint32_t sequence, const struct moe_prompt_text *text)
{
    if (text->n <= WORTH_A_FILE || text->n > e->session->context)
        return;
    pthread_mutex_lock(&c->mutex);
    if (can_keep(c, e->session)) {
        const uint64_t known =
            moe_sequence_known(e->session, text->owner, text->ids, (uint32_t)text->n);
        uint64_t n = known + STEP; /* fewer are computed as quickly */
        struct kept_file *f = find_kept_file(c, e, text, &n);
        if (f)
            take_kept_file(c, f, e, sequence, text, known);
    }
    pthread_mutex_unlock(&c->mutex);
}

/* ---- Saving ---- */

/* A longer text takes the place of those that it begins with, which any of its positions serves. */
static void remove_shorter(struct moe_prompt_cache *c, const char *key,
                           const struct moe_prompt_text *text)
{
    for (uint32_t i = c->n_files; i-- > 0;) {
        struct kept_file *f = &c->files[i];
        if (strncmp(f->name, key, strlen(key)) == 0 && f->n && f->n < text->n &&
            in_common(f, text, true))
            remove_file(c, f);
    }
}

/* Writes the first n positions of what the sequence has. */
static int write_text(struct moe_prompt_cache *c, const struct moe_engine *e, uint32_t sequence,
                      const struct moe_prompt_text *text, struct moe_err *err)
{
    const struct moe_session *s = e->session;
    struct moe_context context = {.n_done = text->n};
    struct moe_kept p;
    char key[KEY], name[NAME];
    uint64_t bytes;
    struct stat st;
    MOE_TRY(moe_sequence_save(s, sequence, (uint32_t)text->n, &p, err));
    if (p.n < text->n)
        return MOE_OK; /* layers with a window have lost its beginning */
    bytes = (moe_kept_count(&p, &bytes) + text->n) * sizeof(uint64_t) + bytes;
    file_key_of(e, text->owner, key);
    snprintf(name, sizeof name, "%s%016" PRIx64 ENDING, key, hash_on(0, text->ids, text->n));
    char *path = path_of(c, name);
    if (!path)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: a kept prompt's name");
    int status = MOE_OK;
    if (!moe_path_exists(path) && bytes <= c->options.bytes) {
        snprintf(context.method, sizeof context.method, "%s", moe_engine_method(e));
        context.ids = (struct moe_ids){.ids = (uint32_t *)text->ids, .n = text->n};
        status = make_room(c, bytes, err);
        if (status == MOE_OK)
            status = moe_context_write(path, s, sequence, &context, err);
        if (status == MOE_OK && !s->state_ends)
            remove_shorter(c, key, text);
        if (status == MOE_OK && lstat(path, &st) == 0) {
            see(c, name);
            for (uint32_t i = 0; i < c->n_files; i++)
                if (strcmp(c->files[i].name, name) == 0)
                    mark(&c->files[i], text->ids, text->n);
            count(c, 0, 0, 1, 0);
        }
    }
    free(path);
    return status;
}

/* Writes what the KV cache still has of a text, through a sequence that is free before and after.
 */
static void save(struct moe_prompt_cache *c, const struct moe_engine *e, uint32_t sequence,
                 const struct moe_prompt_text *text)
{
    struct moe_session *s = e->session;
    struct moe_err err;
    uint32_t n = 0;
    if (text->n <= WORTH_A_FILE)
        return;
    pthread_mutex_lock(&c->mutex);
    if (can_keep(c, s)) {
        moe_sequence_own(s, sequence, text->owner);
        int status = moe_sequence_sync(s, sequence, text->ids, (uint32_t)text->n, (uint32_t)text->n,
                                       &n, &err);
        if (status == MOE_OK && n > WORTH_A_FILE) {
            const struct moe_prompt_text known = {text->owner, text->ids, n};
            status = write_text(c, e, sequence, &known, &err);
            if (status != MOE_OK && c->cannot_write)
                count(c, 0, 0, 0, 1);
            else if (status != MOE_OK)
                tell(c, err.text);
            c->cannot_write = status != MOE_OK;
        }
        moe_sequence_rewind(s, sequence, 0);
    }
    pthread_mutex_unlock(&c->mutex);
}

/* ---- Texts that wait ---- */

static void forget(struct moe_prompt_waiting *w, uint32_t i)
{
    moe_ids_release(&w->texts[i].ids);
    for (w->n--; i < w->n; i++)
        w->texts[i] = w->texts[i + 1];
}

void moe_prompt_wait(struct moe_prompt_waiting *w, const struct moe_prompt_text *text)
{
    enum { MOST = sizeof w->texts / sizeof w->texts[0] };
    struct moe_err err;
    struct moe_ids ids = {0};
    if (moe_ids_reserve(&ids, text->n, &err) != MOE_OK)
        return;
    for (uint64_t i = 0; i < text->n; i++)
        moe_ids_push(&ids, text->ids[i], &err);
    for (uint32_t i = w->n; i-- > 0;)
        if (w->texts[i].owner == text->owner && w->texts[i].ids.n <= ids.n &&
            memcmp(w->texts[i].ids.ids, ids.ids, w->texts[i].ids.n * sizeof *ids.ids) == 0)
            forget(w, i);
    if (w->n == MOST)
        forget(w, 0);
    w->texts[w->n].owner = text->owner;
    w->texts[w->n++].ids = ids;
}

void moe_prompt_cache_save_oldest(struct moe_prompt_cache *c, struct moe_prompt_waiting *w,
                                  const struct moe_engine *e, uint32_t sequence)
{
    const struct moe_prompt_text text = {w->texts[0].owner, w->texts[0].ids.ids, w->texts[0].ids.n};
    if (sequence != UINT32_MAX)
        save(c, e, sequence, &text);
    forget(w, 0);
}
