//! `shoal peers name`: what the owner of this node calls another one.

use std::path::Path;

use api::swarm_records::NodeName;

use super::ask::asked;
use crate::{
    Error, Result,
    cli::swarm::NameArgs,
    control::{self, Question},
    identity, node_names,
    output::{self, say},
    private_folder,
    reports::PeersReport,
};

/// Fewer digits are no beginning of a node's name: two nodes of a large swarm share them.
const LEAST_DIGITS: usize = 4;
/// Nodes that an answer about several lists.
const MOST_LISTED: usize = 5;

pub(in crate::commands) fn name(args: &NameArgs) -> Result<()> {
    let home = args.ask.home.path()?;
    private_folder::prepare(&home)?;
    let names = node_names::list(&home);
    let node = meant(&args.peer, &home, &names)?;
    let now = names.into_iter().find(|known| known.node == node).unwrap_or_default();
    let (name, color) = match args.clear {
        true => (String::new(), Default::default()),
        false => (args.name.clone().unwrap_or(now.name), args.color.unwrap_or(now.color)),
    };
    let named =
        NodeName::new(&node, &name, color).map_err(|(field, why)| Error::usage(format!("{field} {why}")))?;
    node_names::keep(&home, named.clone())?;
    if args.ask.json {
        return output::json_line(&named);
    }
    let color = match named.color.name() {
        "none" => String::new(),
        color => format!(", {color}"),
    };
    match (named.is_empty(), named.name.as_str()) {
        (true, _) => say!("{node} has no name any more."),
        (false, "") => say!("{node} has no name{color}."),
        (false, name) => say!("{node} is \"{name}\"{color}."),
    }
    Ok(())
}

/// The node that a person means.
fn meant(text: &str, home: &Path, names: &[NodeName]) -> Result<String> {
    if text == "me" {
        return Ok(format!("{:?}", identity::of(home)?.node()));
    }
    let called: Vec<&str> =
        names.iter().filter(|known| known.name == text).map(|known| known.node.as_str()).collect();
    if let [one] = called.as_slice() {
        return Ok((*one).to_owned());
    }
    let digits = text.to_lowercase();
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex && digits.len() == 64 {
        return Ok(digits);
    }
    let runs = control::is_running(home);
    let mut known: Vec<String> = names.iter().map(|known| known.node.clone()).collect();
    if runs {
        let peers: PeersReport = asked(home, &Question::Peers)?;
        known.extend(peers.peers.into_iter().map(|peer| peer.node));
    }
    known.extend(identity::of(home).map(|own| format!("{:?}", own.node())));
    one_of(&digits, is_hex, known, called.len()).map_err(|why| match runs {
        true => Error::usage(format!("{why}; `shoal peers` lists those that this node knows")),
        false => Error::usage(format!(
            "{why}; no node runs here that knows others: `shoal join`, or all 64 digits of its name"
        )),
    })
}

/// The one of the nodes that begins with these digits.
fn one_of(
    digits: &str,
    is_hex: bool,
    mut known: Vec<String>,
    called: usize,
) -> std::result::Result<String, String> {
    if called > 1 {
        return Err(format!("{called} nodes are called \"{digits}\": say the beginning of one's digits"));
    }
    if !is_hex || digits.len() < LEAST_DIGITS {
        return Err(format!(
            "no node is called \"{digits}\", and it is not the beginning of one's name, {LEAST_DIGITS} hex digits or more"
        ));
    }
    known.retain(|node| node.starts_with(digits));
    known.sort();
    known.dedup();
    match known.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(format!("no node that is known begins with {digits}")),
        several => {
            let some: Vec<&str> = several.iter().take(MOST_LISTED).map(|node| &node[..16]).collect();
            Err(format!(
                "{} nodes begin with {digits} ({}, ...): say more digits",
                several.len(),
                some.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::one_of;

    #[test]
    fn a_beginning_names_one_node_or_says_why_not() {
        let known = || ["1f2e", "1f3e", "a000"].map(|start| format!("{start}{}", "0".repeat(60))).to_vec();
        let named = |digits: &str, is_hex| one_of(digits, is_hex, known(), 0);
        assert_eq!(named("1f2e", true).unwrap(), known()[0]);
        assert!(named("1f2", true).unwrap_err().contains("4 hex digits"));
        assert!(named("bbbb", true).unwrap_err().contains("begins with bbbb"));
        assert!(named("attic", false).unwrap_err().contains("no node is called"));
        let twice = [known(), vec![format!("1f2e{}", "1".repeat(60))]].concat();
        assert!(one_of("1f2e", true, twice, 0).unwrap_err().contains("2 nodes begin"));
        assert_eq!(
            one_of("a000", true, [known(), known()].concat(), 0).unwrap(),
            known()[2],
            "named twice, one node"
        );
        assert!(one_of("1f2e", true, known(), 2).unwrap_err().contains("2 nodes are called"));
    }
}
