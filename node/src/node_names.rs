//! What the owner of this node calls other nodes: names and colors, for the page and for the terminal.
//!
//! ```text
//! HOME/node-names.json       [{"node", "name", "color"}]
//! ```
//!
//! They stay on this machine: no node hears what it is called here. The file is read whenever names are shown, so that those
//! given on the page or by `shoal peers name` are those of `shoal peers`.
//!
//! Limits: [`MAX_NAMES`] nodes, names of `api::swarm_records::MAX_NAME` letters, and [`MAX_BYTES`] of file; a file that is
//! damaged is no name at all, and the next name that is given replaces it.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::Read,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use api::swarm_records::{MAX_NAMES, NodeName};
use scheduler::NodeId;

use crate::{
    Error, Result,
    platform::files::{NoLinks, OwnerOnly},
    reports::PeersReport,
};

/// A file that is longer was not written here: the longest names of all nodes take less.
const MAX_BYTES: u64 = 256 << 10;
/// Two names that are given at once are both kept.
static WRITING: Mutex<()> = Mutex::new(());

/// The node whose full name is `name`, 64 hex digits.
///
/// # Errors
/// What it is not, for people.
pub fn full(name: &str) -> Result<NodeId, String> {
    let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(name.as_bytes()).ok();
    let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    bytes
        .map(NodeId::new)
        .ok_or_else(|| format!("\"{name}\" is no node's full name; `shoal peers --json` shows it"))
}

fn file(home: &Path) -> PathBuf {
    home.join("node-names.json")
}

/// Every name below `home`, each checked as one that a person types now.
pub fn list(home: &Path) -> Vec<NodeName> {
    let mut text = Vec::new();
    let read = File::open(file(home)).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut text));
    if read.is_err() || text.len() as u64 > MAX_BYTES {
        return Vec::new();
    }
    let names: Vec<NodeName> = serde_json::from_slice(&text).unwrap_or_default();
    let sound = |kept: NodeName| NodeName::new(&kept.node, &kept.name, kept.color).ok();
    names.into_iter().filter_map(sound).filter(|kept| !kept.is_empty()).take(MAX_NAMES).collect()
}

/// Keeps a name below `home` in place of the one before; one that says nothing forgets it.
///
/// # Errors
/// [`Error::Usage`] when there are too many, and those of writing.
pub fn keep(home: &Path, name: NodeName) -> Result<()> {
    let _alone = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    // The page and the terminal are several processes.
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).owner_only().no_links();
    let lock = options.open(home.join("node-names.lock"))?;
    lock.lock()?;
    let mut names = list(home);
    names.retain(|kept| kept.node != name.node);
    if !name.is_empty() {
        if names.len() >= MAX_NAMES {
            let why = format!("{MAX_NAMES} nodes have a name already, which is the most: forget one first");
            return Err(Error::usage(why));
        }
        names.push(name);
    }
    let text = serde_json::to_vec_pretty(&names)?;
    p2p::blob::sparse::replace(&file(home), &[&text])?;
    Ok(())
}

/// Names by node, for lists in the terminal.
pub fn by_node(home: &Path) -> BTreeMap<String, String> {
    list(home).into_iter().filter(|kept| !kept.name.is_empty()).map(|kept| (kept.node, kept.name)).collect()
}

/// Writes beside each peer what it is called here.
pub fn fill(home: &Path, known: &mut PeersReport) {
    let mut names = by_node(home);
    for peer in &mut known.peers {
        peer.called = names.remove(&peer.node);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use api::swarm_records::Color;

    use super::*;

    fn node(at: usize) -> String {
        format!("{at:064x}")
    }

    #[test]
    fn a_name_is_kept_changed_and_forgotten() {
        let home = tempfile::tempdir().unwrap();
        let name = |at, name: &str, color| NodeName::new(&node(at), name, color).unwrap();
        assert!(list(home.path()).is_empty());
        keep(home.path(), name(1, "attic", Color::Teal)).unwrap();
        keep(home.path(), name(2, "", Color::Red)).unwrap();
        keep(home.path(), name(1, "cellar", Color::Teal)).unwrap();
        let kept = list(home.path());
        assert_eq!(kept, [name(2, "", Color::Red), name(1, "cellar", Color::Teal)]);
        assert_eq!(by_node(home.path()), BTreeMap::from([(node(1), "cellar".to_owned())]));
        keep(home.path(), name(2, "", Color::None)).unwrap();
        assert_eq!(list(home.path()).len(), 1);
    }

    #[test]
    fn names_are_bounded_and_a_foreign_file_is_none() {
        let home = tempfile::tempdir().unwrap();
        let all: Vec<_> =
            (0..MAX_NAMES).map(|at| NodeName::new(&node(at), "x", Color::None).unwrap()).collect();
        fs::write(file(home.path()), serde_json::to_vec(&all).unwrap()).unwrap();
        let one_more = NodeName::new(&node(MAX_NAMES), "x", Color::None).unwrap();
        assert!(keep(home.path(), one_more.clone()).is_err());
        keep(home.path(), NodeName::new(&node(3), "changed", Color::None).unwrap()).unwrap();
        keep(home.path(), NodeName::new(&node(4), "", Color::None).unwrap()).unwrap();
        keep(home.path(), one_more).unwrap();
        assert_eq!(list(home.path()).len(), MAX_NAMES);
        let hostile = [
            "{}".to_owned(),
            format!("[{{\"node\":\"{}\",\"name\":\"a\u{202e}b\"}}]", node(1)),
            format!("[{{\"node\":\"{}\",\"name\":\"{}\"}}]", node(1), "x".repeat(33)),
            format!("[{}]", " ".repeat(MAX_BYTES as usize)),
        ];
        for text in hostile {
            fs::write(file(home.path()), text).unwrap();
            assert!(list(home.path()).is_empty());
        }
        keep(home.path(), NodeName::new(&node(1), "x", Color::None).unwrap()).unwrap();
        assert_eq!(list(home.path()).len(), 1);
    }
}
