//! Formats of tool calls and reasoning, recognised by a template.

/// Format of tool calls in a family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`: Hermes, Qwen 2.5, Qwen 3.
    Hermes,
    /// `<tool_call><function=..><parameter=..>..</parameter></function></tool_call>`: Qwen3-Coder,
    /// Qwen 3.5.
    Xml,
    /// `[TOOL_CALLS][{"name": .., "arguments": ..}]`, or `[TOOL_CALLS]name[ARGS]{..}`: Mistral.
    Mistral,
    /// `{"name": .., "parameters": ..}` as the whole answer, or after `<|python_tag|>`: Llama 3.
    Llama,
    /// Messages to `functions.name` on the channel `commentary`: gpt-oss.
    Harmony,
    /// `<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>`.
    FunctionGemma,
    /// `<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>`: Gemma 4.
    Gemma,
    /// `<|tool_call|>[{"name": .., "arguments": ..}]`: Granite 3.
    Granite,
    /// The same, ended by `<|/tool_call|>`: Phi-4-mini.
    Phi,
    /// `<TOOLCALL>[{"name": .., "arguments": ..}]</TOOLCALL>`: Nemotron.
    Nemotron,
    /// `functools[{"name": .., "arguments": ..}]`: Firefunction, Phi-4-mini.
    Functools,
    /// `<|tool_call_start|>[name(key="text")]<|tool_call_end|>`: LFM2.
    Lfm,
    /// `<｜tool▁calls▁begin｜>`, then each call with its name and arguments: DeepSeek.
    DeepSeek,
    /// The form of Hermes, for a template that knows no tools: the system message describes it.
    Generic,
}

impl Calls {
    pub(super) const TOOL_CALL: &str = "<tool_call>";

    /// All formats. The fuzz corpus refers to them by their positions: new ones are added at the end.
    pub const ALL: [Self; 14] = [
        Self::Hermes,
        Self::Xml,
        Self::Mistral,
        Self::Llama,
        Self::Harmony,
        Self::FunctionGemma,
        Self::Gemma,
        Self::Granite,
        Self::Phi,
        Self::Nemotron,
        Self::Functools,
        Self::Lfm,
        Self::DeepSeek,
        Self::Generic,
    ];

    /// Marks at the start of a call.
    #[must_use]
    pub const fn opens(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Generic => &[Self::TOOL_CALL],
            Self::Xml => &[Self::TOOL_CALL, "<function="],
            Self::Mistral => &["[TOOL_CALLS]"],
            Self::Llama => &["<|python_tag|>"],
            Self::FunctionGemma => &["<start_function_call>"],
            Self::Gemma => &["<|tool_call>"],
            Self::Granite | Self::Phi => &["<|tool_call|>"],
            Self::Nemotron => &["<TOOLCALL>"],
            Self::Functools => &["functools"],
            Self::Lfm => &["<|tool_call_start|>"],
            Self::DeepSeek => &["<｜tool▁calls▁begin｜>"],
            Self::Harmony => &[],
        }
    }

    /// Marks after a call.
    #[must_use]
    pub const fn ends(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Xml | Self::Generic => &["</tool_call>"],
            Self::FunctionGemma => &["<end_function_call>"],
            Self::Gemma => &["<tool_call|>"],
            Self::Phi => &["<|/tool_call|>"],
            Self::Nemotron => &["</TOOLCALL>"],
            Self::Lfm => &["<|tool_call_end|>"],
            Self::DeepSeek => &[super::deepseek::END_ALL],
            Self::Mistral | Self::Llama | Self::Harmony | Self::Granite | Self::Functools => &[],
        }
    }

    /// Quotation mark of strings in Gemma's calls.
    pub(super) const fn quote(self) -> &'static str {
        match self {
            Self::Gemma => "<|\"|>",
            _ => "<escape>",
        }
    }

    /// Other marks in calls.
    const fn within(self) -> &'static [&'static str] {
        match self {
            Self::Mistral => &["[ARGS]", "[CALL_ID]"],
            Self::FunctionGemma => &["<escape>"],
            Self::Gemma => &["<|\"|>"],
            Self::Harmony => &[
                "<|channel|>",
                "<|message|>",
                "<|start|>",
                "<|end|>",
                "<|constrain|>",
                "<|call|>",
                "<|return|>",
            ],
            Self::DeepSeek => &["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
            _ => &[],
        }
    }

    /// True for calls that are a list of JSON objects after one mark.
    #[must_use]
    pub const fn is_list(self) -> bool {
        matches!(self, Self::Granite | Self::Phi | Self::Nemotron | Self::Functools)
    }

    /// Name of the format in headers and in the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::Xml => "xml",
            Self::Mistral => "mistral",
            Self::Llama => "llama",
            Self::Harmony => "harmony",
            Self::FunctionGemma => "functiongemma",
            Self::Gemma => "gemma",
            Self::Granite => "granite",
            Self::Phi => "phi",
            Self::Nemotron => "nemotron",
            Self::Functools => "functools",
            Self::Lfm => "lfm2",
            Self::DeepSeek => "deepseek",
            Self::Generic => "generic",
        }
    }
}

