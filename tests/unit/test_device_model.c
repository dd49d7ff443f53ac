/*
 * The pieces of a layer as moe-profile --device times them: which figures there are, of models with
 * and without an encoder. How long anything takes is not looked at.
 */
#include "base/par.h"
#include "kern/kern.h"
#include "tune/device_internal.h"

#include "random_model.h"

static char pack[64];

static int set_up(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    snprintf(pack, sizeof pack, "/tmp/moe-device-model-%d.moe", (int)getpid());
    return 0;
}

static int tear_down(void **state)
{
    unlink(pack);
    return 0;
}

static void check_figure(const struct moe_figure *f, bool there)
{
    assert_int_equal(f->n_runs >= DEVICE_RUNS, there);
    assert_int_equal(f->value > 0, there);
}

static bool has_layers(const struct moe_config *c, uint32_t first, bool is_moe)
{
    bool any = false;
    for (uint32_t l = first; l < c->n_layers; l++)
        any |= (c->layers[l].moe != 0) == is_moe;
    return any;
}

/* A single row is the decoder's; of several, both stacks'. */
static void check_batch(const struct moe_config *c, const struct moe_device_batch *b)
{
    uint32_t first = b->rows == 1 ? c->n_encoder : 0;
    bool moe = has_layers(c, first, true);
    check_figure(&b->attention, true);
    check_figure(&b->dense, has_layers(c, first, false));
    check_figure(&b->router, moe);
    check_figure(&b->combine, moe);
    check_figure(&b->expert_rows, moe);
    check_figure(&b->experts[0], moe);
}

static void measure(const struct random_model *m)
{
    struct moe_err err = {0};
    struct moe_device_model *model = calloc(1, sizeof *model);
    assert_non_null(model);
    random_model_write(m, 8, pack);
    assert_ok(moe_device_measure_model(model, pack, 0, NULL, &err), &err);
    assert_int_equal(model->layers, m->c.n_layers);
    assert_int_equal(model->moe_layers, m->c.n_moe_layers);
    assert_int_equal(model->n_batches, 3);
    for (uint32_t i = 0; i < model->n_batches; i++)
        check_batch(&m->c, &model->batches[i]);
    check_figure(&model->head_seconds, true);
    free(model);
}

static void models_with_an_encoder_have_every_figure(void **state)
{
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct random_model m;
        random_stacks_draw(&m, seed);
        measure(&m);
        random_model_free(&m);
    }
}

static void so_have_those_without(void **state)
{
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct random_model m;
        random_model_draw(&m, seed);
        if (m.c.n_experts)
            measure(&m);
        random_model_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_with_an_encoder_have_every_figure),
        cmocka_unit_test(so_have_those_without),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
