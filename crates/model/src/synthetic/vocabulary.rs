//! Generates byte-level BPE vocabularies of any size, and chat templates.
//!
//! Every byte is a token, so any text can be tokenised. Every other text token is a merge of two earlier ones: first
//! runs of spaces, common English words and pairs of letters, so that English text has a realistic number of tokens;
//! then invented words.

use std::collections::{HashMap, HashSet};

use super::random;
use super::shape::{Family, Shape};
use crate::tokenizer::alphabet::char_of;

/// `tokenizer.ggml.token_type` of ordinary text (llama.cpp `LLAMA_TOKEN_TYPE_NORMAL`).
const NORMAL: i32 = 1;
/// Type of special tokens (`LLAMA_TOKEN_TYPE_CONTROL`).
const CONTROL: i32 = 3;
/// Type of special tokens that are part of text (`LLAMA_TOKEN_TYPE_USER_DEFINED`).
const USER_DEFINED: i32 = 4;
/// Type of padding (`LLAMA_TOKEN_TYPE_UNUSED`).
const UNUSED: i32 = 5;

pub(super) struct Vocabulary {
    pub(super) tokens: Vec<String>,
    pub(super) types: Vec<i32>,
    pub(super) merges: Vec<String>,
    pub(super) bos: u32,
    pub(super) eos: u32,
    pub(super) padding: Option<u32>,
}

/// Frequent English words; each becomes one token with a space before it.
const WORDS: &str = "the of and to in is that for it was on with as are be at this by from or \
    have an not he which you but his her they had all one we will there their has would were so \
    been can more if about when who what out up said do them time some into no like than only \
    other could its new over then two may such first these any now our most people also after \
    many must before through back years where much your way well down should because each just \
    those how too little state good very make world still own see men work long get here between \
    both life being under never day same another know while last might us great old year off come \
    since against go came right used take three model token data number system file hello";

/// Frequent pairs of letters in English, most frequent first.
const PAIRS: &str = "th he in er an re nd at on nt ha es st en ed to it ou ea hi is or ti as te \
    et ng of al de se le sa si ar ve ra ld ur ro ri io ic ne me li ll no ma om el co ta ec us ch \
    la ce di ho so ca ac un pe tr em sh wh ss ut ee ly ge ai ow ot il lo ir po ni wa pr id ad su \
    be fo mo ag wi ay iv ke ig op ty im ap ck";

/// Syllable parts of invented words.
const ONSETS: [&str; 28] = [
    "b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "ch",
    "sh", "th", "st", "tr", "pr", "br", "gr", "cl", "pl",
];
const VOWELS: [&str; 10] = ["a", "e", "i", "o", "u", "ea", "ou", "ai", "io", "ee"];
const CODAS: [&str; 12] = ["", "n", "r", "s", "t", "l", "d", "m", "ng", "st", "nd", "ck"];

/// Longest invented word, characters.
const LONGEST: usize = 14;

impl Vocabulary {
    pub(super) fn new(shape: &Shape) -> Self {
        let mut text = Text::bytes(shape.text_tokens);
        text.spaces();
        text.words();
        text.pairs();
        text.invent(random::key(shape.name));

        let mut vocabulary = Self {
            types: vec![NORMAL; text.tokens.len()],
            tokens: text.tokens,
            merges: text.merges,
            bos: 0,
            eos: 0,
            padding: None,
        };
        vocabulary.add_special(shape);
        vocabulary
    }

    /// Adds the tokens after the text: the family's special tokens at their ids in the real vocabulary, and fillers
    /// up to its size.
    fn add_special(&mut self, shape: &Shape) {
        let first = shape.text_tokens;
        // Position after the text tokens, in the real vocabulary and in the tiny one.
        let named: &[(usize, Option<usize>, &'static str, i32)] = match shape.family {
            Family::Llama => &[
                (0, Some(0), "<|begin_of_text|>", CONTROL),
                (1, Some(1), "<|end_of_text|>", CONTROL),
                (6, Some(2), "<|start_header_id|>", CONTROL),
                (7, Some(3), "<|end_header_id|>", CONTROL),
                (8, None, "<|eom_id|>", CONTROL),
                (9, Some(4), "<|eot_id|>", CONTROL),
            ],
            Family::Qwen3 => &[
                (0, Some(0), "<|endoftext|>", CONTROL),
                (1, Some(1), "<|im_start|>", CONTROL),
                (2, Some(2), "<|im_end|>", CONTROL),
                (24, Some(3), "<think>", USER_DEFINED),
                (25, Some(4), "</think>", USER_DEFINED),
            ],
        };
        let place = |&(real, tiny, token, kind): &(usize, Option<usize>, &'static str, i32)| {
            Some((first + if shape.is_tiny() { tiny? } else { real }, (token, kind)))
        };
        let mut named: HashMap<usize, (&str, i32)> = named.iter().filter_map(place).collect();
        let mut ids = HashMap::new();
        for id in first..shape.vocab {
            let (token, kind) = match (named.remove(&id), shape.family) {
                (Some((token, kind)), _) => {
                    ids.insert(token, id as u32);
                    (token.to_owned(), kind)
                }
                (None, Family::Llama) => {
                    (format!("<|reserved_special_token_{}|>", id - first), CONTROL)
                }
                (None, Family::Qwen3) => (format!("[PAD{id}]"), UNUSED),
            };
            self.tokens.push(token);
            self.types.push(kind);
        }
        let id = |token| ids.get(token).copied().unwrap_or(0);
        match shape.family {
            Family::Llama => {
                self.bos = id("<|begin_of_text|>");
                self.eos = id("<|eot_id|>");
            }
            Family::Qwen3 => {
                self.bos = id("<|endoftext|>");
                self.eos = id("<|im_end|>");
                self.padding = Some(self.bos);
            }
        }
    }
}

const SPACE: &str = "\u{120}";
const NEWLINE: &str = "\u{10a}";
const TAB: &str = "\u{109}";

/// Text tokens and merges so far.
struct Text {
    tokens: Vec<String>,
    known: HashSet<String>,
    merges: Vec<String>,
    target: usize,
}

impl Text {
    /// The 256 bytes, in GPT-2's order.
    fn bytes(target: usize) -> Self {
        let plain = |byte: &u8| u32::from(char_of(*byte)) < 0x100;
        let tokens: Vec<String> = (0..=255)
            .filter(plain)
            .chain((0..=255).filter(|byte| !plain(byte)))
            .map(|byte| char_of(byte).to_string())
            .collect();
        let known = tokens.iter().cloned().collect();
        Self { tokens, known, merges: Vec::new(), target }
    }

