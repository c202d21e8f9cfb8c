//! Variables and arguments with which known clients use a daemon. Every program gets the variables
//! of the official SDKs. docs/clients.md describes the same settings by hand.

use serde_json::json;

/// Name of the provider in the configuration of clients that have several.
const PROVIDER: &str = "orind";
/// Hosts that a client must not reach through a proxy.
const LOCAL: &str = "127.0.0.1,localhost";

/// Settings of one run of a program.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) variables: Vec<(&'static str, String)>,
    /// Variables that would send requests elsewhere.
    pub(super) removed: Vec<&'static str>,
    /// Arguments before the user's.
    pub(super) arguments: Vec<String>,
}

/// Tokens of the first prompt of a program and some work, rounded up.
pub(super) fn context(program: &str) -> usize {
    match program {
        "claude" => 32768,
        "codex" | "opencode" | "qwen" | "goose" => 16384,
        "aider" => 8192,
        _ => 0,
    }
}

impl Settings {
    /// Settings of a program for a daemon at `url`, without a slash at the end. `context` is the
    /// number of tokens of a slot, if known.
    pub(super) fn of(
        program: &str,
        url: &str,
        key: &str,
        model: &str,
        context: Option<usize>,
    ) -> Self {
        let v1 = format!("{url}/v1");
        let mut settings =
            Self { variables: Vec::new(), removed: Vec::new(), arguments: Vec::new() };
        settings.set(&[
            ("OPENAI_BASE_URL", &v1),
            ("OPENAI_API_BASE", &v1),
            ("OPENAI_API_BASE_URL", &v1),
            ("OPENAI_API_KEY", key),
            ("OPENAI_MODEL", model),
            ("ANTHROPIC_BASE_URL", url),
            ("ANTHROPIC_AUTH_TOKEN", key),
            ("ANTHROPIC_MODEL", model),
            ("OLLAMA_HOST", url),
        ]);
        let more = std::env::var("NO_PROXY").ok().filter(|hosts| !hosts.is_empty());
        let no_proxy = more.map_or_else(|| LOCAL.to_owned(), |hosts| format!("{hosts},{LOCAL}"));
        settings.set(&[("NO_PROXY", &no_proxy), ("no_proxy", &no_proxy)]);
        match program {
            "claude" => settings.claude(model),
            "codex" => settings.codex(&v1, model),
            "opencode" => settings.opencode(&v1, key, model, context),
            "aider" => {
                settings.arguments =
                    ["--model", &format!("openai/{model}")].map(str::to_owned).to_vec();
                settings.set(&[("AIDER_ANALYTICS", "false"), ("AIDER_CHECK_UPDATE", "false")]);
            }
            "goose" => settings.set(&[
                ("GOOSE_PROVIDER", "openai"),
                ("GOOSE_MODEL", model),
                ("OPENAI_HOST", url),
            ]),
            "open-webui" => settings.set(&[("ENABLE_OLLAMA_API", "false")]),
            _ => {}
        }
        settings
    }

    fn set(&mut self, variables: &[(&'static str, &str)]) {
        self.variables.extend(variables.iter().map(|&(name, value)| (name, value.to_owned())));
    }

    /// Claude Code has a model for each kind of work.
    fn claude(&mut self, model: &str) {
        for name in [
            "ANTHROPIC_DEFAULT_OPUS_MODEL",
            "ANTHROPIC_DEFAULT_SONNET_MODEL",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL",
            "ANTHROPIC_SMALL_FAST_MODEL",
            "CLAUDE_CODE_SUBAGENT_MODEL",
        ] {
            self.set(&[(name, model)]);
        }
        self.set(&[("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")]);
        // A key would be preferred, and a cloud account too.
        self.removed =
            vec!["ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"];
    }

    /// Codex reads TOML values from its command line.
    fn codex(&mut self, v1: &str, model: &str) {
        let text = |text: &str| json!(text).to_string();
        let provider = format!(
            "model_providers.{PROVIDER}={{ name = {}, base_url = {}, wire_api = \"responses\" }}",
            text(PROVIDER),
            text(v1)
        );
        for value in [
            format!("model_provider={}", text(PROVIDER)),
            provider,
            format!("model={}", text(model)),
        ] {
            self.arguments.extend(["-c".to_owned(), value]);
        }
    }

    /// opencode reads a whole configuration from a variable.
    fn opencode(&mut self, v1: &str, key: &str, model: &str, context: Option<usize>) {
        let id = format!("{PROVIDER}/{model}");
        let mut about = json!({ "tool_call": true });
        // Without a limit it asks for more tokens than a slot has.
        if let Some(context) = context {
            about["limit"] = json!({ "context": context, "output": context / 4 });
        }
        let config = json!({
            "model": id,
            "small_model": id,
            "provider": { PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "name": PROVIDER,
                "options": { "baseURL": v1, "apiKey": key },
                "models": { model: about },
            } },
            "autoupdate": false,
            "share": "disabled",
        });
        self.set(&[("OPENCODE_CONFIG_CONTENT", &config.to_string())]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://127.0.0.1:1";

    #[test]
    fn every_program_gets_the_variables_of_the_sdks() {
        for program in ["claude", "codex", "opencode", "aider", "python3"] {
            let settings = Settings::of(program, URL, "key", "a \"model\"", None);
            let has = |name: &str, value: &str| {
                settings.variables.iter().any(|(n, v)| *n == name && v == value)
            };
            assert!(has("OPENAI_BASE_URL", "http://127.0.0.1:1/v1"), "{program}");
            assert!(has("ANTHROPIC_BASE_URL", URL) && has("OLLAMA_HOST", URL), "{program}");
            assert!(
                has("OPENAI_API_KEY", "key") && has("ANTHROPIC_AUTH_TOKEN", "key"),
                "{program}"
            );
            let mut names: Vec<_> = settings.variables.iter().map(|(name, _)| name).collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count, "{program} has a variable twice");
        }
    }

    #[test]
    fn the_model_is_quoted_for_each_format() {
        let model = "a \"model\"";
        let codex = Settings::of("codex", URL, "key", model, None);
        for value in codex.arguments.iter().filter(|word| *word != "-c") {
            let parsed: Result<toml::Table, _> = toml::from_str(value);
            assert!(parsed.is_ok(), "{value}");
        }
        let opencode = Settings::of("opencode", URL, "key", model, Some(4096));
        let (_, config) = opencode.variables.last().unwrap();
        let config: serde_json::Value = serde_json::from_str(config).unwrap();
        assert_eq!(config["model"], format!("orind/{model}"));
        assert_eq!(config["provider"]["orind"]["models"][model]["limit"]["output"], 1024);
    }
}
