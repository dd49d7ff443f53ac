/*
 * Products: which kernel computes which. Those of a list that have the same layout kind and the
 * same kernel go together, up to 32 a launch.
 */
#include "dev_product.cuh"
#include "dev_weights.cuh"

enum { SMALL_BLOCK = 32 };

struct dev_product gpu_describe_product(const struct moe_gpu_product *from)
{
    const struct moe_mat *w = &from->w;
    const struct moe_gpu_act *act = from->act;
    struct dev_product p = {};
    p.data = w->data;
    p.panel_bytes = moe_layout_panel_bytes(w->layout, w->cols);
    p.rows = w->rows;
    p.cols = w->cols;
    p.bias = from->bias;
    p.rows_of = from->rows;
    p.first = from->first;
    p.step = from->step;
    p.n = from->n;
    p.y = from->y;
    p.y_stride = from->y_stride;
    if (moe_layout_is_float(w->layout.kind)) {
        p.inputs = act->x;
        p.in_stride = act->x_stride;
        return p;
    }
    uint32_t block = moe_layout_block(w->layout);
    const struct moe_gpu_bytes *bytes =
        &act->bytes[block == SMALL_BLOCK ? MOE_GPU_BLOCK_32 : MOE_GPU_BLOCK_64];
    p.blocks = (w->cols + block - 1) / block;
    p.per_record = w->layout.group ? w->layout.group / block : p.blocks;
    p.reciprocal = dev_reciprocal(p.per_record, p.blocks);
    p.inputs = bytes->q;
    p.s = bytes->s;
    p.z = bytes->z;
    p.in_stride = (uint64_t)p.blocks * block;
    return p;
}

void gpu_multiply(struct moe_gpu *g, struct moe_layout layout, const struct dev_products *list,
                  uint32_t max_panels, uint32_t max_n)
{
    if (moe_layout_is_float(layout.kind))
        gpu_multiply_floats(g, layout.kind, list, max_panels, max_n);
    else if (max_n > GPU_FEW_ROWS)
        gpu_multiply_many(g, layout, list, max_panels, max_n);
    else
        gpu_multiply_few(g, layout, list, max_panels, max_n);
}

/* A list under way to a launch. */
struct batch {
    struct moe_gpu *g;
    struct moe_layout layout;
    uint32_t max_panels, max_n;
    struct dev_products list;
};

static void start_batch(struct batch *b)
{
    if (b->list.n > 0)
        gpu_multiply(b->g, b->layout, &b->list, b->max_panels, b->max_n);
    b->list.n = b->max_panels = b->max_n = 0;
}

static void add_to_batch(struct batch *b, const struct moe_gpu_product *product)
{
    uint32_t panels = moe_panels(product->w.rows);
    b->max_panels = panels > b->max_panels ? panels : b->max_panels;
    b->max_n = product->n > b->max_n ? product->n : b->max_n;
    b->list.list[b->list.n++] = gpu_describe_product(product);
    if (b->list.n == DEV_MAX_PRODUCTS)
        start_batch(b);
}

static bool same_kernel(const struct moe_gpu_product *a, const struct moe_gpu_product *b)
{
    return a->w.layout.kind == b->w.layout.kind &&
           (moe_layout_is_float(a->w.layout.kind) ||
            moe_layout_block(a->w.layout) == moe_layout_block(b->w.layout)) &&
           (a->n > GPU_FEW_ROWS) == (b->n > GPU_FEW_ROWS);
}

static const uint32_t MAX_LIST = 64;

/* At most MAX_LIST products. */
static void multiply_list(struct moe_gpu *g, const struct moe_gpu_product *list, uint32_t n_list)
{
    bool done[MAX_LIST];
    for (uint32_t i = 0; i < n_list; i++)
        done[i] = list[i].n == 0 || list[i].w.rows == 0 || gpu_multiply_bf16(g, &list[i]);
    struct batch b = {};
    b.g = g;
    for (uint32_t i = 0; i < n_list; i++) {
        if (done[i])
            continue;
        b.layout = list[i].w.layout;
        for (uint32_t k = i; k < n_list; k++)
            if (!done[k] && same_kernel(&list[i], &list[k])) {
                add_to_batch(&b, &list[k]);
                done[k] = true;
            }
        start_batch(&b);
    }
}

extern "C" void moe_gpu_matmul(struct moe_gpu *g, const struct moe_gpu_product *list,
                               uint32_t n_list)
{
    for (uint32_t i = 0; i < n_list; i += MAX_LIST)
        multiply_list(g, list + i, n_list - i < MAX_LIST ? n_list - i : MAX_LIST);
}
