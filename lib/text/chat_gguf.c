#include "fmt/gguf.h"
#include "text/chat.h"

int moe_chat_read_gguf_template(const struct moe_gguf *gguf, struct moe_buf *out,
                                struct moe_err *err)
{
    const char *text = NULL;
    int status = moe_gguf_get_text(gguf, "tokenizer.chat_template", false, &text, err);
    if (status == MOE_OK && text)
        moe_buf_text(out, text);
    return status == MOE_OK && out->failed
               ? moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: the chat template",
                          moe_gguf_path(gguf))
               : status;
}
