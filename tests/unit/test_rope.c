/*
 * Rotary frequencies against those that transformers 5.23 computes: the expected numbers are what
 * modeling_rope_utils.ROPE_INIT_FUNCTIONS gives for the settings beside them with hidden_size 64,
 * 4 heads and max_position_embeddings 4096 (131072 where "truncate" is false), printed with nine
 * digits. They are of single precision, ours of double: equal within 1e-6 of each.
 */
#include <math.h>

#include "fmt/json.h"
#include "model/rope.h"

#include "../test.h"

enum { PAIRS = 8 };

static struct moe_config config;

/* Reads a config.json's text and applies it to a small model. */
static int apply(const char *text, uint32_t context, struct moe_err *err)
{
    struct moe_rope_settings settings;
    moe_config_init(&config);
    config.hidden = 64;
    config.n_heads = 4;
    config.context_max = context;
    struct json_t *json;
    assert_ok(moe_json_parse(&json, "config.json", text, strlen(text), MOE_JSON_CONFIG_MEMORY, err),
              err);
    moe_rope_settings_init(&settings);
    int status = moe_rope_read_hf(&settings, "config.json", json, err);
    if (status == MOE_OK)
        status = moe_rope_apply(&config, &settings, "config.json", err);
    moe_json_free(json);
    return status;
}

static void assert_close(double got, double want)
{
    if (!(fabs(got - want) <= 1e-6 * fabs(want)))
        fail_msg("%.9g, expected %.9g", got, want);
}

static void assert_freqs(const double *got, uint32_t n, const double *want)
{
    assert_int_equal(n, PAIRS);
    for (int i = 0; i < PAIRS; i++)
        assert_close(got[i], want[i]);
}

#define FACTORS                                                                                    \
    "\"short_factor\": [1.0, 1.1, 1.25, 1.5, 2, 2.5, 3, 3.5],"                                     \
    "\"long_factor\": [1.5, 2, 3, 5, 8, 13, 21, 34.0]"
#define SHORT_FREQS                                                                                \
    {                                                                                              \
        1.0, 0.287479758, 0.0799999982, 0.0210818499, 0.00499999989, 0.00126491114, 0.00033333333, \
            9.03507898e-05                                                                         \
    }
#define LONG_FREQS                                                                                 \
    {                                                                                              \
        0.666666687, 0.158113882, 0.0333333351, 0.00632455572, 0.00124999997, 0.000243252129,      \
            4.76190471e-05, 9.3008166e-06                                                          \
    }

static void frequencies_are_those_of_transformers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double scale, freqs[PAIRS];
        uint32_t context;
    } cases[] = {
        {"{\"rope_theta\": 10000.0, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}}",
         1,
         {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
          0.000250000012, 7.90569466e-05},
         4096},
        {"{\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8.0,"
         "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,"
         "\"original_max_position_embeddings\": 512, \"rope_theta\": 500000.0}}",
         1,
         {1.0, 0.193922758, 0.0273441337, 0.000911583134, 0.000176776681, 3.42810235e-05,
          6.64786967e-06, 1.28917316e-06},
         4096},
        /* As Llama-4-Scout has it: no ramp. */
        {"{\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": "
         "16.0,"
         "\"low_freq_factor\": 1.0, \"high_freq_factor\": 1.0,"
         "\"original_max_position_embeddings\": 8192}}",
         1,
         {1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.00141421345, 1.71405118e-05,
          3.32393483e-06, 6.44586578e-07},
         4096},
        {"{\"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40,"
         "\"mscale\": 0.8, \"mscale_all_dim\": 0.4, \"beta_fast\": 32, \"beta_slow\": 1,"
         "\"original_max_position_embeddings\": 512}}",
         1.1285822076116312,
         {1.0, 0.239147246, 0.0512499996, 0.0084986221, 0.000250000012, 7.90569466e-05,
          2.49999994e-05, 7.90569447e-06},
         4096},
        {"{\"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32.0,"
         "\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"truncate\": false,"
         "\"original_max_position_embeddings\": 4096}}",
         1.3465735902799727,
         {1.0, 0.225418001, 0.0508132726, 0.00679495931, 0.000456483918, 1.8188337e-05,
          4.09997847e-06, 9.24208962e-07},
         131072},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 4.0,"
         "\"attention_factor\": 1.25, \"original_max_position_embeddings\": 1024}}",
         1.25,
         {1.0, 0.316227764, 0.0812500045, 0.0197642371, 0.00437500002, 0.000790569466,
          0.000250000012, 7.90569466e-05},
         4096},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": "
         "null,"
         "\"beta_fast\": 0, \"original_max_position_embeddings\": 256}}",
         1.2772588722239782,
         {1.0, 0.242111877, 0.0531250015, 0.00938801281, 0.000624999986, 0.000197642366,
          6.2500003e-05, 1.97642366e-05},
         4096},
        {"{\"rope_theta\": 10000.0, \"original_max_position_embeddings\": 1024,"
         "\"rope_scaling\": {\"type\": \"longrope\"," FACTORS "}}",
         1.0954451150103321, SHORT_FREQS, 4096},
        {"{\"rope_parameters\": {\"rope_type\": \"longrope\", \"rope_theta\": 10000.0,"
         "\"factor\": 16.0, \"original_max_position_embeddings\": 1024," FACTORS "}}",
         1.1832159566199232, SHORT_FREQS, 4096},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_err err = {0};
        assert_ok(apply(cases[i].text, cases[i].context, &err), &err);
        assert_freqs(config.rope_freqs, config.n_rope_freqs, cases[i].freqs);
        assert_close(config.rope_scale, cases[i].scale);
    }
}

