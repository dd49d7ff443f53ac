/*
 * Every slot of the kernel table, at every level this machine has, against the reference: the same
 * bits. The reference itself against double precision.
 *
 * Outputs lie between guard values that must survive.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "../test.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"
#include "kern/kern.h"
#include "kern/kern_math.h"
#include "kern/matmul.h"

#define GUARD 0x5ca1ab1eu

static struct moe_kern ref;
static struct moe_kern levels[MOE_CPU_N_LEVELS];
static int n_levels;

static void load_tables(void)
{
    struct moe_err err;
    assert_ok(moe_kern_fill(&ref, MOE_CPU_SCALAR, &err), &err);
    for (int level = MOE_CPU_SCALAR + 1; level < MOE_CPU_N_LEVELS; level++) {
        struct moe_kern *kern = &levels[n_levels];
        if (!moe_cpu_supports((enum moe_cpu_level)level))
            continue;
        assert_ok(moe_kern_fill(kern, (enum moe_cpu_level)level, &err), &err);
        printf("# level %s\n", moe_cpu_level_name(kern->level));
        n_levels++;
    }
}

/* Buffers end where a page begins that nobody may read: whoever reads past their ends dies. */
enum { MOST_TAKEN = 64 };
static struct {
    void *buffer, *pages;
    size_t bytes;
} taken[MOST_TAKEN];

/* n * item_bytes zeros. Where their size is no multiple of `aligned`, fewer than that many bytes
 * lie behind them. */
static void *take_aligned(uint64_t n, uint64_t item_bytes, uint64_t aligned)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), bytes = n * item_bytes;
    const uint64_t room = moe_round_up(bytes, page);
    int i = 0;
    while (i < MOST_TAKEN && taken[i].buffer)
        i++;
    assert_true(i < MOST_TAKEN);
    uint8_t *pages =
        mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + room, page, PROT_NONE), 0);
    taken[i].pages = pages;
    taken[i].bytes = room + page;
    return taken[i].buffer = pages + ((room - bytes) & ~(aligned - 1));
}
static void *take(uint64_t n, uint64_t item_bytes)
{
    return take_aligned(n, item_bytes, MOE_ALIGN);
}
static void *take_exact(uint64_t n, uint64_t item_bytes)
{
    return take_aligned(n, item_bytes, 1);
}
static void give_back(void *buffer)
{
    for (int i = 0; buffer && i < MOST_TAKEN; i++)
        if (taken[i].buffer == buffer) {
            assert_int_equal(munmap(taken[i].pages, taken[i].bytes), 0);
            taken[i].buffer = NULL;
            return;
        }
    assert_null(buffer);
}

/* ---- Test matrices and inputs ---- */

/* How values are drawn. */
enum flavour {
    ORDINARY,
    WORST,  /* all codes at their largest, activations +-127 with one sign */
    WIDE,   /* scales and inputs from subnormal to huge */
    SPARSE, /* many zeros, of both signs */
    N_FLAVOURS
};

static float draw(uint64_t *seed, enum flavour flavour)
{
    float v = test_uniform(seed);
    switch (flavour) {
    case WORST:
        return v < 0 ? -3.0f : 3.0f;
    case WIDE:
        return ldexpf(v, (int)(test_random(seed) % 60) - 30);
    case SPARSE:
        return test_random(seed) % 4 ? (v < 0 ? -0.0f : 0.0f) : v;
    default:
        return v;
    }
}

/* WIDE weights in f16: any finite value, subnormals too. */
static uint16_t draw_f16(uint64_t *seed, enum flavour flavour)
{
    if (flavour != WIDE)
        return moe_f32_to_f16(draw(seed, flavour) * 0.1f);
    uint16_t bits = (uint16_t)test_random(seed);
    return (bits & 0x7c00) == 0x7c00 ? bits & 0x83ff : bits;
}

struct sample {
    struct moe_mat mat;
    uint8_t *data;
    float *m; /* offset of every (row, column), for error bounds; NULL where there are none */
};

static void fill_affine(struct sample *s, uint64_t *seed, enum flavour flavour)
{
    struct moe_mat *mat = &s->mat;
    uint32_t group = mat->layout.group ? mat->layout.group : mat->cols;
    uint32_t largest = (1u << moe_layout_bits(mat->layout.kind)) - 1;
    uint8_t *codes = take_exact(group, 1);
    s->m = take_exact((uint64_t)mat->rows * mat->cols, sizeof *s->m);
    for (uint32_t r = 0; r < mat->rows; r++)
        for (uint32_t g = 0; g * group < mat->cols; g++) {
            struct moe_group_codes gc = {draw_f16(seed, flavour), draw_f16(seed, flavour), codes};
            float m = moe_f16_to_f32(gc.m);
            if (moe_kind_has_zeros(mat->layout.kind)) {
                uint32_t e = (uint32_t)(test_random(seed) % (flavour == WIDE ? 60 : 4));
                gc.m = (uint16_t)(test_random(seed) % (largest + 2) | e << 9);
                m = moe_zero_scales(moe_f16_to_f32(gc.d), gc.m).m;
            }
            for (uint32_t c = 0; c < group; c++) {
                codes[c] = (uint8_t)(flavour == WORST ? largest : test_random(seed) & largest);
                if (g * group + c < mat->cols)
                    s->m[(uint64_t)r * mat->cols + g * group + c] = m;
            }
            moe_layout_store_group(s->data, mat->layout, mat->cols, r, g, &gc);
        }
    give_back(codes);
}

/* Exponents that the sums stay finite with; WIDE ones from the smallest on, which are subnormal. */
static uint8_t draw_exponent(uint64_t *seed, enum flavour flavour)
{
    if (flavour != WIDE)
        return (uint8_t)(118 + test_random(seed) % 12);
    return (uint8_t)(test_random(seed) % (test_random(seed) % 4 ? 200 : 3));
}

/* The codes whose numbers are largest and smallest. */
static uint8_t worst_code(uint16_t kind, bool largest)
{
    const int n = 1 << moe_layout_bits(kind);
    int32_t best = 0;
    for (int code = 0; code < n; code++) {
        int32_t number = moe_layout_number(kind, code), old = moe_layout_number(kind, best);
        best = (largest ? number > old : number < old) ? code : best;
    }
    return (uint8_t)best;
}

/* The number of the entry of a grid whose magnitudes are largest. */
static uint32_t worst_number(int kind)
{
    const uint32_t n = kind == MOE_LAYOUT_IQ2_XS || kind == MOE_LAYOUT_IQ3_S ? 512
                       : kind == MOE_LAYOUT_IQ2_S                            ? 1024
                       : moe_kind_is_iq1(kind)                               ? 2048
                                                                             : 256;
    uint32_t worst = 0, most = 0;
    for (uint32_t number = 0; number < n; number++) {
        uint32_t entry = moe_grid_entry(kind, number), sum = 0;
        for (int at = 0; at < 32; at += moe_kind_is_iq3(kind) ? 4 : 2)
            sum += entry >> at & (moe_kind_is_iq3(kind) ? 15 : 3);
        if (sum > most) {
            most = sum;
            worst = number;
        }
    }
    return worst;
}

/* A span of numbers of a grid: any, or the worst with all signs alike. */
static void fill_numbers(struct moe_span_codes *codes, int kind, bool negative, uint64_t *seed,
                         enum flavour flavour)
{
    const uint32_t number = worst_number(kind), words = moe_kind_is_iq3(kind) ? 2 : 1;
    for (uint32_t i = 0; i < 256; i++)
        codes->codes[i] = (uint8_t)test_random(seed);
    for (uint32_t i = 0; i < 16; i++)
        codes->t[i] = (uint8_t)test_random(seed);
    for (uint32_t b = 0; flavour == WORST && b < 8; b++) {
        const bool xs = kind == MOE_LAYOUT_IQ2_XS;
        memset(codes->codes + 32 * b, (int)(number & 255), 4 * words);
        memset(codes->codes + 32 * b + 4 * words, negative ? 255 : 0, 4);
        codes->codes[32 * b + 4 * words + 3] &= xs ? 0x55 : 255;
        if (xs)
            codes->codes[32 * b + 4 * words + 3] |= number >> 8 ? 0xaa : 0;
        if (kind == MOE_LAYOUT_IQ2_S || kind == MOE_LAYOUT_IQ3_S)
            codes->t[b] = (uint8_t)((number >> 8) * (kind == MOE_LAYOUT_IQ2_S ? 0x55 : 0xff));
        else if (moe_kind_is_iq1(kind))
            codes->t[2 * b] = codes->t[2 * b + 1] =
                (uint8_t)((number >> 8) * 0x11 | (negative ? 0x88 : 0));
    }
}

