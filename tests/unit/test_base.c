/* The base room: text, UTF-8, half-precision numbers, buffers, cursors, files, arena, loops. */
#define _DEFAULT_SOURCE /* mkdtemp, mkfifo, symlink */
#include <pthread.h>

#include "../test.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"

/* ---- Text ---- */

static void test_parse_bytes(void **state)
{
    static const struct {
        const char *text;
        int64_t bytes; /* -1: refused */
    } cases[] = {
        {"1", 1},
        {"4096", 4096},
        {"512M", 512ll << 20},
        {"4G", 4ll << 30},
        {"4g", 4ll << 30},
        {"1.5GiB", 3ll << 29},
        {"1.5gib", 3ll << 29},
        {"10kB", 10000},
        {"10KB", 10000},
        {"10K", 10240},
        {"7B", 7},
        {"1T", 1ll << 40},
        {"2PB", 2000000000000000},
        {".5K", 512},
        {"+3", 3},
        {"1e3", 1000},
        {"0", -1},
        {"0K", -1},
        {"0.0GiB", -1},
        {".5", -1},
        {"1e-9G", 1},
        {"", -1},
        {" 4", -1},
        {"4 ", -1},
        {"4 G", -1},
        {"-1", -1},
        {"G", -1},
        {".", -1},
        {"0x10", -1},
        {"inf", -1},
        {"nan", -1},
        {"1e400", -1},
        {"4Gi", -1},
        {"4iB", -1},
        {"4GBB", -1},
        {"4X", -1},
        {"1e19", -1},
        {"9000000P", -1},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        uint64_t out = 77;
        bool ok = moe_parse_bytes(cases[i].text, &out);
        if (ok != (cases[i].bytes >= 0) || out != (ok ? (uint64_t)cases[i].bytes : 77))
            fail_msg("'%s' gave %d, %llu", cases[i].text, ok, (unsigned long long)out);
    }
}

static void test_parse_numbers(void **state)
{
    double v = -5;
    assert_true(moe_parse_rate("1.2GB/s", &v) && v == 1.2e9);
    assert_true(moe_parse_rate("900M/s", &v) && v == 900.0 * 1048576);
    assert_true(moe_parse_rate("2e9", &v) && v == 2e9);
    assert_true(moe_parse_rate("5/s", &v) && v == 5);
    static const char *const bad_rates[] = {"0",    "-1",     "1.2GB/", "/s", "1/m",
                                            "GB/s", "1e308G", "inf",    "",   "1.2GB/s "};
    for (size_t i = 0; i < N_ITEMS(bad_rates); i++) {
        v = -5;
        if (moe_parse_rate(bad_rates[i], &v) || v != -5)
            fail_msg("'%s' is no rate", bad_rates[i]);
    }
    assert_true(moe_parse_share("1%", &v) && v == 0.01);
    assert_true(moe_parse_share("0.01", &v) && v == 0.01);
    assert_true(moe_parse_share("150%", &v) && v == 1.5);
    assert_false(moe_parse_share("-1%", &v) || moe_parse_share("1%%", &v) ||
                 moe_parse_share("%", &v) || moe_parse_share("1 %", &v));
    uint64_t u = 7;
    assert_true(moe_parse_u64("18446744073709551615", &u) && u == UINT64_MAX);
    assert_false(moe_parse_u64("18446744073709551616", &u) || moe_parse_u64("-1", &u) ||
                 moe_parse_u64("", &u) || moe_parse_u64("1.5", &u) || moe_parse_u64(" 1", &u));
    assert_int_equal(u, UINT64_MAX);
    assert_true(moe_parse_double("-2.5e-3", &v) && v == -2.5e-3);
    assert_false(moe_parse_double("2.5x", &v) || moe_parse_double("nan", &v) ||
                 moe_parse_double("infinity", &v) || moe_parse_double("-0x1p3", &v));
}

static void test_format_bytes(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.00 KiB"},
        {1536, "1.50 KiB"},
        {(1 << 20) - 1, "1.00 MiB"}, /* not 1024.00 KiB */
        {3ull << 29, "1.50 GiB"},
        {UINT64_MAX, "16.00 EiB"},
    };
    char out[32];
    for (size_t i = 0; i < N_ITEMS(cases); i++)
        assert_string_equal(moe_format_bytes(cases[i].bytes, out), cases[i].text);
}

