/* Pace: lines through measured points, and the times of a model's pieces, by hand. */
#include "../test.h"

#include <math.h>

#include "sched/pace.h"

static void near(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-12 * fabs(expected)))
        fail_msg("%.17g, expected %.17g", got, expected);
}

static struct moe_figure figure(double value)
{
    return (struct moe_figure){.value = value};
}

/* ---- Lines ---- */

static void lines_go_through_their_points(void **state)
{
    struct moe_line line = {0};
    assert_true(isnan(moe_line_at(&line, 1)));
    moe_line_add(&line, 2, 6);
    near(moe_line_at(&line, 1), 6);  /* before the first as the first */
    near(moe_line_at(&line, 5), 15); /* a single point: proportional */
    moe_line_add(&line, 4, 10);
    moe_line_add(&line, 8, 12);
    near(moe_line_at(&line, 3), 8);
    near(moe_line_at(&line, 4), 10);
    near(moe_line_at(&line, 6), 11);
    near(moe_line_at(&line, 12), 14); /* continues as between the last two */
    moe_line_add(&line, 16, 2);
    near(moe_line_at(&line, 12), 7);
    near(moe_line_at(&line, 100), 2); /* never falling beyond */
}

static void points_without_figures_are_left_out(void **state)
{
    struct moe_line line = {0};
    moe_line_add(&line, 1, 0);
    moe_line_add(&line, 2, (double)NAN);
    moe_line_add(&line, 0, 1);
    assert_int_equal(line.n, 0);
    moe_line_add(&line, 3, 1);
    moe_line_add(&line, 3, 2); /* not after the last */
    assert_int_equal(line.n, 1);
    for (int i = 0; i < 2 * MOE_LINE_POINTS; i++)
        moe_line_add(&line, 4 + i, 1);
    assert_int_equal(line.n, MOE_LINE_POINTS);
}

/* ---- From measurements ---- */

/* Batches of 1 and 8 rows; the second takes three times as long. Experts are in use by 1 and 2
 * rows. "2" has bytes and no times. */
static struct moe_device measured(void)
{
    struct moe_device d = {.has_model = true};
    strcpy(d.name, "a machine");
    strcpy(d.accelerator.name, "GPU");
    d.storage.bytes_per_second = figure(1e9);
    d.accelerator.link_bytes_per_second = figure(16e9);
    struct moe_device_model *m = &d.model;
    m->head_seconds = figure(0.5);
    m->n_variants = 3;
    strcpy(m->variants[0].name, "8");
    strcpy(m->variants[1].name, "4");
    strcpy(m->variants[2].name, "2");
    m->variants[0].bytes = figure(800);
    m->variants[1].bytes = figure(400);
    m->variants[2].bytes = figure(200);
    m->n_batches = 2;
    for (int i = 0; i < 2; i++) {
        double k = i ? 3 : 1;
        m->batches[i] = (struct moe_device_batch){
            .rows = i ? 8 : 1,
            .attention = figure(4 * k),
            .router = figure(1 * k),
            .shared = figure(2 * k),
            .combine = figure(0.5 * k),
            .dense = figure(6 * k),
            .expert_rows = figure(i ? 2 : 1),
            .n_experts = 2,
            .experts = {figure(1 * k), figure(0.75 * k)},
        };
    }
    return d;
}

static const char packed[2][MOE_NAME_BYTES] = {"4", "2"};

static void pieces_come_from_the_batches(void **state)
{
    struct moe_err err = {0};
    struct moe_device d = measured();
    struct moe_pace p;
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 1), 5); /* attention and router */
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 8), 15);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 4.5), 10);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 15), 25);
    near(moe_pace_piece(&p, MOE_PIECE_BESIDE, 1), 2);
    near(moe_pace_piece(&p, MOE_PIECE_COMBINE, 8), 1.5);
    near(moe_pace_piece(&p, MOE_PIECE_DENSE, 1), 10); /* attention and feed-forward */
    near(p.head, 0.5);
    near(p.predict, 1);
    near(p.load_rate, 1e9);
    assert_true(p.host_slowdown == 0);
    assert_int_equal(p.n_variants, 2);
    near(moe_pace_expert(&p, 0, 1), 0.75);
    near(moe_pace_expert(&p, 0, 3), 3.75);
    /* Half the bytes of the nearest that has times. */
    near(moe_pace_expert(&p, 1, 1), 0.375);
    near(moe_pace_expert(&p, 1, 2), 1.125);
    assert_true(moe_pace_expert(&p, 2, 1) == 0);
    /* 5 + 2 + 0.5 + 2 experts of 0.75 */
    near(moe_pace_layer(&p, 0, 2), 9);
}

