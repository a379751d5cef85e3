//! Another version of the program in the place of this one: what a release must be before it is run, and how it takes the place.
//!
//! The archive's signature is checked first, by a key that its user named or that the build has ([`shipped`]); nothing is unpacked
//! before. The program is written beside the one that runs, is asked what it is and whether it computes the right bits
//! ([`try_out`]), and takes its place by a rename. The one before stays as `shoal.previous` ([`previous`]).

pub mod archive;
pub mod signature;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use semver::Version;

use crate::{Error, Result, platform::files};

/// What the name of the program before ends with.
const BEFORE: &str = ".previous";
/// A program that has not ended by then does not work here.
const TRIAL: Duration = Duration::from_secs(300);
/// As long a fresh file may be open elsewhere.
const WRITTEN: Duration = Duration::from_secs(10);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(20);

/// The key of this build's maintainer, where the build has one: `SHOAL_RELEASE_KEY` when it was compiled.
pub fn shipped() -> Option<&'static str> {
    option_env!("SHOAL_RELEASE_KEY").filter(|key| !key.is_empty())
}

/// The version of this program.
///
/// # Errors
/// [`Error::Failed`] when the package is versioned by no semantic version.
pub fn own_version() -> Result<Version> {
    Version::parse(env!("CARGO_PKG_VERSION")).map_err(|error| Error::Failed(error.to_string()))
}

/// The program that runs, or whose place it had; not one of the system's packages.
///
/// # Errors
/// [`Error::Usage`] when another program looks after it, or it cannot be replaced.
pub fn own_program() -> Result<PathBuf> {
    let program = std::env::current_exe()?.canonicalize()?;
    let of_packages = program.starts_with("/usr") && !program.starts_with("/usr/local");
    if of_packages || program.starts_with("/nix") || program.starts_with("/snap") {
        return Err(Error::usage(format!(
            "{} belongs to this system's packages: upgrade it with them, such as `apt install ./shoal_VERSION.deb`",
            program.display()
        )));
    }
    // The program before puts itself back where the one after it does not work.
    Ok(match program.to_str().and_then(|path| path.strip_suffix(BEFORE)) {
        Some(path) => path.into(),
        None => program,
    })
}

/// Where the program before is kept.
pub fn previous(program: &Path) -> PathBuf {
    beside(program, BEFORE)
}

fn beside(program: &Path, end: &str) -> PathBuf {
    let mut name = program.file_name().unwrap_or_default().to_owned();
    name.push(end);
    program.with_file_name(name)
}

/// A file in the folder of the program, which is gone when it is dropped; made so that it can be run.
///
/// # Errors
/// [`Error::Usage`] when the folder cannot be written.
pub fn stage(program: &Path) -> Result<tempfile::NamedTempFile> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let made = files::of_a_program().and_then(|permissions| {
        tempfile::Builder::new().prefix(".shoal-upgrade-").permissions(permissions).tempfile_in(folder)
    });
    made.map_err(|error| {
        Error::usage(format!(
            "{} cannot be written ({error}): run this as the user who installed shoal, such as with sudo",
            folder.display()
        ))
    })
}

/// Asks a program which version it is, and has it compute what every machine must compute alike.
///
/// # Errors
/// [`Error::Failed`] when it says something else, fails or does not end.
pub fn try_out(program: &Path, version: &Version) -> Result<()> {
    let (fine, said) = run(program, &["--version"])?;
    if !fine || said.trim() != format!("shoal {version}") {
        let said = said.lines().next().unwrap_or_default().to_owned();
        return Err(Error::Failed(format!(
            "the new program says that it is \"{said}\" and not shoal {version}; nothing was changed"
        )));
    }
    let selftest = ["selftest", "--json", "--config", "none"];
    if run(program, &selftest)?.0 {
        return Ok(());
    }
    // A machine that differs from others did so before.
    match run(&std::env::current_exe()?, &selftest)?.0 {
        true => Err(Error::Failed(
            "the new program does not compute the right bits here (`selftest`), which this one does; nothing was changed".into(),
        )),
        false => Ok(()),
    }
}