/* ---- UTF-8 ---- */

static void test_utf8_every_character(void **state)
{
    for (uint32_t c = 0; c < 0x110000; c++) {
        uint8_t text[4];
        int length, n = moe_utf8_encode(c, text);
        bool surrogate = c >= 0xd800 && c < 0xe000;
        assert_int_equal(n, c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
        assert_int_equal(moe_utf8_valid(text, (uint64_t)n), !surrogate);
        uint32_t back = moe_utf8_decode(text, (uint64_t)n, &length);
        assert_int_equal(back, surrogate ? 0xfffd : c);
        assert_int_equal(length, surrogate ? 1 : n);
        for (int cut = 1; cut < n && !surrogate; cut++) {
            assert_int_equal(moe_utf8_complete(text, (uint64_t)cut), 0);
            assert_false(moe_utf8_valid(text, (uint64_t)cut));
        }
        assert_int_equal(moe_utf8_complete(text, (uint64_t)n), n);
    }
}

/* A plain statement of the Unicode standard's table 3-7, to compare the implementation with. */
static int well_formed(const uint8_t *t, int n)
{
    if (t[0] < 0x80)
        return 1;
    for (int i = 1; i < n; i++)
        if ((t[i] & 0xc0) != 0x80)
            n = i;
    if (t[0] >= 0xc2 && t[0] <= 0xdf)
        return n >= 2 ? 2 : 0;
    if (t[0] >= 0xe0 && t[0] <= 0xef && n >= 3) {
        unsigned c = (t[0] & 15u) << 12 | (t[1] & 63u) << 6;
        return c >= 0x800 && (c < 0xd800 || c >= 0xe000) ? 3 : 0;
    }
    if (t[0] >= 0xf0 && t[0] <= 0xf4 && n >= 4) {
        unsigned c = (t[0] & 7u) << 18 | (t[1] & 63u) << 12;
        return c >= 0x10000 && c < 0x110000 ? 4 : 0;
    }
    return 0;
}

static void test_utf8_any_bytes(void **state)
{
    static const uint8_t bytes[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0,
                                    0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xed,
                                    0xee, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff};
    enum { N = sizeof bytes };
    for (uint32_t i = 0; i < N * N * N * N; i++) {
        uint8_t t[4] = {bytes[i % N], bytes[i / N % N], bytes[i / N / N % N], bytes[i / N / N / N]};
        for (int n = 1; n <= 4; n++) {
            int length, want = well_formed(t, n);
            uint32_t c = moe_utf8_decode(t, (uint64_t)n, &length);
            assert_int_equal(length, want ? want : 1);
            assert_true(want || c == 0xfffd);
        }
        assert_in_range(moe_utf8_complete(t, 4), 1, 4);
    }
    assert_int_equal(moe_utf8_complete((const uint8_t *)"a\xe2\x82", 3), 1);
    assert_int_equal(moe_utf8_complete((const uint8_t *)"a\xff", 2), 2);
    assert_int_equal(moe_utf8_complete((const uint8_t *)"a\x82\x82", 3), 3);
    assert_int_equal(moe_utf8_complete((const uint8_t *)"\xf0\x9f\x98", 3), 0);
    assert_int_equal(moe_utf8_complete((const uint8_t *)"\xe0\x80", 2), 2); /* overlong: never */
    assert_int_equal(moe_utf8_complete(NULL, 0), 0);
}

/* ---- Half precision ---- */

/* The value of f16 bits from its definition. */
static double f16_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    double v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

static void test_visible(void **state)
{
    static const char *const cases[][2] = {
        {"a\tb\n", "a\tb\n"},
        {"\r\033[2J\x7f", "<0D><1B>[2J<7F>"},
        {"\xc2\x9b\x9b", "<9B><9B>"},
        {"\xce\x88\xe2\x82\xac", "\xce\x88\xe2\x82\xac"},
        {"\xef\xbf\xbd", "\xef\xbf\xbd"},
        {"\xe2\x82", "<E2><82>"},
        {"\xc2\xa0", "\xc2\xa0"},
        {"\xe2\x80\xae", "\xe2\x80\xae"}, /* writing direction */
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        const uint8_t *text = (const uint8_t *)cases[i][0];
        uint8_t shown[64] = {0};
        int n_shown = 0, length;
        for (uint64_t n = strlen(cases[i][0]); n > 0; n -= (uint64_t)length, text += length)
            n_shown += moe_text_visible(text, n, &length, shown + n_shown);
        assert_string_equal(shown, cases[i][1]);
    }
}

static void test_f16_every_value(void **state)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float v = moe_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            assert_int_equal(!isnan(v), !(h & 0x3ff));
            assert_int_equal(signbit(v) != 0, h >> 15);
            if (isnan(v))
                assert_int_equal(moe_f32_to_f16(v), h | 0x200); /* quiet, payload kept */
            else
                assert_int_equal(moe_f32_to_f16(v), h);
            continue;
        }
        assert_true((double)v == f16_value((uint16_t)h));
        assert_int_equal(signbit(v) != 0, h >> 15);
        assert_int_equal(moe_f32_to_f16(v), h);
    }
}

