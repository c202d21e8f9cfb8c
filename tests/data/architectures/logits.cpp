// Prints llama.cpp's logits of every position of a sequence, as 32-bit floats:
// logits [--lora ADAPTER SCALE] MODEL CONTEXT TOKEN...
// Built by make.py, here and in ../adapters, against llama.cpp's public header.

#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char ** argv) {
    const char * lora = nullptr;
    float scale = 0;
    if (argc > 3 && strcmp(argv[1], "--lora") == 0) {
        lora = argv[2];
        scale = (float) atof(argv[3]);
        argc -= 3;
        argv += 3;
    }
    if (argc < 4) {
        return 2;
    }
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_ERROR) {
            fputs(text, stderr);
        }
    }, nullptr);
    llama_backend_init();
    llama_model_params of_model = llama_model_default_params();
    of_model.use_extra_bufts = false;
    llama_model * model = llama_model_load_from_file(argv[1], of_model);
    if (!model) {
        return 1;
    }
    std::vector<llama_token> tokens;
    for (int i = 3; i < argc; ++i) {
        tokens.push_back(atoi(argv[i]));
    }
    llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx = atoi(argv[2]);
    of_context.n_threads = of_context.n_threads_batch = 1;
    of_context.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context * context = llama_init_from_model(model, of_context);
    if (!context) {
        return 1;
    }
    if (lora) {
        llama_adapter_lora * adapter = llama_adapter_lora_init(model, lora);
        if (!adapter || llama_set_adapters_lora(context, &adapter, 1, &scale) != 0) {
            return 1;
        }
    }
    llama_batch batch = llama_batch_init((int32_t) tokens.size(), 0, 1);
    for (size_t i = 0; i < tokens.size(); ++i) {
        batch.token[i] = tokens[i];
        batch.pos[i] = (llama_pos) i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = true;
    }
    batch.n_tokens = (int32_t) tokens.size();
    if (llama_decode(context, batch) != 0) {
        return 1;
    }
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (size_t i = 0; i < tokens.size(); ++i) {
        fwrite(llama_get_logits_ith(context, (int32_t) i), sizeof(float), vocabulary, stdout);
    }
    return 0;
}