    /// Adds the token `left + right`, unless it exists, a part is missing, or there are enough tokens.
    fn merge(&mut self, left: &str, right: &str) {
        let whole = format!("{left}{right}");
        let parts = self.known.contains(left) && self.known.contains(right);
        if parts && self.tokens.len() < self.target && !self.known.contains(&whole) {
            self.merges.push(format!("{left} {right}"));
            self.known.insert(whole.clone());
            self.tokens.push(whole);
        }
    }

    /// Adds `start + rest` letter by letter, so that every longer prefix becomes a token too.
    fn spell(&mut self, start: &str, rest: &str) {
        let mut sofar = start.to_owned();
        for letter in rest.chars() {
            let letter = letter.to_string();
            self.merge(&sofar, &letter);
            sofar += &letter;
        }
    }

    fn spaces(&mut self) {
        for run in [SPACE, NEWLINE, TAB] {
            for length in [1, 2, 4, 8] {
                self.merge(&run.repeat(length), &run.repeat(length));
            }
        }
    }

    fn words(&mut self) {
        for word in WORDS.split_whitespace() {
            self.spell(SPACE, word);
        }
    }

    fn pairs(&mut self) {
        for pair in PAIRS.split_whitespace() {
            let (left, right) = pair.split_at(1);
            self.merge(left, right);
        }
    }

    /// Fills the vocabulary with numbers of up to three digits, syllables, words that begin with a syllable, and
    /// longer words of two known parts.
    fn invent(&mut self, key: u64) {
        for number in 0..100 {
            self.merge(&(number / 10).to_string(), &(number % 10).to_string());
        }
        for number in 0..1000 {
            self.merge(&(number / 100).to_string(), &format!("{:02}", number % 100));
        }
        let mut syllables: Vec<String> = Vec::new();
        for onset in ONSETS {
            self.spell(&onset[..1], &onset[1..]);
            for vowel in VOWELS {
                self.spell(onset, vowel);
                for coda in CODAS {
                    let open = format!("{onset}{vowel}");
                    self.spell(&open, coda);
                    syllables.push(open + coda);
                }
            }
        }
        for syllable in &syllables {
            self.merge(SPACE, syllable);
        }
        let mut starts: Vec<String> =
            syllables.iter().map(|syllable| format!("{SPACE}{syllable}")).collect();
        let mut index = 0;
        while self.tokens.len() < self.target {
            let start = &starts[random::below(key, 2 * index, starts.len())];
            let syllable = &syllables[random::below(key, 2 * index + 1, syllables.len())];
            index += 1;
            let (start, syllable) = (start.clone(), syllable.clone());
            let before = self.tokens.len();
            self.merge(&start, &syllable);
            if self.tokens.len() > before && start.len() + syllable.len() < LONGEST - 3 {
                starts.push(start + &syllable);
            }
        }
    }
}

pub(super) const fn chat_template(family: Family) -> &'static str {
    match family {
        Family::Llama => {
            "{{- bos_token }}\n\
             {%- if tools %}\n\
             {{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}\n\
             {{- 'A call is {\"name\": .., \"parameters\": ..} of one of these:' }}\n\
             {%- for tool in tools %}\n\
             {{- '\\n' + (tool | tojson) }}\n\
             {%- endfor %}\n\
             {{- '<|eot_id|>' }}\n\
             {%- endif %}\n\
             {%- for message in messages %}\n\
             {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}\n\
             {%- if message.tool_calls %}\n\
             {%- set call = message.tool_calls[0].function %}\n\
             {{- '{\"name\": \"' + call.name + '\", \"parameters\": ' }}\n\
             {{- (call.arguments | tojson) + '}<|eot_id|>' }}\n\
             {%- else %}\n\
             {{- message['content'] | trim + '<|eot_id|>' }}\n\
             {%- endif %}\n\
             {%- endfor %}\n\
             {%- if add_generation_prompt %}\n\
             {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n\
             {%- endif %}\n"
        }
        Family::Qwen3 => {
            "{%- if tools %}\n\
             {{- '<|im_start|>system\\nA call is <tool_call>{..}</tool_call> of one of these:' }}\n\
             {%- for tool in tools %}\n\
             {{- '\\n' + (tool | tojson) }}\n\
             {%- endfor %}\n\
             {{- '<|im_end|>\\n' }}\n\
             {%- endif %}\n\
             {%- for message in messages %}\n\
             {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] }}\n\
             {%- for call in message.tool_calls %}\n\
             {{- '<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}\n\
             {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}\n\
             {%- endfor %}\n\
             {{- '<|im_end|>\\n' }}\n\
             {%- endfor %}\n\
             {%- if add_generation_prompt %}\n\
             {{- '<|im_start|>assistant\\n' }}\n\
             {%- endif %}\n"
        }
    }
}