/* Between each two neighbours: just below, at and just above the middle. */
static void test_f16_rounding(void **state)
{
    for (uint16_t h = 0; h < 0x7c00; h++) {
        /* The step above the largest value is 65536, which would round to infinity. */
        double low = f16_value(h), high = h == 0x7bff ? 65536 : f16_value(h + 1);
        float middle = (float)((low + high) / 2);
        uint16_t even = h & 1 ? h + 1 : h;
        assert_int_equal(moe_f32_to_f16(middle), even);
        assert_int_equal(moe_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(moe_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(moe_f32_to_f16(-middle), even | 0x8000);
        assert_int_equal(moe_f32_to_f16(-nextafterf(middle, 0)), h | 0x8000);
        assert_int_equal(moe_f32_to_f16(-nextafterf(middle, INFINITY)), (h + 1) | 0x8000);
    }
    assert_int_equal(moe_f32_to_f16(1), 0x3c00);
    assert_int_equal(moe_f32_to_f16(-2), 0xc000);
    assert_int_equal(moe_f32_to_f16(65504), 0x7bff);
    assert_int_equal(moe_f32_to_f16(0x1p-24f), 1);
    assert_int_equal(moe_f32_to_f16(1e-30f), 0);
    assert_int_equal(moe_f32_to_f16(3e38f), 0x7c00);
}

static void test_bf16(void **state)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float v = moe_bf16_to_f32((uint16_t)h);
        assert_int_equal(moe_f32_bits(v), h << 16);
        assert_int_equal(moe_f32_to_bf16(v), isnan(v) ? h | 0x40 : h);
        if ((h & 0x7f80) == 0x7f80)
            continue;
        uint32_t middle = h << 16 | 0x8000;
        assert_int_equal(moe_f32_to_bf16(moe_bits_f32(middle)), h & 1 ? h + 1 : h);
        assert_int_equal(moe_f32_to_bf16(moe_bits_f32(middle - 1)), h);
        assert_int_equal(moe_f32_to_bf16(moe_bits_f32(middle + 1)), h + 1);
    }
    assert_true(isnan(moe_bf16_to_f32(moe_f32_to_bf16(moe_bits_f32(0x7f800001)))));
    assert_int_equal(moe_f32_to_bf16(1), 0x3f80);
}

/* ---- Bytes ---- */

static void test_buf(void **state)
{
    struct moe_buf b = {0};
    moe_buf_clear(&b);
    moe_buf_append(&b, NULL, 0);
    moe_buf_text(&b, "ab");
    moe_buf_printf(&b, "%s-%d", "cd", 42);
    assert_string_equal((const char *)b.data, "abcd-42");
    assert_int_equal(b.size, 7);
    moe_buf_clear(&b);
    assert_int_equal(b.size, 0);
    assert_string_equal((const char *)b.data, "");
    moe_buf_u8(&b, 0x01);
    moe_buf_u16(&b, 0x0302);
    moe_buf_u32(&b, 0x07060504);
    moe_buf_u64(&b, 0x0f0e0d0c0b0a0908u);
    moe_buf_f32(&b, 1.0f);
    static const uint8_t expected[] = {1,  2,  3,  4,  5,  6, 7, 8,    9,   10,
                                       11, 12, 13, 14, 15, 0, 0, 0x80, 0x3f};
    assert_int_equal(b.size, sizeof expected);
    assert_memory_equal(b.data, expected, sizeof expected);
    moe_buf_clear(&b);
    for (int i = 0; i < 100000; i++)
        moe_buf_u8(&b, (uint8_t)i);
    assert_int_equal(b.size, 100000);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(b.data[i], (uint8_t)i);
    assert_int_equal(b.data[b.size], 0);
    assert_null(moe_buf_reserve(&b, UINT64_MAX));
    assert_true(b.failed);
    moe_buf_text(&b, "lost"); /* sticky */
    assert_int_equal(b.size, 100000);
    moe_buf_release(&b);
    moe_buf_release(&b);
}

