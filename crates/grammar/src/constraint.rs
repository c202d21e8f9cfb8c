//! The daemon's side: starts workers, and asks them for the tokens that may follow.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use parking_lot::Mutex;

use model::tokenizer::Tokenizer;

use crate::compiler::{Compiler, Tokens};
use crate::frame::{self, Frame, Tag};
use crate::source::{Grammar, SOURCE};
use crate::worker::{self, Isolation};

/// Time in which a worker must answer. Its limits of processor time end sooner, unless it is not run.
const ANSWER: Duration = Duration::from_secs(30);

/// Interval at which a compilation looks whether its client has gone, in milliseconds.
const POLL: u16 = 50;

/// Compiler of grammars for one tokenizer.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    /// Started on first use: it contains a trie of all tokens.
    service: Mutex<Option<Service>>,
}

/// Maker of constraints.
enum Service {
    Worker(Worker),
    /// In a program without a worker.
    Threads(Arc<Compiler>),
}

/// Process of one tokenizer.
struct Worker {
    process: Child,
    socket: UnixStream,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    pub const fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, service: Mutex::new(None) }
    }

    /// Compiles a grammar into the constraint of one answer, until `cancelled`.
    ///
    /// # Errors
    /// The grammar is invalid, or compiling it exceeds the [limits](crate::Limits).
    pub fn compile(&self, grammar: &Grammar, cancelled: &AtomicBool) -> Result<Constraint, String> {
        let size = grammar.size();
        if size > SOURCE {
            return Err(format!("has {size} bytes, limit {SOURCE}"));
        }
        let source = serde_json::to_vec(grammar).map_err(|error| error.to_string())?;
        let socket = self.open().map_err(|error| no_worker(&error))?;
        let process = Process::of(socket)?;
        process.send(Tag::Compile, &source)?;
        let mask = Some(process.mask(cancelled)?);
        let ends = self.tokenizer.end_ids().collect();
        let state = Mutex::new(State::Open { process, mask });
        Ok(Constraint { state, is_slow: false, ends })
    }

    /// Opens a constraint. Starts the worker if there is none, or if it has ended.
    fn open(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut service = self.service.lock();
        let opened = match &*service {
            Some(service) => service.open(theirs.try_clone()?),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        if opened.is_err() {
            let started = Service::start(&self.tokenizer)?;
            started.open(theirs)?;
            *service = Some(started);
        }
        Ok(ours)
    }
}

impl Service {
    fn start(tokenizer: &Tokenizer) -> io::Result<Self> {
        let tokens = Tokens::new(tokenizer);
        Ok(match worker::program() {
            Some(program) => Self::Worker(Worker::start(program, &tokens)?),
            None => Self::Threads(Arc::new(Compiler::of(&tokens).map_err(io::Error::other)?)),
        })
    }

    /// Passes a socket on which a constraint is to be served.
    fn open(&self, theirs: UnixStream) -> io::Result<()> {
        match self {
            Self::Worker(worker) => frame::send_descriptor(&worker.socket, Tag::Open, &theirs),
            Self::Threads(compiler) => {
                let compiler = Arc::clone(compiler);
                frame::send(&theirs, Tag::Process, &[])?;
                let serve = move || worker::serve(&compiler, &theirs, None, Isolation::Thread);
                std::thread::Builder::new().spawn(serve)?;
                Ok(())
            }
        }
    }
}

