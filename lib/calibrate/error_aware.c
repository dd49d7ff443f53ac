#include "calibrate/error_aware.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"

enum { NAMED = 16 /* rare experts in a note; the provenance lists all */ };

/* A missing text should show before hours of conversion. */
static int check_texts(const struct moe_inputs_options *inputs, struct moe_err *err)
{
    for (uint32_t i = 0; i < inputs->n_texts; i++) {
        uint64_t size;
        int fd = moe_file_open(inputs->texts[i], &size, err);
        if (fd < 0)
            return fd;
        close(fd);
    }
    return MOE_OK;
}

/* The checkpoint at 16 bits, or at 32 where 32 are wanted; what is to keep its own precision, at
 * that, and the second step then leaves it alone. The pack of a dense model has no experts to
 * quantize. */
static int make_original(const char *source, const char *path, struct moe_convert_options *options,
                         struct moe_err *err)
{
    struct moe_convert_options original = *options;
    struct moe_convert_report report;
    int bits = 16;
    for (int i = 0; i < options->n_experts; i++)
        if (options->experts[i].gate_up == 32 || options->experts[i].down == 32)
            bits = 32;
    original.experts[0] = (struct moe_bits){bits, bits};
    original.n_experts = 1;
    original.dense_bits = options->dense_bits == 32 ? 32 : 16;
    original.zstd_level = 0;
    original.map = NULL; /* only the second step applies it */
    int status = moe_convert_checkpoint(source, path, &original, &report, err);
    if (status == MOE_OK && (report.expert_weights == 0 || report.kept_experts))
        options->n_experts = 0;
    if (status == MOE_OK && report.kept_dense)
        options->dense_bits = 0;
    const struct moe_ggml_counts *n = &report.carried;
    options->of_quantized = n->exact + n->rounded + n->fitted + report.requantized > 0;
    return status;
}

static void describe(const struct moe_convert_inputs *inputs, struct moe_buf *note)
{
    moe_buf_printf(note, "inputs of %llu tokens", (unsigned long long)inputs->n_tokens);
    if (inputs->n_rare == 0)
        return;
    moe_buf_printf(note, "; %u %s in fewer than %u and rounded by hqq:", inputs->n_rare,
                   inputs->n_rare == 1 ? "expert was seen" : "experts were seen",
                   inputs->least_tokens);
    for (uint32_t i = 0; i < inputs->n_rare && i < NAMED; i++)
        moe_buf_printf(note, "%s layer %u expert %u", i ? "," : "", inputs->rare[i].layer,
                       inputs->rare[i].expert);
    if (inputs->n_rare > NAMED)
        moe_buf_text(note, ", ... (the pack's provenance has all)");
}

static int convert_pack(const char *pack, const char *out_path,
                        const struct moe_convert_options *options,
                        const struct moe_inputs_options *inputs, struct moe_convert_report *report,
                        struct moe_buf *note, struct moe_err *err)
{
    struct moe_convert_options aware = *options;
    struct moe_inputs_seen *seen = NULL;
    int status = moe_inputs_seen_open(&seen, pack, inputs, err);
    if (status == MOE_OK) {
        aware.inputs = moe_inputs_seen_of(seen);
        status = moe_convert_pack(pack, out_path, &aware, report, err);
    }
    if (status == MOE_OK && note)
        describe(aware.inputs, note);
    moe_inputs_seen_close(seen);
    return status;
}

/* The pack in between has no name: it is gone with the process, however that ends. */
static int convert_through_original(const char *source, const char *out_path,
                                    const struct moe_convert_options *options,
                                    const struct moe_inputs_options *inputs,
                                    struct moe_convert_report *report, struct moe_buf *note,
                                    struct moe_err *err)
{
    struct moe_convert_options wanted = *options;
    char original[MOE_DESCRIPTOR_PATH], *target = NULL, *dir = NULL;
    int fd = -1, status = moe_outfile_try(out_path, err);
    if (status == MOE_OK)
        status = moe_path_follow(&target, out_path, err);
    if (status == MOE_OK && !(dir = moe_path_directory(target, err)))
        status = MOE_ERR_MEMORY;
    if (status == MOE_OK && (fd = moe_file_nameless(dir, original, err)) < 0)
        status = fd;
    if (status == MOE_OK) {
        status = make_original(source, original, &wanted, err);
        if (status == MOE_OK)
            status = convert_pack(original, out_path, &wanted, inputs, report, note, err);
        if (status != MOE_OK)
            moe_err_rename(err, original, out_path);
    }
    if (fd >= 0)
        close(fd);
    free(dir);
    free(target);
    return status;
}

int moe_convert_error_aware(const char *source, bool is_checkpoint, const char *out_path,
                            const struct moe_convert_options *options,
                            const struct moe_inputs_options *inputs,
                            struct moe_convert_report *report, struct moe_buf *note,
                            struct moe_err *err)
{
    int status = check_texts(inputs, err);
    if (status != MOE_OK)
        return status;
    return is_checkpoint
               ? convert_through_original(source, out_path, options, inputs, report, note, err)
               : convert_pack(source, out_path, options, inputs, report, note, err);
}