static void rates_are_of_storage_or_as_given(void **state)
{
    struct moe_err err = {0};
    struct moe_device d = measured();
    struct moe_pace p;
    assert_true(d.accelerator.link_bytes_per_second.value == 16e9);
    assert_ok(moe_pace_of_device(&p, &d, packed, 1, 0, &err), &err);
    near(p.load_rate, 1e9);
    assert_ok(moe_pace_of_device(&p, &d, packed, 1, 5e6, &err), &err);
    near(p.load_rate, 5e6);
    d.storage.n_reads = 1;
    d.storage.reads[0].bytes_per_second = figure(3e9);
    assert_ok(moe_pace_of_device(&p, &d, packed, 1, 0, &err), &err);
    near(p.load_rate, 3e9);
}

static void what_loads_cost_comes_from_the_profile(void **state)
{
    struct moe_err err = {0};
    struct moe_device d = measured();
    struct moe_pace p;
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err),
              &err); /* without handling, reads, bursts */
    assert_memory_equal(&p.loads, &(struct moe_link_costs){0}, sizeof p.loads);
    struct moe_device_storage *s = &d.storage;
    s->n_handling = 2;
    s->handling[0] = (struct moe_device_handling){1000, figure(0.125)};
    s->handling[1] = (struct moe_device_handling){3000, figure(0.375)};
    s->n_reads = 1;
    s->reads[0] = (struct moe_device_reads){1, figure(1e9), figure(2.5)};
    s->read_bytes = figure(2e9);
    d.model.loading_slowdown = figure(1.5);
    d.model.wake = figure(0.0625);
    d.model.late = figure(0.03125);
    d.model.interruptions = figure(2);
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    near(p.loads.handling_byte, 0.125e-3);
    assert_true(p.loads.handling < 1e-12);
    near(p.loads.latency, 0.5); /* 2.5 alone, 2 at the full rate */
    near(p.loads.slowdown, 1.5);
    near(p.loads.wake, 0.0625);
    near(p.loads.late, 0.03125);
    near(p.loads.interruptions, 2);
    d.model.loading_slowdown = figure(0.68); /* of a busy machine */
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    near(p.loads.slowdown, 1);
    assert_int_equal(p.loads.demands_in_flight, MOE_LINK_DEMANDS_IN_FLIGHT);
    assert_int_equal(p.loads.prefetches_in_flight, MOE_LINK_PREFETCHES_IN_FLIGHT);
    /* A link that is slower than the storage hides its latency. */
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0.5e9, &err), &err);
    assert_true(p.loads.latency == 0 && p.loads.demands_in_flight == 0);
}

/* n loads take 1 + n (2 a piece + bytes / 4096): two pieces of 512 KiB, 256 seconds, four together.
 */
static void what_loads_cost_comes_from_bursts(void **state)
{
    struct moe_err err = {0};
    struct moe_device d = measured();
    struct moe_pace p;
    struct moe_device_storage *s = &d.storage;
    const struct moe_device_burst bursts[] = {{1, 1 << 20, figure(261), figure(261)},
                                              {8, 1 << 20, figure(521), figure(2081)},
                                              {1, 4096, figure(4), figure(4)},
                                              {8, 4096, figure(25), figure(25)}};
    memcpy(s->bursts, bursts, sizeof bursts);
    s->n_bursts = 4;
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    near(p.load_rate, 4096);
    near(p.loads.piece, 2);
    near(p.loads.latency, 1);
    assert_int_equal(p.loads.demands_in_flight, 4);
    assert_int_equal(p.loads.prefetches_in_flight, 4);
    s->bursts[1].first_seconds.value = 2081; /* all at the end; prefetches are fewer */
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    assert_int_equal(p.loads.demands_in_flight, MOE_LINK_DEMANDS_IN_FLIGHT);
    assert_int_equal(p.loads.prefetches_in_flight, MOE_LINK_PREFETCHES_IN_FLIGHT);
    s->bursts[1].first_seconds.value = 1; /* one after the other */
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    assert_int_equal(p.loads.demands_in_flight, 1);
    /* Small loads that took longer than large ones were disturbed: all of the time is the bytes'.
     */
    s->bursts[3].seconds.value = 4000;
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    near(p.load_rate, 1048576 / 260.0);
    assert_true(p.loads.piece == 0);
    /* One alone takes a quarter of its share of eight: a load takes twice as long as that. */
    s->bursts[0].seconds.value = 65, s->bursts[1].seconds.value = 2080;
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    near(p.load_rate, 1048576 / 130.0);
    assert_true(p.loads.latency == 0);
    s->bursts[0].seconds.value = 261;
    /* As long for one as for eight: the reads tell what there is to know. */
    s->bursts[1].seconds.value = 261;
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    near(p.load_rate, 1e9);
    /* A link that is slower than the storage hides them. */
    memcpy(s->bursts, bursts, sizeof bursts);
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 2048, &err), &err);
    near(p.load_rate, 2048);
    assert_true(p.loads.piece == 0 && p.loads.latency == 0 && p.loads.demands_in_flight == 0);
}