/// Format of a model's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// `None` for a request without tools.
    pub calls: Option<Calls>,
    /// Marks before and after reasoning.
    pub thinking: Option<[&'static str; 2]>,
}

impl Format {
    /// Everything is text.
    pub const PLAIN: Self = Self { calls: None, thinking: None };

    /// Recognises the format by the marks in a template, which describes them to the model or renders earlier
    /// answers with them.
    #[must_use]
    pub fn recognise(template: &str) -> Self {
        let has = |mark: &str| template.contains(mark);
        let calls = if has("<|channel|>") && has("<|message|>") {
            Calls::Harmony
        } else if has("<｜tool▁calls▁begin｜>") {
            Calls::DeepSeek
        } else if !has("tools") {
            Calls::Generic
        } else if has("<start_function_call>") {
            Calls::FunctionGemma
        } else if has("<|tool_call>") {
            Calls::Gemma
        } else if has("[TOOL_CALLS]") {
            Calls::Mistral
        } else if has("<TOOLCALL>") {
            Calls::Nemotron
        } else if has("<|tool_list_start|>") || has("List of tools: [") {
            Calls::Lfm
        } else if has(Calls::TOOL_CALL) && !has("<arg_key>") {
            if has("<function=") { Calls::Xml } else { Calls::Hermes }
        } else if has("<|tool|>") {
            Calls::Phi
        } else if has("<|tool_call|>") {
            Calls::Granite
        } else if has("functools[") {
            Calls::Functools
        } else if has("<|start_header_id|>") && has("parameters") {
            Calls::Llama
        } else {
            Calls::Generic
        };
        let calls = Some(calls);
        let marks =
            [["<think>", "</think>"], ["[THINK]", "[/THINK]"], ["<|channel>thought", "<channel|>"]];
        let thinking = marks.into_iter().find(|[open, close]| has(open) && has(close));
        Self { calls, thinking: thinking.filter(|_| calls != Some(Calls::Harmony)) }
    }

    /// True if a model with this format may reason before it answers.
    #[must_use]
    pub fn can_think(self) -> bool {
        self.thinking.is_some() || self.calls == Some(Calls::Harmony)
    }

    /// Texts that separate the parts of an answer. The parser needs those that are names of control tokens too.
    pub fn marks(self) -> impl Iterator<Item = &'static str> {
        let calls = self.calls.into_iter().flat_map(|calls| {
            calls.opens().iter().chain(calls.ends()).chain(calls.within()).copied()
        });
        calls.chain(self.thinking.into_iter().flatten().map(|mark| {
            // Gemma's mark has the name of its channel after the control token.
            mark.strip_suffix("thought").unwrap_or(mark)
        }))
    }
}