/* What checkpoints' blocks hold: any codes, any scales. */
static void fill_spans(struct sample *s, uint64_t *seed, enum flavour flavour)
{
    struct moe_mat *mat = &s->mat;
    const uint16_t kind = mat->layout.kind;
    uint32_t span = moe_kind_span(kind), scales = span / 32 * (uint32_t)moe_kind_scales(kind);
    if (moe_kind_has_offset(kind))
        s->m = take_exact((uint64_t)mat->rows * mat->cols, sizeof *s->m);
    for (uint32_t r = 0; r < mat->rows; r++)
        for (uint32_t i = 0; i * span < mat->cols; i++) {
            struct moe_span_codes codes = {.d = draw_f16(seed, flavour),
                                           .m = draw_f16(seed, flavour),
                                           .factor = draw(seed, flavour)};
            uint32_t sixes = moe_kind_packed(kind)        ? 16u << moe_kind_packed_high(kind)
                             : moe_kind_scale_has_e(kind) ? 128
                             : kind == MOE_LAYOUT_IQ1_M   ? 8
                             : kind == MOE_LAYOUT_Q2_K || moe_kind_scale_unit(kind) > 0.0f ? 16
                                                                                           : 256;
            for (uint32_t k = 0; k < scales; k++) {
                codes.s[k] = (uint8_t)(test_random(seed) % sixes);
                codes.t[k] = (uint8_t)(moe_kind_has_min(kind) ? test_random(seed) % sixes : 0);
                if (moe_kind_shift(kind))
                    codes.t[k] = test_random(seed) % 2;
                if (flavour == WORST && !moe_kind_is_e2m1(kind))
                    codes.s[k] = (uint8_t)(sixes - 1);
                if (kind == MOE_LAYOUT_MXFP4)
                    codes.s[k] = draw_exponent(seed, flavour);
                else if (moe_kind_is_e2m1(kind))
                    codes.s[k] %= 0x7f;
            }
            for (uint32_t c = 0; c < span; c++)
                codes.codes[c] = flavour == WORST ? worst_code(kind, r % 2)
                                 : kind == MOE_LAYOUT_TQ1_0
                                     ? test_random(seed) % 3
                                     : test_random(seed) % (1u << moe_layout_bits(kind));
            const bool any = moe_kind_is_trellis(kind) || kind == MOE_LAYOUT_IQ2_KL;
            for (uint32_t c = 0; any && c < span; c++) {
                codes.codes[c] = (uint8_t)test_random(seed);
                codes.t[c % 16] = (uint8_t)test_random(seed);
            }
            if (moe_kind_scale_unit(kind) > 0.0f)
                fill_numbers(&codes, kind, r % 2, seed, flavour);
            for (uint32_t c = 0; s->m && c < span && i * span + c < mat->cols; c++)
                s->m[(uint64_t)r * mat->cols + i * span + c] =
                    moe_kind_scales_of(kind, moe_f16_to_f32(codes.d), moe_f16_to_f32(codes.m),
                                       codes.s[c * scales / span], codes.t[c * scales / span])
                        .m *
                    (moe_kind_front(kind) ? codes.factor : 1);
            moe_layout_store_span(s->data, mat->layout, mat->cols, r, i, &codes);
        }
}

/* Floats of few bits; where rows share a scale, all have the first's. */
static void fill_scaled(struct sample *s, uint64_t *seed, enum flavour flavour)
{
    const struct moe_mat *mat = &s->mat;
    const uint16_t kind = mat->layout.kind;
    const uint32_t step = mat->layout.group ? mat->layout.group : 32;
    const uint8_t worst = moe_kind_is_f8(kind) ? 0x7e : kind == MOE_LAYOUT_NF4 ? 15 : 3;
    for (uint32_t i = 0; i * step < mat->cols; i++) {
        struct moe_span_codes codes = {.factor = 0};
        for (uint32_t r = 0; r < mat->rows; r++) {
            if (kind != MOE_LAYOUT_F8_B || r == 0)
                codes.factor = draw(seed, flavour);
            for (uint32_t c = 0; c < step; c++) {
                uint32_t any = (uint32_t)test_random(seed) & ((1u << moe_layout_bits(kind)) - 1);
                codes.codes[c] = flavour == WORST ? worst : (uint8_t)any;
            }
            moe_layout_store_span(s->data, mat->layout, mat->cols, r, i, &codes);
        }
    }
}

static struct sample sample_new(uint16_t kind, uint32_t group, uint32_t rows, uint32_t cols,
                                uint64_t *seed, enum flavour flavour)
{
    struct sample s = {.mat = {.layout = {kind, group}, .rows = rows, .cols = cols}};
    assert_true(moe_layout_valid(s.mat.layout));
    s.data = take(1, moe_layout_bytes(s.mat.layout, rows, cols));
    s.mat.data = s.data;
    if (!moe_layout_is_float(kind)) {
        if (moe_kind_is_scaled(kind))
            fill_scaled(&s, seed, flavour);
        else if (moe_kind_span(kind))
            fill_spans(&s, seed, flavour);
        else
            fill_affine(&s, seed, flavour);
        return s;
    }
    float *row = take_exact(cols, sizeof *row);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++)
            row[c] = kind == MOE_LAYOUT_F16 ? moe_f16_to_f32(draw_f16(seed, flavour))
                                            : draw(seed, flavour);
        moe_layout_store_row(s.data, s.mat.layout, cols, r, row);
    }
    give_back(row);
    return s;
}

static void sample_free(struct sample *s)
{
    give_back(s->data);
    give_back(s->m);
}

/* A tile of nt random inputs in both forms, to the byte. */
struct inputs {
    float *x; /* [cols][nt] */
    int8_t *q;
    float *s, *z;
    struct moe_sums *sum;
    struct moe_tile tile;
};

static struct inputs inputs_new(uint32_t cols, uint32_t block, int nt, uint64_t *seed,
                                enum flavour flavour)
{
    uint64_t n = (uint64_t)nt, blocks = block ? (cols + block - 1) / block : 0;
    struct inputs in = {.x = take_exact(n * cols, sizeof(float)),
                        .q = take_exact(n * blocks * block, 1),
                        .s = take_exact(n * blocks, sizeof(float)),
                        .z = take_exact(n * blocks, sizeof(float)),
                        .sum = take_exact(n * blocks, sizeof(struct moe_sums))};
    float *row = take_exact(cols, sizeof *row);
    for (int t = 0; t < nt; t++) {
        float sign = test_uniform(seed) < 0 ? -1.0f : 1.0f;
        for (uint32_t c = 0; c < cols; c++) {
            row[c] = flavour == WORST ? 3.0f * sign : draw(seed, flavour);
            in.x[(uint64_t)c * n + (uint64_t)t] = row[c];
        }
        if (block)
            ref.quantize(row, cols, block, nt, t, in.q, in.s, in.z, in.sum);
    }
    give_back(row);
    in.tile = (struct moe_tile){block ? NULL : in.x, in.q, in.s, in.z, in.sum};
    return in;
}

static void inputs_free(struct inputs *in)
{
    give_back(in->x);
    give_back(in->q);
    give_back(in->s);
    give_back(in->z);
    give_back(in->sum);
}

static uint32_t bits_of(float v)
{
    return moe_f32_bits(v);
}

static void fill_guards(float *y, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        y[i] = moe_bits_f32(GUARD);
}

/* ---- Panels ---- */

struct panel_case {
    uint16_t kind;
    uint32_t group, cols;
    int nt;
    enum flavour flavour;
};

static const uint16_t kinds[] = {
    MOE_LAYOUT_F32,     MOE_LAYOUT_F16,    MOE_LAYOUT_BF16,   MOE_LAYOUT_Q8,
    MOE_LAYOUT_Q5,      MOE_LAYOUT_Q4,     MOE_LAYOUT_Q3,     MOE_LAYOUT_Q2,
    MOE_LAYOUT_MXFP4,   MOE_LAYOUT_Q4_0,   MOE_LAYOUT_Q5_0,   MOE_LAYOUT_Q6_0,
    MOE_LAYOUT_Q8_0,    MOE_LAYOUT_IQ4_NL, MOE_LAYOUT_Q2_K,   MOE_LAYOUT_Q3_K,
    MOE_LAYOUT_Q4_K,    MOE_LAYOUT_Q5_K,   MOE_LAYOUT_Q6_K,   MOE_LAYOUT_IQ4_XS,
    MOE_LAYOUT_NVFP4,   MOE_LAYOUT_TQ2_0,  MOE_LAYOUT_IQ1_S,  MOE_LAYOUT_IQ1_M,
    MOE_LAYOUT_IQ2_XXS, MOE_LAYOUT_IQ2_XS, MOE_LAYOUT_IQ2_S,  MOE_LAYOUT_IQ3_XXS,
    MOE_LAYOUT_IQ3_S,   MOE_LAYOUT_Q1_0,   MOE_LAYOUT_Q2_0,   MOE_LAYOUT_TQ1_0,
    MOE_LAYOUT_Q8_Z,    MOE_LAYOUT_Q4_Z,   MOE_LAYOUT_Q3_Z,   MOE_LAYOUT_Q2_Z,
    MOE_LAYOUT_NVFP4_T, MOE_LAYOUT_IQ2_K,  MOE_LAYOUT_IQ2_KS, MOE_LAYOUT_IQ3_K,
    MOE_LAYOUT_IQ3_KS,  MOE_LAYOUT_IQ4_K,  MOE_LAYOUT_IQ4_KS, MOE_LAYOUT_IQ5_K,
    MOE_LAYOUT_IQ5_KS,  MOE_LAYOUT_IQ6_K,  MOE_LAYOUT_IQ1_KT, MOE_LAYOUT_IQ2_KT,
    MOE_LAYOUT_IQ3_KT,  MOE_LAYOUT_IQ4_KT, MOE_LAYOUT_IQ2_KL, MOE_LAYOUT_F8,
    MOE_LAYOUT_F8_B,    MOE_LAYOUT_I8,     MOE_LAYOUT_NF4,    MOE_LAYOUT_FP4};
