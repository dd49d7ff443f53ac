/* Writes the seeds of fuzz_request: requests of both APIs with every key, and results. Run it in
 * tests/fuzz/corpus/request. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"

#define CHAT "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

static const struct {
    const char *name, *text;
} seeds[] = {
    {"empty", ""},
    {"chat", "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"a\"},"
             "{\"role\":\"developer\",\"content\":\"b\"},{\"role\":\"user\",\"content\":["
             "{\"type\":\"text\",\"text\":\"c\"},{\"type\":\"text\",\"text\":\"d\"}]},"
             "{\"role\":\"assistant\",\"content\":\"e\"},{\"role\":\"user\",\"content\":\"f\"}],"
             "\"temperature\":0.5,\"top_p\":0.9,\"top_k\":5,\"min_p\":0.1,\"repeat_penalty\":1.1,"
             "\"seed\":-7,\"max_completion_tokens\":9,\"max_tokens\":9,\"stop\":[\"x\",\"\",\"y\"],"
             "\"n\":2,\"logprobs\":true,\"top_logprobs\":2,\"ignore_eos\":true,"
             "\"metadata\":{\"topic\":\"law\"},\"tools\":[],\"tool_choice\":\"none\"}"},
    {"stream", "{" CHAT ",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"top_k\":-1,"
               "\"logprobs\":false,\"response_format\":{\"type\":\"text\"},"
               "\"modalities\":[\"text\"]}"},
    {"text", "{\"prompt\":[\"Once\"],\"echo\":true,\"stop\":\"end\",\"repetition_penalty\":1.5,"
             "\"suffix\":\"\",\"best_of\":1,\"logit_bias\":{},\"user\":\"u\"}"},
    {"ids", "{\"prompt\":[[1,2,3]],\"logprobs\":3,\"max_tokens\":0}"},
    {"lines", "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
              "{\"prompt\":\"x\"}}\n\n{\"id\":7,\"custom_id\":\"\\u00e9\",\"prompt\":[1]}\r\n"
              "{\"custom_id\":\"b\",\"url\":\"/v1/chat/completions\",\"body\":{" CHAT "}}\n"
              "{\"id\":{},\"prompt\":\"x\"}\n{\"url\":\"/v1/embeddings\",\"body\":{}}\n"
              "{\"method\":\"GET\",\"body\":{}}\n{\"body\":3}\n{}\n[1]\nno JSON"},
    {"mark", "\xef\xbb\xbf{\"prompt\":\"x\"}\n{\"prompt\":\"\xff\"}\n{\"prompt\":\"\\u0000\"}"},
    {"results", "{\"id\":\"batch_req_3\",\"custom_id\":\"a\",\"response\":{\"status_code\":200,"
                "\"body\":{}},\"error\":null}\n{\"id\":\"batch_req_600\",\"custom_id\":null}\n"
                "{\"id\":\"batch_req_4\",\"cus"},
    {"not-results", "{\"id\":\"batch_req_0\"}\n"},
    /* What is refused, a request to a line. */
    {"refused-numbers",
     "{\"prompt\":\"x\",\"temperature\":3}\n{\"prompt\":\"x\",\"top_p\":\"1\"}\n"
     "{\"prompt\":\"x\",\"top_k\":-2}\n{\"prompt\":\"x\",\"n\":0}\n{\"prompt\":\"x\",\"n\":1.5}\n"
     "{\"prompt\":\"x\",\"seed\":0.5}\n{\"prompt\":\"x\",\"max_tokens\":-1}\n"
     "{\"prompt\":\"x\",\"max_tokens\":1,\"max_completion_tokens\":2}\n"
     "{\"prompt\":\"x\",\"logprobs\":21}\n{\"prompt\":\"x\",\"logprobs\":1,\"echo\":true}\n"
     "{" CHAT ",\"top_logprobs\":1}\n{" CHAT ",\"stream_options\":{}}\n"
     "{" CHAT ",\"stream\":3}\n{" CHAT ",\"seed\":1e30}"},
    {"refused-texts",
     "{\"prompt\":null}\n{\"prompt\":[]}\n{\"prompt\":[\"a\",\"b\"]}\n{\"prompt\":[1,\"a\"]}\n"
     "{\"prompt\":3}\n{\"prompt\":[1],\"echo\":true}\n{\"messages\":[]}\n{\"messages\":3}\n"
     "{\"messages\":[{\"role\":\"tool\"}]}\n{\"messages\":[{\"role\":3}]}\n"
     "{\"messages\":[{\"role\":\"user\",\"content\":3}]}\n"
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}\n"
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}\n"
     "{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"tool_calls\":[]}]}\n"
     "{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"system\",\"content\":\"\"}]"
     "}"},
    {"refused-others",
     "{\"prompt\":\"x\",\"model\":3}\n{\"prompt\":\"x\",\"stop\":3}\n{\"prompt\":\"x\",\"stop\":[3]"
     "}\n"
     "{\"prompt\":\"x\",\"stop\":[\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\","
     "\"\",\"\",\"\",\"\"]}\n{\"prompt\":\"x\",\"metadata\":3}\n"
     "{\"prompt\":\"x\",\"metadata\":{\"a\":3}}\n{\"prompt\":\"x\",\"tools\":[1]}\n"
     "{\"prompt\":\"x\",\"tool_choice\":\"required\"}\n{\"prompt\":\"x\",\"logit_bias\":{\"1\":1}}"
     "\n"
     "{\"prompt\":\"x\",\"presence_penalty\":1}\n{\"prompt\":\"x\",\"use_beam_search\":true}\n"
     "{\"prompt\":\"x\",\"response_format\":{\"type\":\"json_object\"}}\n"
     "{\"prompt\":\"x\",\"modalities\":[\"audio\"]}\n{\"prompt\":\"x\",\"modalities\":3}"},
};

int main(void)
{
    struct moe_err err;
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++)
        if (moe_file_write_all(seeds[i].name, seeds[i].text, strlen(seeds[i].text), &err) !=
            MOE_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
    return 0;
}
