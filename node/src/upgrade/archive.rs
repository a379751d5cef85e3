//! The program in a release's archive, `shoal-VERSION-SYSTEM-MACHINE.tar.gz` of `node/packaging/release.sh`.
//!
//! Everything in it lies below one folder of that name, and only the program is unpacked, into a file that is there already: no
//! path of an archive is ever made. An archive is unpacked after its signature was checked, and all the same it is bounded and
//! refused where it is not what the script makes.

use std::{
    fs::File,
    io::{self, Read},
    path::{Component, Path},
};

use flate2::read::GzDecoder;
use semver::Version;
use tar::{Archive, EntryType};

/// Longest archive, bytes: a release has 20 MB.
pub const MAX_BYTES: u64 = 256 << 20;
/// Most bytes of all that is in it.
const MAX_UNPACKED: u64 = 1 << 30;
/// Most files and folders in it: a manual page per command, and a few more.
const MAX_ENTRIES: usize = 4_096;

/// What a release is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Which one.
    pub version: Version,
    /// For which machines, as `uname` calls them: `linux-x86_64`.
    pub platform: String,
}

/// What machines like this one are called.
pub fn platform() -> String {
    let (system, machine) = (std::env::consts::OS, std::env::consts::ARCH);
    let apple = system == "macos";
    let machine = if apple && machine == "aarch64" { "arm64" } else { machine };
    format!("{}-{machine}", if apple { "darwin" } else { system })
}

impl Release {
    /// By the name of its folder.
    fn of_folder(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("shoal-")?;
        // A version may have the sign, too.
        let (rest, machine) = rest.rsplit_once('-')?;
        let (version, system) = rest.rsplit_once('-')?;
        let version = Version::parse(version).ok()?;
        Some(Self { version, platform: format!("{system}-{machine}") })
    }
}

/// Writes the program of an archive into `program`, once `accept` agrees to the release.
///
/// # Errors
/// A sentence about what is wrong with the archive, and what `accept` says.
pub fn unpack(
    archive: &[u8],
    program: &mut File,
    accept: &mut dyn FnMut(&Release) -> Result<(), String>,
) -> Result<Release, String> {
    let broken = |error: io::Error| format!("the archive is damaged: {error}");
    let mut archive = Archive::new(GzDecoder::new(archive).take(MAX_UNPACKED));
    let mut release: Option<(String, Release)> = None;
    let mut found = false;
    for (at, entry) in archive.entries().map_err(broken)?.enumerate() {
        if at == MAX_ENTRIES {
            return Err("the archive has more files than a release".into());
        }
        let mut entry = entry.map_err(broken)?;
        let path = entry.path().map_err(broken)?.into_owned();
        let parts = parts(&path).ok_or("the archive has a path that leads out of it")?;
        let kind = entry.header().entry_type();
        if !matches!(kind, EntryType::Regular | EntryType::Directory) {
            return Err(format!(
                "the archive has something that is neither a file nor a folder: {}",
                path.display()
            ));
        }
        let (folder, _) = match &mut release {
            Some(known) => known,
            empty => {
                let named = parts.first().and_then(|folder| Release::of_folder(folder));
                let named =
                    named.ok_or("the archive is no release of shoal: its folder is called otherwise")?;
                accept(&named)?;
                empty.insert((parts[0].clone(), named))
            }
        };
        if parts[0] != *folder {
            return Err("the archive has more than one folder".into());
        }
        if parts.len() == 2 && parts[1] == "shoal" && kind == EntryType::Regular {
            if found {
                return Err("the archive has two programs".into());
            }
            found = true;
            io::copy(&mut entry, program).map_err(broken)?;
        }
    }
    // To the end, where the checksum is.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(broken)?;
    match release.filter(|_| found) {
        Some((_, release)) => Ok(release),
        None => Err("the archive has no program in it".into()),
    }
}

/// The names of a path that stays where it begins.
fn parts(path: &Path) -> Option<Vec<String>> {
    let name = |part| match part {
        Component::Normal(part) => part.to_str().map(str::to_owned),
        _ => None,
    };
    path.components().map(name).collect::<Option<Vec<_>>>().filter(|parts| !parts.is_empty())
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use flate2::{Compression, write::GzEncoder};
    use tar::{Builder, Header};

    use super::*;

    /// An archive of these paths, as they are written.
    fn packed(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut tar = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (path, kind, bytes) in entries {
            let mut header = Header::new_gnu();
            // The builder refuses what a hostile archive has.
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            header.set_size(bytes.len() as u64);
            header.set_cksum();
            tar.append(&header, *bytes).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap()
    }

    fn unpacked(archive: &[u8]) -> Result<(Release, Vec<u8>), String> {
        let mut file = tempfile::tempfile().unwrap();
        let release = unpack(archive, &mut file, &mut |_| Ok(()))?;
        file.flush().unwrap();
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        Ok((release, bytes))
    }

    const FILE: EntryType = EntryType::Regular;
    const FOLDER: EntryType = EntryType::Directory;

    #[test]
    fn the_program_of_a_release_is_found() {
        let name = "shoal-1.2.0-rc.1-linux-x86_64";
        let archive = packed(&[
            (&format!("{name}/"), FOLDER, b""),
            (&format!("{name}/man/shoal"), FILE, b"page"),
            (&format!("{name}/shoal"), FILE, b"program"),
        ]);
        let (release, bytes) = unpacked(&archive).unwrap();
        assert_eq!(
            (release.version.to_string().as_str(), release.platform.as_str()),
            ("1.2.0-rc.1", "linux-x86_64")
        );
        assert_eq!(bytes, b"program");
        let refused = unpack(&archive, &mut tempfile::tempfile().unwrap(), &mut |_| Err("no".into()));
        assert_eq!(refused.unwrap_err(), "no");
        for cut in [0, 10, archive.len() / 2, archive.len() - 9] {
            assert!(unpacked(&archive[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn an_archive_that_is_no_release_is_refused() {
        const NAME: &str = "shoal-1.2.0-linux-x86_64/shoal";
        let program = (NAME, FILE, &b"program"[..]);
        let hostile: [&[(&str, EntryType, &[u8])]; 9] = [
            &[],
            &[("shoal-1.2.0-linux-x86_64/man/shoal", FILE, b"page")],
            &[program, program],
            &[program, ("shoal-1.2.1-linux-x86_64/shoal.1", FILE, b"")],
            &[("../shoal-1.2.0-linux-x86_64/shoal", FILE, b"")],
            &[program, ("shoal-1.2.0-linux-x86_64/../../x", FILE, b"")],
            &[("/shoal-1.2.0-linux-x86_64/shoal", FILE, b"")],
            &[("shoal-new-linux-x86_64/shoal", FILE, b"")],
            &[(NAME, EntryType::Symlink, b"")],
        ];
        assert_eq!(unpacked(&packed(&[program])).unwrap().1, b"program");
        for entries in hostile {
            assert!(unpacked(&packed(entries)).is_err(), "{entries:?}");
        }
    }
}
