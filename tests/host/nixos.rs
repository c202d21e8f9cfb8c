//! The NixOS module's settings equal the daemon's configuration: keys, types, limits and defaults. The module creates
//! its options from `nixos/settings.json`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use config::{Config, Effect};
use serde::Deserialize;
use toml::{Table, Value};

#[derive(Deserialize)]
struct Setting {
    #[serde(flatten)]
    kind: Kind,
    default: Value,
    /// True if a reload applies a change.
    reload: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Kind {
    /// An absolute path; the default depends on the service.
    Path,
    /// An absolute path or nothing.
    OptionalPath,
    /// An IP address and a port, or nothing.
    Address,
    Mode,
    String,
    Bool,
    /// A list of strings.
    List,
    /// Tables; the daemon checks their keys.
    Tables,
    Enum {
        values: Vec<String>,
    },
    Integer {
        min: i64,
        max: i64,
    },
}

fn settings() -> Vec<(String, Setting)> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("nixos/settings.json");
    let json: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    json.into_iter().map(|(key, value)| (key, serde_json::from_value(value).unwrap())).collect()
}

fn takes(key: &str, value: impl Into<Value>) -> bool {
    let table = Table::from_iter([(key.to_owned(), value.into())]);
    Config::parse(&table.to_string(), "orind.toml").is_ok_and(|config| config.check().is_ok())
}

#[test]
fn keys_equal_the_daemons() {
    assert!(settings().iter().map(|(key, _)| key).eq(config::keys()));
}

#[test]
fn defaults_equal_the_daemons() {
    let daemon = Table::try_from(Config::default()).unwrap();
    for (key, Setting { kind, default, .. }) in settings() {
        assert!(takes(&key, default.clone()), "{key}: {default} is refused");
        match kind {
            // Defaults depend on the user. The documentation names those of root and of the
            // service; the daemon has them if this test runs as root.
            Kind::Path => {
                let page = include_str!("../../docs/configuration.md");
                let service = format!("`{}`", default.as_str().unwrap());
                assert!(page.contains(&service), "{key}: {service} is not in the documentation");
                if nix::unistd::Uid::effective().is_root()
                    && std::env::var_os("ORIND_SOCKET").is_none()
                {
                    assert_eq!(default, daemon[&key], "{key}");
                }
            }
            _ => assert_eq!(default, daemon[&key], "{key}"),
        }
    }
}

/// The key of a table that identifies its entry.
fn of(key: &str) -> &'static str {
    if key == "lane" { "network" } else { "model" }
}

#[test]
fn types_accept_the_same_values_as_the_daemon() {
    for (key, Setting { kind, .. }) in settings() {
        match kind {
            Kind::Path => {
                assert!(takes(&key, "/a/path"), "{key}");
                assert!(!takes(&key, 1), "{key}");
            }
            Kind::OptionalPath => {
                assert!(takes(&key, "") && takes(&key, "/a/path"), "{key}");
                assert!(!takes(&key, 1), "{key}");
            }
            Kind::Address => {
                for address in ["", "127.0.0.1:8080", "[::1]:8080"] {
                    assert!(takes(&key, address), "{key} = {address}");
                }
                for address in ["localhost", "8080", "::1:8080"] {
                    assert!(!takes(&key, address), "{key} = {address}");
                }
            }
            Kind::Mode => {
                assert!(takes(&key, "0777") && takes(&key, "7"), "{key}");
                assert!(!takes(&key, "0888") && !takes(&key, 0o660), "{key}");
            }
            Kind::Bool => {
                assert!(takes(&key, true) && takes(&key, false) && !takes(&key, 1), "{key}");
            }
            Kind::String => assert!(!takes(&key, 1) && !takes(&key, true), "{key}"),
            Kind::List => {
                let values = match &*key {
                    "allowed_origins" => ["https://a.example", "*"],
                    _ => ["a", "b"],
                };
                assert!(takes(&key, values.to_vec()) && !takes(&key, "a"), "{key}");
                assert!(!takes(&key, vec![1]), "{key}");
            }
            Kind::Tables => {
                let of = of(&key);
                let table = |key: &str| {
                    let keys = [("name", "a"), (of, "b"), (key, "cpu")];
                    keys.map(|(key, value)| (key.to_owned(), value.into())).into_iter().collect()
                };
                let takes = |tables: Vec<Table>| takes(&key, tables);
                assert!(takes(vec![table("backend")]) && !takes(vec![table("backends")]), "{key}");
                assert!(!takes(vec![table("backend"), table("backend")]), "{key}: two of a name");
            }
            Kind::Enum { values } => {
                let unique: BTreeSet<&String> = values.iter().collect();
                assert_eq!(unique.len(), values.len(), "{key}");
                for value in &values {
                    assert!(takes(&key, value.as_str()), "{key} = {value}");
                }
                assert!(!takes(&key, "none of these"), "{key}");
            }
            Kind::Integer { min, max } => {
                assert!(takes(&key, min) && takes(&key, max), "{key}: {min} to {max}");
                assert!(!takes(&key, min - 1), "{key} may be less than {min}");
                assert!(!takes(&key, max + 1), "{key} may be more than {max}");
                assert!(!takes(&key, min.to_string()), "{key}");
            }
        }
    }
}

/// The daemon's error message lists the values.
#[test]
fn enumerations_are_complete() {
    for (key, Setting { kind, .. }) in settings() {
        let Kind::Enum { values } = kind else { continue };
        let text = format!("{key} = 'none of these'");
        let error = match Config::parse(&text, "orind.toml") {
            Ok(config) => config.check().unwrap_err(),
            Err(error) => error,
        };
        let message = error.to_string();
        let (_, listed) = message
            .rsplit_once("allowed are ")
            .unwrap_or_else(|| message.rsplit_once("possible: ").unwrap());
        let separators = [",", " or "];
        let listed = separators.iter().fold(listed.to_owned(), |text, s| text.replace(s, " "));
        assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), values, "{key}: {message}");
    }
}

/// The module reloads or restarts the service, depending on the key that changes.
#[test]
fn keys_marked_for_reload_need_no_restart() {
    for (key, Setting { kind, default, reload }) in settings() {
        let other = match kind {
            Kind::Path | Kind::OptionalPath => "/another/path".into(),
            Kind::Address => "127.0.0.1:1".into(),
            Kind::Mode => "0600".into(),
            Kind::String => "debug".into(),
            Kind::Bool => (default != Value::from(true)).into(),
            Kind::List => vec!["another"].into(),
            Kind::Tables => {
                let keys = ["name", of(&key)].map(|key| (key.to_owned(), Value::from("another")));
                vec![Table::from_iter(keys)].into()
            }
            Kind::Enum { values } => {
                values.into_iter().map(Value::from).find(|value| *value != default).unwrap()
            }
            Kind::Integer { min, max } => {
                Value::from(if default == Value::from(min) { max } else { min })
            }
        };
        let table = Table::from_iter([(key.clone(), other)]);
        let new = Config::parse(&table.to_string(), "orind.toml").unwrap();
        let changes = Config::default().changes(&new);
        let effects: Vec<Effect> = changes.iter().map(|change| change.effect).collect();
        assert_eq!(effects.len(), 1, "{key}: {changes:?}");
        assert_eq!(effects == [Effect::Now], reload, "{key}: {effects:?}");
    }
}
