//! `shoal upgrade`: a signed release in the place of the program that runs.

use std::{
    fs,
    io::{self, IsTerminal, Read},
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use p2p::blob::{Pace, http::document, plain};
use serde::de::IgnoredAny;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    Error, Result,
    cli::upgrade::UpgradeArgs,
    control::{self, Question},
    output::{self, progress, say},
    upgrade::{
        self,
        archive::{self, Release},
        own_version, previous,
        signature::{self, PublicKey},
    },
};

/// Longest silence of a server.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest list of checksums.
const MAX_SUMS: usize = 64 << 10;
/// A node that was told to leave is gone by then: its sessions have 10 s, its last answers a moment.
const LEAVING: Duration = Duration::from_secs(60);

pub(super) fn run(args: UpgradeArgs) -> Result<()> {
    let program = upgrade::own_program()?;
    if args.rollback {
        return roll_back(&args, &program);
    }
    let archive = args.archive.as_deref().unwrap_or_default();
    let key = key(&args)?;
    let bytes = checked(archive, &key)?;
    let own = own_version()?;
    // Beside the program, so that it takes its place in one step; for a look anywhere.
    let mut fresh = match args.check {
        true => upgrade::stage(&std::env::temp_dir().join("shoal"))?,
        false => upgrade::stage(&program)?,
    };
    let mut accept = |release: &Release| {
        let here = archive::platform();
        if release.platform != here {
            return Err(format!(
                "the archive is for {} and this machine is {here}: take the one for it",
                release.platform
            ));
        }
        if release.version < own && !args.allow_downgrade {
            return Err(format!(
                "the archive has version {} and this is {own}: --allow-downgrade takes an older one, `shoal upgrade --rollback` \
                 the one before",
                release.version
            ));
        }
        Ok(())
    };
    let release = archive::unpack(&bytes, fresh.as_file_mut(), &mut accept)
        .map_err(|why| Error::Failed(format!("{why}; nothing was changed")))?;
    let told = Told { args: &args, program: &program, own: own.to_string(), release: &release, key: &key };
    if same(fresh.path(), &program)? {
        return told.say("same", false);
    }
    if release.version == own && !args.allow_downgrade {
        return Err(Error::Failed(format!(
            "the archive has another build of version {own}, which may be older: --allow-downgrade takes it; nothing was changed"
        )));
    }
    // A program that is open for writing cannot be started.
    fresh.as_file().sync_all()?;
    let fresh = closed(fresh)?;
    upgrade::try_out(fresh.path(), &release.version)?;
    if args.check {
        return told.say("checked", false);
    }
    confirm(&args, &format!("Replace shoal {own} by {}", release.version))?;
    let left = leave(&args.home.path()?)?;
    upgrade::put_in_place(fresh, &program)?;
    told.say("installed", left)
}

/// The file under its name, and open for reading only.
fn closed(fresh: tempfile::NamedTempFile) -> Result<tempfile::NamedTempFile> {
    let (_, path) = fresh.into_parts();
    let file = fs::File::open(&path)?;
    Ok(tempfile::NamedTempFile::from_parts(file, path))
}

/// What is said at the end.
struct Told<'a> {
    args: &'a UpgradeArgs,
    program: &'a Path,
    own: String,
    release: &'a Release,
    key: &'a PublicKey,
}

impl Told<'_> {
    fn say(&self, done: &str, left: bool) -> Result<()> {
        let (own, version, before) = (&self.own, self.release.version.to_string(), previous(self.program));
        let (program, key) = (self.program.display(), self.key.number());
        if self.args.json {
            return output::json_line(&json!({
                "done": done, "from": own, "to": version, "platform": self.release.platform, "key": key,
                "program": self.program, "previous": before.is_file().then_some(before), "node_left": left,
            }));
        }
        match done {
            "same" => {
                say!("The archive has the very program that runs: shoal {own}. There is nothing to do.")
            }
            "checked" => say!(
                "The archive is signed by {key}, and shoal {version} runs here. Nothing was changed: this is {own}."
            ),
            _ => {
                say!(
                    "{program} is shoal {version} now; {} is {own}: `shoal upgrade --rollback`.",
                    before.display()
                );
                started(left)?;
            }
        }
        Ok(())
    }
}

/// What is left to do for a node that stopped.
fn started(left: bool) -> Result<()> {
    if left {
        say!(
            "The node stopped for it: start it again with `shoal join`, or `systemctl restart shoal` for the service."
        );
    }
    say!("What `shoal serve` still runs is the program before, until it is started again.");
    Ok(())
}

fn roll_back(args: &UpgradeArgs, program: &Path) -> Result<()> {
    let before = previous(program);
    if !before.is_file() {
        return upgrade::roll_back(program);
    }
    confirm(args, &format!("Put {} back", before.display()))?;
    let left = leave(&args.home.path()?)?;
    upgrade::roll_back(program)?;
    if args.json {
        return output::json_line(
            &json!({ "done": "rolled_back", "program": program, "previous": before, "node_left": left }),
        );
    }
    say!("{} is the program before now, and {} the one that was there.", program.display(), before.display());
    started(left)
}

/// The key that is trusted.
fn key(args: &UpgradeArgs) -> Result<PublicKey> {
    let named = args.key.as_deref().or(upgrade::shipped()).ok_or_else(|| {
        Error::usage(
            "which key signs releases? This build has none of its own: --key KEY, as the maintainer of your releases publishes it",
        )
    })?;
    let text = match fs::File::open(named) {
        Ok(file) => {
            let mut text = String::new();
            file.take(signature::MAX_BYTES as u64).read_to_string(&mut text)?;
            text
        }
        Err(_) => named.to_owned(),
    };
    PublicKey::parse(&text).map_err(|why| {
        Error::usage(format!("\"{named}\" is neither a public key of minisign nor a file with one: {why}"))
    })
}

