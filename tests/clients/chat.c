/*
 * A chat in 60 lines over libmoe: reads a message a line, writes the answers.
 *
 *   cc chat.c $(pkg-config --cflags --libs --static moe) -o chat
 *   ./chat model.moe 2000
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/moe.h>

static int show(void *ctx, const char *bytes, size_t n)
{
    (void)ctx;
    return fwrite(bytes, 1, n, stdout) != n || fflush(stdout) != 0;
}

static int failed(const char *what, const struct moe_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error->text);
    return 1;
}

int main(int argc, char **argv)
{
    struct moe *model;
    struct moe_error error;
    struct moe_facts facts;
    struct moe_options options = {0};
    struct moe_answering how = moe_answering_default();
    char line[4096], *statistics;

    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: chat MODEL.moe [MEGABYTES]\n");
        return 2;
    }
    if (argc == 3)
        options.memory_bytes = strtoull(argv[2], NULL, 10) << 20;
    if (moe_open(&model, argv[1], &options, &error) != 0)
        return failed("chat", &error);
    moe_facts(model, &facts);
    fprintf(stderr, "%u experts in each of %u layers, %u for a token; a context of %u tokens\n",
            facts.experts, facts.layers, facts.experts_per_token, facts.context);

    how.text = show;
    how.max_tokens = 200;
    how.temperature = 0;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (moe_ask(model, line, &how, NULL, &error) != 0)
            failed("chat", &error); /* the conversation goes on without it */
        putchar('\n');
    }
    if (moe_statistics(model, &statistics, &error) != 0)
        failed("chat", &error);
    else
        fprintf(stderr, "%s", statistics);
    moe_free(statistics);
    moe_close(model);
    return 0;
}