/* A row took 4 at position 8; at position 40, 32 further ones, it takes 12. */
static void attention_goes_by_positions(void **state)
{
    struct moe_err err = {0};
    struct moe_device d = measured();
    struct moe_pace p;
    d.model.positions = 8;
    d.model.far_positions = 40;
    d.model.far_attention = figure(12);
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    near(p.attend, 0.25);
    near(moe_pace_attention(&p, MOE_PIECE_ROUTE, 1, 8), 5);
    near(moe_pace_attention(&p, MOE_PIECE_ROUTE, 1, 40), 13);
    near(moe_pace_attention(&p, MOE_PIECE_DENSE, 1, 40), 18);
    near(moe_pace_attention(&p, MOE_PIECE_ROUTE, 8, moe_pace_positions(0, 8)), 15);
    near(moe_pace_positions(0, 8), 36);
    near(moe_pace_positions(10, 2), 23);
    near(moe_pace_layer(&p, 0, 2), 9); /* as measured */
    d.model.far_attention = figure(3); /* noise */
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    assert_true(p.attend == 0);
}

static void what_has_no_figure_takes_no_time(void **state)
{
    struct moe_err err = {0};
    struct moe_device d = measured();
    struct moe_pace p;
    d.model.head_seconds = figure(0);
    for (int i = 0; i < 2; i++)
        d.model.batches[i].shared = d.model.batches[i].dense = figure(0);
    assert_ok(moe_pace_of_device(&p, &d, packed, 2, 0, &err), &err);
    assert_int_equal(p.pieces[MOE_PIECE_BESIDE].n, 0);
    assert_int_equal(p.pieces[MOE_PIECE_DENSE].n, 0);
    assert_true(moe_pace_piece(&p, MOE_PIECE_BESIDE, 1) == 0 && p.head == 0);
    near(moe_pace_layer(&p, 0, 1), 5 + 0.5 + 0.75);
    /* A model without experts has layers without experts. */
    d = measured();
    for (int i = 0; i < 2; i++)
        d.model.batches[i].router = figure(0);
    assert_ok(moe_pace_of_device(&p, &d, NULL, 0, 0, &err), &err);
    assert_int_equal(p.pieces[MOE_PIECE_ROUTE].n, 0);
    near(moe_pace_piece(&p, MOE_PIECE_DENSE, 8), 30);
    assert_true(p.predict == 0);
}

static void missing_measurements_are_named(void **state)
{
    static const char unknown[1][MOE_NAME_BYTES] = {"3"};
    struct moe_err err = {0};
    struct moe_device d = {0};
    struct moe_pace p;
    strcpy(d.name, "a box");
    d.storage.bytes_per_second = figure(1e9);
    assert_fails(moe_pace_of_device(&p, &d, packed, 1, 0, &err), MOE_ERR_USAGE,
                 "device profile 'a box': no times of this model's layers; measure this machine "
                 "with the pack: moe-profile --device PACK",
                 &err);
    d = measured();
    assert_fails(moe_pace_of_device(&p, &d, unknown, 1, 0, &err), MOE_ERR_USAGE,
                 "'a machine': no times of experts at '3' bits; measure", &err);
    strcpy(d.model.variants[2].name, "iq2_kt");
    d.model.variants[2].bytes = figure(0);
    static const char typed[2][MOE_NAME_BYTES] = {"8", "iq2_kt"};
    assert_fails(moe_pace_of_device(&p, &d, typed, 2, 0, &err), MOE_ERR_USAGE,
                 "no times of experts at 'iq2_kt'; measure", &err);
    d = measured();
    d.model.variants[2].bytes = figure(0);
    assert_fails(moe_pace_of_device(&p, &d, packed, 2, 0, &err), MOE_ERR_USAGE,
                 "no times of experts at '2' bits", &err);
    d = measured();
    d.storage.bytes_per_second = d.accelerator.link_bytes_per_second = figure(0);
    assert_fails(moe_pace_of_device(&p, &d, packed, 2, 0, &err), MOE_ERR_USAGE,
                 "no load rate from storage; measure it with moe-profile --device, or give it "
                 "with --link-rate",
                 &err);
}

