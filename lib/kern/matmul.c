/* Matrix products: inputs prepared for a layout, work divided among threads. */
#include "kern/matmul.h"

#include <string.h>

#include "base/bytes.h"
#include "base/par.h"

/* The smallest block gives the most scales. */
enum { SMALLEST_BLOCK = 32, LARGEST_BLOCK = 64 };

/* Bytes of tiles that a walk over panels keeps in the second-level cache. */
enum { TILES_BYTES = 256 << 10 };

/* Inputs from which on panels are unpacked once for all of them. */
enum { UNPACK_FROM = 16 };

/* Multiply-adds of the smallest share of work. */
#define RANGE_WORK ((uint64_t)65536)

/* ---- Inputs ---- */

void moe_act_carve(struct moe_act *act, struct moe_arena *arena, uint32_t n_max, uint32_t cols_max)
{
    uint64_t padded = moe_round_up(cols_max, LARGEST_BLOCK);
    *act = (struct moe_act){0};
    act->x = moe_arena_take(arena, (uint64_t)n_max * cols_max, sizeof *act->x);
    act->q = moe_arena_take(arena, n_max * padded, sizeof *act->q);
    act->s = moe_arena_take(arena, n_max * (padded / SMALLEST_BLOCK), sizeof *act->s);
    act->z = moe_arena_take(arena, n_max * (padded / SMALLEST_BLOCK), sizeof *act->z);
    act->sum = moe_arena_take(arena, n_max * (padded / SMALLEST_BLOCK), sizeof *act->sum);
}

uint32_t moe_act_block_for(struct moe_layout layout)
{
    return moe_layout_takes_floats(layout.kind) ? 0 : moe_layout_block(layout);
}

/* Size of the tile that starts at input i of n: the largest power of two that fits. */
static uint32_t tile_size(uint32_t i, uint32_t n)
{
    uint32_t size = MOE_TILE;
    while (size > n - i)
        size /= 2;
    return size;
}

/* The number of tiles for n inputs, and the first input of a tile: full ones first, then one per
 * bit of the remainder. */
static uint32_t tile_count(uint32_t n)
{
    return n / MOE_TILE + (uint32_t)__builtin_popcount(n % MOE_TILE);
}

static uint32_t tile_start(uint32_t tile, uint32_t n)
{
    uint32_t full = n / MOE_TILE, i = (tile < full ? tile : full) * MOE_TILE;
    for (uint32_t k = full; k < tile; k++)
        i += tile_size(i, n);
    return i;
}

static struct moe_tile tile_at(const struct moe_act *act, uint32_t i)
{
    if (act->block == 0)
        return (struct moe_tile){.x = act->x + (uint64_t)i * act->cols};
    uint64_t blocks = act->cols_padded / act->block;
    return (struct moe_tile){.q = act->q + (uint64_t)i * act->cols_padded,
                             .s = act->s + i * blocks,
                             .z = act->z + i * blocks,
                             .sum = act->sum + i * blocks};
}

struct prepare {
    struct moe_act *act;
    const float *x;
    uint64_t stride;
    const uint32_t *rows;
};

static const float *prepare_row(const struct prepare *p, uint32_t i)
{
    return p->x + (p->rows ? p->rows[i] : i) * p->stride;
}

static void prepare_float_tile(const struct prepare *p, uint32_t i, uint32_t nt)
{
    uint32_t cols = p->act->cols;
    float *to = p->act->x + (uint64_t)i * cols;
    if (nt == 1) {
        memcpy(to, prepare_row(p, i), cols * sizeof *to);
        return;
    }
    const float *from[MOE_TILE];
    for (uint32_t t = 0; t < nt; t++)
        from[t] = prepare_row(p, i + t);
    for (uint32_t c = 0; c < cols; c++, to += nt)
        for (uint32_t t = 0; t < nt; t++)
            to[t] = from[t][c];
}

static void prepare_byte_tile(const struct prepare *p, uint32_t i, uint32_t nt)
{
    const struct moe_act *act = p->act;
    uint64_t blocks = act->cols_padded / act->block;
    for (uint32_t t = 0; t < nt; t++)
        moe_kern.quantize(prepare_row(p, i + t), act->cols, act->block, (int)nt, (int)t,
                          act->q + (uint64_t)i * act->cols_padded, act->s + i * blocks,
                          act->z + i * blocks, act->sum + i * blocks);
}

static void prepare_tiles(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct prepare *p = ctx;
    (void)thread;
    for (int64_t tile = begin; tile < end; tile++) {
        uint32_t i = tile_start((uint32_t)tile, p->act->n), nt = tile_size(i, p->act->n);
        if (p->act->block == 0)
            prepare_float_tile(p, i, nt);
        else
            prepare_byte_tile(p, i, nt);
    }
}

