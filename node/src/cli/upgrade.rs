//! `shoal upgrade`

use clap::Args;

use super::swarm::HomeArgs;

/// `shoal upgrade`
#[derive(Debug, Args)]
#[command(
    after_help = "The archive's signature (minisign; ARCHIVE.minisig beside it) is checked by the key before anything is unpacked, then
the platform and that the version is newer. The program in it has to say its version and compute the right bits here. The
running node ends its sessions and stops; start it again afterwards. The program before is kept as shoal.previous.

Examples:
  shoal upgrade --key RWQ... https://example.org/shoal/shoal-0.2.0-linux-x86_64.tar.gz
  shoal upgrade --key release.pub shoal-0.2.0-linux-x86_64.tar.gz --check
  shoal upgrade --rollback                     the program before

A key in the settings needs no flag: key = \"RWQ...\" in the table [upgrade] of config.toml."
)]
pub struct UpgradeArgs {
    /// The archive, a file or an https address
    #[arg(required_unless_present = "rollback", conflicts_with = "rollback")]
    pub archive: Option<String>,
    /// Who signs releases: a minisign public key, or the file with it [default: this build's, if it has one]
    #[arg(long, value_name = "KEY|FILE", env = "SHOAL_UPGRADE_KEY")]
    pub key: Option<String>,
    /// Only check the archive, and change nothing
    #[arg(long)]
    pub check: bool,
    /// Take a release that is not newer, too
    #[arg(long)]
    pub allow_downgrade: bool,
    /// Put the program before back in its place
    #[arg(long, conflicts_with_all = ["check", "allow_downgrade"])]
    pub rollback: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: HomeArgs,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}