/* ---- From bandwidth ---- */

static const struct moe_weights weights = {
    .n_layers = 3,
    .n_moe_layers = 2,
    .top_k = 2,
    .attention_bytes = 700,
    .router_bytes = 70,
    .shared_bytes = 350,
    .dense_bytes = 1400,
    .head_bytes = 2100,
    .n_variants = 2,
    .expert_bytes = {280, 140},
};

static void bandwidth_alone_gives_times(void **state)
{
    struct moe_err err = {0};
    struct moe_device d = {0};
    struct moe_pace p;
    d.host.memory_bytes_per_second = figure(1000); /* of which 700 count */
    d.storage.bytes_per_second = figure(50);
    assert_ok(moe_pace_of_bandwidth(&p, &d, &weights, MOE_TIER_STORAGE, 0, &err), &err);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 1), 1);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 16), 1);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 48), 3);
    near(moe_pace_piece(&p, MOE_PIECE_BESIDE, 1), 0.5);
    assert_true(moe_pace_piece(&p, MOE_PIECE_COMBINE, 1) == 0);
    near(moe_pace_piece(&p, MOE_PIECE_DENSE, 1), 2.9); /* (700 - 70 + 1400) / 700 */
    near(moe_pace_expert(&p, 0, 1), 0.4);
    near(moe_pace_expert(&p, 1, 32), 0.4);
    near(p.head, 3);
    near(p.predict, 0.1);
    near(p.load_rate, 50);
    near(moe_pace_layer(&p, 1, 2), 1 + 0.5 + 2 * 0.2);
    assert_ok(moe_pace_of_bandwidth(&p, &d, &weights, MOE_TIER_STORAGE, 10, &err), &err);
    near(p.load_rate, 10);

    /* The accelerator's where loads go into its memory, and only there. */
    strcpy(d.accelerator.name, "GPU");
    d.accelerator.memory_bytes_per_second = figure(2000);
    d.accelerator.link_bytes_per_second = figure(300);
    assert_ok(moe_pace_of_bandwidth(&p, &d, &weights, MOE_TIER_HOST, 0, &err), &err);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 1), 0.5);
    near(p.load_rate, 300);
    assert_ok(moe_pace_of_bandwidth(&p, &d, &weights, MOE_TIER_STORAGE, 0, &err), &err);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 1), 1);
    near(p.load_rate, 50);

    /* Five launches and a round trip before the choice, two for all experts together, and storage
     * behind the host's memory. */
    d.accelerator.launch_seconds = figure(0.1);
    d.accelerator.trip_seconds = figure(0.25);
    d.accelerator.link_piece_seconds = figure(0.01);
    assert_ok(moe_pace_of_bandwidth(&p, &d, &weights, MOE_TIER_HOST, 0, &err), &err);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 1), 0.5 + 0.5 + 0.25);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 48), 1.5 + 0.5 + 0.25);
    near(moe_pace_piece(&p, MOE_PIECE_DENSE, 1), 1.45 + 0.7);
    near(moe_pace_expert(&p, 0, 1), 0.2);
    near(p.joint, 0.2);
    near(p.loads.piece, 0.01);
    near(p.storage_rate, 50);
    near(p.load_rate, 300);
    assert_ok(moe_pace_of_bandwidth(&p, &d, &weights, MOE_TIER_STORAGE, 0, &err), &err);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 1), 1);
    assert_true(p.joint == 0 && p.loads.piece == 0 && p.storage_rate == 0);

    /* Layers that a model does not have take no time. */
    struct moe_weights all = weights;
    all.n_moe_layers = 3;
    assert_ok(moe_pace_of_bandwidth(&p, &d, &all, MOE_TIER_STORAGE, 0, &err), &err);
    assert_int_equal(p.pieces[MOE_PIECE_DENSE].n, 0);
}