impl Worker {
    fn start(program: &Path, tokens: &Tokens) -> io::Result<Self> {
        let (process, socket) = worker::start(program)?;
        let started = Self { process, socket };
        started.socket.set_read_timeout(Some(ANSWER))?;
        started.socket.set_write_timeout(Some(ANSWER))?;
        frame::send(&started.socket, Tag::Tokens, &tokens.to_bytes())?;
        match frame::receive(&started.socket)? {
            Some(Frame { tag: Tag::Done, .. }) => Ok(started),
            Some(Frame { contents, .. }) => {
                Err(io::Error::other(String::from_utf8_lossy(&contents).into_owned()))
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Constraints that are still open are other processes and go on.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

fn no_worker(error: &io::Error) -> String {
    format!("the process that computes grammars failed: {error}")
}

/// Process of one constraint. Dropping it ends the process.
struct Process {
    socket: UnixStream,
    /// Descriptor of the process (pidfd); `None` for a thread.
    descriptor: Option<OwnedFd>,
}

impl Process {
    /// Process that serves a constraint on the other side of a socket.
    fn of(socket: UnixStream) -> Result<Self, String> {
        let timeouts = socket
            .set_read_timeout(Some(ANSWER))
            .and_then(|()| socket.set_write_timeout(Some(ANSWER)));
        timeouts.map_err(|error| no_worker(&error))?;
        let mut process = Self { socket, descriptor: None };
        process.descriptor = process.receive(&AtomicBool::new(false))?.descriptor;
        Ok(process)
    }

    fn send(&self, tag: Tag, contents: &[u8]) -> Result<(), String> {
        frame::send(&self.socket, tag, contents).map_err(|error| no_worker(&error))
    }

    /// Receives the next message, or the reason why there is none.
    fn receive(&self, cancelled: &AtomicBool) -> Result<Frame, String> {
        let begin = Instant::now();
        loop {
            let mut socket = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut socket, POLL) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => break,
                Err(error) => return Err(no_worker(&error.into())),
            }
            if cancelled.load(Ordering::Relaxed) {
                return Err("the client has disconnected".into());
            }
            if begin.elapsed() > ANSWER {
                return Err(format!("its process did not answer within {ANSWER:?}"));
            }
        }
        match frame::receive(&self.socket) {
            Ok(Some(Frame { tag: Tag::Failed, contents, .. })) => {
                Err(String::from_utf8_lossy(&contents).trim_end().to_owned())
            }
            Ok(Some(frame)) => Ok(frame),
            Ok(None) => Err("its process ended".into()),
            Err(error) => Err(no_worker(&error)),
        }
    }

    /// Receives the mask of the next token.
    fn mask(&self, cancelled: &AtomicBool) -> Result<Vec<i32>, String> {
        let contents = self.receive(cancelled)?.contents;
        let words = contents.chunks_exact(4).filter_map(|word| word.try_into().ok());
        Ok(words.map(i32::from_le_bytes).collect())
    }

    /// Starts a second process in the same state.
    fn duplicate(&self) -> Result<Self, String> {
        let (ours, theirs) = UnixStream::pair().map_err(|error| no_worker(&error))?;
        frame::send_descriptor(&self.socket, Tag::Duplicate, &theirs)
            .map_err(|error| no_worker(&error))?;
        drop(theirs);
        self.receive(&AtomicBool::new(false))?;
        Self::of(ours)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(descriptor) = &self.descriptor {
            let (fd, none) = (descriptor.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
            // SAFETY: sends a signal to the process of a descriptor that this object owns; no
            // information is passed along.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, none, 0) };
        }
    }
}

/// Time for a mask beyond which a constraint counts as slow.
const SLOW: Duration = Duration::from_millis(20);

/// Parser state of one answer in its grammar.
pub struct Constraint {
    state: Mutex<State>,
    /// True if a mask was waited for longer than [`SLOW`].
    is_slow: bool,
    /// End-of-sequence tokens.
    ends: Arc<[u32]>,
}

enum State {
    Open {
        process: Process,
        /// Mask of the next token, once received.
        mask: Option<Vec<i32>>,
    },
    /// The reason for which the answer cannot go on.
    Failed(String),
}

impl State {
    fn mask(&mut self) -> Result<&[i32], String> {
        if let Self::Open { process, mask: mask @ None } = self {
            match process.mask(&AtomicBool::new(false)) {
                Ok(received) => *mask = Some(received),
                Err(reason) => *self = Self::Failed(reason),
            }
        }
        match self {
            Self::Open { mask, .. } => Ok(mask.as_deref().unwrap_or_default()),
            Self::Failed(reason) => Err(reason.clone()),
        }
    }

    /// True if the mask of the next token can be had without waiting.
    fn is_known(&self) -> bool {
        match self {
            Self::Open { process, mask: None } => {
                let mut socket = [PollFd::new(process.socket.as_fd(), PollFlags::POLLIN)];
                poll(&mut socket, 0_u8).is_ok_and(|ready| ready > 0)
            }
            Self::Open { mask: Some(_), .. } | Self::Failed(_) => true,
        }
    }

    fn accept(&mut self, id: u32) -> Result<bool, String> {
        self.mask()?;
        match self {
            Self::Open { process, mask } => {
                *mask = None;
                let sent = process.send(Tag::Accept, &id.to_le_bytes());
                let stopped = sent.and_then(|()| process.receive(&AtomicBool::new(false)));
                let stopped = stopped.map(|frame| frame.contents == [1]);
                stopped.inspect_err(|reason| *self = Self::Failed(reason.clone()))
            }
            Self::Failed(reason) => Err(reason.clone()),
        }
    }

    fn duplicate(&mut self) -> Result<Self, String> {
        let mask = Some(self.mask()?.to_vec());
        match self {
            Self::Open { process, .. } => Ok(Self::Open { process: process.duplicate()?, mask }),
            Self::Failed(reason) => Err(reason.clone()),
        }
    }
}

/// A copy for which there is no process fails at its first mask.
impl Clone for Constraint {
    fn clone(&self) -> Self {
        let mut state = self.state.lock();
        let copy = state.duplicate().unwrap_or_else(State::Failed);
        let ends = Arc::clone(&self.ends);
        Self { state: Mutex::new(copy), is_slow: self.is_slow, ends }
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Constraint {
    fn state(&mut self) -> &mut State {
        self.state.get_mut()
    }

    /// True if the next mask is not known yet, and an earlier one took long. A step of several
    /// sequences should not wait for it.
    pub fn is_late(&mut self) -> bool {
        self.is_slow && !self.state().is_known()
    }

    /// Writes the mask of the next token: one bit for each of `vocabulary` tokens, 32 in a word. It
    /// contains the end-of-sequence tokens if the answer may end.
    ///
    /// # Errors
    /// Computing it exceeds the [limits](crate::Limits).
    pub fn mask(&mut self, vocabulary: usize, mask: &mut Vec<i32>) -> Result<(), String> {
        let ends = Arc::clone(&self.ends);
        let begin = Instant::now();
        mask.clear();
        mask.extend_from_slice(self.state().mask()?);
        self.is_slow |= begin.elapsed() > SLOW;
        // Ids beyond the tokenizer's are padding.
        mask.resize(vocabulary.div_ceil(32), 0);
        let bit = |end: &u32| (*end as usize / 32, 1 << (end % 32));
        let is_set = |(word, bit): (usize, i32)| mask.get(word).is_some_and(|word| word & bit != 0);
        if ends.iter().map(bit).any(is_set) {
            for (word, bit) in ends.iter().map(bit) {
                if let Some(word) = mask.get_mut(word) {
                    *word |= bit;
                }
            }
        }
        Ok(())
    }

    /// Appends a token. True if nothing may follow.
    ///
    /// # Errors
    /// The grammar rejects the token.
    pub fn accept(&mut self, id: u32) -> Result<bool, String> {
        if self.ends.contains(&id) { Ok(true) } else { self.state().accept(id) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::tokenizer::Vocabulary;
    use plan::sample::Adjustment;
    use serde_json::{Value, json};

    static GOES_ON: AtomicBool = AtomicBool::new(false);

    /// Ids of the allowed next tokens, ascending.
    fn allowed(constraint: &mut Constraint) -> Vec<u32> {
        let (mut mask, mut logits) = (Vec::new(), vec![0.0; 262]);
        constraint.mask(262, &mut mask).unwrap();
        Adjustment { edits: &[], mask: Some(&mask) }.apply(&mut logits);
        (0..262).filter(|id| logits[*id as usize] == 0.0).collect()
    }

    /// Vocabulary of all bytes, some longer tokens, and an end-of-sequence token.
    fn grammars() -> Grammars {
        let bytes = (0..=255u8).map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte).to_string(),
            _ => String::new(),
        });
        let mut next = 0x100;
        let bytes = bytes.map(|text| match text.is_empty() {
            false => text,
            true => {
                next += 1;
                char::from_u32(next - 1).unwrap().to_string()
            }
        });
        let pieces = ["true", "{\"", "\":", "1}", "<|im_end|>", "<|x|>"].map(str::to_owned);
        let mut token_types = vec![1; 260];
        token_types.extend([3, 3]);
        let vocabulary = Vocabulary {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens: bytes.chain(pieces).collect(),
            token_types,
            ..Vocabulary::default()
        };
        Grammars::new(Arc::new(Tokenizer::new(vocabulary).unwrap()))
    }

    /// Text of an answer that always appends the allowed token with the highest id.
    fn walk(grammars: &Grammars, constraint: &mut Constraint, most: usize) -> String {
        let mut ids = Vec::new();
        for _ in 0..most {
            let id = allowed(constraint).pop().unwrap();
            ids.push(id);
            if constraint.accept(id).unwrap() {
                break;
            }
        }
        grammars.tokenizer.decode(&ids)
    }

    #[test]
    fn answers_match_their_grammars() {
        let grammars = grammars();
        let schema = json!({"type": "object", "properties": {"a": {"const": 1}},
            "required": ["a"], "additionalProperties": false});
        let mut constraint =
            grammars.compile(&Grammar::JsonSchema(schema.clone()), &GOES_ON).unwrap();
        let mut again = constraint.clone();
        let text = walk(&grammars, &mut constraint, 50);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({"a": 1}));
        assert_eq!(walk(&grammars, &mut again, 50), text, "a clone has the state of its original");
        let mut regex = grammars.compile(&Grammar::Regex("(ab){3}".into()), &GOES_ON).unwrap();
        assert_eq!(walk(&grammars, &mut regex, 50), "ababab");
        let lark = "start: \"x\" @inner <[261]>\n".to_owned();
        let parts = vec![("inner".into(), Grammar::JsonSchema(schema))];
        let mut within = grammars.compile(&Grammar::Within { lark, parts }, &GOES_ON).unwrap();
        let text = walk(&grammars, &mut within, 50);
        let inner = text.strip_prefix('x').unwrap();
        assert_eq!(serde_json::from_str::<Value>(inner).unwrap(), json!({"a": 1}));
    }

    /// True if a grammar accepts a complete text, byte by byte.
    fn takes(grammars: &Grammars, grammar: &Grammar, text: &str) -> bool {
        let mut constraint = grammars.compile(grammar, &GOES_ON).unwrap();
        for (at, byte) in text.bytes().enumerate() {
            let id = u32::from(byte);
            if !allowed(&mut constraint).contains(&id) {
                return false;
            }
            if constraint.accept(id).unwrap() {
                return at + 1 == text.len();
            }
        }
        allowed(&mut constraint).contains(&260)
    }

    /// Some of these grammars are llama.cpp's own examples.
    #[test]
    fn gbnf_grammars_accept_the_same_texts_as_in_llama_cpp() {
        let grammars = grammars();
        let arithmetic = "root ::= (expr \"=\" ws term \"\\n\")+\n\
             expr ::= term ([-+*/] term)*\n\
             term ::= ident | num | \"(\" ws expr \")\" ws\n\
             ident ::= [a-z] [a-z0-9_]* ws\n\
             num ::= [0-9]+ ws\n\
             ws ::= [ \\t]*\n";
        let chess = "root ::= \"1. \" move \" \" move \"\\n\"\n\
             move ::= (pawn | nonpawn | castle) [+#]?\n\
             nonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n\
             pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n\
             castle ::= \"O-O\" \"-O\"?";
        let until = "root ::= [a-z]* \"end\"";
        for (grammar, text, fits) in [
            (arithmetic, "a=1\n", true),
            (arithmetic, "(a+2) *b = 7\n", true),
            (arithmetic, "(a+2 = 7\n", false),
            (chess, "1. e4 Nf6\n", true),
            (chess, "1. exd8=Q+ O-O-O#\n", true),
            (chess, "1. e9 e5\n", false),
            (until, "enxend", true),
            (until, "enx", false),
            ("root ::= \"a\"{2} . [^b]", "aa\nc", true),
            ("root ::= \"a\"{2} . [^b]", "aaxb", false),
            ("root ::= \"\" | \"\\u00e9\"", "é", true),
        ] {
            let written = Grammar::written(grammar.to_owned());
            assert_eq!(takes(&grammars, &written, text), fits, "{grammar}: {text:?}");
        }
    }

    #[test]
    fn free_text_ends_at_its_suffix() {
        let grammars = grammars();
        let lark = "start: a \"!\"\na[suffix=\"]\"]: /(.|\\n)*/\n".to_owned();
        let mut constraint = grammars.compile(&Grammar::Lark(lark), &GOES_ON).unwrap();
        for id in "x y]!".bytes() {
            let id = grammars
                .tokenizer
                .encode(&char::from(id).to_string(), model::tokenizer::Specials::Plain, false)
                .unwrap()[0];
            assert!(allowed(&mut constraint).contains(&id));
            let stops = constraint.accept(id).unwrap();
            assert_eq!(stops, id == u32::from(b'!'));
        }
    }

    /// The first byte of each file of the corpus selects the notation.
    #[test]
    fn grammars_of_the_fuzz_corpus_compile_or_are_rejected() {
        let grammars = grammars();
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/grammar");
        let mut compiled = 0;
        for entry in std::fs::read_dir(corpus).unwrap() {
            let data = std::fs::read(entry.unwrap().path()).unwrap();
            let text = String::from_utf8_lossy(&data[1..]).into_owned();
            let grammar = match data[0] % 3 {
                0 => Grammar::written(text),
                1 => Grammar::Regex(text),
                _ => Grammar::JsonSchema(serde_json::from_str(&text).unwrap()),
            };
            match grammars.compile(&grammar, &GOES_ON) {
                Ok(_) => compiled += 1,
                Err(said) => assert!((1..600).contains(&said.len()), "{said}"),
            }
        }
        assert!(compiled >= 4, "{compiled}");
    }

    /// A grammar that compiles also has its first mask.
    #[test]
    fn hostile_grammars_are_rejected_or_cheap() {
        let grammars = grammars();
        let deep = "(".repeat(100_000);
        let names: Vec<String> = (0..200_000).map(|i| format!("name {i}")).collect();
        for grammar in [
            Grammar::Regex(deep),
            Grammar::Regex("(".into()),
            Grammar::JsonSchema(json!({"enum": names})),
            Grammar::JsonSchema(json!({"type": "nothing"})),
            Grammar::JsonSchema(json!({"$ref": "http://example.org/schema"})),
            Grammar::Lark("start: missing".into()),
            Grammar::Lark("nothing".into()),
            Grammar::Lark("x".repeat(SOURCE + 1)),
        ] {
            let said = grammars.compile(&grammar, &GOES_ON).unwrap_err();
            assert!((1..600).contains(&said.len()), "{said}");
        }
        let mut exponential = json!({"type": "string"});
        for _ in 0..40 {
            exponential = json!({"allOf": [
                {"anyOf": [{"type": "string"}, {"type": "number"}]}, exponential,
            ]});
        }
        let many = json!({"type": "array", "minItems": 1_000_000_000_u64, "items": {}});
        let recursive =
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}});
        for grammar in [
            Grammar::Regex("((((a{1,999}){1,999}){1,999}){1,999}){1,999}".into()),
            Grammar::Regex("(a|b)*a(a|b){100000}".into()),
            Grammar::JsonSchema(exponential),
            Grammar::JsonSchema(many),
            Grammar::JsonSchema(recursive),
        ] {
            if let Ok(mut constraint) = grammars.compile(&grammar, &GOES_ON) {
                assert_eq!(constraint.mask(262, &mut Vec::new()), Ok(()));
            }
        }
    }
}