static void long_contexts_have_their_own(void **state)
{
    (void)state;
    struct moe_err err = {0};
    static const double want[PAIRS] = LONG_FREQS;
    assert_ok(apply("{\"rope_parameters\": {\"rope_type\": \"longrope\", \"rope_theta\": 10000.0,"
                    "\"short_mscale\": 1.1, \"long_mscale\": 1.3,"
                    "\"original_max_position_embeddings\": 1024," FACTORS "}}",
                    4096, &err),
              &err);
    assert_freqs(config.rope_freqs_long, config.n_rope_freqs_long, want);
    assert_int_equal(config.rope_original, 1024);
    assert_close(config.rope_scale, 1.1);
    assert_close(config.rope_scale_long, 1.3);
}

static void plain_rope_lists_nothing(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"rope_theta\": 1000000.0, \"rope_scaling\": null}",
        "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1000000.0}}",
        /* grows beyond max_position_embeddings alone */
        "{\"rope_theta\": 1000000.0, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}",
    };
    for (size_t i = 0; i < N_ITEMS(texts); i++) {
        struct moe_err err = {0};
        assert_ok(apply(texts[i], 4096, &err), &err);
        assert_int_equal(config.n_rope_freqs, 0);
        assert_close(config.rope_theta, 1e6);
        assert_close(config.rope_scale, 1);
    }
}

/* To the last digits, not as 32 bits have them. */
static void frequencies_are_exact(void **state)
{
    (void)state;
    struct moe_err err = {0};
    assert_ok(apply("{\"rope_theta\": 500.0, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
                    "\"original_max_position_embeddings\": 64, \"beta_fast\": 8}}",
                    512, &err),
              &err);
    double low = floor(PAIRS * log(64 / (8 * 2 * acos(-1))) / log(500));
    double high = ceil(PAIRS * log(64 / (2 * acos(-1))) / log(500));
    for (int i = 0; i < PAIRS; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        double want = pow(500, -(double)i / PAIRS) * (ramp / 4 + 1 - ramp);
        if (!(fabs(config.rope_freqs[i] - want) <= 1e-14 * want))
            fail_msg("pair %d: %.17g, expected %.17g", i, config.rope_freqs[i], want);
    }
}

static void what_is_not_computed_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
        const char *words;
    } cases[] = {
        {"{\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": -2}}", MOE_ERR_FORMAT,
         "'dynamic' with 'alpha' -2: expected a number above 0"},
        {"{\"rope_scaling\": {\"rope_type\": \"mrope\"}}", MOE_ERR_UNSUPPORTED, "'mrope'"},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}",
         MOE_ERR_UNSUPPORTED, "full_attention"},
        {"{\"rope_scaling\": {\"type\": \"linear\"}}", MOE_ERR_FORMAT, "factor"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": -2}}", MOE_ERR_FORMAT, "-2"},
        {"{\"rope_theta\": 0.5}", MOE_ERR_FORMAT, "theta"},
        {"{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": "
         "[1]}}",
         MOE_ERR_FORMAT, "1 rotary factors for 8 pairs"},
        {"{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 0], \"long_factor\": "
         "[1, 1]}}",
         MOE_ERR_FORMAT, "'short_factor' item 1"},
        {"{\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 5}}",
         MOE_ERR_FORMAT, "high_freq_factor"},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 8, \"beta_slow\": -1}}",
         MOE_ERR_FORMAT, "betas"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_err err = {0};
        assert_fails(apply(cases[i].text, 4096, &err), cases[i].status, cases[i].words, &err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_are_those_of_transformers),
        cmocka_unit_test(long_contexts_have_their_own),
        cmocka_unit_test(plain_rope_lists_nothing),
        cmocka_unit_test(frequencies_are_exact),
        cmocka_unit_test(what_is_not_computed_is_refused),
    };
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
