//! Every field of every dialect's requests, and its treatment. The official clients' request types
//! are compared with it, and so are the tables in `docs/api.md`.

use serde_json::Value;

use super::rejections::{
    HasFields, is_disabled, is_empty, is_one, is_text_format, is_text_only, is_true, is_unforced,
    is_unlimited,
};

/// Test for values that change nothing.
pub(super) type IsNeutral = fn(&Value) -> bool;

/// Treatment of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Treatment {
    Used,
    /// Accepted and ignored: it changes no word of the prompt or the answer.
    Ignored,
    /// Rejected, unless the value is neutral. The text is an alternative.
    Refused(IsNeutral, &'static str),
}

use Treatment::{Ignored, Refused, Used};

/// Fields with one treatment.
pub(super) type Fields = (&'static [&'static str], Treatment);

const LEAVE_OUT: &str = "leave it out";
const SCHEMA: &str = "use response_format, or json_schema and grammar";
const ADAPTER: &str = "select the adapter with `model`: `MODEL:ADAPTER`";
const ANY_TEXT: &str = "use /v1/completions, which accepts any text";
const OTHER_SERVER: &str = "set it in the daemon's configuration";

/// Fields of both completion routes.
const COMPLETION: &[Fields] = &[
    (
        &[
            "model",
            "temperature",
            "top_p",
            "top_k",
            "seed",
            "stop",
            "n",
            "logit_bias",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "repeat_penalty",
            "repeat_last_n",
            "min_p",
            "typical_p",
            "mirostat",
            "mirostat_tau",
            "mirostat_eta",
            "xtc_probability",
            "xtc_threshold",
            "dry_multiplier",
            "dry_base",
            "dry_allowed_length",
            "dry_sequence_breakers",
            "dynatemp_range",
            "dynatemp_exponent",
            "grammar",
            "json_schema",
            "lora",
            "ignore_eos",
            "stream",
            "stream_options",
            "max_tokens",
            "logprobs",
        ],
        Used,
    ),
    (
        &[
            "user",
            "metadata",
            "store",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "cache_prompt",
            "id_slot",
            "timings_per_token",
            "return_progress",
            "return_tokens",
            "moderation",
        ],
        Ignored,
    ),
    (&["best_of"], Refused(is_one, "send `n` with `logprobs` and choose")),
    (&["use_beam_search", "min_tokens"], Refused(is_empty, LEAVE_OUT)),
    (&["stop_token_ids"], Refused(is_empty, "use `stop` with the token's text")),
    (&["n_predict"], Refused(is_unlimited, "use max_tokens")),
    (&["samplers"], Refused(is_empty, "docs/api.md lists their order")),
    (&["top_n_sigma"], Refused(is_unlimited, LEAVE_OUT)),
    (&["top_a"], Refused(is_empty, "use min_p")),
    (&["tfs_z"], Refused(is_one, "use min_p")),
    (&["length_penalty"], Refused(is_one, LEAVE_OUT)),
    (&["bad_words", "allowed_token_ids"], Refused(is_empty, "use logit_bias")),
    (
        &["guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"],
        Refused(is_empty, SCHEMA),
    ),
    (&["prompt_logprobs"], Refused(is_empty, "use /v1/completions with `echo` and `logprobs`")),
    (&["include_stop_str_in_output"], Refused(is_empty, LEAVE_OUT)),
];

impl HasFields for api::CompletionRequest {
    const FIELDS: &'static [&'static [Fields]] = &[
        COMPLETION,
        &[
            (&["prompt", "suffix", "echo"], Used),
            (&["tools"], Refused(is_empty, "use /v1/chat/completions")),
            (
                &["response_format"],
                Refused(is_text_format, "use `json_schema`, or /v1/chat/completions"),
            ),
        ],
    ];
}

impl HasFields for api::ChatRequest {
    const FIELDS: &'static [&'static [Fields]] = &[
        COMPLETION,
        &[
            (
                &[
                    "messages",
                    "max_completion_tokens",
                    "tools",
                    "tool_choice",
                    "parallel_tool_calls",
                    "response_format",
                    "reasoning_effort",
                    "chat_template_kwargs",
                    "top_logprobs",
                ],
                Used,
            ),
            (&["prediction", "verbosity", "web_search_options"], Ignored),
            (&["functions"], Refused(is_empty, "use `tools`")),
            (&["function_call"], Refused(is_unforced, "use `tool_choice`")),
            (&["chat_template", "continue_final_message"], Refused(is_empty, ANY_TEXT)),
            (&["add_generation_prompt"], Refused(is_true, ANY_TEXT)),
            (&["modalities"], Refused(is_text_only, "only text is possible")),
            (&["audio"], Refused(is_empty, "only text is possible")),
        ],
    ];
}

