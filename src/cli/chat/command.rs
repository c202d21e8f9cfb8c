//! Slash commands of `orinctl chat`.

/// A parsed slash command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Shows or sets the system prompt; `-` removes it.
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

/// Name, argument and description of each command.
pub(super) const COMMANDS: [(&str, &str, &str); 9] = [
    ("/system", "[TEXT]", "show or set the system prompt; - removes it"),
    ("/save", "FILE", "write the conversation to a file"),
    ("/load", "FILE", "continue a conversation from a file"),
    ("/model", "[NAME]", "show the model, or load another"),
    ("/tokens", "", "count the tokens of the conversation"),
    ("/undo", "", "remove the last question and its answer"),
    ("/clear", "", "clear the conversation"),
    ("/help", "", "show this"),
    ("/quit", "", "quit (or Ctrl-D)"),
];

/// Parses a line that begins with a slash; the error is a message for the user.
pub(super) fn parse(line: &str) -> Result<Command, String> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = Some(rest.trim()).filter(|rest| !rest.is_empty()).map(str::to_owned);
    let needed = || rest.clone().ok_or_else(|| format!("{name} needs a file name"));
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
        _ => return Err(format!("unknown command {name}; /help lists the commands")),
    };
    match rest {
        None => Ok(command),
        Some(rest) => Err(format!("{name} takes no argument, but got `{rest}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_parsed_and_unknown_ones_rejected() {
        for (name, takes, _) in COMMANDS {
            assert_eq!(parse(name).is_ok(), !takes.starts_with('F'), "{name}");
            assert_eq!(parse(&format!("{name} a b")).is_ok(), !takes.is_empty(), "{name}");
        }
        assert_eq!(parse("/system  be brief "), Ok(Command::System(Some("be brief".into()))));
        assert!(parse("/nope").unwrap_err().contains("/help"));
    }
}
