//! The lines that are not meant for the model.

/// What a line asks the program for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Shows what the model is told before all else, or sets it; `-` takes it away.
    System(Option<String>),
    Save(String),
    Load(String),
    /// Shows the model, or loads another.
    Model(Option<String>),
    Tokens,
    Undo,
    Clear,
    Help,
    Quit,
}

/// Names, what stands behind them, and what they do.
pub(super) const COMMANDS: [(&str, &str, &str); 9] = [
    ("/system", "[TEXT]", "show or set what the model is told before all else; - takes it away"),
    ("/save", "FILE", "write the conversation to a file"),
    ("/load", "FILE", "go on with a conversation from a file"),
    ("/model", "[NAME]", "show the model, or load another"),
    ("/tokens", "", "count the tokens of the conversation"),
    ("/undo", "", "take back the last question and its answer"),
    ("/clear", "", "begin again"),
    ("/help", "", "show this"),
    ("/quit", "", "leave; so does Ctrl-D"),
];

/// Reads a line that begins with a slash.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse(line: &str) -> Result<Command, String> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = Some(rest.trim()).filter(|rest| !rest.is_empty()).map(str::to_owned);
    let needed = || rest.clone().ok_or_else(|| format!("{name} needs the name of a file"));
    let command = match name {
        "/system" => return Ok(Command::System(rest)),
        "/model" => return Ok(Command::Model(rest)),
        "/save" => return Ok(Command::Save(needed()?)),
        "/load" => return Ok(Command::Load(needed()?)),
        "/tokens" => Command::Tokens,
        "/undo" => Command::Undo,
        "/clear" => Command::Clear,
        "/help" => Command::Help,
        "/quit" => Command::Quit,
        _ => return Err(format!("there is no command {name}; /help lists them")),
    };
    match rest {
        None => Ok(command),
        Some(rest) => Err(format!("{name} takes nothing behind it, not `{rest}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_read_and_others_are_told() {
        for (name, takes, _) in COMMANDS {
            assert_eq!(parse(name).is_ok(), !takes.starts_with('F'), "{name}");
            assert_eq!(parse(&format!("{name} a b")).is_ok(), !takes.is_empty(), "{name}");
        }
        assert_eq!(parse("/system  be brief "), Ok(Command::System(Some("be brief".into()))));
        assert!(parse("/nope").unwrap_err().contains("/help"));
    }
}