/// The bytes of the archive, signed by the key.
fn checked(archive: &str, key: &PublicKey) -> Result<Vec<u8>> {
    let (bytes, signature, sums) = match archive.contains("://") {
        true => fetched(archive)?,
        false => {
            let path = Path::new(archive);
            let sums = path.with_file_name("SHA256SUMS");
            (
                read(path, archive::MAX_BYTES)?,
                read(Path::new(&format!("{archive}.minisig")), signature::MAX_BYTES as u64),
                if sums.is_file() { Some(read(&sums, MAX_SUMS as u64)?) } else { None },
            )
        }
    };
    let name = archive.rsplit('/').next().unwrap_or(archive);
    if let Some(wrong) = sums.as_deref().and_then(|sums| differs(&bytes, name, sums)) {
        return Err(Error::Failed(format!(
            "{name} is damaged: {wrong}; fetch it again. Nothing was changed"
        )));
    }
    let signature = signature.map_err(|error| {
        Error::Failed(format!(
            "there is no signature {name}.minisig beside the archive ({error}): without one nothing is taken"
        ))
    })?;
    key.verify(&bytes, &String::from_utf8_lossy(&signature)).map_err(|why| {
        Error::Failed(format!("the signature of {name} is refused: {why}; nothing was changed"))
    })?;
    Ok(bytes)
}

/// Where the checksum of an archive is another one in the list.
fn differs(bytes: &[u8], name: &str, sums: &[u8]) -> Option<String> {
    let sums = String::from_utf8_lossy(sums);
    let mut lines = sums.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let (wanted, _) = lines.find(|(_, of)| of.trim().trim_start_matches('*') == name)?;
    let found = data_encoding::HEXLOWER.encode(&Sha256::digest(bytes));
    (found != wanted).then(|| format!("its SHA-256 is {found}, and {wanted} in SHA256SUMS"))
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    read.map_err(|error| shard::Error::io(path, error))?;
    if bytes.len() as u64 > most {
        return Err(Error::Failed(format!("{} is too long for what it should be", path.display())));
    }
    Ok(bytes)
}

/// An archive, what its signature is or why there is none, and the checksums beside it.
type Fetched = (Vec<u8>, Result<Vec<u8>>, Option<Vec<u8>>);

/// An archive and what lies beside it.
fn fetched(url: &str) -> Result<Fetched> {
    let host = url.split('/').nth(2).unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let own = ["127.0.0.1", "localhost", "[::1]"].contains(&host);
    let may = url.starts_with("https://") || url.starts_with("http://") && own;
    if !may {
        return Err(Error::usage(format!("{url}: only https is fetched")));
    }
    let folder = tempfile::tempdir()?;
    let options = plain::Options {
        disk_bytes: Some(archive::MAX_BYTES),
        pace: Arc::new(Pace::new(None)),
        timeout: PATIENCE,
    };
    let bar = progress(0, "fetching", true);
    let mut shown = |done: u64, all: u64| {
        bar.set_length(all);
        bar.set_position(done);
        true
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let complete = plain::fetch(folder.path(), url, &options, &mut shown).await?;
        let bytes = read(&complete.path, archive::MAX_BYTES)?;
        let signature = document(&format!("{url}.minisig"), "", signature::MAX_BYTES).await;
        let sums =
            url.rsplit_once('/').map_or_else(String::new, |(folder, _)| format!("{folder}/SHA256SUMS"));
        let sums = document(&sums, "", MAX_SUMS).await.ok();
        Ok((bytes, signature.map_err(|error| Error::Failed(error.to_string())), sums))
    })
}

/// Whether two files hold the same.
fn same(one: &Path, other: &Path) -> Result<bool> {
    if fs::metadata(one)?.len() != fs::metadata(other)?.len() {
        return Ok(false);
    }
    let hash = |path: &Path| -> io::Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(fs::File::open(path)?)?;
        Ok(hasher.finalize())
    };
    Ok(hash(one)? == hash(other)?)
}

/// Asks a person, unless told not to.
fn confirm(args: &UpgradeArgs, what: &str) -> Result<()> {
    if args.yes {
        return Ok(());
    }
    if args.json || !io::stdin().is_terminal() {
        return Err(Error::usage(format!("{what}? Say so with --yes; nothing was changed")));
    }
    let runs = if control::is_running(&args.home.path()?) { ", and stop the running node" } else { "" };
    eprint!("{what}{runs}? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        true => Ok(()),
        false => Err(Error::usage("nothing was changed")),
    }
}

/// Has the running node end what it serves and stop; whether there was one.
fn leave(home: &Path) -> Result<bool> {
    if !control::is_running(home) {
        return Ok(false);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(control::one::<IgnoredAny>(home, &Question::Leave))?;
    let until = Instant::now() + LEAVING;
    while control::is_running(home) {
        if Instant::now() > until {
            let why = "the node does not stop; nothing was changed: `shoal leave`, then try again";
            return Err(Error::Failed(why.into()));
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_that_differs_is_told_and_one_that_is_not_there_is_not() {
        let sum = data_encoding::HEXLOWER.encode(&Sha256::digest(b"archive"));
        let list = format!("{}  other.tar.gz\n{sum} *a.tar.gz\n", "0".repeat(64));
        assert_eq!(differs(b"archive", "a.tar.gz", list.as_bytes()), None);
        assert!(differs(b"archivf", "a.tar.gz", list.as_bytes()).unwrap().contains(&sum));
        assert_eq!(differs(b"archive", "b.tar.gz", list.as_bytes()), None);
    }
}