impl HasFields for api::ResponsesRequest {
    const FIELDS: &'static [&'static [Fields]] = &[&[
        (
            &[
                "model",
                "input",
                "instructions",
                "previous_response_id",
                "store",
                "tools",
                "tool_choice",
                "parallel_tool_calls",
                "max_output_tokens",
                "temperature",
                "top_p",
                "top_k",
                "seed",
                "text",
                "reasoning",
                "stream",
                "metadata",
            ],
            Used,
        ),
        (
            &[
                "access_programs",
                "background_options",
                "client_metadata",
                "context_management",
                "image",
                "include",
                "max_tool_calls",
                "moderation",
                "personality",
                "prompt_cache_key",
                "prompt_cache_options",
                "prompt_cache_retention",
                "safety_identifier",
                "service_tier",
                "stream_options",
                "user",
            ],
            Ignored,
        ),
        (&["lora"], Refused(is_empty, ADAPTER)),
        (&["background"], Refused(is_empty, "leave it out; stream the answer or wait for it")),
        (&["conversation"], Refused(is_empty, "use previous_response_id")),
        (&["prompt"], Refused(is_empty, "use instructions and input")),
        (&["top_logprobs"], Refused(is_empty, "use /v1/chat/completions")),
        (&["truncation"], Refused(is_disabled, "send a conversation that fits")),
    ]];
}

impl HasFields for api::EmbeddingsRequest {
    const FIELDS: &'static [&'static [Fields]] =
        &[&[(&["model", "input", "encoding_format", "dimensions"], Used), (&["user"], Ignored)]];
}

impl HasFields for api::MessagesRequest {
    const FIELDS: &'static [&'static [Fields]] = &[&[
        (
            &[
                "model",
                "messages",
                "system",
                "max_tokens",
                "stop_sequences",
                "stream",
                "temperature",
                "top_p",
                "top_k",
                "tools",
                "tool_choice",
                "thinking",
                "output_config",
                "output_format",
                "mcp_servers",
            ],
            Used,
        ),
        (
            &[
                "betas",
                "billing_policy",
                "cache_control",
                "context_management",
                "diagnostics",
                "fallback_credit_token",
                "fallbacks",
                "inference_geo",
                "metadata",
                "service_tier",
                "speed",
                "user_profile_id",
                "workspace_id",
            ],
            Ignored,
        ),
        (&["lora"], Refused(is_empty, ADAPTER)),
        (&["container"], Refused(is_empty, LEAVE_OUT)),
        (&["compaction"], Refused(is_empty, "summarise the conversation in a request of its own")),
        (&["thread"], Refused(is_empty, "send the whole conversation")),
    ]];
}

impl HasFields for api::OllamaChat {
    const FIELDS: &'static [&'static [Fields]] = &[&[
        (
            &["model", "messages", "tools", "stream", "format", "think", "options", "keep_alive"],
            Used,
        ),
        (&["lora"], Refused(is_empty, ADAPTER)),
        (&["logprobs", "top_logprobs"], Refused(is_empty, "use /v1/chat/completions")),
    ]];
}

impl HasFields for api::OllamaGenerate {
    const FIELDS: &'static [&'static [Fields]] = &[&[
        (
            &[
                "model",
                "prompt",
                "suffix",
                "system",
                "raw",
                "stream",
                "format",
                "think",
                "options",
                "keep_alive",
            ],
            Used,
        ),
        (&["height", "steps", "width"], Ignored),
        (&["lora"], Refused(is_empty, ADAPTER)),
        (&["images"], Refused(is_empty, "only text is possible")),
        (&["template"], Refused(is_empty, "use `raw` with the rendered prompt")),
        (&["context"], Refused(is_empty, "use /api/chat with the messages")),
        (&["logprobs", "top_logprobs"], Refused(is_empty, "use /v1/completions")),
    ]];
}

impl HasFields for api::OllamaEmbed {
    const FIELDS: &'static [&'static [Fields]] = &[&[
        (&["model", "input", "prompt", "dimensions"], Used),
        (&["truncate", "keep_alive", "options"], Ignored),
    ]];
}

impl HasFields for api::OllamaCreate {
    const FIELDS: &'static [&'static [Fields]] = &[&[
        (&["model", "name", "from", "system", "parameters", "stream"], Used),
        (&["license"], Ignored),
        (&["template", "messages"], Refused(is_empty, "send it with each request")),
        (&["files", "adapters", "quantize"], Refused(is_empty, OTHER_SERVER)),
        (&["modelfile"], Refused(is_empty, "use from, system and parameters")),
    ]];
}

impl HasFields for api::OllamaShow {
    const FIELDS: &'static [&'static [Fields]] = &[&[
        (&["model", "name", "stream"], Used),
        (&["verbose", "insecure", "username", "password"], Ignored),
    ]];
}

