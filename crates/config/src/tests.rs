//! Tests of parsing, validation, reloading and the documentation of the configuration.

use std::path::Path;
use std::time::Duration;

use super::check::NUMBERS;
use super::keys::KEYS;
use super::*;

fn parse_error(text: &str) -> String {
    Config::parse(text, "orind.toml").unwrap_err().to_string()
}

#[test]
fn keys_match_the_struct() {
    let mut known: Vec<&str> = keys().collect();
    known.sort_unstable();
    let table = Config::default().table();
    let mut found: Vec<&String> = table.keys().collect();
    found.sort_unstable();
    assert_eq!(found, known);
}

#[test]
fn defaults_are_within_their_own_limits() {
    Config::default().check().unwrap();
    assert_eq!(Config::parse("", "x").unwrap(), Config::default());
}

#[test]
fn invalid_control_loops_are_rejected_with_key_and_name() {
    let lane = |more: &str| {
        let text = format!("[[lane]]\nname = 'a'\nnetwork = 'b.onnx'\n{more}");
        Config::parse(&text, "x").map_err(|error| error.to_string()).and_then(|config| {
            config.check().map_err(|error| error.to_string()).map(|()| config.lane)
        })
    };
    let whole = lane("rate_hz = 500\ncore = 3\nshapes = { x = [1, 12] }").unwrap();
    assert_eq!(whole[0].deadline(), Duration::from_millis(2));
    for (more, key) in [
        ("rate_hz = 0", "lane.rate_hz is 0 in lane `a`; 1 to 100000"),
        ("rate_hz = -1", "x:4: rate_hz: is -1"),
        ("deadline_us = 60000001", "lane.deadline_us is 60000001"),
        ("backend = 'auto'", "lane.backend is `auto` in lane `a`; allowed are nv, cuda"),
        ("priority = 100", "lane.priority is 100"),
        ("spin_us = 1000001", "lane.spin_us is 1000001"),
        ("fixed = { sr = inf }", "lane.fixed is inf for `sr` in lane `a`"),
        ("safe = { action = nan }", "lane.safe is NaN for `action` in lane `a`"),
        ("rate = 5", "`rate` is not known; possible: name, network"),
        ("[[lane]]\nname = 'a'\nnetwork = 'c'", "another control loop has this name"),
        ("[[lane]]\nname = '../a'\nnetwork = 'c'", "lane.name is `../a`"),
        ("[[lane]]\nname = 'b'\nnetwork = ''", "lane.network is empty in lane `b`"),
        ("[[lane]]\nname = 'b'", "network"),
    ] {
        let error = lane(more).unwrap_err();
        assert!(error.contains(key), "{more}: {error}");
    }
}

#[test]
fn invalid_residents_are_rejected_with_key_and_name() {
    let residents = |more: &str| {
        let text = format!("model = 'a'\n[[resident]]\nmodel = 'b.gguf'\n{more}");
        Config::parse(&text, "x").map_err(|error| error.to_string()).and_then(|config| {
            config.check().map_err(|error| error.to_string()).map(|()| config.resident)
        })
    };
    let whole =
        residents("slots = 1\n[[resident]]\nmodel = 'b.gguf'\nname = 'c'\nload = 'start'").unwrap();
    let ids: Vec<String> = whole.iter().map(|one| one.id(Path::new("/m"))).collect();
    assert_eq!(ids, ["b", "c"]);
    assert_eq!((whole[0].load, whole[1].load), (LoadAt::Request, LoadAt::Start));
    for (more, key) in [
        ("slots = 0", "resident.slots is 0 in resident `b.gguf`; 1 to 256"),
        ("slots = -1", "x:4: slots: is -1"),
        ("backend = 'tpu'", "x:4: backend: `tpu` is not allowed; allowed are auto, nv"),
        ("kv_type = 'f32'", "x:4: kv_type: `f32` is not allowed; allowed are f16"),
        ("load = 'never'", "`never` is not allowed; allowed are start or request"),
        ("name = 'x:y'", "resident.name is `x:y` in resident `b.gguf`; 1 to 64 letters"),
        ("name = 'a'", "resident.name is `a`; another model has this name"),
        ("[[resident]]\nmodel = '/else/b.gguf'", "another model has this name"),
        ("[[resident]]\nmodel = ''", "resident.model is empty"),
        ("socket = 'x'", "`socket` is not known; possible: model, name"),
    ] {
        let error = residents(more).unwrap_err();
        assert!(error.contains(key), "{more}: {error}");
    }
}