static void test_cursor(void **state)
{
    static const uint8_t data[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    struct moe_cursor c = moe_cursor_over(data, sizeof data);
    assert_int_equal(moe_cursor_u8(&c), 1);
    assert_int_equal(moe_cursor_u16(&c), 0x0302);
    assert_int_equal(moe_cursor_u32(&c), 0x07060504);
    assert_int_equal(moe_cursor_u64(&c), 0x0f0e0d0c0b0a0908u);
    assert_int_equal(moe_cursor_left(&c), 1);
    assert_null(moe_cursor_take(&c, UINT64_MAX));
    assert_true(c.failed);
    assert_int_equal(moe_cursor_u8(&c), 0); /* sticky, though a byte is left */
    assert_int_equal(moe_cursor_left(&c), 0);
    c = moe_cursor_over(NULL, 0);
    assert_int_equal(moe_cursor_u8(&c), 0);
    assert_true(c.failed);
    uint8_t out[8];
    moe_put_u64(out, 0x8877665544332211u);
    assert_int_equal(moe_get_u64(out), 0x8877665544332211u);
    assert_int_equal(moe_get_u32(out + 4), 0x88776655u);
}

/* ---- Errors ---- */

static void test_errors(void **state)
{
    struct moe_err err = {0};
    assert_int_equal(moe_fail(&err, MOE_ERR_IO, "a%db\033[2J\n%s", 1, "\xc3\xa9"), MOE_ERR_IO);
    assert_string_equal(err.text, "a1b?[2J?\xc3\xa9");
    assert_int_equal(moe_err_prefix(&err, "file %s", "x"), MOE_ERR_IO);
    assert_string_equal(err.text, "file x: a1b?[2J?\xc3\xa9");
    assert_int_equal(moe_fail(NULL, MOE_ERR_LIMIT, "nobody listens"), MOE_ERR_LIMIT);
    for (int i = 0; i < 200; i++)
        moe_err_prefix(&err, "again"); /* stays within the text */
    assert_int_equal(err.text[sizeof err.text - 1], '\0');
    char text[64];
    assert_true(strlen(moe_errno_text(ENOENT, text, sizeof text)) > 0);
    assert_true(strlen(moe_errno_text(123456, text, sizeof text)) > 0);
    moe_fail(&err, MOE_ERR_IO, "/proc/self/fd/3: cannot write");
    moe_err_rename(&err, "/proc/self/fd/4", "out");
    assert_string_equal(err.text, "/proc/self/fd/3: cannot write");
    moe_err_rename(&err, "/proc/self/fd/3", "out");
    assert_string_equal(err.text, "out: cannot write");
}

/* ---- Files ---- */

static char *scratch; /* a directory of our own */

static int make_scratch(void **state)
{
    static char name[] = "/tmp/moe-test-base-XXXXXX";
    scratch = mkdtemp(name);
    return scratch ? 0 : -1;
}

static int drop_scratch(void **state)
{
    return rmdir(scratch); /* fails when something was left behind */
}

static int entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 2;
}