void moe_act_prepare(struct moe_act *act, const float *x, uint64_t stride, const uint32_t *rows,
                     uint32_t n, uint32_t cols, uint32_t block)
{
    act->n = n;
    act->cols = cols;
    act->block = block;
    act->cols_padded = block ? (uint32_t)moe_round_up(cols, block) : cols;
    struct prepare p = {act, x, stride, rows};
    /* Waking a thread pays for about 16 thousand values or more (a few microseconds). */
    int64_t grain = cols ? (16384 / MOE_TILE + cols - 1) / cols : 1;
    moe_par_for(tile_count(n), grain, prepare_tiles, &p);
}

/* ---- Products ---- */

/* Panels begin..end of one product times the tiles of inputs first..last. */
static void multiply(const struct moe_mm *mm, uint32_t begin, uint32_t end, uint32_t first,
                     uint32_t last)
{
    const struct moe_mat *w = &mm->w;
    uint64_t panel_bytes = moe_layout_panel_bytes(w->layout, w->cols);
    const int index = moe_kern_layout_index(w->layout.kind);
    moe_panel_fn *const *kernels = moe_kern.panel[index];
    moe_panel_fn *few =
        last - first == 1 && index < MOE_N_FLOATS ? moe_kern.few_panels[index] : NULL;
    for (uint32_t p = begin; p < end; p++) {
        const uint8_t *panel = w->data + p * panel_bytes;
        float *y = mm->y + (uint64_t)p * MOE_PANEL_ROWS;
        if (few && end - p >= MOE_FEW_PANELS) {
            struct moe_tile tile = tile_at(mm->act, first);
            few(panel, w->layout, w->cols, &tile, y + first * mm->y_stride, mm->y_stride);
            p += MOE_FEW_PANELS - 1;
            continue;
        }
        for (uint32_t i = first, nt; i < last; i += nt) {
            nt = tile_size(i, mm->act->n);
            struct moe_tile tile = tile_at(mm->act, i);
            kernels[__builtin_ctz(nt)](panel, w->layout, w->cols, &tile, y + i * mm->y_stride,
                                       mm->y_stride);
        }
    }
}

/* The least number of a kind's codes, and how much larger the largest is at most. */
static struct moe_numbers numbers_of(int kind)
{
    const int bits = moe_code_plane(kind) + moe_code_high_plane(kind);
    struct moe_numbers of = {-moe_kind_zero(kind), (1 << bits) - 1, moe_kind_has_offset(kind)};
    if (moe_kind_numbers(kind)) {
        of.least = moe_kind_least(kind);
        of.span = -2 * of.least;
    } else if (kind == MOE_LAYOUT_IQ2_KL) {
        of.span = 110;
    }
    return of;
}

/* The same as multiply, by blocks that are unpacked once for all inputs, in tiles of at least
 * MOE_UNPACKED_TILE. */
static void multiply_unpacked(const struct moe_mm *mm, uint32_t begin, uint32_t end, uint32_t first,
                              uint32_t last)
{
    const struct moe_mat *w = &mm->w;
    const uint16_t kind = w->layout.kind;
    const uint64_t panel_bytes = moe_layout_panel_bytes(w->layout, w->cols);
    const struct moe_numbers numbers = numbers_of(kind);
    moe_unpack_fn *unpack = moe_kern.unpack[moe_kern_layout_index(kind)];
    moe_unpacked_fn *const *kernels = moe_kern.unpacked[moe_kind_scales(kind) - 1];
    struct moe_unpacked blocks[MOE_UNPACKED] __attribute__((aligned(64)));
    for (uint32_t p = begin; p < end; p++) {
        const uint8_t *panel = w->data + p * panel_bytes, *at = panel + moe_kind_front(kind);
        float *y = mm->y + (uint64_t)p * MOE_PANEL_ROWS;
        for (uint32_t i = first; i < last; i++)
            memset(y + i * mm->y_stride, 0, MOE_PANEL_ROWS * sizeof *y);
        for (uint32_t c = 0, n; c < w->cols; c += n) {
            n = w->cols - c < 32 * MOE_UNPACKED ? w->cols - c : 32 * MOE_UNPACKED;
            at = unpack(at, n, blocks);
            for (uint32_t i = first, nt; i < last; i += nt) {
                struct moe_tile tile = tile_at(mm->act, i);
                nt = tile_size(i, mm->act->n);
                tile.q += c * nt;
                tile.s += c / 32 * nt;
                tile.z += c / 32 * nt;
                tile.sum += c / 32 * nt;
                kernels[nt == MOE_TILE](blocks, (n + 31) / 32, numbers, &tile, y + i * mm->y_stride,
                                        mm->y_stride);
            }
        }
        for (uint32_t i = first; moe_kind_front(kind) && i < last; i++)
            for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++)
                y[i * mm->y_stride + r] *= moe_bits_f32(moe_get_u32(panel + 4 * r));
    }
}

