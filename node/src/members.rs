//! The file that lists the members of an organization's swarm.
//!
//! ```text
//! # office
//! 0f1e2d3c..  Ann's laptop
//! a1b2c3d4..  # rack 2
//! ```
//!
//! One full name of a node a line, as `shoal status --json` and `shoal peers --json` show it; what stands behind it is for people.
//! The file is read again when it changes: a node that is taken off it is let go within [`LOOK_EVERY`]. While it cannot be read, the
//! list of before counts.
//!
//! Bounds: [`MAX_BYTES`] of the file, which is 16,000 nodes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use p2p::members::Members;
use scheduler::NodeId;

use crate::{Error, Result, node_names};

/// Longest list.
const MAX_BYTES: u64 = 1 << 20;
/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The nodes that a file lists.
///
/// # Errors
/// When it cannot be read, is too long, or a line begins with something else.
pub fn read(list: &Path) -> Result<BTreeSet<NodeId>> {
    let shown = list.display();
    let broken = |error| Error::usage(format!("the list of members {shown} cannot be read: {error}"));
    if fs::metadata(list).map_err(broken)?.len() > MAX_BYTES {
        return Err(Error::usage(format!(
            "the list of members {shown} has more than {} KiB",
            MAX_BYTES >> 10
        )));
    }
    let text = fs::read_to_string(list).map_err(broken)?;
    parse(&text).map_err(|why| Error::usage(format!("the list of members {shown}, {why}")))
}

fn parse(text: &str) -> std::result::Result<BTreeSet<NodeId>, String> {
    let mut listed = BTreeSet::new();
    for (at, line) in text.lines().enumerate() {
        let word = line.split('#').next().and_then(|line| line.split_whitespace().next());
        if let Some(word) = word {
            listed.insert(node_names::full(word).map_err(|why| format!("line {}: {why}", at + 1))?);
        }
    }
    Ok(listed)
}

/// Holds `members` to the file, for ever.
pub async fn follow(members: Members, list: PathBuf) {
    let mut told = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let file = list.clone();
        match tokio::task::spawn_blocking(move || read(&file)).await {
            Ok(Ok(listed)) => {
                told = None;
                members.set(listed);
            }
            Ok(Err(error)) => {
                let why = error.to_string();
                if told.as_ref() != Some(&why) {
                    tracing::warn!("{why}; the list of before counts");
                }
                told = Some(why);
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_list_has_names_and_remarks_and_says_what_is_wrong() {
        let (a, b) = ([1; 32], [0xab; 32]);
        let text =
            format!("# office\n{}  Ann's laptop\n\n{} # rack 2\n", HEXLOWER.encode(&a), HEXLOWER.encode(&b));
        assert_eq!(parse(&text), Ok(BTreeSet::from([NodeId::new(a), NodeId::new(b)])));
        assert_eq!(parse("\n# nothing\n"), Ok(BTreeSet::new()));
        let short = parse(&format!("{text}abc Ann\n")).unwrap_err();
        assert!(short.starts_with("line 5: \"abc\""), "{short}");
        let home = TempDir::new().unwrap();
        let list = home.path().join("members");
        assert!(read(&list).unwrap_err().to_string().contains("cannot be read"));
        fs::write(&list, vec![b'\n'; MAX_BYTES as usize + 1]).unwrap();
        assert!(read(&list).unwrap_err().to_string().contains("KiB"));
    }
}
