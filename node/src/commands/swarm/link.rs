//! `shoal join --ask`: what a code leads to, and the question before it is taken.
//!
//! A click opens a link `shoal:CODE`, and any page or program can present one: the code is untrusted input. It is shown and
//! asked about before anything is fetched, dialed or written, even where the user agreed to strangers earlier or has `yes` in
//! the settings, and without a terminal nothing happens. An empty line is a no. The question of `shoal join` about what this node
//! serves follows as usual.
//!
//! The window that a desktop opens for a link closes with the program, so an error is shown until Enter is pressed.

use std::io;

use p2p::invite::Invite;

use super::super::consent;
use crate::{Error, Result, content, output::say};

/// Addresses of a node that are shown: which host it is said to be, not each of its ports.
const ADDRESSES: usize = 2;

/// Asks whether the code is to be taken.
///
/// # Errors
/// [`Error::Usage`] when it is not, or when no person is there to say so.
pub(super) fn ask(invite: &Invite) -> Result<()> {
    if !consent::can_ask(false) {
        return Err(Error::usage(
            "nothing was started: --ask needs a terminal; `shoal join CODE` takes a code that you trust",
        ));
    }
    say!("{}", told(invite));
    match consent::wanted("Join?")? {
        true => Ok(()),
        false => Err(Error::usage("nothing was started")),
    }
}

/// What the code says, quoted and escaped: its maker wrote all of it.
fn told(invite: &Invite) -> String {
    let swarm = match &invite.name {
        Some(name) => format!("the swarm {name:?}"),
        None => "a swarm without a name".to_owned(),
    };
    let kind = if invite.psk.is_some() { "private: nodes with its code enter" } else { "open to all" };
    let mut lines = vec![format!("A link asks this machine to join {swarm} ({kind}).")];
    for contact in &invite.contacts {
        let addresses: Vec<String> = contact
            .addresses
            .iter()
            .take(ADDRESSES)
            .map(|address| address.escape_debug().to_string())
            .collect();
        lines.push(format!("It would connect to node {} at {}.", contact.node, addresses.join(" and ")));
    }
    if let Some(model) = invite.model {
        lines.push(format!(
            "It would serve layers of the model {}, and fetch those that are not here.",
            content::hex(model)
        ));
    }
    lines.push("Join only if you expected this link: its maker chose the swarm and the model.".to_owned());
    lines.join("\n")
}

/// Shows what went wrong until Enter is pressed; gives it back.
pub(super) fn shown(why: Error) -> Error {
    if consent::can_ask(false) {
        eprintln!("{why}\nPress Enter to close.");
        let _ = io::stdin().read_line(&mut String::new());
    }
    why
}

#[cfg(test)]
mod tests {
    use p2p::{SwarmId, wire::control::Contact};
    use scheduler::{ModelId, NodeId};

    use super::*;

    #[test]
    fn what_a_code_leads_to_is_said_and_cannot_paint_the_screen() {
        let contact = Contact {
            node: NodeId::numbered(7),
            addresses: vec!["/dns4/a.example\u{1b}[2J/tcp/1".into(); 3],
        };
        let invite = Invite {
            swarm: SwarmId::named("reef"),
            name: Some("reef\u{202e}\" (yours)".into()),
            model: Some(ModelId::numbered(3)),
            psk: Some([1; 32]),
            contacts: vec![contact],
        };
        let said = told(&invite);
        assert!(
            said.contains("private") && said.contains("/dns4/a.example") && said.contains("would serve"),
            "{said}"
        );
        assert!(said.contains(r#"\u{202e}\" (yours)"#) && said.contains(r"\u{1b}[2J"), "{said}");
        assert!(!said.chars().any(|c| c != '\n' && c.is_control()) && said.lines().count() == 4, "{said}");
        let open = told(&Invite { name: None, psk: None, model: None, ..invite });
        assert!(open.contains("without a name") && open.contains("open to all"), "{open}");
        assert!(!open.contains("would serve"), "{open}");
    }
}