#[test]
fn every_number_has_its_range() {
    let table = Config::default().table();
    let numbers = keys().filter(|key| table[*key].is_integer());
    let ranges: Vec<&str> = NUMBERS.iter().map(|(key, _)| *key).collect();
    assert!(numbers.eq(ranges.iter().copied()), "{ranges:?}");
}

#[test]
fn unknown_keys_are_rejected_with_line_and_suggestion() {
    for (text, message) in [
        (
            "slots = 2\n\n# more\nprefil_chunk = 8\n",
            "4: unknown key `prefil_chunk`; did you mean `prefill_chunk`?",
        ),
        ("queue-limit = 2", "1: unknown key `queue-limit`; did you mean `queue_limit`?"),
        ("Model = 'x'", "1: unknown key `Model`; did you mean `model`?"),
        ("[zzz]\na = 1", "1: unknown key `zzz`"),
    ] {
        assert_eq!(parse_error(text), format!("orind.toml:{message}"));
    }
}

#[test]
fn type_and_syntax_errors_name_key_and_line() {
    for (text, start, word) in [
        (
            "model = 'a'\nslots = 'two'\n",
            "2: slots: ",
            "is \"two\", a whole number from 1 to 256 is needed",
        ),
        ("slots = -1\n", "1: slots: ", "is -1, a whole number from 1 to 256 is needed"),
        ("model = 1\n", "1: model: ", "is 1, a text is needed"),
        ("model = 'a'\nslots = \n", "2: ", ""),
        ("slots = 1\nslots = 2\n", "2: ", "duplicate"),
        ("socket_mode = '0999'", "1: socket_mode: ", "octal"),
        ("backend = 'tpu'", "1: backend: ", "`tpu` is not allowed; allowed are auto, nv, cuda"),
        ("kv_type = 'f32'", "1: kv_type: ", "`f32` is not allowed; allowed are f16, q8_0"),
        ("cpu_isa = 'sve9'", "1: cpu_isa: ", "`sve9` is not allowed; allowed are auto, amx"),
        ("log_format = 'xml'", "1: log_format: ", "`xml` is not allowed; allowed are text or json"),
    ] {
        let message = parse_error(text);
        let starts = message.starts_with(&format!("orind.toml:{start}"));
        assert!(starts && message.contains(word), "{message}");
    }
}

#[test]
fn range_errors_name_key_value_and_limits() {
    let check = |text: &str| Config::parse(text, "x").unwrap().check().unwrap_err().to_string();
    for (text, message) in [
        ("slots = 0", "slots is 0; 1 to 256 are allowed"),
        ("max_body_bytes = 10", "max_body_bytes is 10; 1024 to 1073741824 are allowed"),
        ("socket = ''", "socket is empty; a path is needed"),
        ("tune_dir = 'tune'", "tune_dir is `tune`; an absolute path is needed, or tune = \"off\""),
        (
            "prefix_cache_mib = 1\nprefix_cache_dir = 'p'",
            "prefix_cache_dir is `p`; an absolute path is needed, or prefix_cache_mib = 0",
        ),
        ("state_dir = ''", "state_dir is ``; an absolute path is needed"),
        (
            "listen = 'localhost'",
            "listen is `localhost`; an address and a port are needed, such as 127.0.0.1:8080",
        ),
    ] {
        assert_eq!(check(text), message);
    }
    for far in ["0.0.0.0:80", "[::]:80", "192.168.7.1:80"] {
        let refused = check(&format!("listen = '{far}'"));
        assert!(refused.ends_with("so a token_file is needed"), "{refused}");
        let text = format!("listen = '{far}'\ntoken_file = '/t'");
        Config::parse(&text, "x").unwrap().check().unwrap();
    }
    assert!(check("log = 'loud=loudest'").starts_with("log is `loud=loudest`; "));
}

/// The table in `docs/configuration.md` lists every key with its default.
#[test]
fn documentation_lists_every_key_and_default() {
    let text = include_str!("../../../docs/configuration.md");
    let rows: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let key = cells.next()?.strip_suffix('`')?;
            Some((key, cells.next()?.trim_matches('`')))
        })
        .collect();
    assert!(rows.iter().map(|(key, _)| *key).eq(keys()), "{rows:?}");
    let defaults = Config::default().table();
    for (key, value) in rows {
        if value != "see below" {
            assert_eq!(value, defaults[key].to_string(), "{key}");
        }
    }
}