static void a_layer_takes_what_is_said(void **state)
{
    struct moe_err err = {0};
    struct moe_device d = {0};
    struct moe_pace p;
    d.host.memory_bytes_per_second = figure(1000);
    d.storage.bytes_per_second = figure(50);
    assert_ok(moe_pace_of_bandwidth(&p, &d, &weights, MOE_TIER_STORAGE, 0, &err), &err);
    p.host_slowdown = 8;
    near(moe_pace_layer(&p, 0, 2), 2.3); /* 1 + 0.5 + 2 x 0.4 */
    moe_pace_set_layer(&p, 2, 4.6);
    near(moe_pace_layer(&p, 0, 2), 4.6);
    near(moe_pace_piece(&p, MOE_PIECE_ROUTE, 48), 6);
    near(moe_pace_piece(&p, MOE_PIECE_DENSE, 1), 5.8);
    near(moe_pace_expert(&p, 1, 1), 0.4);
    near(p.predict, 0.2);
    near(p.head, 3);
    near(p.load_rate, 50);
    near(moe_pace_host(&p, 0, 0, 0, 1), 8 * 0.4); /* the host is as fast as before */
    p = (struct moe_pace){0};
    moe_pace_set_layer(&p, 2, 4.6); /* nothing to make longer */
    assert_true(moe_pace_layer(&p, 0, 2) == 0);
}

static void missing_bandwidth_is_named(void **state)
{
    struct moe_err err = {0};
    struct moe_device d = {0};
    struct moe_pace p;
    strcpy(d.name, "a box");
    assert_fails(moe_pace_of_bandwidth(&p, &d, &weights, MOE_TIER_STORAGE, 0, &err), MOE_ERR_USAGE,
                 "device profile 'a box': no bandwidth of the memory that computation reads "
                 "weights from; add memory_bytes_per_second of the host",
                 &err);
    d.host.memory_bytes_per_second = figure(1000);
    assert_fails(moe_pace_of_bandwidth(&p, &d, &weights, MOE_TIER_STORAGE, 0, &err), MOE_ERR_USAGE,
                 "no load rate from storage", &err);
    strcpy(d.accelerator.name, "GPU");
    assert_fails(moe_pace_of_bandwidth(&p, &d, &weights, MOE_TIER_HOST, 1, &err), MOE_ERR_USAGE,
                 "of the accelerator", &err);
    d.accelerator.memory_bytes_per_second = figure(1000);
    assert_fails(moe_pace_of_bandwidth(&p, &d, &weights, MOE_TIER_HOST, 0, &err), MOE_ERR_USAGE,
                 "no load rate from the host's memory", &err);
}

/* A processor's loads come from storage, whatever else the machine has. */
static void loads_come_from_where_the_plan_is_for(void **state)
{
    struct moe_device d = {0};
    assert_int_equal(moe_pace_tier(&d, false), MOE_TIER_STORAGE);
    assert_int_equal(moe_pace_tier(&d, true), MOE_TIER_STORAGE);
    strcpy(d.accelerator.name, "GPU");
    d.accelerator.link_bytes_per_second = figure(16e9);
    assert_int_equal(moe_pace_tier(&d, false), MOE_TIER_STORAGE);
    assert_int_equal(moe_pace_tier(&d, true), MOE_TIER_HOST);
    d.accelerator.shares_memory = true;
    assert_int_equal(moe_pace_tier(&d, true), MOE_TIER_STORAGE);
}

static void pieces_have_names(void **state)
{
    assert_string_equal(moe_piece_name(MOE_PIECE_ROUTE), "route");
    assert_string_equal(moe_piece_name(MOE_PIECE_BESIDE), "beside");
    assert_string_equal(moe_piece_name(MOE_PIECE_COMBINE), "combine");
    assert_string_equal(moe_piece_name(MOE_PIECE_DENSE), "dense");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_go_through_their_points),
        cmocka_unit_test(points_without_figures_are_left_out),
        cmocka_unit_test(pieces_come_from_the_batches),
        cmocka_unit_test(rates_are_of_storage_or_as_given),
        cmocka_unit_test(what_loads_cost_comes_from_the_profile),
        cmocka_unit_test(what_loads_cost_comes_from_bursts),
        cmocka_unit_test(attention_goes_by_positions),
        cmocka_unit_test(what_has_no_figure_takes_no_time),
        cmocka_unit_test(missing_measurements_are_named),
        cmocka_unit_test(bandwidth_alone_gives_times),
        cmocka_unit_test(a_layer_takes_what_is_said),
        cmocka_unit_test(missing_bandwidth_is_named),
        cmocka_unit_test(loads_come_from_where_the_plan_is_for),
        cmocka_unit_test(pieces_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