/// Whether a program ended well, and what it printed: its first lines.
fn run(program: &Path, args: &[&str]) -> Result<(bool, String)> {
    let broken = |error: io::Error| {
        Error::Failed(format!("the program does not start on this machine ({error}); nothing was changed"))
    };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let until = Instant::now() + WRITTEN;
    let mut child = loop {
        match command.spawn() {
            // Another process of this program has a copy of what it was written by, until it is its own program.
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < until => {
                thread::sleep(LOOK);
            }
            child => break child.map_err(broken)?,
        }
    };
    let out = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        let read = out.map(|out| io::copy(&mut io::Read::take(out, 1 << 20), &mut said));
        drop(read);
        String::from_utf8_lossy(&said).into_owned()
    });
    let fine = ended(&mut child)?;
    Ok((fine, reader.join().unwrap_or_default()))
}

/// Whether the process ends well in time.
fn ended(child: &mut Child) -> Result<bool> {
    let until = Instant::now() + TRIAL;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() >= until {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(false);
        }
        thread::sleep(LOOK);
    }
}

/// Puts `fresh` in the place of `program`, which is kept as [`previous`]. At every moment there is one of the two.
///
/// # Errors
/// Those of the disk; then the program is the one before.
pub fn put_in_place(fresh: tempfile::NamedTempFile, program: &Path) -> Result<()> {
    fresh.as_file().sync_all()?;
    second_name(program, &previous(program))?;
    fresh.persist(program).map_err(|error| Error::Io(error.error))?;
    Ok(sync(program)?)
}

/// Changes the program and the one before it.
///
/// # Errors
/// [`Error::Usage`] when there is none before; those of the disk.
pub fn roll_back(program: &Path) -> Result<()> {
    let (before, now) = (previous(program), beside(program, ".now"));
    if !before.is_file() {
        return Err(Error::usage(format!(
            "there is no {}: `shoal upgrade` keeps the program that it replaces there",
            before.display()
        )));
    }
    second_name(program, &now)?;
    fs::rename(&before, program)?;
    fs::rename(&now, &before)?;
    Ok(sync(program)?)
}

/// Gives a file a second name, in place of what had it.
fn second_name(file: &Path, name: &Path) -> Result<()> {
    let draft = beside(name, ".new");
    let _ = fs::remove_file(&draft);
    // File systems without second names get a copy.
    fs::hard_link(file, &draft).or_else(|_| fs::copy(file, &draft).map(drop))?;
    Ok(fs::rename(&draft, name)?)
}

/// Has the folder of a file on the disk.
fn sync(file: &Path) -> io::Result<()> {
    p2p::blob::sparse::sync_folder(file.parent().unwrap_or(Path::new("/")))
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_program_takes_the_place_and_goes_back() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("shoal");
        fs::write(&program, "old").unwrap();
        assert!(roll_back(&program).unwrap_err().to_string().contains("no "));
        for text in ["middle", "new"] {
            let mut fresh = stage(&program).unwrap();
            fresh.write_all(text.as_bytes()).unwrap();
            put_in_place(fresh, &program).unwrap();
        }
        let both = || [&program, &previous(&program)].map(|path| fs::read_to_string(path).unwrap());
        assert_eq!(both(), ["new", "middle"]);
        assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
        roll_back(&program).unwrap();
        assert_eq!(both(), ["middle", "new"]);
        roll_back(&program).unwrap();
        assert_eq!(both(), ["new", "middle"]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_program_that_is_another_or_fails_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("shoal");
        let made = |script: &str| {
            fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            try_out(&program, &Version::new(9, 0, 0)).map_err(|error| error.to_string())
        };
        assert!(made("echo shoal 9.0.1").unwrap_err().contains("shoal 9.0.1"));
        assert!(made("exit 1").unwrap_err().contains("not shoal 9.0.0"));
        made("[ $1 != --version ] || echo shoal 9.0.0").unwrap();
        fs::write(&program, [0x7f, b'E', b'L', b'F', 0]).unwrap();
        assert!(
            try_out(&program, &Version::new(9, 0, 0)).unwrap_err().to_string().contains("does not start")
        );
    }
}
