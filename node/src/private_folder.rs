//! The data folder, which is its owner's alone.
//!
//! It holds the node's key, the API's token, receipts and interrupted answers. Folders in it have mode 0700 and files 0600:
//! created so, whatever wrote them, since the process takes the rights of others away from all it creates; and mended when a
//! node starts, since other programs and earlier versions may have created some.
//!
//! Limits: only what lies in the folder is mended, not what links in it lead to, down to [`MAX_DEPTH`].

use std::{
    fs::{self, DirBuilder},
    io,
    path::{Path, PathBuf},
};

use crate::{
    Error, Result,
    platform::files::{self, OwnerOnly},
};

/// Folders within folders that are looked into: there are three levels.
const MAX_DEPTH: usize = 8;

/// Makes the folder, or mends it: from here on this process creates nothing that others may read.
///
/// # Errors
/// When it can be neither made nor mended.
pub fn prepare(home: &Path) -> Result<()> {
    files::be_private();
    DirBuilder::new().recursive(true).owner_only().create(home).map_err(|error| {
        Error::Failed(format!("cannot create {}: {error}; choose another folder with --home", home.display()))
    })?;
    mend(home).map_err(|(path, error)| {
        Error::Failed(format!("{} is not private: {error}; run: chmod go= {0}", path.display()))
    })
}

/// Takes the rights of others away from all that is in the folder.
fn mend(home: &Path) -> Result<(), (PathBuf, io::Error)> {
    let mut open = vec![(home.to_owned(), 0)];
    while let Some((path, depth)) = open.pop() {
        let broken = |error| (path.clone(), error);
        let about = match fs::symlink_metadata(&path) {
            // What runs beside this process removes its own files.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            about => about.map_err(broken)?,
        };
        if about.is_symlink() {
            continue;
        }
        if !files::is_owners_only(&about) {
            match files::take_from_others(&path, &about) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                done => done.map_err(broken)?,
            }
        }
        if about.is_dir() && depth < MAX_DEPTH {
            for entry in fs::read_dir(&path).map_err(broken)?.flatten() {
                open.push((entry.path(), depth + 1));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn what_others_could_read_is_mended_and_nothing_outside() {
        let folder = tempfile::tempdir().unwrap();
        let (home, outside) = (folder.path().join("home"), folder.path().join("outside"));
        fs::create_dir_all(home.join("models/one")).unwrap();
        let files = [home.join("trust.json"), home.join("models/one/file"), outside.clone()];
        for file in &files {
            fs::write(file, "x").unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o664)).unwrap();
        }
        std::os::unix::fs::symlink(&outside, home.join("link")).unwrap();
        mend(&home).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(files.iter().map(|file| mode(file)).collect::<Vec<_>>(), [0o600, 0o600, 0o664]);
        for folder in [&home, &home.join("models"), &home.join("models/one")] {
            assert_eq!(mode(folder), 0o700);
        }
    }
}