/// `docs/orind.toml` lists every key in a comment, with its default.
#[test]
fn example_file_matches_the_defaults() {
    let example = include_str!("../../../docs/orind.toml");
    assert_eq!(Config::parse(example, "docs/orind.toml").unwrap(), Config::default());
    let lines = example.lines().filter_map(|line| line.strip_prefix("#"));
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with(' ')).collect();
    let found = lines.iter().filter_map(|line| Some(line.split_once(" =")?.0));
    assert!(found.eq(keys()), "{lines:?}");
    let config = Config::parse(&lines.join("\n"), "docs/orind.toml").unwrap();
    let paths = Config::default();
    let Config { socket, models_dir, prefix_cache_dir, tune_dir, state_dir, .. } = paths;
    let config = Config { socket, models_dir, prefix_cache_dir, tune_dir, state_dir, ..config };
    assert_eq!(config, Config::default());
}

/// `docs/configuration.md` lists the keys that a reload cannot change at once.
#[test]
fn reload_effects_match_the_documentation() {
    let text = include_str!("../../../docs/configuration.md");
    for (marker, effect) in
        [("from the next load on: ", Effect::NextLoad), ("with a restart only: ", Effect::Restart)]
    {
        let keys = KEYS.iter().filter(|(_, at)| *at == effect).map(|(key, _)| *key);
        let (_, rest) = text.split_once(marker).unwrap();
        let (list, _) = rest.split_once('.').unwrap();
        assert!(list.split(',').map(|key| key.trim().trim_matches('`')).eq(keys), "{list}");
    }
    let old = Config::default();
    let new = Config { slots: 9, queue_limit: 1, socket: "/x".into(), ..old.clone() };
    let effects: Vec<_> = old.changes(&new).into_iter().map(|c| (c.key, c.effect)).collect();
    assert_eq!(
        effects,
        [("socket", Effect::Restart), ("slots", Effect::NextLoad), ("queue_limit", Effect::Now)]
    );
    let now = old.reloaded(new.clone());
    assert_eq!(now, Config { socket: old.socket.clone(), ..new });
    assert!(now.changes(&now).is_empty());
}

proptest::proptest! {
    /// Any text is a configuration or an error with a line.
    #[test]
    fn parsing_any_text_returns_a_configuration_or_a_line(text in "[a-z_=\\[\\]'\"0-9#\\n .-]{0,80}") {
        if let Err(error) = Config::parse(&text, "f") {
            proptest::prop_assert!(error.to_string().starts_with("f:"), "{error}");
        }
    }
}

#[test]
fn variables_override_the_file() {
    let with = |variables: &[(&str, &str)]| {
        let value_of = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Config::parse("slots = 2\ncontext = 64", "x").unwrap().with_environment(value_of)
    };
    let config = with(&[
        ("ORIND_CONTEXT", "32k"),
        ("ORIND_MODEL", "1"),
        ("ORIND_LORA", "a.gguf, b.gguf=0.5"),
        ("ORIND_BACKEND", "cpu"),
        ("ORIND_SOCKET_MODE", "0600"),
    ])
    .unwrap();
    assert_eq!((config.slots, config.context, &*config.model), (2, 32_768, "1"));
    assert_eq!(config.lora, ["a.gguf", "b.gguf=0.5"]);
    assert_eq!((config.backend, config.socket_mode), (Backend::Cpu, SocketMode(0o600)));
    for (variable, value, reason) in [
        ("ORIND_SLOTS", "two", "ORIND_SLOTS: is \"two\""),
        ("ORIND_BACKEND", "tpu", "ORIND_BACKEND: `tpu` is not allowed; allowed are auto"),
        ("ORIND_CONTEXT", "-1", "ORIND_CONTEXT: is -1"),
    ] {
        let error = with(&[(variable, value)]).unwrap_err().to_string();
        assert!(error.starts_with(reason), "{error}");
    }
}

#[test]
fn context_lengths_have_a_unit() {
    assert_eq!(["0", "4096", "32k", "1K"].map(tokens), [Ok(0), Ok(4096), Ok(32_768), Ok(1024)]);
    for text in ["", "k", "1.5k", "-1", "32m", "99999999999999999999", "18446744073709551615k"] {
        assert!(tokens(text).is_err(), "{text}");
    }
}