/// Fields of ollama's `options`.
#[cfg(test)]
const OPTIONS: &[Fields] = &[
    (
        &[
            "temperature",
            "top_p",
            "top_k",
            "seed",
            "stop",
            "num_predict",
            "frequency_penalty",
            "presence_penalty",
            "repeat_penalty",
            "repeat_last_n",
            "min_p",
            "typical_p",
            "mirostat",
            "mirostat_tau",
            "mirostat_eta",
        ],
        Used,
    ),
    (
        &[
            "embedding_only",
            "f16_kv",
            "logits_all",
            "low_vram",
            "main_gpu",
            "num_batch",
            "num_ctx",
            "num_gpu",
            "num_keep",
            "num_thread",
            "numa",
            "penalize_newline",
            "tfs_z",
            "use_mlock",
            "use_mmap",
            "vocab_only",
        ],
        Ignored,
    ),
];

impl HasFields for api::InfillRequest {
    const FIELDS: &'static [&'static [Fields]] = &[&[
        (
            &[
                "model",
                "input_prefix",
                "input_suffix",
                "input_extra",
                "prompt",
                "n_predict",
                "max_tokens",
                "temperature",
                "top_p",
                "top_k",
                "seed",
                "stop",
                "stream",
                "grammar",
                "json_schema",
            ],
            Used,
        ),
        (
            &[
                "cache_prompt",
                "id_slot",
                "samplers",
                "n_indent",
                "t_max_prompt_ms",
                "t_max_predict_ms",
                "response_fields",
                "return_tokens",
                "timings_per_token",
            ],
            Ignored,
        ),
        (&["lora"], Refused(is_empty, ADAPTER)),
        (&["n_probs"], Refused(is_empty, "use /v1/completions with `logprobs`")),
    ]];
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Routes with their tables, in the order of the documentation.
    fn tables() -> Vec<(&'static str, Vec<Fields>)> {
        fn of<T: HasFields>() -> Vec<Fields> {
            T::FIELDS.iter().copied().flatten().copied().collect()
        }
        vec![
            ("/v1/completions", of::<api::CompletionRequest>()),
            ("/v1/chat/completions", of::<api::ChatRequest>()),
            ("/v1/responses", of::<api::ResponsesRequest>()),
            ("/v1/embeddings", of::<api::EmbeddingsRequest>()),
            ("/v1/messages", of::<api::MessagesRequest>()),
            ("/api/chat", of::<api::OllamaChat>()),
            ("/api/generate", of::<api::OllamaGenerate>()),
            ("/api/embed", of::<api::OllamaEmbed>()),
            ("/api/create", of::<api::OllamaCreate>()),
            ("/api/show", of::<api::OllamaShow>()),
            ("options", OPTIONS.to_vec()),
            ("/infill", of::<api::InfillRequest>()),
        ]
    }

    /// `tests/data/sdk/fields.py` makes the file from the packages of PyPI.
    #[test]
    fn every_field_of_the_official_clients_is_listed() {
        let file = include_str!("../../../tests/data/sdk/fields.json");
        let clients: BTreeMap<String, Value> = serde_json::from_str(file).unwrap();
        let tables: BTreeMap<_, _> = tables().into_iter().collect();
        for (route, fields) in clients.iter().filter(|(route, _)| *route != "versions") {
            let table = &tables[route.as_str()];
            for field in fields.as_array().unwrap() {
                let field = field.as_str().unwrap();
                let listed = table.iter().filter(|(names, _)| names.contains(&field)).count();
                assert_eq!(listed, 1, "{route}: {field} is listed {listed} times");
            }
        }
    }

    #[test]
    fn the_documentation_lists_every_field() {
        let page = include_str!("../../../docs/api.md");
        let mut missing = String::new();
        for (route, table) in tables() {
            let list = |wanted: fn(&Treatment) -> bool| {
                let mut names: Vec<String> = table
                    .iter()
                    .filter(|(_, treatment)| wanted(treatment))
                    .flat_map(|(names, _)| names.iter().map(|name| format!("`{name}`")))
                    .collect();
                names.sort_unstable();
                names.join(", ")
            };
            let line = format!(
                "| `{route}` | {} | {} |",
                list(|treatment| matches!(treatment, Ignored)),
                list(|treatment| matches!(treatment, Refused(..))),
            );
            let mut used: Vec<&str> = table
                .iter()
                .filter(|(_, treatment)| matches!(treatment, Used))
                .flat_map(|(names, _)| names.iter().copied())
                .filter(|name| !page.contains(&format!("`{name}`")))
                .collect();
            used.sort_unstable();
            if !page.contains(&line) {
                missing.push_str(&format!("{line}\n"));
            }
            if !used.is_empty() {
                missing.push_str(&format!("{route}: {used:?} are not described\n"));
            }
        }
        assert_eq!(missing, "", "docs/api.md lacks these");
    }
}
