//! `shoal key`: who else may ask this node's API.

use serde_json::{Value, json};

use crate::{
    Result,
    cli::KeyCommand,
    keys,
    output::{self, say},
    private_folder,
};

pub(super) fn run(command: KeyCommand) -> Result<()> {
    let (KeyCommand::Add { home, .. } | KeyCommand::List { home, .. } | KeyCommand::Revoke { home, .. }) =
        &command;
    let home = home.path()?;
    private_folder::prepare(&home)?;
    match command {
        KeyCommand::Add { name, tokens_per_day, json, .. } => {
            let secret = keys::add(&home, &name, tokens_per_day, keys::now_s())?;
            if json {
                return output::json_line(
                    &json!({"name": name, "key": secret, "tokens_per_day": tokens_per_day}),
                );
            }
            say!("{secret}");
            if let Some(most) = tokens_per_day {
                eprintln!("{name} may use {most} tokens a day with it.");
            }
            eprintln!("It is shown once and kept nowhere: `shoal key revoke {name}` takes it back.");
            Ok(())
        }
        KeyCommand::List { json, .. } => {
            let used = keys::used_today(&home, keys::now_s())?;
            let all = keys::list(&home)?;
            let took = |name: &str| used.get(name).copied().unwrap_or(0);
            if json {
                let row = |key: &keys::Key| {
                    json!({
                        "name": key.name, "tokens_per_day": key.tokens_per_day, "used_today": took(&key.name),
                        "created_s": key.created_s, "revoked": key.revoked,
                    })
                };
                return output::json_line(&all.iter().map(row).collect::<Vec<Value>>());
            }
            say!("{:24} {:>14} {:>14}", "NAME", "USED TODAY", "A DAY");
            for key in &all {
                let most = key.tokens_per_day.map_or_else(|| "no bound".to_owned(), |most| most.to_string());
                let note = if key.revoked { "  (taken back)" } else { "" };
                say!("{:24} {:>14} {most:>14}{note}", key.name, took(&key.name));
            }
            Ok(())
        }
        KeyCommand::Revoke { name, json, .. } => {
            keys::revoke(&home, &name)?;
            if json {
                return output::json_line(&json!({ "revoked": name }));
            }
            say!("the key of {name} opens nothing any more");
            Ok(())
        }
    }
}
