/* Bars and paragraphs. */
#include "../test.h"
#include "show/draw.h"

static const char *text_of(struct moe_buf *out)
{
    assert_false(out->failed);
    return out->data ? (const char *)out->data : "";
}

static void expect_bar(double share, uint32_t width, bool blocks, const char *want)
{
    struct moe_buf out = {0};
    moe_draw_bar(&out, share, width, (struct moe_screen){80, blocks, false});
    assert_string_equal(text_of(&out), want);
    moe_buf_release(&out);
}

static void bars(void **state)
{
    expect_bar(0.5, 8, false, "####");
    expect_bar(1, 4, false, "####");
    expect_bar(7, 4, false, "####");
    expect_bar(0.1, 4, false, "");
    expect_bar(0.125, 4, false, "#"); /* half a cell */
    expect_bar(0, 8, true, "");
    expect_bar(-1, 8, true, "");
    expect_bar(0.0 / 0.0, 8, true, "");
    expect_bar(0.5, 4, true, "\xe2\x96\x88\xe2\x96\x88");
    expect_bar(0.5, 3, true, "\xe2\x96\x88\xe2\x96\x8c"); /* one and a half */
    expect_bar(1.0 / 64, 8, true, "\xe2\x96\x8f");        /* an eighth */
}

static void figures(void **state)
{
    char room[32];
    assert_string_equal(moe_format_speed(3.949, room), "3.95");
    assert_string_equal(moe_format_speed(39.46, room), "39.5");
    assert_string_equal(moe_format_speed(-1, room), "?");
    assert_string_equal(moe_format_percent(0.7, room), "70.0%");
    assert_string_equal(moe_format_percent(0.0 / 0.0, room), "?");
    assert_string_equal(moe_format_rate(1.2e9, room), "1.20 GB/s");
    assert_string_equal(moe_format_rate(16e6, room), "16.0 MB/s");
    assert_string_equal(moe_format_seconds(16e-6, room), "16.0 us");
    assert_string_equal(moe_format_seconds(1.25e-3, room), "1.25 ms");
    assert_string_equal(moe_format_layers(3, 1, room), "3");
    assert_string_equal(moe_format_layers(3, 3, room), "3-5");
    struct moe_buf out = {0};
    moe_draw_percent(&out, 0.123, 7);
    moe_draw_percent(&out, 1, 7);
    moe_draw_percent(&out, -1, 4);
    moe_draw_percent(&out, 0.0 / 0.0, 2);
    assert_string_equal(text_of(&out), "  12.3% 100.0%   - -");
    moe_buf_release(&out);
}

static void shades(void **state)
{
    static const double amounts[] = {0, 1, 1.1, 4, 4.1, 8, 8.1, 16, 16.1}; /* 8 is usual */
    static const char want[] = "  ..::oo#";
    for (size_t i = 0; i < N_ITEMS(amounts); i++)
        assert_int_equal(moe_draw_shade(amounts[i], 8, MOE_PLAIN_SCREEN)[0], want[i]);
    assert_string_equal(moe_draw_shade(17, 8, (struct moe_screen){80, true, false}),
                        "\xe2\x96\x88");
}

static void paragraphs(void **state)
{
    struct moe_buf out = {0};
    moe_draw_paragraph(&out, MOE_PLAIN_SCREEN, "1.", 4, "short");
    assert_string_equal(text_of(&out), "1.  short\n");
    moe_buf_clear(&out);
    char words[201];
    for (int i = 0; i < 200; i++) /* ten columns each */
        words[i] = i % 10 == 9 ? ' ' : 'a';
    words[199] = 0;
    moe_draw_paragraph(&out, MOE_PLAIN_SCREEN, NULL, 2, words);
    int lines = 0, length = 0, most = 0;
    for (const char *c = text_of(&out); *c; c++) {
        lines += *c == '\n';
        length = *c == '\n' ? 0 : length + 1;
        most = length > most ? length : most;
    }
    assert_int_equal(lines, 3); /* 7 words of 9 letters go into 78 columns, 8 (79) do not */
    assert_int_equal(most, 2 + 6 * 10 + 9);
    moe_buf_clear(&out);
    memset(words, 'b', 100);
    words[100] = 0;
    moe_draw_paragraph(&out, MOE_PLAIN_SCREEN, NULL, 0, words); /* a word that is cut */
    assert_int_equal(out.size, 102);
    assert_int_equal(text_of(&out)[80], '\n');
    moe_buf_clear(&out);
    moe_draw_paragraph(&out, MOE_PLAIN_SCREEN, NULL, 0, "");
    assert_int_equal(out.size, 0);
    moe_buf_release(&out);
}

static void fits(const char *text, uint32_t columns, const char *want)
{
    struct moe_buf out = {0};
    moe_buf_text(&out, text);
    moe_draw_fit(&out, (struct moe_screen){.columns = columns});
    assert_string_equal(text_of(&out), want);
    moe_buf_release(&out);
}

static void wide_lines_are_broken(void **state)
{
    const char *words =
        "  a table's line of more than sixty columns, which a narrow screen has not\n";
    fits(words, 80, words);
    fits(words, 60,
         "  a table's line of more than sixty columns, which a narrow\n      screen has not\n");
    fits("short\n\nlast", 60, "short\n\nlast");
    fits("", 60, "");
    /* A column for each character, none for colours; what has no blank is cut. */
    fits(
        "\033[1m\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88"
        "\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\033[0m a bar of ten and forty-nine more, "
        "all in a line.\n",
        60,
        "\033[1m\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88"
        "\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\033[0m a bar of ten and forty-nine more, "
        "all in a line.\n");
    char long_word[101], want[110];
    memset(long_word, 'x', 100);
    long_word[100] = 0;
    snprintf(want, sizeof want, "%.60s\n    %.40s", long_word, long_word);
    fits(long_word, 60, want);
}

static void columns_follow_the_screen(void **state)
{
    const uint32_t screens[] = {60, 70, 80, 100, 200}, want[] = {8, 14, 24, 44, 48};
    for (size_t i = 0; i < N_ITEMS(screens); i++)
        assert_int_equal(moe_draw_columns((struct moe_screen){screens[i], false, false}, 24, 48),
                         want[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bars),
        cmocka_unit_test(figures),
        cmocka_unit_test(shades),
        cmocka_unit_test(paragraphs),
        cmocka_unit_test(wide_lines_are_broken),
        cmocka_unit_test(columns_follow_the_screen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
