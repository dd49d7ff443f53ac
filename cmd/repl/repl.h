/*
 * The interactive prompt of moe-run: line editing, history, slash commands, a footer per answer.
 */
#ifndef CMD_REPL_H
#define CMD_REPL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/conversation.h"
#include "engine/engine.h"
#include "engine/sampler.h"

struct repl {
    const char *pack;          /* its path, for the first line */
    const char *template_file; /* of the chat; NULL: the model's own */
    struct moe_engine *engine;
    struct moe_conversation *conversation;
    struct moe_sampler_options *sampling; /* /set changes it; its biases are allocated */
    struct moe_beam_options beams;
    struct moe_constraint *constraint; /* that every answer follows; NULL: none */
    uint64_t max_tokens, min_tokens;
    struct moe_ids *stop_ids; /* tokens that end answers too; /set changes them */
    bool draft_ahead;         /* by the model's own layer */
    uint32_t draft;           /* tokens drafted at most; 0: none */
    bool ignore_eos, context_shift;
    bool exact;                    /* --exact: no shift is offered */
    const char *const *stop_texts; /* NULL-terminated, or NULL */
    struct moe_stats *total;       /* over all answers; the session has the last answer's */
};

/* Reads and answers until the user leaves. Returns the exit status, after a message if not 0. */
int repl_run(struct repl *repl);

/* Text callback for moe_generate: stdout, at once. */
int repl_stream(void *ctx, const char *bytes, uint64_t n);

/* What is on stdout of an answer that is read (moe_conversation's on_part): thoughts, dim on a
 * terminal, text, and calls as "-> NAME(ARGUMENTS)". */
struct repl_said {
    bool hidden; /* nothing is shown */
    bool apart;  /* thoughts are on stderr: stdout has what a grammar holds, and no more */
    bool some, dim;
    bool thought; /* the last part on stderr was one */
    bool thinks;  /* the last part of all was one */
    enum moe_answer_part_kind last;
};
int repl_say_part(void *said, const struct moe_answer_part *part);
/* The answer is over, and another may follow. Returns whether it ended within its thought. */
bool repl_end_said(struct repl_said *said);

/* Says on stderr, once the answer's line is ended, that it ended because the context is full, or
 * within its thought (thinks), unless the user ended it; silent otherwise. */
void repl_explain_stop(enum moe_stop_reason why, bool thinks, uint32_t context);
/* Says on stderr that a full context has lost something; silent otherwise. */
void repl_explain_shift(const struct moe_stats *stats);

#endif
