/*
 * Products: which kernel computes which. Those of a list with up to eight inputs share launches, up
 * to 28 each; the others share them with those of the same layout kind.
 */
#include "dev_weights.cuh"
#include "gpu_products.cuh"

enum { SMALL_BLOCK = 32 };
static const uint32_t MAX_LIST = 64;

/* ---- Products as kernels receive them ---- */

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
    p.n = from->n;
    p.y = from->y;
    p.y_stride = from->y_stride;
    p.kind = (uint8_t)w->layout.kind;
    if (moe_layout_takes_floats(w->layout.kind)) {
        p.per_record = w->layout.group;
        p.inputs = act->x;
        p.in_stride = act->x_stride;
        return p;
    }
    uint32_t block = moe_layout_block(w->layout);
    const struct moe_gpu_bytes *bytes =
        &act->bytes[block == SMALL_BLOCK ? MOE_GPU_BLOCK_32 : MOE_GPU_BLOCK_64];
    p.block = (uint8_t)block;
    p.blocks = (w->cols + block - 1) / block;
    p.per_record = w->layout.group ? w->layout.group / block : p.blocks;
    p.reciprocal = dev_reciprocal(p.per_record, p.blocks);
    p.inputs = bytes->q;
    p.s = bytes->s;
    p.z = bytes->z;
    p.in_stride = (uint64_t)p.blocks * block;
    return p;
}

uint32_t gpu_most_panels(const struct dev_products *list)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < list->n; i++)
        most = list->list[i].rows > most ? list->list[i].rows : most;
    return moe_panels(most);
}

uint32_t gpu_most_inputs(const struct dev_products *list)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < list->n; i++)
        most = list->list[i].n > most ? list->list[i].n : most;
    return most;
}

/* ---- Lists ---- */

static bool is_matvec(const struct moe_gpu_product *p)
{
    return p->n <= GPU_MATVEC_INPUTS;
}

static bool is_nothing(const struct moe_gpu_product *p)
{
    return p->n == 0 || p->w.rows == 0;
}

static void start_list(struct moe_gpu *g, struct dev_products *list)
{
    if (list->n == 0)
        return;
    if (gpu_most_inputs(list) <= GPU_MATVEC_INPUTS)
        gpu_matvec(g, list);
    else if (moe_layout_takes_floats(list->list[0].kind))
        gpu_gemm_floats(g, list);
    else
        gpu_gemm(g, list);
    list->n = 0;
}

static void multiply_parts(struct moe_gpu *g, const struct moe_gpu_product *p)
{
    struct dev_products list = {};
    list.n_parts = p->n_parts;
    list.in_part = p->in_part;
    list.y_part = p->y_part;
    list.list[list.n++] = gpu_describe_product(p);
    start_list(g, &list);
}

static bool same_kernel(const struct moe_gpu_product *a, const struct moe_gpu_product *b)
{
    if (is_matvec(a) || is_matvec(b))
        return is_matvec(a) && is_matvec(b);
    return a->w.layout.kind == b->w.layout.kind &&
           (moe_layout_takes_floats(a->w.layout.kind) ||
            moe_layout_block(a->w.layout) == moe_layout_block(b->w.layout));
}

/* At most MAX_LIST products. */
static void multiply_list(struct moe_gpu *g, const struct moe_gpu_product *list, uint32_t n_list)
{
    bool done[MAX_LIST];
    for (uint32_t i = 0; i < n_list; i++) {
        done[i] = is_nothing(&list[i]) || gpu_gemm_bf16(g, &list[i]);
        if (!done[i] && list[i].n_parts) {
            multiply_parts(g, &list[i]);
            done[i] = true;
        }
    }
    struct dev_products together = {};
    for (uint32_t i = 0; i < n_list; i++) {
        if (done[i])
            continue;
        for (uint32_t k = i; k < n_list; k++)
            if (!done[k] && same_kernel(&list[i], &list[k])) {
                together.list[together.n++] = gpu_describe_product(&list[k]);
                done[k] = true;
                if (together.n == DEV_MAX_PRODUCTS)
                    start_list(g, &together);
            }
        start_list(g, &together);
    }
}

extern "C" void moe_gpu_matmul(struct moe_gpu *g, const struct moe_gpu_product *list,
                               uint32_t n_list)
{
    for (uint32_t i = 0; i < n_list; i += MAX_LIST)
        multiply_list(g, list + i, n_list - i < MAX_LIST ? n_list - i : MAX_LIST);
}

bool gpu_can_list(const struct moe_gpu_product *list, uint32_t n_list)
{
    for (uint32_t i = 0; i < n_list; i++)
        if (!is_matvec(&list[i]) || is_nothing(&list[i]) || list[i].n_parts)
            return false;
    return n_list > 0 && n_list <= DEV_MAX_PRODUCTS;
}