static const uint32_t groups[] = {0, 32, 64, 128};
static const uint32_t widths[] = {1,   7,   31,  32,  33,  64,  65,  96,
                                  100, 127, 128, 192, 200, 257, 512, 768};
/* Sanitizers judge where is read and written, which more whole blocks do not change. */
#ifdef __SANITIZE_ADDRESS__
enum { N_WIDTHS = N_ITEMS(widths) - 2 };
#else
enum { N_WIDTHS = N_ITEMS(widths) };
#endif

static int log2_of(int nt)
{
    return nt == 1 ? 0 : nt == 2 ? 1 : nt == 4 ? 2 : nt == 8 ? 3 : 4;
}

/* Calls fn for every case. */
static void each_panel_case(void (*fn)(const struct panel_case *c, uint64_t *seed))
{
    uint64_t seed = 1;
    for (unsigned k = 0; k < N_ITEMS(kinds); k++)
        for (unsigned g = 0; g < N_ITEMS(groups); g++)
            for (unsigned w = 0; w < N_WIDTHS; w++)
                for (int nt = 1; nt <= MOE_TILE; nt *= 2)
                    for (int f = 0; f < N_FLAVOURS; f++) {
                        struct panel_case c = {kinds[k], groups[g], widths[w], nt, (enum flavour)f};
                        if (moe_layout_valid((struct moe_layout){c.kind, c.group}) &&
                            (!moe_kind_is_scaled(c.kind) || c.cols % 32 == 0))
                            fn(&c, &seed);
                    }
}

static void compare_panel(const struct panel_case *c, uint64_t *seed)
{
    enum { ROWS = 32, STRIDE = 21, BEFORE = 16 };
    struct sample s = sample_new(c->kind, c->group, ROWS, c->cols, seed, c->flavour);
    struct inputs in =
        inputs_new(c->cols, moe_act_block_for(s.mat.layout), c->nt, seed, c->flavour);
    uint64_t room = BEFORE + (uint64_t)c->nt * STRIDE;
    float *want = take_exact(room, sizeof *want), *got = take_exact(room, sizeof *got);
    int row = moe_kern_layout_index(c->kind), column = log2_of(c->nt);
    for (uint32_t p = 0; p < ROWS / MOE_PANEL_ROWS; p++) {
        const uint8_t *panel = s.data + p * moe_layout_panel_bytes(s.mat.layout, c->cols);
        fill_guards(want, room);
        ref.panel[row][column](panel, s.mat.layout, c->cols, &in.tile, want + BEFORE, STRIDE);
        for (uint64_t i = 0; i < room; i++)
            if ((bits_of(want[i]) == GUARD) != (i < BEFORE || (i - BEFORE) % STRIDE >= 16))
                fail_msg("the reference wrote where it should not, or not where it should");
        for (int l = 0; l < n_levels; l++) {
            fill_guards(got, room);
            levels[l].panel[row][column](panel, s.mat.layout, c->cols, &in.tile, got + BEFORE,
                                         STRIDE);
            for (uint64_t i = 0; i < room; i++)
                if (bits_of(got[i]) != bits_of(want[i]))
                    fail_msg("%s %s group %u cols %u nt %d flavour %d, at %d: %a, reference %a",
                             moe_cpu_level_name(levels[l].level), moe_layout_name(c->kind),
                             c->group, c->cols, c->nt, c->flavour, (int)i - BEFORE, (double)got[i],
                             (double)want[i]);
        }
    }
    give_back(want);
    give_back(got);
    inputs_free(&in);
    sample_free(&s);
}

static void test_panels_equal_reference(void **state)
{
    (void)state;
    each_panel_case(compare_panel);
}

static void compare_few_panels(const struct panel_case *c, uint64_t *seed)
{
    enum { BEFORE = 16, ROWS = MOE_FEW_PANELS * MOE_PANEL_ROWS, ROOM = BEFORE + ROWS + 16 };
    if (c->nt > 1 || !moe_layout_takes_floats(c->kind))
        return;
    struct sample s = sample_new(c->kind, c->group, ROWS, c->cols, seed, c->flavour);
    struct inputs in = inputs_new(c->cols, 0, 1, seed, c->flavour);
    float *want = take_exact(ROOM, sizeof *want), *got = take_exact(ROOM, sizeof *got);
    const int row = moe_kern_layout_index(c->kind);
    fill_guards(want, ROOM);
    for (uint32_t p = 0; p < MOE_FEW_PANELS; p++)
        ref.panel[row][0](s.data + p * moe_layout_panel_bytes(s.mat.layout, c->cols), s.mat.layout,
                          c->cols, &in.tile, want + BEFORE + p * MOE_PANEL_ROWS, 0);
    for (int l = 0; l < n_levels; l++) {
        if (!levels[l].few_panels[row])
            continue;
        fill_guards(got, ROOM);
        levels[l].few_panels[row](s.data, s.mat.layout, c->cols, &in.tile, got + BEFORE, 0);
        if (memcmp(got, want, ROOM * sizeof *got))
            fail_msg("%s %s group %u cols %u flavour %d", moe_cpu_level_name(levels[l].level),
                     moe_layout_name(c->kind), c->group, c->cols, c->flavour);
    }
    give_back(want);
    give_back(got);
    inputs_free(&in);
    sample_free(&s);
}

static void test_few_panels_equal_reference(void **state)
{
    (void)state;
    each_panel_case(compare_few_panels);
}

/* Column c of input t as the kernels see it. */
static double input_value(const struct inputs *in, uint32_t block, int nt, int t, uint32_t c)
{
    uint64_t n = (uint64_t)nt, at = (uint64_t)t;
    if (block == 0)
        return in->x[c * n + at];
    return (double)in->s[c / block * n + at] * in->q[(c / 4 * n + at) * 4 + c % 4];
}

/* The reference does at most cols + 8 roundings on the way to a sum (fewer for quantized layouts),
 * each of at most 2^-24 of the sum of magnitudes; load_row rounds each weight twice. Values below
 * 2^-126 lose more, absolutely. */
static void check_reference(const struct panel_case *c, uint64_t *seed)
{
    if (c->nt > 1 && c->nt < MOE_TILE) /* it has one loop for all inputs */
        return;
    struct sample s = sample_new(c->kind, c->group, MOE_PANEL_ROWS, c->cols, seed, c->flavour);
    uint32_t block = moe_act_block_for(s.mat.layout);
    struct inputs in = inputs_new(c->cols, block, c->nt, seed, c->flavour);
    float y[MOE_TILE * MOE_PANEL_ROWS], *row = take_exact(c->cols, sizeof *row);
    ref.panel[moe_kern_layout_index(c->kind)][log2_of(c->nt)](s.data, s.mat.layout, c->cols,
                                                              &in.tile, y, MOE_PANEL_ROWS);
    for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++) {
        moe_layout_load_row(&s.mat, r, row);
        for (int t = 0; t < c->nt; t++) {
            double sum = 0, magnitude = 0;
            for (uint32_t i = 0; i < c->cols; i++) {
                double x = input_value(&in, block, c->nt, t, i);
                double m = s.m ? fabs((double)s.m[r * c->cols + i]) : 0;
                sum += row[i] * x;
                magnitude += (fabs((double)row[i]) + 2 * m) * fabs(x);
            }
            double error = fabs(y[t * MOE_PANEL_ROWS + (int)r] - sum);
            if (!(error <= (c->cols + 8) * 0x1p-24 * magnitude + c->cols * 0x1p-139))
                fail_msg("%s group %u cols %u: %a, should be %a", moe_layout_name(c->kind),
                         c->group, c->cols, (double)y[t * MOE_PANEL_ROWS + (int)r], sum);
        }
    }
    give_back(row);
    inputs_free(&in);
    sample_free(&s);
}

static void test_reference_panels_against_double(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* the reference has run for each case above */
#endif
    each_panel_case(check_reference);
}