/* Clears the rows past the matrix's last one, whatever the inputs are. */
static void clear_excess(const struct moe_mm *mm)
{
    uint32_t used = mm->w.rows % MOE_PANEL_ROWS;
    for (uint32_t i = 0; used && i < mm->act->n; i++)
        memset(mm->y + i * mm->y_stride + mm->w.rows, 0, (MOE_PANEL_ROWS - used) * sizeof *mm->y);
}

/* Multiplies panels begin..end of one product by all inputs. The innermost loop goes over tiles, so
 * a panel is unpacked from the first-level cache; many inputs are taken in groups of tiles that
 * stay in the second level while all panels pass. */
static void multiply_all(const struct moe_mm *mm, uint32_t begin, uint32_t end)
{
    uint64_t per_input = mm->act->block ? mm->act->cols_padded : mm->act->cols * sizeof(float);
    uint32_t n = mm->act->n, group = MOE_TILE;
    const int index = moe_kern_layout_index(mm->w.layout.kind);
    while (group < n && 2 * group * per_input <= TILES_BYTES)
        group *= 2;
    for (uint32_t first = 0; first < n; first += group) {
        uint32_t last = n - first < group ? n : first + group, done = first;
        if (moe_kern.unpack[index] && last - first >= UNPACK_FROM) {
            done = last - last % MOE_UNPACKED_TILE;
            multiply_unpacked(mm, begin, end, first, done);
        }
        multiply(mm, begin, end, done, last);
    }
    if (end == moe_panels(mm->w.rows))
        clear_excess(mm);
}

struct matmul {
    const struct moe_mm *list;
    int n;
};

/* Panels are numbered consecutively over all products. */
static void multiply_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct matmul *m = ctx;
    (void)thread;
    for (int k = 0; k < m->n && end > 0; k++) {
        int64_t panels = moe_panels(m->list[k].w.rows);
        if (begin < panels)
            multiply_all(&m->list[k], (uint32_t)begin, (uint32_t)(end < panels ? end : panels));
        begin = begin > panels ? begin - panels : 0;
        end -= panels;
    }
}

void moe_matmul(const struct moe_mm *list, int n)
{
    struct matmul m = {list, n};
    uint64_t panels = 0, work = 0; /* multiply-adds */
    for (int k = 0; k < n; k++) {
        panels += moe_panels(list[k].w.rows);
        work +=
            moe_panels(list[k].w.rows) * (uint64_t)MOE_PANEL_ROWS * list[k].w.cols * list[k].act->n;
    }
    /* A range takes at least a microsecond or two: less is not worth waking a thread. */
    uint64_t grain = RANGE_WORK * panels / (work + 1);
    moe_par_for((int64_t)panels, (int64_t)grain, multiply_range, &m);
}

/* ---- Inputs, prepared at most once per form ---- */

void moe_inputs_carve(struct moe_inputs *in, struct moe_arena *arena, uint32_t n, uint32_t cols)
{
    for (int form = 0; form < 3; form++)
        moe_act_carve(&in->act[form], arena, n, cols);
}

void moe_inputs_set(struct moe_inputs *in, const float *x, uint64_t stride, const uint32_t *rows,
                    uint32_t n, uint32_t cols)
{
    in->x = x;
    in->stride = stride;
    in->rows = rows;
    in->n = n;
    in->cols = cols;
    memset(in->ready, 0, sizeof in->ready);
}

const struct moe_act *moe_inputs_for(struct moe_inputs *in, struct moe_layout layout)
{
    uint32_t block = moe_act_block_for(layout);
    int form = block == 0 ? 0 : block == 32 ? 1 : 2;
    if (!in->ready[form]) {
        moe_act_prepare(&in->act[form], in->x, in->stride, in->rows, in->n, in->cols, block);
        in->ready[form] = true;
    }
    return &in->act[form];
}

struct moe_mm moe_inputs_mm(struct moe_inputs *in, struct moe_mat w, float *y, uint64_t y_stride)
{
    return (struct moe_mm){w, moe_inputs_for(in, w.layout), y, y_stride};
}
