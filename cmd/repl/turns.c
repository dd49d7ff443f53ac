/* /result, /undo, /retry, /save, /load: turns taken back, and conversations kept in files. */
#include <inttypes.h>

#include "cli.h"
#include "commands.h"
#include "engine/conversation.h"

int command_undo(struct console *c, const char *arg, struct moe_err *err)
{
    bool undone = moe_conversation_undo(c->r->conversation, NULL);
    console_tell(c, undone ? "the last question and its answer are gone"
                           : "there is no question to take back");
    return 0;
}

int command_result(struct console *c, const char *arg, struct moe_err *err)
{
    uint64_t open;
    if (moe_conversation_result(c->r->conversation, arg, &open, err) != MOE_OK) {
        console_tell(c, "%s", err->text);
        return 0;
    }
    if (open == 0)
        return console_answer(c, NULL, err);
    console_tell(c, "calls without a result: %" PRIu64, open);
    return 0;
}

int command_retry(struct console *c, const char *arg, struct moe_err *err)
{
    struct moe_buf question = {0};
    int status = 0;
    if (!moe_conversation_undo(c->r->conversation, &question)) {
        console_tell(c, "there is no question to ask again");
        return 0;
    }
    moe_buf_u8(&question, 0);
    c->r->sampling->seed++; /* other draws, or the answer would be the same */
    if (question.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the question");
    if (status == 0)
        status = console_new_sampler(c, err);
    if (status == 0)
        status = console_answer(c, (const char *)question.data, err);
    moe_buf_release(&question);
    return status;
}

int command_save(struct console *c, const char *arg, struct moe_err *err)
{
    const struct moe_conversation *talk = c->r->conversation;
    if (!*arg)
        console_tell(c, "/save FILE keeps the conversation there; /load FILE goes on with it");
    else if (moe_conversation_save(talk, c->sampler, moe_engine_method(c->r->engine), arg, err) !=
             MOE_OK)
        cli_error(err);
    else
        console_tell(c, "saved %" PRIu64 " tokens", talk->history.n);
    return 0;
}

int command_load(struct console *c, const char *arg, struct moe_err *err)
{
    struct moe_conversation *talk = c->r->conversation;
    if (!*arg)
        console_tell(c, "/load FILE goes on with a conversation that /save kept");
    else if (moe_conversation_load(talk, c->sampler, moe_engine_method(c->r->engine), arg, err) !=
             MOE_OK)
        cli_error(err);
    else
        console_tell(c, "loaded %" PRIu64 " tokens: it goes on where it was saved",
                     talk->history.n);
    return 0;
}