static void test_outfile_is_atomic(void **state)
{
    struct moe_err err = {0};
    struct moe_outfile out;
    struct moe_buf b = {0};
    char *path = moe_path_join(scratch, "out", &err);
    assert_ok(moe_file_write_all(path, "old", 3, &err), &err);
    assert_ok(moe_outfile_open(&out, path, &err), &err);
    assert_ok(moe_outfile_write(&out, "new!", 4, 2, &err), &err);
    assert_int_equal(out.size_bytes, 6);
    assert_ok(moe_file_read_all(path, 100, &b, &err), &err);
    assert_string_equal((const char *)b.data, "old"); /* not yet */
    moe_outfile_abort(&out);
    assert_int_equal(entries(scratch), 1);
    assert_ok(moe_outfile_open(&out, path, &err), &err);
    assert_ok(moe_outfile_write(&out, "new!", 4, 2, &err), &err);
    assert_ok(moe_outfile_write(&out, "a ", 2, 0, &err), &err);
    assert_ok(moe_outfile_commit(&out, &err), &err);
    moe_buf_clear(&b);
    assert_ok(moe_file_read_all(path, 100, &b, &err), &err);
    assert_string_equal((const char *)b.data, "a new!");
    assert_int_equal(entries(scratch), 1);
    struct stat st;
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666 & ~mask);
    unlink(path);
    free(path);
    moe_buf_release(&b);
}

static void test_file_errors(void **state)
{
    struct moe_err err = {0};
    struct moe_outfile out;
    struct moe_buf b = {0};
    uint64_t size;
    char bytes[8];
    char *path = moe_path_join(scratch, "file", &err);
    assert_fails(moe_file_open(path, &size, &err), MOE_ERR_IO, "/file: cannot open: No such", &err);
    assert_fails(moe_file_open(scratch, &size, &err), MOE_ERR_FORMAT, "is a directory", &err);
    assert_fails(moe_file_open("/dev/null", &size, &err), MOE_ERR_FORMAT, "regular", &err);
    assert_fails(moe_outfile_open(&out, scratch, &err), MOE_ERR_IO, "is a directory", &err);
    assert_fails(moe_outfile_open(&out, "/nowhere/at/all", &err), MOE_ERR_IO,
                 "/nowhere/at/all: cannot create", &err);
    assert_ok(moe_file_write_all(path, "0123456789", 10, &err), &err);
    assert_fails(moe_file_read_all(path, 9, &b, &err), MOE_ERR_FORMAT, "10 bytes", &err);
    int fd = moe_file_open(path, &size, &err);
    assert_true(fd >= 0 && size == 10);
    assert_ok(moe_file_pread(fd, path, bytes, 8, 2, &err), &err);
    assert_memory_equal(bytes, "23456789", 8);
    assert_fails(moe_file_pread(fd, path, bytes, 8, 3, &err), MOE_ERR_FORMAT,
                 "ends at byte 10, 1 more were expected", &err);
    close(fd);
    unlink(path);
    /* A pipe nobody writes to is refused, not waited for. */
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_fails(moe_file_open(path, &size, &err), MOE_ERR_FORMAT, "regular", &err);
    unlink(path);
    free(path);
    moe_buf_release(&b);
}

static void test_paths(void **state)
{
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"a//", "b", "a/b"}, {"/", "b", "//b"}};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        char *path = moe_path_join(cases[i][0], cases[i][1], NULL);
        assert_string_equal(path, cases[i][2]);
        free(path);
    }
    assert_true(moe_path_is_directory(scratch) && moe_path_exists(scratch));
    assert_false(moe_path_is_directory("/dev/null") || moe_path_exists("/nowhere"));
}

/* ---- Memory ---- */

