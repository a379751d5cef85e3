//! `shoal identity`: its commands and their flags.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::swarm::HomeArgs;

/// `shoal identity ...`
#[derive(Debug, Subcommand)]
pub enum IdentityCommand {
    /// Which node this is, and which files belong to it
    #[command(after_help = "Example:
  shoal identity show")]
    Show {
        #[command(flatten)]
        #[allow(missing_docs)]
        home: HomeArgs,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write it into a file, encrypted under a passphrase
    #[command(
        after_help = "The file holds the key and what belongs to it: keys of private swarms, peers met, receipts, what is known of other
nodes, their names, agreements, keys of the API. Models and settings stay; conversations go along with --conversations.
Who has the file and the passphrase is this node. Two machines must never run one identity at once: others close the
connections of one for those of the other, so that both are cut off, and take signatures that contradict for lies.

Examples:
  shoal identity export node.backup            asks for a passphrase
  shoal identity export moved.backup --retire --passphrase-file passphrase.txt
                                               to move: this folder starts no node any more
  shoal identity import moved.backup           on the other machine"
    )]
    Export {
        /// The file to make; it must not exist yet
        file: PathBuf,
        #[command(flatten)]
        #[allow(missing_docs)]
        passphrase: PassphraseArgs,
        /// Conversations of the page and interrupted answers, too
        #[arg(long)]
        conversations: bool,
        /// This folder starts no node any more, until `shoal identity reactivate`: for a move to another machine
        #[arg(long)]
        retire: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        home: HomeArgs,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Become the node in a file that `shoal identity export` made
    #[command(
        after_help = "Nothing is changed unless all of the file can be read. Stop the node on the old machine first: two machines must
never run one identity at once.

Examples:
  shoal identity import node.backup
  shoal identity import node.backup --home ~/other-node
  SHOAL_PASSPHRASE=\"$(pass shoal)\" shoal identity import node.backup --force"
    )]
    Import {
        /// The file
        file: PathBuf,
        #[command(flatten)]
        #[allow(missing_docs)]
        passphrase: PassphraseArgs,
        /// Take the place of the identity that is here, which is kept beside it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        home: HomeArgs,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Take `export --retire` back: this folder starts a node again
    #[command(after_help = "Example:
  shoal identity reactivate")]
    Reactivate {
        #[command(flatten)]
        #[allow(missing_docs)]
        home: HomeArgs,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Where a passphrase comes from.
#[derive(Debug, Clone, Args)]
pub struct PassphraseArgs {
    /// Its first line is the passphrase; "-" is standard input [default: $SHOAL_PASSPHRASE, else the terminal asks]
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
}