/* 8-bit codes, a whole row in one group and the largest sums there are: 32 bits must do. */
static void test_wide_row_of_one_group(void **state)
{
    (void)state;
    uint64_t seed = 5;
    struct panel_case c = {MOE_LAYOUT_Q8, 0, 14336, MOE_TILE, WORST};
    compare_panel(&c, &seed);
    check_reference(&c, &seed);
}

/* ---- Quantizing inputs ---- */

struct quantized {
    int8_t *q;
    float *s, *z;
    struct moe_sums *sum;
    uint64_t n_q, n_s;
};

static struct quantized quantized_new(uint32_t cols, uint32_t block, int nt)
{
    uint64_t blocks = (cols + block - 1) / block * (uint64_t)nt;
    struct quantized out = {take_exact(blocks * block, 1),
                            take_exact(blocks, 4),
                            take_exact(blocks, 4),
                            take_exact(blocks, sizeof(struct moe_sums)),
                            blocks * block,
                            blocks};
    memset(out.q, 0x33, out.n_q);
    fill_guards(out.s, out.n_s);
    fill_guards(out.z, out.n_s);
    memset(out.sum, 0x33, out.n_s * sizeof *out.sum);
    return out;
}

static void quantized_free(struct quantized *out)
{
    give_back(out->q);
    give_back(out->s);
    give_back(out->z);
    give_back(out->sum);
}

