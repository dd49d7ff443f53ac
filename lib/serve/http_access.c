/* Access control: API keys, host names and origins. */
#define _DEFAULT_SOURCE /* strcasecmp */
#include "serve/http_access.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

/* ---- Keys ---- */

enum { MAX_KEYS_FILE = 1 << 20 };

struct moe_access_keys {
    struct moe_buf text; /* the file's text, split into lines */
    const char **keys;
    uint32_t n;
};

static bool is_key(const char *line)
{
    for (; *line; line++)
        if (*line <= ' ' || *line > '~')
            return false;
    return true;
}

static int find_keys(struct moe_access_keys *k, const char *path, struct moe_err *err)
{
    static const char blanks[] = " \t\r";
    uint64_t lines = 1;
    for (uint64_t i = 0; i < k->text.size; i++)
        lines += k->text.data[i] == '\n';
    k->keys = malloc(lines * sizeof *k->keys);
    if (!k->keys)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the keys of %s", path);
    char *line = (char *)k->text.data;
    for (uint64_t number = 1; line; number++) {
        char *end = strchr(line, '\n');
        if (end)
            *end = 0;
        line += strspn(line, blanks);
        size_t n = strlen(line);
        while (n > 0 && strchr(blanks, line[n - 1]))
            line[--n] = 0;
        if (*line && *line != '#') {
            if (!is_key(line))
                return moe_fail(err, MOE_ERR_FORMAT,
                                "%s: line %llu: a key has printable ASCII characters and no blanks "
                                "between them",
                                path, (unsigned long long)number);
            k->keys[k->n++] = line;
        }
        line = end ? end + 1 : NULL;
    }
    if (k->n == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: has no key: write one a line", path);
    return MOE_OK;
}

int moe_access_keys_read(struct moe_access_keys **out, const char *path, struct moe_err *err)
{
    *out = NULL;
    struct moe_access_keys *k = calloc(1, sizeof *k);
    if (!k)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the keys of %s", path);
    struct stat file;
    int status;
    MOE_STEP(moe_file_read_all(path, MAX_KEYS_FILE, &k->text, err));
    if (stat(path, &file) == 0 && file.st_mode & (S_IROTH | S_IWOTH | S_IWGRP))
        MOE_STEP(moe_fail(err, MOE_ERR_IO,
                          "%s: others may read or change these keys: 'chmod 600' mends it", path));
    if (k->text.size && memchr(k->text.data, 0, k->text.size))
        MOE_STEP(moe_fail(err, MOE_ERR_FORMAT, "%s is not a file of keys: it has NUL bytes", path));
    MOE_STEP(find_keys(k, path, err));
out:
    if (status == MOE_OK)
        *out = k;
    else
        moe_access_keys_free(k);
    return status;
}

void moe_access_keys_free(struct moe_access_keys *keys)
{
    if (!keys)
        return;
    moe_buf_release(&keys->text);
    free(keys->keys);
    free(keys);
}

/* Compares all of `key`, whatever `given` is. */
static unsigned differs(const char *key, const char *given, size_t n_given)
{
    size_t n = strlen(key);
    volatile unsigned diff = n != n_given;
    for (size_t i = 0; i < n; i++)
        diff |= (unsigned char)key[i] ^ (unsigned char)given[i < n_given ? i : 0];
    return diff;
}

uint32_t moe_access_key_find(const struct moe_access_keys *keys, const char *header,
                             const char *words)
{
    if (!header || strncasecmp(header, words, strlen(words)) != 0)
        return 0;
    const char *given = header + strlen(words);
    while (*given == ' ')
        given++;
    size_t n = strlen(given);
    uint32_t found = 0;
    for (uint32_t i = 0; i < keys->n; i++)
        found = differs(keys->keys[i], given, n) == 0 ? i + 1 : found;
    return found;
}

uint64_t moe_access_key_owner(const struct moe_access_keys *keys, uint32_t n)
{
    return moe_hash64(keys->keys[n - 1], strlen(keys->keys[n - 1])) >> 1 | 1; /* for a bit more */
}

/* ---- Hosts and origins ---- */

enum { MAX_HOST = 256 };

/* The name in "NAME", "NAME:PORT" or "[IPv6]:PORT", without brackets; false: malformed. */
static bool host_name(const char *host, char name[MAX_HOST])
{
    const char *from = host, *end;
    if (*host == '[') {
        from++;
        end = strchr(host, ']');
        if (!end || (end[1] && end[1] != ':'))
            return false;
    } else {
        end = host + strcspn(host, ":");
    }
    const char *port = *end == ']' ? end + 1 : end;
    if (*port == ':' && port[1 + strspn(port + 1, "0123456789")])
        return false;
    size_t n = (size_t)(end - from);
    if (n == 0 || n >= MAX_HOST)
        return false;
    memcpy(name, from, n);
    name[n] = 0;
    return true;
}

bool moe_access_host_is_valid(const char *host)
{
    char name[MAX_HOST];
    return host_name(host, name) && !strpbrk(host, "/?#@ \t\r\n");
}

bool moe_access_host_is_local(const char *host)
{
    static const char local[] = "localhost";
    char name[MAX_HOST];
    struct in_addr v4;
    struct in6_addr v6;
    if (!host_name(host, name))
        return false;
    if (inet_pton(AF_INET, name, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, name, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6);
    size_t n = strlen(name);
    if (name[n - 1] == '.')
        name[--n] = 0;
    return n >= sizeof local - 1 && strcasecmp(name + n - (sizeof local - 1), local) == 0 &&
           (n == sizeof local - 1 || name[n - sizeof local] == '.');
}

/* The rest after "http://" or "https://", or NULL. */
static const char *origin_host(const char *origin)
{
    if (strncasecmp(origin, "http://", 7) == 0)
        return origin + 7;
    if (strncasecmp(origin, "https://", 8) == 0)
        return origin + 8;
    return NULL;
}

bool moe_access_name_is_valid(const char *name)
{
    char plain[MAX_HOST];
    return strcmp(name, "*") == 0 ||
           (moe_access_host_is_valid(name) && host_name(name, plain) && strcmp(name, plain) == 0);
}

/* The rest after "SCHEME://" of a scheme that is not the web's, or NULL. */
static const char *other_scheme(const char *origin)
{
    size_t n = strspn(origin, "abcdefghijklmnopqrstuvwxyz0123456789+-.");
    return n && strncmp(origin + n, "://", 3) == 0 && !origin_host(origin) ? origin + n + 3 : NULL;
}

bool moe_access_origin_is_valid(const char *origin)
{
    if (strcmp(origin, "*") == 0 || strcmp(origin, "null") == 0)
        return true;
    const char *host = origin_host(origin), *other = other_scheme(origin);
    if (other && !*other)
        return true;
    host = host ? host : other;
    return host && moe_access_host_is_valid(host);
}

/* Whether a list allows everything, or has one for which `fits` is true. */
static bool allowed(const char *const *list, bool (*fits)(const char *item, const char *what),
                    const char *what)
{
    for (const char *const *o = list; o && *o; o++)
        if (strcmp(*o, "*") == 0 || fits(*o, what))
            return true;
    return false;
}

static bool is_its_host(const char *origin, const char *host)
{
    const char *own = origin_host(origin);
    return own && strcasecmp(own, host) == 0;
}

/* An origin, or all of its scheme. */
static bool is_it(const char *origin, const char *other)
{
    const char *rest = other_scheme(origin);
    return rest && !*rest ? strncasecmp(origin, other, strlen(origin)) == 0
                          : strcasecmp(origin, other) == 0;
}

static bool is_address(const char *name)
{
    struct in6_addr any;
    return inet_pton(AF_INET, name, &any) == 1 || inet_pton(AF_INET6, name, &any) == 1;
}

static bool is_name(const char *allowed_name, const char *name)
{
    return strcasecmp(allowed_name, name) == 0;
}

bool moe_access_host_fits(const struct moe_access *a, const char *host)
{
    char name[MAX_HOST];
    if (a->local_socket || !host || moe_access_host_is_local(host) ||
        allowed(a->origins, is_its_host, host))
        return true;
    return host_name(host, name) &&
           ((!a->loopback && is_address(name)) || allowed(a->hosts, is_name, name));
}

bool moe_access_origin_fits(const struct moe_access *a, const char *origin, const char *host,
                            bool *foreign)
{
    *foreign = origin && !(host && is_its_host(origin, host));
    return !*foreign || allowed(a->origins, is_it, origin);
}
