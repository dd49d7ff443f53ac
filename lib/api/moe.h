/*
 * libmoe: Mixture-of-Experts language models within a budget of memory.
 *
 * The whole public interface of the library; it is installed as <moe/moe.h>. A model is opened from
 * a pack (moe-quantize(1)) or a checkpoint, and holds one conversation. The library never prints
 * and never exits.
 *
 *     struct moe_error error;
 *     struct moe *model;
 *     const struct moe_options options = {.memory_bytes = 2ull << 30};
 *     if (moe_open(&model, "model.moe", &options, &error) != 0)
 *         ...;
 *     struct moe_answering how = moe_answering_default();
 *     how.text = show;                        gets the answer as it is written
 *     moe_ask(model, "What is a pack?", &how, NULL, &error);
 *     moe_close(model);
 *
 * Functions that can fail return 0 or one of enum moe_error_kind, and then fill *error, which may
 * be NULL. A struct moe is used by one thread at a time; several may be open, each with a budget of
 * its own. It has 6 MiB for the program; a larger program subtracts what it needs beyond that.
 * Structures begin as {0}: a member 0 or NULL means what its comment says. Later versions add
 * members at the ends of structures and constants at the ends of enumerations; whatever else
 * changes raises MOE_API.
 */
#ifndef MOE_API_MOE_H
#define MOE_API_MOE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOE_API 1

/* MOE_API of the library that is linked, and the toolkit's version, "0.1.0". */
int moe_api(void);
const char *moe_version(void);

enum moe_error_kind {
    MOE_ERROR_USAGE = -10,       /* the caller asked for something that makes no sense */
    MOE_ERROR_IO = -20,          /* the operating system refused: read, write, open, space */
    MOE_ERROR_FORMAT = -30,      /* a file is damaged or of a wrong kind */
    MOE_ERROR_VERSION = -31,     /* a file has a version that this library does not read */
    MOE_ERROR_UNSUPPORTED = -32, /* a file is sound but asks for what is not implemented */
    MOE_ERROR_LIMIT = -40,       /* a limit did not hold: budget, context, exactness */
    MOE_ERROR_MEMORY = -50,      /* out of memory */
    MOE_ERROR_DEVICE = -60,      /* no device, or the device failed */
    MOE_ERROR_CALLER = -70,      /* the caller's function ended it */
};

struct moe_error {
    int kind;       /* of enum moe_error_kind */
    char text[512]; /* one sentence: what, where and what to do */
};

/* ---- A model ---- */

struct moe;

struct moe_options {
    uint64_t memory_bytes;  /* the budget; 0: what is free */
    uint32_t context;       /* tokens of a conversation; 0: the model's, at most 4096 */
    int threads;            /* that compute, in all of the process; 0: as they are, at first one
                               for each core */
    const char *plan;       /* a file of moe-plan(1), which then decides strategy, slots, and memory
                               and context where these are 0; NULL: none */
    const char *statistics; /* a file of moe-profile(1); NULL: none */
    const char *strategy;   /* as moe-run's --strategy, moe-strategies(7); NULL: by what fits */
    const char *device; /* as moe-run's --device: "cpu", "cuda", "cuda:1", "auto"; NULL: "cpu" */
    bool exact;         /* refuse what may change results */
    bool plain;         /* texts are continued, whether or not the model has a chat template */
};

/* Opens the pack, .gguf file or Hugging Face directory at `path` within the budget; MOE_ERROR_LIMIT
 * names the smallest that works. options NULL: as {0}. *out is NULL on failure; release it with
 * moe_close. Texts of the options are not kept. Experts that all fit may be read while the first
 * tokens are computed; one that cannot be read is an error of the call that needs it. */
int moe_open(struct moe **out, const char *path, const struct moe_options *options,
             struct moe_error *error);
void moe_close(struct moe *m); /* NULL is fine */

/* What was opened. */
struct moe_facts {
    uint32_t context, vocabulary, layers, experts, experts_per_token;
    bool chats;            /* messages are answered as the model's template has them */
    uint64_t memory_bytes; /* the budget; UINT64_MAX: not known */
    uint64_t least_bytes;  /* the smallest budget that works with these options */
    uint64_t expert_bytes; /* of it, for experts in memory */
    uint64_t model_bytes;  /* all experts of the model, at the precision that is used */
};
void moe_facts(const struct moe *m, struct moe_facts *out);

/* ---- Answers ---- */

enum moe_end {
    MOE_END_MODEL,   /* the model ended its answer */
    MOE_END_LENGTH,  /* max_tokens */
    MOE_END_CONTEXT, /* the context is full */
    MOE_END_STOP,    /* one of the stop texts came, which is not part of the answer */
};

struct moe_answering {
    uint64_t max_tokens; /* 0: until something else ends it */
    /* How tokens are drawn; moe_answering_default leaves it to the model. */
    double temperature;      /* 0: always the likeliest token */
    uint32_t top_k;          /* of the k likeliest; 0: of all */
    double top_p;            /* of the fewest with this share; 1: of all */
    double min_p;            /* of those with this share of the likeliest's; 0: of all */
    double repeat_penalty;   /* above 1: what was said lately becomes less likely; 1: off */
    uint64_t seed;           /* the same seed gives the same answer */
    const char *const *stop; /* texts that end it, ended by NULL; NULL: none */
    /* Gets the answer in pieces of whole UTF-8 characters, n bytes each, without an end mark. A
     * result other than 0 ends the answer: MOE_ERROR_CALLER. NULL: nobody does. */
    int (*text)(void *ctx, const char *bytes, size_t n);
    void *ctx;
};

/* As moe-run(1) has them, seed 0: a double that is NAN, and a top_k of UINT32_MAX, is as the
 * model's makers published it, else as moe-run's defaults say. */
struct moe_answering moe_answering_default(void);

/* Sets the system's text (NULL: none) and forgets the conversation. MOE_ERROR_USAGE where the model
 * does not chat. */
int moe_system(struct moe *m, const char *text, struct moe_error *error);
/* Asks, and has the answer written to how->text. The conversation keeps both; a question that could
 * not be answered is taken back. Where the model does not chat, the text is one to be continued,
 * and nothing before it counts. *end (may be NULL): what ended the answer. */
int moe_ask(struct moe *m, const char *text, const struct moe_answering *how, enum moe_end *end,
            struct moe_error *error);
/* Forgets all but the system's text. */
void moe_forget(struct moe *m);

/* ---- Tokens ---- */

/* The ids of n bytes of text, without a token that begins it; special tokens are not looked for.
 * Release *ids with moe_free. */
int moe_tokenize(const struct moe *m, const char *text, size_t n, uint32_t **ids, size_t *n_ids,
                 struct moe_error *error);
/* The text of ids, ended by a zero that *n does not count. Release *text with moe_free. */
int moe_detokenize(const struct moe *m, const uint32_t *ids, size_t n_ids, char **text, size_t *n,
                   struct moe_error *error);

/* ---- Statistics ---- */

/* Of all answers so far, a JSON object as moe-run-stats(5) describes it. Release *json with
 * moe_free. */
int moe_statistics(const struct moe *m, char **json, struct moe_error *error);

void moe_free(void *memory); /* NULL is fine */

#ifdef __cplusplus
}
#endif

#endif