/* NaNs may differ in sign and payload. */
static bool same_or_nan(const float *a, const float *b, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (bits_of(a[i]) != bits_of(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

static bool same_sums(const struct moe_sums *a, const struct moe_sums *b, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(a[i].less, b[i].less, sizeof a->less) || !same_or_nan(a[i].z, b[i].z, 2))
            return false;
    return true;
}

static void compare_quantize(const float *x, uint32_t cols, uint32_t block, int nt)
{
    int t = nt / 2; /* the other inputs' places keep their guards */
    struct quantized want = quantized_new(cols, block, nt);
    ref.quantize(x, cols, block, nt, t, want.q, want.s, want.z, want.sum);
    for (int l = 0; l < n_levels; l++) {
        struct quantized got = quantized_new(cols, block, nt);
        levels[l].quantize(x, cols, block, nt, t, got.q, got.s, got.z, got.sum);
        if (memcmp(want.q, got.q, want.n_q) || !same_or_nan(want.s, got.s, want.n_s) ||
            !same_or_nan(want.z, got.z, want.n_s) || !same_sums(want.sum, got.sum, want.n_s))
            fail_msg("%s: cols %u block %u nt %d", moe_cpu_level_name(levels[l].level), cols, block,
                     nt);
        quantized_free(&got);
    }
    quantized_free(&want);
}

static void test_quantize_equals_reference(void **state)
{
    (void)state;
    static const float odd[] = {NAN,        INFINITY, -INFINITY, 0x1p-149f, 0x1p-101f,
                                0x1.8p-99f, 3.4e38f,  -3.4e38f,  -0.0f};
    uint64_t seed = 2;
    for (unsigned w = 0; w < N_WIDTHS; w++)
        for (int nt = 1; nt <= MOE_TILE; nt *= 2)
            for (unsigned o = 0; o < N_FLAVOURS + 2 * N_ITEMS(odd); o++) {
                uint32_t cols = widths[w];
                float *x = take_exact(cols, sizeof *x);
                for (uint32_t c = 0; c < cols; c++)
                    x[c] = o < N_FLAVOURS ? draw(&seed, (enum flavour)o) : 0.0f;
                if (o >= N_FLAVOURS) /* alone among zeros, or among ordinary values */
                    for (uint32_t c = 0; c < cols; c++)
                        x[c] = c == cols / 2 ? odd[(o - N_FLAVOURS) / 2]
                               : o % 2       ? test_uniform(&seed)
                                             : 0.0f;
                compare_quantize(x, cols, 32, nt);
                compare_quantize(x, cols, 64, nt);
                give_back(x);
            }
}

static void test_quantize_reference(void **state)
{
    (void)state;
    uint64_t seed = 3;
    float x[200], s[4], z[4];
    int8_t q[256];
    struct moe_sums sums[4];
    for (int c = 0; c < 200; c++)
        x[c] = draw(&seed, c < 64 ? ORDINARY : c < 128 ? WIDE : SPARSE);
    ref.quantize(x, 200, 64, 1, 0, q, s, z, sums);
    for (int b = 0; b < 4; b++) {
        int sum = 0, half = 0, largest = 0;
        for (int c = 64 * b; c < 64 * b + 64; c++) {
            float want = c < 200 ? x[c] : 0;
            /* Half a step, and the rounding of s and of x * inv. */
            assert_true(fabsf(want - s[b] * q[c]) <= 0.50002f * s[b]);
            assert_true(q[c] >= -127 && (c < 200 || q[c] == 0));
            sum += q[c];
            half += c < 64 * b + 32 ? q[c] : 0;
            largest = abs(q[c]) > largest ? abs(q[c]) : largest;
        }
        assert_true(largest == 127 && z[b] == s[b] * (float)sum);
        assert_true(sums[b].less[0] == -128 * sum && sums[b].less[1] == -128 * half &&
                    sums[b].less[2] == -128 * (sum - half));
        assert_true(sums[b].z[0] == s[b] * (float)half &&
                    sums[b].z[1] == s[b] * (float)(sum - half));
    }
}

/* ---- Vectors ---- */

/* A vector slot under one signature: y (n values, or fewer used) from a and b. */
typedef void vector_fn(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                       float *y);

static void run_rms_norm(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                         float *y)
{
    kern->rms_norm(a, b, n, 1e-6f, y);
}

static void run_rms_norm_in_place(const struct moe_kern *kern, const float *a, const float *b,
                                  uint32_t n, float *y)
{
    memcpy(y, a, n * sizeof *y);
    kern->rms_norm(y, b, n, 1e-6f, y);
}

static void run_layer_norm(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                           float *y)
{
    kern->layer_norm(a, b, a, n, 1e-5f, y);
}

static void run_layer_norm_in_place(const struct moe_kern *kern, const float *a, const float *b,
                                    uint32_t n, float *y)
{
    memcpy(y, a, n * sizeof *y);
    kern->layer_norm(y, b, b, n, 1e-5f, y);
}

/* n places from `begin` on; the last place receives the sum, the one before what was the largest.
 */
static void run_exp_sum(const struct moe_kern *kern, const float *a, uint32_t begin, uint32_t n,
                        float *y)
{
    uint32_t end = n > 3 ? n - 2 : n;
    begin = begin < end ? begin : end - 1;
    memcpy(y, a, n * sizeof *y);
    float largest, sum = kern->exp_sum(y, begin, end, &largest);
    if (end < n) {
        assert_true(bits_of(y[end]) == bits_of(a[end]) && bits_of(y[n - 1]) == bits_of(a[n - 1]));
        y[n - 2] = largest + 0.0f; /* a zero's sign is open */
        y[n - 1] = sum;
    }
}

static void run_exp_sum_from_start(const struct moe_kern *kern, const float *a, const float *b,
                                   uint32_t n, float *y)
{
    run_exp_sum(kern, a, 0, n, y);
}

static void run_exp_sum_from_inside(const struct moe_kern *kern, const float *a, const float *b,
                                    uint32_t n, float *y)
{
    run_exp_sum(kern, a, bits_of(b[0]) % 40, n, y);
}

static void run_softmax(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                        float *y)
{
    memcpy(y, a, n * sizeof *y);
    if (n > 3 && b[0] > 0)
        y[n - 2] = -INFINITY;
    kern->softmax(y, n);
}

static void run_swiglu(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                       float *y)
{
    kern->swiglu(a, b, n, y);
}

static void run_swiglu_in_place(const struct moe_kern *kern, const float *a, const float *b,
                                uint32_t n, float *y)
{
    memcpy(y, a, n * sizeof *y);
    kern->swiglu(y, b, n, y);
}

static void run_swiglu_clamped(const struct moe_kern *kern, const float *a, const float *b,
                               uint32_t n, float *y)
{
    kern->swiglu_clamped(a, b, n, 1.702f, 0.7f, y);
}

static void run_swiglu_clamped_in_place(const struct moe_kern *kern, const float *a, const float *b,
                                        uint32_t n, float *y)
{
    memcpy(y, a, n * sizeof *y);
    kern->swiglu_clamped(y, b, n, 1.702f, 7.0f, y);
}

static void run_silu(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                     float *y)
{
    kern->silu(a, n, y);
}

static void run_silu_in_place(const struct moe_kern *kern, const float *a, const float *b,
                              uint32_t n, float *y)
{
    memcpy(y, a, n * sizeof *y);
    kern->silu(y, n, y);
}

static void run_tanh(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                     float *y)
{
    kern->tanh(a, n, y);
}

static void run_tanh_in_place(const struct moe_kern *kern, const float *a, const float *b,
                              uint32_t n, float *y)
{
    memcpy(y, b, n * sizeof *y);
    kern->tanh(y, n, y);
}

static void run_relu(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                     float *y)
{
    kern->relu(a, n, y);
}

/* With zeros of both signs. */
static void run_relu_in_place(const struct moe_kern *kern, const float *a, const float *b,
                              uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = i % 3 ? a[i] : 0.0f * a[i];
    kern->relu(y, n, y);
}

static void run_scale(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                      float *y)
{
    memcpy(y, a, n * sizeof *y);
    kern->scale(0.22f, n, y);
}

static void run_clamp(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                      float *y)
{
    memcpy(y, a, n * sizeof *y);
    kern->clamp(0.6f, n, y);
}

static void run_axpy(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                     float *y)
{
    memcpy(y, b, n * sizeof *y);
    kern->axpy(-1.7f, a, n, y);
}

static void run_add(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                    float *y)
{
    memcpy(y, b, n * sizeof *y);
    kern->add(a, n, y);
}

static void run_mul_add(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                        float *y)
{
    memcpy(y, b, n * sizeof *y);
    kern->mul_add(b, a, n, y);
}

static void run_rope(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                     float *y)
{
    memcpy(y, a, n * sizeof *y);
    kern->rope(y, b, n / 2 * 2);
}

static void run_dot(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                    float *y)
{
    memset(y, 0, n * sizeof *y);
    y[0] = kern->dot(a, b, n);
}

static void run_f32_to_f16(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                           float *y)
{
    (void)b;
    memset(y, 0, n * sizeof *y);
    kern->f32_to_f16(a, n, (uint16_t *)y);
}

static void run_f16_to_f32(const struct moe_kern *kern, const float *a, const float *b, uint32_t n,
                           float *y)
{
    (void)b;
    kern->f16_to_f32((const uint16_t *)a, n, y);
}

static const struct {
    const char *name;
    vector_fn *run;
} vectors[] = {{"rms_norm", run_rms_norm},
               {"rms_norm in place", run_rms_norm_in_place},
               {"layer_norm", run_layer_norm},
               {"layer_norm in place", run_layer_norm_in_place},
               {"exp_sum", run_exp_sum_from_start},
               {"exp_sum from inside", run_exp_sum_from_inside},
               {"softmax", run_softmax},
               {"swiglu", run_swiglu},
               {"axpy", run_axpy},
               {"swiglu in place", run_swiglu_in_place},
               {"swiglu_clamped", run_swiglu_clamped},
               {"swiglu_clamped in place", run_swiglu_clamped_in_place},
               {"silu", run_silu},
               {"silu in place", run_silu_in_place},
               {"tanh", run_tanh},
               {"tanh in place", run_tanh_in_place},
               {"relu", run_relu},
               {"relu in place", run_relu_in_place},
               {"add", run_add},
               {"mul_add", run_mul_add},
               {"scale", run_scale},
               {"clamp", run_clamp},
               {"rope", run_rope},
               {"dot", run_dot},
               {"f32_to_f16", run_f32_to_f16},
               {"f16_to_f32", run_f16_to_f32}};

/* One slot on n values whose buffers start `offset` floats past an aligned place. */
static void compare_vector(unsigned v, uint32_t n, uint32_t offset, enum flavour flavour,
                           uint64_t *seed)
{
    uint64_t room = offset + n;
    float *a = take_exact(room, 4), *b = take_exact(room, 4);
    float *want = take_exact(room + 1, 4), *got = take_exact(room + 1, 4);
    float scale = flavour == ORDINARY ? 10.0f : 1.0f;
    for (uint64_t i = 0; i < room; i++) {
        a[i] = scale * draw(seed, flavour);
        b[i] = draw(seed, flavour);
    }
    want[room] = moe_bits_f32(GUARD);
    vectors[v].run(&ref, a + offset, b + offset, n, want + offset);
    assert_int_equal(bits_of(want[room]), GUARD);
    for (int l = 0; l < n_levels; l++) {
        got[room] = moe_bits_f32(GUARD);
        vectors[v].run(&levels[l], a + offset, b + offset, n, got + offset);
        assert_int_equal(bits_of(got[room]), GUARD);
        if (!same_or_nan(want + offset, got + offset, n))
            fail_msg("%s %s n %u offset %u flavour %d", moe_cpu_level_name(levels[l].level),
                     vectors[v].name, n, offset, flavour);
    }
    give_back(a);
    give_back(b);
    give_back(want);
    give_back(got);
}

static void test_vectors_equal_reference(void **state)
{
    (void)state;
    uint64_t seed = 4;
    for (unsigned v = 0; v < N_ITEMS(vectors); v++)
        for (uint32_t n = 1; n <= 1000; n += n < 70 ? 1 : 93)
            for (uint32_t offset = 0; offset < 2; offset++)
                for (int f = 0; f < N_FLAVOURS; f++)
                    compare_vector(v, n, offset, (enum flavour)f, &seed);
}

/* ---- Recurrent states ---- */

struct delta {
    uint32_t n;
    float *state, *k, *q, *decays, *rates; /* [n][16], [n], [n] */
    float v[MOE_PANEL_ROWS], steps[MOE_PANEL_ROWS], decay, beta;
};

static struct delta draw_delta(uint32_t n, enum flavour flavour, uint64_t *seed)
{
    struct delta d = {.n = n};
    d.state = take_exact((uint64_t)n * MOE_PANEL_ROWS, 4);
    d.k = take_exact(n, 4);
    d.q = take_exact(n, 4);
    d.decays = take_exact(n, 4);
    d.rates = take_exact((uint64_t)n * MOE_PANEL_ROWS, 4);
    for (uint32_t i = 0; i < n * MOE_PANEL_ROWS; i++)
        d.state[i] = draw(seed, flavour);
    for (uint32_t i = 0; i < n * MOE_PANEL_ROWS; i++)
        d.rates[i] = 4 * test_uniform(seed);
    for (uint32_t i = 0; i < n; i++) {
        d.k[i] = draw(seed, flavour);
        d.q[i] = draw(seed, flavour);
        d.decays[i] = 0.5f + 0.5f * test_uniform(seed);
    }
    for (int r = 0; r < MOE_PANEL_ROWS; r++)
        d.v[r] = draw(seed, flavour);
    for (int r = 0; r < MOE_PANEL_ROWS; r++)
        d.steps[r] = test_uniform(seed);
    d.decay = 0.5f + 0.5f * test_uniform(seed);
    d.beta = 0.5f + 0.5f * test_uniform(seed);
    return d;
}

static void free_delta(struct delta *d)
{
    give_back(d->state);
    give_back(d->k);
    give_back(d->q);
    give_back(d->decays);
    give_back(d->rates);
}

static void step_delta(const struct moe_kern *kern, const struct delta *d, float *state, float *y)
{
    memcpy(state, d->state, (uint64_t)d->n * MOE_PANEL_ROWS * sizeof *state);
    kern->delta_step(state, d->k, d->q, d->v, d->n, d->decays, d->beta, y);
    kern->delta_step(state, d->q, d->k, y, d->n, d->decays, d->decay, y);
    kern->delta_step(state, d->k, d->k, y, d->n, d->decays, d->beta, y);
}

/* Three steps of each kind, the last ones' output in the place of their values. */
static void step_both(const struct moe_kern *kern, const struct delta *d, float *state, float *y)
{
    step_delta(kern, d, state, y);
    kern->scan_step(state, d->k, d->q, d->v, d->n, d->decay, y);
    kern->scan_step(state, d->q, d->k, y, d->n, d->beta, y);
    kern->scan_step(state, d->k, d->k, y, d->n, d->decay, y);
    kern->select_step(state, d->rates, d->steps, d->k, d->q, y, d->n, y);
    kern->select_step(state, d->rates, d->steps, d->q, d->k, d->v, d->n, y);
}

static void test_delta_steps_equal_reference(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (uint32_t n = 1; n <= 260; n += n < 20 ? 1 : 27)
        for (int f = 0; f < N_FLAVOURS; f++) {
            struct delta d = draw_delta(n, (enum flavour)f, &seed);
            uint32_t cells = n * MOE_PANEL_ROWS;
            float *want = take_exact(cells, 4), *got = take_exact(cells, 4);
            float want_y[MOE_PANEL_ROWS], got_y[MOE_PANEL_ROWS];
            step_both(&ref, &d, want, want_y);
            for (int l = 0; l < n_levels; l++) {
                step_both(&levels[l], &d, got, got_y);
                if (!same_or_nan(want, got, cells) || !same_or_nan(want_y, got_y, MOE_PANEL_ROWS))
                    fail_msg("%s delta, scan or select_step n %u flavour %d",
                             moe_cpu_level_name(levels[l].level), n, f);
            }
            give_back(want);
            give_back(got);
            free_delta(&d);
        }
}

static void test_delta_step_against_double(void **state)
{
    (void)state;
    enum { N = 96 };
    uint64_t seed = 12;
    struct delta d = draw_delta(N, ORDINARY, &seed);
    float y[MOE_PANEL_ROWS];
    double *before = take(N * MOE_PANEL_ROWS, sizeof *before);
    for (int i = 0; i < N * MOE_PANEL_ROWS; i++)
        before[i] = d.state[i];
    ref.delta_step(d.state, d.k, d.q, d.v, N, d.decays, d.beta, y);
    for (int r = 0; r < MOE_PANEL_ROWS; r++) {
        double m = 0, sum = 0;
        for (int i = 0; i < N; i++)
            m += before[i * MOE_PANEL_ROWS + r] * d.decays[i] * d.k[i];
        for (int i = 0; i < N; i++) {
            double cell =
                before[i * MOE_PANEL_ROWS + r] * d.decays[i] + d.k[i] * (d.v[r] - m) * d.beta;
            assert_true(fabs(cell - d.state[i * MOE_PANEL_ROWS + r]) < 1e-4);
            sum += cell * d.q[i];
        }
        assert_true(fabs(sum - y[r]) < 1e-3);
    }
    give_back(before);
    free_delta(&d);
}

static void test_scan_step_against_double(void **state)
{
    (void)state;
    enum { N = 96 };
    uint64_t seed = 13;
    struct delta d = draw_delta(N, ORDINARY, &seed);
    float y[MOE_PANEL_ROWS];
    double *before = take(N * MOE_PANEL_ROWS, sizeof *before);
    for (int i = 0; i < N * MOE_PANEL_ROWS; i++)
        before[i] = d.state[i];
    ref.scan_step(d.state, d.k, d.q, d.v, N, d.decay, y);
    for (int r = 0; r < MOE_PANEL_ROWS; r++) {
        double sum = 0;
        for (int i = 0; i < N; i++) {
            double cell = before[i * MOE_PANEL_ROWS + r] * d.decay + d.k[i] * d.v[r];
            assert_true(fabs(cell - d.state[i * MOE_PANEL_ROWS + r]) < 1e-4);
            sum += cell * d.q[i];
        }
        assert_true(fabs(sum - y[r]) < 1e-3);
    }
    give_back(before);
    free_delta(&d);
}

static void test_select_step_against_double(void **state)
{
    (void)state;
    enum { N = 96 };
    uint64_t seed = 14;
    struct delta d = draw_delta(N, ORDINARY, &seed);
    float y[MOE_PANEL_ROWS];
    double *before = take(N * MOE_PANEL_ROWS, sizeof *before);
    for (int i = 0; i < N * MOE_PANEL_ROWS; i++)
        before[i] = d.state[i];
    ref.select_step(d.state, d.rates, d.steps, d.k, d.q, d.v, N, y);
    for (int r = 0; r < MOE_PANEL_ROWS; r++) {
        double sum = 0;
        for (int i = 0; i < N; i++) {
            double cell = before[i * MOE_PANEL_ROWS + r] *
                              exp(-(double)d.rates[i * MOE_PANEL_ROWS + r] * d.steps[r]) +
                          d.k[i] * d.v[r];
            assert_true(fabs(cell - d.state[i * MOE_PANEL_ROWS + r]) < 1e-4);
            sum += cell * d.q[i];
        }
        assert_true(fabs(sum - y[r]) < 1e-3);
    }
    give_back(before);
    free_delta(&d);
}

/* Products of the KV cache's codes, from buffers that end with them; any byte is two codes, or one.
 */
static void test_cells(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (uint32_t n = 1; n <= 70; n += 1 + n / 20)
        for (int kind = 0; kind < MOE_N_CELLS; kind++) {
            const bool four = kind == MOE_CELLS_KEYS_Q4 || kind == MOE_CELLS_VALUES_Q4;
            const bool values = kind >= MOE_CELLS_VALUES_Q8;
            uint32_t n_codes = !four ? n * 16 : values ? n * 8 : (n + 1) / 2 * 16;
            uint32_t n_scales = values ? n : (n + 31) / 32 * 16;
            uint8_t *codes = take_exact(n_codes, 1);
            float *scales = take_exact(n_scales, 4);
            for (uint32_t i = 0; i < n_codes; i++)
                codes[i] = (uint8_t)test_random(&seed);
            for (uint32_t i = 0; i < n_scales; i++)
                scales[i] = test_uniform(&seed);
            for (int log2 = 0; log2 < MOE_N_TILES; log2++) {
                const uint32_t nt = 1u << log2;
                float *x = take_exact(n * nt, 4), *got = take_exact(nt * 16, 4);
                float *want = take_exact(nt * 16, 4);
                for (uint32_t i = 0; i < n * nt; i++)
                    x[i] = test_uniform(&seed);
                for (uint32_t t = 0; t < nt; t++)
                    for (uint32_t r = 0; r < 16; r++)
                        for (uint32_t c = 0; c < n; c++) {
                            uint32_t byte = !four    ? c * 16 + r
                                            : values ? c * 8 + r % 8
                                                     : c / 2 * 16 + r;
                            bool high = values ? r >= 8 : c % 2;
                            int code = !four ? (int8_t)codes[byte]
                                             : moe_iq4_numbers[codes[byte] >> 4 * high & 15];
                            float w = (float)code * scales[values ? c : c / 32 * 16 + r];
                            want[t * 16 + r] = fmaf(w, x[c * nt + t], want[t * 16 + r]);
                        }
                for (int l = -1; l < n_levels; l++) {
                    const struct moe_kern *kern = l < 0 ? &ref : &levels[l];
                    const struct moe_tile tile = {.x = x, .s = scales};
                    kern->cells[kind][log2](codes, (struct moe_layout){0, 0}, n, &tile, got, 16);
                    assert_memory_equal(got, want, nt * 16 * sizeof *got);
                }
                give_back(x);
                give_back(got);
                give_back(want);
            }
            give_back(codes);
            give_back(scales);
        }
}

/* Turned by the definition, pair by pair; turned again it is what it was, but for rounding. */
static void test_turning(void **state)
{
    (void)state;
    uint64_t seed = 6;
    for (uint32_t n = 1; n <= 300; n += 1 + n / 40) {
        float *x = take_exact(n, 4), *want = take_exact(n, 4), *got = take_exact(n, 4);
        for (uint32_t i = 0; i < n; i++)
            want[i] = x[i] = test_uniform(&seed);
        for (uint32_t at = 0, w; at < n; at += w) {
            for (w = 128; w > n - at;)
                w /= 2;
            for (uint32_t s = 1; s < w; s *= 2)
                for (uint32_t i = at; i < at + w; i++)
                    if (((i - at) & s) == 0) {
                        float a = want[i], b = want[i + s];
                        want[i] = a + b;
                        want[i + s] = a - b;
                    }
            for (uint32_t i = at; i < at + w; i++)
                want[i] *= 1 / sqrtf((float)w);
        }
        for (int l = -1; l < n_levels; l++) {
            const struct moe_kern *kern = l < 0 ? &ref : &levels[l];
            memcpy(got, x, n * sizeof *x);
            kern->turn(got, n);
            assert_memory_equal(got, want, n * sizeof *x);
            kern->turn(got, n);
            for (uint32_t i = 0; i < n; i++)
                assert_true(fabsf(got[i] - x[i]) < 1e-5f);
        }
        give_back(x);
        give_back(want);
        give_back(got);
    }
}

/* All of f16, and f32 around every f16: all roundings, overflow, subnormals, NaN. */
static void test_f16_conversions(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    uint16_t *half = take(N, 2), *want16 = take(N, 2), *got16 = take(N, 2);
    float *want = take(N, 4), *got = take(N, 4), *x = take(N, 4);
    for (int i = 0; i < N; i++)
        half[i] = (uint16_t)i;
    ref.f16_to_f32(half, N, want);
    for (int l = 0; l < n_levels; l++) {
        levels[l].f16_to_f32(half, N, got);
        assert_int_equal(memcmp(want, got, N * sizeof *got), 0);
    }
    static const uint32_t nudges[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff};
    for (unsigned k = 0; k < N_ITEMS(nudges); k++) {
        for (int i = 0; i < N; i++)
            x[i] = moe_bits_f32(bits_of(want[i]) + nudges[k]);
        ref.f32_to_f16(x, N, want16);
        for (int l = 0; l < n_levels; l++) {
            levels[l].f32_to_f16(x, N, got16);
            assert_int_equal(memcmp(want16, got16, N * sizeof *got16), 0);
        }
    }
    give_back(half);
    give_back(want16);
    give_back(got16);
    give_back(want);
    give_back(got);
    give_back(x);
}

static void test_reference_vectors_against_double(void **state)
{
    (void)state;
    enum { N = 100 };
    uint64_t seed = 6;
    float a[N], b[N], y[N];
    double squares = 0, sum = 0, deviations = 0, exps = 0, largest = -1e9;
    for (int i = 0; i < N; i++) {
        a[i] = 8 * test_uniform(&seed);
        b[i] = test_uniform(&seed);
        squares += (double)a[i] * a[i];
        sum += a[i];
        largest = a[i] > largest ? a[i] : largest;
    }
    for (int i = 0; i < N; i++)
        deviations += (a[i] - sum / N) * (a[i] - sum / N);
    for (int i = 0; i < N; i++)
        exps += exp(a[i] - largest);
    ref.rms_norm(a, b, N, 1e-5f, y);
    for (int i = 0; i < N; i++) /* a handful of roundings */
        assert_true(fabs(y[i] - a[i] * b[i] / sqrt(squares / N + 1e-5)) <= 1e-6 * fabs(y[i]));
    ref.layer_norm(a, b, a, N, 1e-5f, y);
    for (int i = 0; i < N; i++) {
        double want = (a[i] - sum / N) / sqrt(deviations / N + 1e-5) * b[i] + a[i];
        assert_true(fabs(y[i] - want) <= 1e-5);
    }
    ref.swiglu_clamped(a, b, N, 1.702f, 0.5f, y);
    for (int i = 0; i < N; i++) {
        double g = fmin(a[i], 0.5), u = fmax(-0.5, fmin(b[i], 0.5));
        assert_true(fabs(y[i] - g / (1 + exp(-1.702 * g)) * (u + 1)) <= 2e-6 * fabs(y[i]));
    }
    ref.swiglu(a, b, N, y);
    for (int i = 0; i < N; i++)
        assert_true(fabs(y[i] - a[i] / (1 + exp(-a[i])) * b[i]) <= 1e-6 * fabs(y[i]));
    ref.silu(a, N, y);
    for (int i = 0; i < N; i++)
        assert_true(fabs(y[i] - a[i] / (1 + exp(-a[i]))) <= 1e-6 * fabs(y[i]));
    ref.tanh(a, N, y);
    for (int i = 0; i < N; i++)
        assert_true(fabs(y[i] - tanh(a[i])) <= 2e-7);
    memcpy(y, a, sizeof y);
    y[3] = NAN;
    y[4] = -0.0f;
    ref.relu(y, N, y);
    for (int i = 5; i < N; i++)
        assert_true(y[i] == (a[i] > 0 ? a[i] : 0));
    assert_true(isnan(y[3]) && bits_of(y[4]) == 0x80000000u);
    double some = 0, most = -1e9;
    for (int i = 21; i < 90; i++)
        most = fmax(most, a[i]);
    for (int i = 21; i < 90; i++)
        some += exp(a[i] - most);
    memcpy(y, a, sizeof y);
    float largest_some, sum_some = ref.exp_sum(y, 21, 90, &largest_some);
    assert_true(largest_some == (float)most && fabs(sum_some - some) <= 2e-6 * some);
    for (int i = 0; i < N; i++)
        assert_true(i < 21 || i >= 90 ? y[i] == a[i]
                                      : fabs(y[i] - exp(a[i] - most)) <= 2e-6 * y[i]);
    memcpy(y, a, sizeof y);
    ref.softmax(y, N);
    for (int i = 0; i < N; i++)
        assert_true(fabs(y[i] - exp(a[i] - largest) / exps) <= 2e-6 * y[i]);
    memcpy(y, a, sizeof y);
    ref.rope(y, b, N);
    for (int i = 0; i < N / 2; i++) {
        double c = b[2 * i], s = b[2 * i + 1], p = a[i], q = a[i + N / 2];
        assert_true(fabs(y[i] - (p * c - q * s)) <= 1e-6 * (fabs(p * c) + fabs(q * s)));
        assert_true(fabs(y[i + N / 2] - (q * c + p * s)) <= 1e-6 * (fabs(q * c) + fabs(p * s)));
    }
}

static void test_exp(void **state)
{
    (void)state;
    double worst = 0, highest = 0;
    for (float x = -87.3f; x <= 88.5f; x += 0.00037f) {
        double got = moe_expf(x), want = exp((double)x), error = fabs(got - want) / want;
        worst = error > worst ? error : worst;
        assert_true(got >= highest * (1 - 2e-7)); /* monotone but for the rounding */
        highest = got > highest ? got : highest;
    }
    printf("# exp: relative error %.3g\n", worst);
    assert_true(worst < 2e-7);
    assert_true(moe_expf(0.0f) == 1.0f && moe_expf(-0.0f) == 1.0f && isnan(moe_expf(NAN)));
    assert_true(moe_expf(-1000.0f) == moe_expf(-87.3f) && moe_expf(-INFINITY) < 1.3e-38f);
    assert_true(moe_expf(INFINITY) == moe_expf(88.5f) && isfinite(moe_expf(88.5f)));
}

static void test_softplus(void **state)
{
    (void)state;
    double worst = 0;
    for (float x = -87.0f; x <= 87.0f; x += 0.0037f) {
        double want = x > 0 ? x + log1p(exp(-(double)x)) : log1p(exp((double)x));
        worst = fmax(worst, fabs((double)moe_math_softplus(x) - want) / want);
        assert_true(fabs((double)moe_math_sigmoid(x) - 1 / (1 + exp(-(double)x))) < 2e-7);
    }
    printf("# softplus: relative error %.3g\n", worst);
    assert_true(worst < 4e-7);
    assert_true(moe_math_softplus(1e30f) == 1e30f && moe_math_softplus(-1e30f) < 1.3e-38f);
}

/* ---- Products ---- */

enum { N_PRODUCTS = 5, COLS = 160, MAX_INPUTS = 21, MAX_ROWS = 80 };

struct products {
    struct sample w[N_PRODUCTS];
    float *x;
    struct moe_act act[3]; /* float, blocks of 32, blocks of 64 */
    uint8_t *memory;
};

static void products_new(struct products *p, uint64_t *seed)
{
    static const uint16_t kind[N_PRODUCTS] = {MOE_LAYOUT_Q4, MOE_LAYOUT_BF16, MOE_LAYOUT_Q8,
                                              MOE_LAYOUT_Q3, MOE_LAYOUT_MXFP4};
    static const uint32_t group[N_PRODUCTS] = {32, 0, 64, 0, 32};
    static const uint32_t rows[N_PRODUCTS] = {80, 75, 33, 64, 48};
    for (int k = 0; k < N_PRODUCTS; k++)
        p->w[k] = sample_new(kind[k], group[k], rows[k], COLS, seed, ORDINARY);
    p->x = take(MAX_INPUTS * COLS, sizeof *p->x);
    for (int i = 0; i < MAX_INPUTS * COLS; i++)
        p->x[i] = test_uniform(seed);
    struct moe_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        for (int a = 0; a < 3; a++)
            moe_act_carve(&p->act[a], &arena, MAX_INPUTS, COLS);
        assert_true(!arena.overflowed);
        if (pass == 0) {
            p->memory = take(1, arena.used);
            arena = (struct moe_arena){.base = p->memory, .size = arena.used};
        }
    }
}

static void products_free(struct products *p)
{
    for (int k = 0; k < N_PRODUCTS; k++)
        sample_free(&p->w[k]);
    give_back(p->x);
    give_back(p->memory);
}

/* Products first..last-1 of inputs i..i+n-1 into y[k][input][MAX_ROWS]. `reversed` gathers the
 * inputs in falling order through a list of rows. */
static void products_run(struct products *p, int first, int last, uint32_t i, uint32_t n,
                         bool reversed, float *y)
{
    static const uint32_t blocks[3] = {0, 32, 64};
    uint32_t rows[MAX_INPUTS];
    for (uint32_t r = 0; r < n; r++)
        rows[r] = i + n - 1 - r;
    for (int a = 0; a < 3; a++)
        moe_act_prepare(&p->act[a], reversed ? p->x : p->x + i * COLS, COLS, reversed ? rows : NULL,
                        n, COLS, blocks[a]);
    struct moe_mm list[N_PRODUCTS];
    for (int k = first; k < last; k++) {
        uint32_t block = moe_act_block_for(p->w[k].mat.layout);
        list[k - first] = (struct moe_mm){p->w[k].mat, &p->act[block / 32],
                                          y + (k * MAX_INPUTS + (int)i) * MAX_ROWS, MAX_ROWS};
    }
    moe_matmul(list, last - first);
}

static void test_products_do_not_depend_on_company(void **state)
{
    (void)state;
    enum { Y = N_PRODUCTS * MAX_INPUTS * MAX_ROWS };
    uint64_t seed = 7;
    struct products p;
    products_new(&p, &seed);
    float *alone = take(Y, 4), *got = take(Y, 4);
    moe_kern = ref;
    moe_par_set_threads(1);
    for (uint32_t i = 0; i < MAX_INPUTS; i++)
        for (int k = 0; k < N_PRODUCTS; k++)
            products_run(&p, k, k + 1, i, 1, false, alone);
    for (int l = -1; l < n_levels; l++)
        for (int threads = 1; threads <= 3; threads++)
            for (uint32_t n = 1; n <= MAX_INPUTS; n++) {
                moe_kern = l < 0 ? ref : levels[l];
                moe_par_set_threads(threads);
                memset(got, 0xff, Y * sizeof *got);
                for (uint32_t i = 0; i < MAX_INPUTS; i += n)
                    products_run(&p, 0, N_PRODUCTS, i, n < MAX_INPUTS - i ? n : MAX_INPUTS - i,
                                 false, got);
                for (int k = 0; k < N_PRODUCTS; k++)
                    for (int i = 0; i < MAX_INPUTS; i++) {
                        int at = (k * MAX_INPUTS + i) * MAX_ROWS;
                        uint32_t used = moe_panels(p.w[k].mat.rows) * MOE_PANEL_ROWS;
                        if (memcmp(alone + at, got + at, used * sizeof *got))
                            fail_msg("product %d input %d: %u at once, %d threads", k, i, n,
                                     threads);
                    }
            }
    give_back(alone);
    give_back(got);
    products_free(&p);
}

static void test_products_gather_rows_and_clear_excess(void **state)
{
    (void)state;
    enum { Y = N_PRODUCTS * MAX_INPUTS * MAX_ROWS };
    uint64_t seed = 8;
    struct products p;
    products_new(&p, &seed);
    float *straight = take(Y, 4), *reversed = take(Y, 4);
    p.x[0] = NAN; /* must stay in its own input, and out of the excess rows */
    products_run(&p, 0, N_PRODUCTS, 0, MAX_INPUTS, false, straight);
    products_run(&p, 0, N_PRODUCTS, 0, MAX_INPUTS, true, reversed);
    for (int k = 0; k < N_PRODUCTS; k++)
        for (int i = 0; i < MAX_INPUTS; i++) {
            const float *a = straight + (k * MAX_INPUTS + i) * MAX_ROWS;
            const float *b = reversed + (k * MAX_INPUTS + MAX_INPUTS - 1 - i) * MAX_ROWS;
            for (uint32_t r = 0; r < moe_panels(p.w[k].mat.rows) * MOE_PANEL_ROWS; r++) {
                bool excess = r >= p.w[k].mat.rows, lost = i == 0 && !excess;
                assert_true(lost ? isnan(a[r]) && isnan(b[r]) : bits_of(a[r]) == bits_of(b[r]));
                assert_true(!excess || bits_of(a[r]) == 0);
            }
        }
    give_back(straight);
    give_back(reversed);
    products_free(&p);
}

/* Panels that are unpacked for many inputs give what each input has alone; some columns are left
 * behind whole spans, and tiles of all sizes are. */
static void test_many_inputs(void **state)
{
    (void)state;
    enum { MANY = 31, ROWS = 33, ROOM = 48, MANY_COLS = 1100 };
    uint64_t seed = 11;
    float *x = take(MANY * MANY_COLS, sizeof *x);
    float *together = take(MANY * ROOM, 4), *alone = take(ROOM, 4);
    struct moe_act act;
    struct moe_arena arena = {0};
    moe_act_carve(&act, &arena, MANY, MANY_COLS);
    uint8_t *memory = take(1, arena.used);
    arena = (struct moe_arena){.base = memory, .size = arena.used};
    moe_act_carve(&act, &arena, MANY, MANY_COLS);
    moe_par_set_threads(2);
    for (int l = 0; l < n_levels; l++) {
        uint32_t unpacked = 0;
        moe_kern = levels[l];
        for (unsigned k = 0; k < N_ITEMS(kinds); k++) {
            const enum flavour flavour = (enum flavour)(k % N_FLAVOURS);
            unpacked += moe_kern.unpack[moe_kern_layout_index(kinds[k])] != NULL;
            if (!moe_kind_span(kinds[k]))
                continue;
            struct sample w = sample_new(kinds[k], 32, ROWS, MANY_COLS, &seed, flavour);
            for (int i = 0; i < MANY * MANY_COLS; i++)
                x[i] = draw(&seed, flavour == WORST ? ORDINARY : flavour);
            for (int c = 0; flavour == WORST && c < 3 * MANY_COLS; c++)
                x[c] = c < MANY_COLS ? 3 : -3;
            moe_act_prepare(&act, x, MANY_COLS, NULL, MANY, MANY_COLS, 32);
            moe_matmul(&(struct moe_mm){w.mat, &act, together, ROOM}, 1);
            for (int i = 0; i < MANY; i++) {
                moe_act_prepare(&act, x + i * MANY_COLS, MANY_COLS, NULL, 1, MANY_COLS, 32);
                moe_matmul(&(struct moe_mm){w.mat, &act, alone, ROOM}, 1);
                if (memcmp(alone, together + i * ROOM, ROOM * sizeof *alone))
                    fail_msg("%s: %s, input %d", moe_cpu_level_name(levels[l].level),
                             moe_layout_name(kinds[k]), i);
            }
            sample_free(&w);
        }
        if (levels[l].level >= MOE_CPU_AVX2)
            assert_true(unpacked > 15);
    }
    give_back(x);
    give_back(together);
    give_back(alone);
    give_back(memory);
}

/* Inputs too wide to stay in the cache together are walked in groups of tiles. */
static void test_wide_products_in_groups(void **state)
{
    (void)state;
    enum { WIDE_COLS = 16400, ROWS = 33, ROOM = 48 };
    uint64_t seed = 9;
    struct sample w = sample_new(MOE_LAYOUT_BF16, 0, ROWS, WIDE_COLS, &seed, ORDINARY);
    float *x = take(MAX_INPUTS * WIDE_COLS, sizeof *x);
    float *together = take(MAX_INPUTS * ROOM, 4), *alone = take(ROOM, 4);
    for (int i = 0; i < MAX_INPUTS * WIDE_COLS; i++)
        x[i] = test_uniform(&seed);
    struct moe_act act;
    struct moe_arena arena = {0};
    moe_act_carve(&act, &arena, MAX_INPUTS, WIDE_COLS);
    uint8_t *memory = take(1, arena.used);
    arena = (struct moe_arena){.base = memory, .size = arena.used};
    moe_act_carve(&act, &arena, MAX_INPUTS, WIDE_COLS);
    moe_par_set_threads(2);
    moe_act_prepare(&act, x, WIDE_COLS, NULL, MAX_INPUTS, WIDE_COLS, 0);
    moe_matmul(&(struct moe_mm){w.mat, &act, together, ROOM}, 1);
    for (int i = 0; i < MAX_INPUTS; i++) {
        moe_act_prepare(&act, x + i * WIDE_COLS, WIDE_COLS, NULL, 1, WIDE_COLS, 0);
        moe_matmul(&(struct moe_mm){w.mat, &act, alone, ROOM}, 1);
        assert_int_equal(memcmp(alone, together + i * ROOM, ROOM * sizeof *alone), 0);
    }
    give_back(x);
    give_back(together);
    give_back(alone);
    give_back(memory);
    sample_free(&w);
}

static void test_select(void **state)
{
    (void)state;
    struct moe_err err;
    assert_int_equal(moe_kern.level, moe_cpu_detect()); /* without a call */
    for (int level = 0; level < MOE_CPU_N_LEVELS; level++) {
        if (!moe_cpu_supports((enum moe_cpu_level)level)) {
            assert_fails(moe_kern_select((enum moe_cpu_level)level, &err), MOE_ERR_DEVICE,
                         moe_cpu_level_name((enum moe_cpu_level)level), &err);
            continue;
        }
        assert_ok(moe_kern_select((enum moe_cpu_level)level, &err), &err);
        assert_true(moe_kern.level == (enum moe_cpu_level)level);
    }
    assert_int_equal(moe_kern_layout_index(MOE_LAYOUT_NONE), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_panels_equal_reference),
        cmocka_unit_test(test_few_panels_equal_reference),
        cmocka_unit_test(test_reference_panels_against_double),
        cmocka_unit_test(test_wide_row_of_one_group),
        cmocka_unit_test(test_quantize_equals_reference),
        cmocka_unit_test(test_quantize_reference),
        cmocka_unit_test(test_vectors_equal_reference),
        cmocka_unit_test(test_delta_steps_equal_reference),
        cmocka_unit_test(test_delta_step_against_double),
        cmocka_unit_test(test_scan_step_against_double),
        cmocka_unit_test(test_select_step_against_double),
        cmocka_unit_test(test_cells),
        cmocka_unit_test(test_turning),
        cmocka_unit_test(test_f16_conversions),
        cmocka_unit_test(test_reference_vectors_against_double),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_softplus),
        cmocka_unit_test(test_products_do_not_depend_on_company),
        cmocka_unit_test(test_products_gather_rows_and_clear_excess),
        cmocka_unit_test(test_many_inputs),
        cmocka_unit_test(test_wide_products_in_groups),
        cmocka_unit_test(test_select),
    };
    load_tables();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