static void test_memory(void **state)
{
    struct moe_err err = {0};
    uint64_t out = 3;
    assert_true(moe_mul_u64(1ull << 32, (1ull << 32) - 1, &out) && out == -(1ull << 32));
    assert_false(moe_mul_u64(1ull << 32, 1ull << 32, &out) || moe_add_u64(UINT64_MAX, 1, &out));
    assert_true(out == -(1ull << 32) && moe_add_u64(UINT64_MAX, 0, &out));
    assert_int_equal(moe_round_up(65, 64), 128);
    assert_null(moe_alloc(UINT64_MAX, 2, &err));
    assert_int_equal(err.status, MOE_ERR_MEMORY);
    assert_null(moe_alloc(UINT64_MAX, 1, &err));
    uint8_t *p = moe_alloc(1000, 3, &err);
    assert_int_equal((uintptr_t)p % MOE_ALIGN, 0);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(p[i], 0);
    free(p);
    p = moe_alloc(0, 8, &err);
    assert_non_null(p);
    free(p);
    p = moe_pages_alloc(10000, &err);
    assert_true(p && p[9999] == 0);
    moe_pages_free(p, 10000);
    moe_pages_free(NULL, 10000);
    const uint64_t large = (5 << 20) + 1; /* a huge page fits in: it begins one */
    p = moe_pages_alloc(large, &err);
    assert_true(p && (uintptr_t)p % (2 << 20) == 0 && p[large - 1] == 0);
    memset(p, 1, large);
    moe_pages_free(p, large);
    char *copy = moe_strndup("abc", 2, &err);
    assert_string_equal(copy, "ab");
    free(copy);
    assert_true(moe_peak_rss_bytes() > 100000);
    assert_int_equal(moe_hash64("abc", 3), moe_hash64("abcd", 3));
    assert_true(moe_hash64_chain(moe_hash64("a", 1), "b", 1) !=
                moe_hash64_chain(moe_hash64("b", 1), "b", 1));
    struct moe_hasher *h = moe_hasher_new();
    for (int round = 0; round < 2; round++) {
        moe_hasher_begin(h);
        moe_hasher_add(h, "abc", 2);
        moe_hasher_add(h, "cd", 2);
        assert_true(moe_hasher_end(h) == moe_hash64("abcd", 4));
    }
    moe_hasher_free(h);
}

/* Carves like a session would; returns the last piece. */
static uint8_t *carve(struct moe_arena *arena)
{
    moe_arena_take(arena, 10, 4);
    moe_arena_take(arena, 0, 8);
    return moe_arena_take(arena, 3, 64);
}

/* Bytes between arrays of an arena: the address sanitizer's red zones. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { RED_ZONE = 64 };
static bool is_forbidden(const uint8_t *at)
{
    return __asan_address_is_poisoned(at);
}
#else
enum { RED_ZONE = 0 };
static bool is_forbidden(const uint8_t *at)
{
    return true;
}
#endif

static void test_arena(void **state)
{
    struct moe_arena counting = {0};
    assert_null(carve(&counting));
    assert_int_equal(counting.used, 64 + 192 + 3 * RED_ZONE);
    assert_false(counting.overflowed);
    uint8_t *block = moe_alloc(counting.used, 1, NULL);
    struct moe_arena arena = {.base = block, .size = counting.used};
    uint8_t *last = carve(&arena);
    assert_ptr_equal(last, block + 64 + 2 * RED_ZONE);
    memset(last, 1, 192);
    assert_true(is_forbidden(block + 40) && is_forbidden(last - 1) && is_forbidden(last + 192));
    assert_int_equal(arena.used, counting.used);
    assert_null(moe_arena_take(&arena, 1, 1));
    assert_true(arena.overflowed);
    assert_null(moe_arena_take(&arena, 0, 1)); /* sticky */
    struct moe_arena huge = {0};
    moe_arena_take(&huge, UINT64_MAX / 2, 1);
    assert_false(huge.overflowed);
    moe_arena_take(&huge, UINT64_MAX / 2 + 2, 1);
    assert_true(huge.overflowed);
    free(block);
}

/* ---- Loops and processor ---- */

struct visits {
    atomic_int seen[1000];
    atomic_int calls, bad, nested;
    int64_t n, grain;
};

static void count_nested(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct visits *v = ctx;
    /* Only a loop that has one range leaves its threads to the loop inside it. */
    if (v->grain < v->n && (begin != 0 || end != 10 || thread != 0) && moe_par_threads() > 1)
        v->bad++;
    v->nested += (int)(end - begin);
}

static void visit(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct visits *v = ctx;
    if (begin >= end || begin < 0 || end > v->n || thread < 0 || thread >= moe_par_threads() ||
        (end - begin < v->grain && end != v->n))
        v->bad++;
    for (int64_t i = begin; i < end; i++)
        v->seen[i]++;
    v->calls++;
    if (begin == 0 && v->n == 1000)
        moe_par_for(10, 1, count_nested, v);
}

static void test_par_for(void **state)
{
    static const int64_t sizes[] = {1, 2, 7, 63, 1000};
    static const int64_t grains[] = {0, 1, 3, 64, 5000};
    static struct visits v;
    for (int threads = 1; threads <= 8; threads++)
        for (size_t s = 0; s < N_ITEMS(sizes); s++)
            for (size_t g = 0; g < N_ITEMS(grains); g++) {
                memset(&v, 0, sizeof v);
                v.n = sizes[s], v.grain = grains[g];
                moe_par_set_threads(threads);
                moe_par_for(v.n, v.grain, visit, &v);
                assert_int_equal(v.bad, 0);
                for (int64_t i = 0; i < v.n; i++)
                    assert_int_equal(v.seen[i], 1);
                assert_int_equal(v.nested, v.n == 1000 ? 10 : 0);
            }
    memset(&v, 0, sizeof v);
    moe_par_for(0, 1, visit, &v);
    moe_par_for(-5, 1, visit, &v);
    assert_int_equal(v.calls, 0);
    moe_par_set_threads(0);
    assert_int_equal(moe_par_threads(), 1);
    moe_par_set_threads(100000);
    assert_int_equal(moe_par_threads(), MOE_MAX_THREADS);
    moe_par_set_threads(1);
    assert_in_range(moe_cores_available(), 1, MOE_MAX_THREADS);
}

static void test_cpu_levels(void **state)
{
    assert_true(moe_cpu_supports(MOE_CPU_SCALAR));
    assert_true(moe_cpu_supports(moe_cpu_detect()));
    assert_false(moe_cpu_supports(MOE_CPU_N_LEVELS));
    for (int level = 0; level < MOE_CPU_N_LEVELS; level++)
        assert_int_equal(moe_cpu_level_parse(moe_cpu_level_name((enum moe_cpu_level)level)), level);
    assert_int_equal(moe_cpu_level_parse("sse9"), -1);
    assert_string_equal(moe_cpu_level_name((enum moe_cpu_level)99), "?");
}

/* ---- Parallel loops ---- */

struct team_seen {
    int wanted, seen;
    uint8_t done[5000];
    uint64_t sum;
};

static void add_up(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct team_seen *t = ctx;
    if (thread >= t->wanted)
        return; /* nothing is done: the caller notices */
    for (int64_t i = begin; i < end; i++)
        t->done[i]++;
}

static void *run_team(void *arg)
{
    struct team_seen *t = arg;
    moe_par_set_team(t->wanted);
    t->seen = moe_par_threads();
    for (int round = 0; round < 50; round++) {
        memset(t->done, 0, sizeof t->done);
        moe_par_for(5000, 7, add_up, t);
        for (int i = 0; i < 5000; i++)
            t->sum += t->done[i];
    }
    return NULL;
}

/* Threads compute side by side, each with a team of its own size. */
static void test_teams(void **state)
{
    enum { N = 3 };
    static struct team_seen teams[N];
    pthread_t threads[N];
    (void)state;
    moe_par_set_threads(2);
    for (int i = 0; i < N; i++) {
        teams[i].wanted = i + 1;
        assert_int_equal(pthread_create(&threads[i], NULL, run_team, &teams[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(teams[i].seen, i + 1);
        assert_int_equal(teams[i].sum, 50 * 5000);
    }
    assert_int_equal(moe_par_threads(), 2); /* of this thread, as before */
    assert_int_equal(moe_par_set_team(3), 0);
    assert_int_equal(moe_par_threads(), 3);
    assert_int_equal(moe_par_set_team(0), 3);
    assert_int_equal(moe_par_threads(), 2);
    moe_par_set_threads(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_teams),
        cmocka_unit_test(test_parse_bytes),
        cmocka_unit_test(test_parse_numbers),
        cmocka_unit_test(test_format_bytes),
        cmocka_unit_test(test_utf8_every_character),
        cmocka_unit_test(test_utf8_any_bytes),
        cmocka_unit_test(test_visible),
        cmocka_unit_test(test_f16_every_value),
        cmocka_unit_test(test_f16_rounding),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_buf),
        cmocka_unit_test(test_cursor),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_outfile_is_atomic),
        cmocka_unit_test(test_file_errors),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_par_for),
        cmocka_unit_test(test_cpu_levels),
    };
    return cmocka_run_group_tests_name("base", tests, make_scratch, drop_scratch);
}
