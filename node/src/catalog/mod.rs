//! Signed lists of models: from a name to a content id, a size, a license and mirrors.
//!
//! A catalog is a text file: one JSON object and, on the last line, who signed it.
//!
//! ```text
//! {
//!   "name": "shoal",
//!   "sequence": 1,
//!   "models": [ { "name": "smollm2", "id": "4f3c...", ... } ]
//! }
//! signature AUTHOR SIGNATURE
//! ```
//!
//! AUTHOR is an ed25519 public key in 64 hex digits, SIGNATURE signs every byte before its line as a statement of kind
//! [`DOMAIN`]. The catalog that came with the program needs no further trust: it is a part of it. Others are kept below
//! `HOME/catalogs`, one file per author, once the user trusted that author ([`keep`]); an older one never replaces a newer one.
//!
//! A catalog only says where bytes may be had and what they are called: whatever a mirror sends is checked against the id.

pub mod fit;
pub mod local;
pub mod reference;
pub mod registry;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use p2p::{Identity, identity};
use scheduler::{ModelId, NodeId};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    library::{self, kept::parse_id},
};

/// What a catalog's signature states.
pub const DOMAIN: &str = "shoal catalog 1";
/// Longest catalog.
pub const MAX_BYTES: usize = 1 << 20;
/// Most models of a catalog.
const MAX_MODELS: usize = 4_096;
/// Most mirrors of a model.
const MAX_MIRRORS: usize = 8;
/// Longest text of an entry, in bytes.
const MAX_TEXT: usize = 512;
/// Most authors that a user trusts.
const MAX_CATALOGS: usize = 16;

/// The catalog of this release.
const SHIPPED: &str = include_str!("../../catalog.txt");

/// A model as a catalog names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// What the user types; as a name of `shoal model list`.
    pub name: String,
    /// The model's name in full.
    pub title: String,
    /// Architecture, such as `llama`.
    pub family: String,
    /// Weight format, such as `q4_1`.
    pub format: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Its license, as SPDX writes it where it can.
    pub license: String,
    /// BLAKE3 of the file, 64 hex digits.
    pub id: String,
    /// Positions the model was made for.
    pub context: usize,
    /// Addresses of the file, `http` or `https`.
    #[serde(default)]
    pub mirrors: Vec<String>,
}

impl Model {
    /// Its content id.
    pub fn model(&self) -> Option<ModelId> {
        parse_id(&self.id)
    }

    fn check(&self) -> Result<(), String> {
        library::check_name(&self.name).map_err(|error| error.to_string())?;
        let name = &self.name;
        for (what, text) in [
            ("title", &self.title),
            ("family", &self.family),
            ("format", &self.format),
            ("license", &self.license),
        ] {
            if text.is_empty() || text.len() > MAX_TEXT || text.chars().any(char::is_control) {
                return Err(format!(
                    "the {what} of {name} is empty, longer than {MAX_TEXT} bytes or no plain text"
                ));
            }
        }
        if self.model().is_none() {
            return Err(format!("the id of {name} is not 64 hex digits"));
        }
        if !(1..=p2p::blob::MAX_FILE_BYTES).contains(&self.bytes) {
            return Err(format!("{name} cannot have {} bytes", self.bytes));
        }
        if self.mirrors.len() > MAX_MIRRORS {
            return Err(format!("{name} has more than {MAX_MIRRORS} mirrors"));
        }
        for url in &self.mirrors {
            if url.len() > MAX_TEXT {
                return Err(format!("a mirror of {name} is longer than {MAX_TEXT} bytes"));
            }
            p2p::blob::http::address(url).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Whether all of `words`, in lower case, are somewhere in what it is called.
    fn is_about(&self, words: &[String]) -> bool {
        let text = format!("{} {} {} {} {}", self.name, self.title, self.family, self.format, self.license);
        let text = text.to_lowercase();
        words.iter().all(|word| text.contains(word.as_str()))
    }
}

/// What an author signs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    /// What it is called.
    pub name: String,
    /// Counts its versions: a higher one replaces a lower one.
    pub sequence: u64,
    /// Its models, each name once.
    pub models: Vec<Model>,
}

impl Catalog {
    fn check(&self) -> Result<(), String> {
        if self.name.is_empty() || self.name.len() > 64 || self.name.chars().any(char::is_control) {
            return Err("its name is empty, longer than 64 bytes or no plain text".to_owned());
        }
        if self.models.len() > MAX_MODELS {
            return Err(format!("it names more than {MAX_MODELS} models"));
        }
        let mut names = BTreeSet::new();
        for model in &self.models {
            model.check()?;
            if !names.insert(&model.name) {
                return Err(format!("it names {} twice", model.name));
            }
        }
        Ok(())
    }

    /// The file, signed.
    ///
    /// # Errors
    /// [`Error::Usage`] for what [`Signed::read`] would refuse.
    pub fn sign(&self, identity: &Identity) -> Result<String> {
        let mut text =
            serde_json::to_string_pretty(self).map_err(|error| Error::Failed(error.to_string()))?;
        text.push('\n');
        let signature = hex(&identity.sign(DOMAIN, text.as_bytes()));
        text += &format!("signature {} {signature}\n", hex(identity.node().as_bytes()));
        Signed::read(&text)?;
        Ok(text)
    }
}

/// A catalog whose signature holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// What is signed.
    pub catalog: Catalog,
    /// By whom.
    pub author: NodeId,
}

impl Signed {
    /// Reads a catalog and checks its signature and bounds.
    ///
    /// # Errors
    /// [`Error::Usage`] saying what is wrong with it.
    pub fn read(text: &str) -> Result<Self> {
        let refused = |why: &str| Error::usage(format!("this is no catalog of models: {why}"));
        if text.len() > MAX_BYTES {
            return Err(refused(&format!("it is longer than {MAX_BYTES} bytes")));
        }
        let whole = text.strip_suffix('\n').unwrap_or(text);
        let at = whole.rfind('\n').ok_or_else(|| refused("its last line is no signature"))? + 1;
        let (body, last) = whole.split_at(at);
        let words: Vec<&str> = last.split(' ').collect();
        let ["signature", author, signature] = words.as_slice() else {
            return Err(refused("its last line is no signature"));
        };
        let author: [u8; 32] = unhex(author).ok_or_else(|| refused("its author is not 64 hex digits"))?;
        let signature = unhex(signature).ok_or_else(|| refused("its signature is not 128 hex digits"))?;
        let author = NodeId::new(author);
        if !identity::verify(author, DOMAIN, body.as_bytes(), &signature) {
            return Err(refused("its signature is not its author's"));
        }
        let catalog: Catalog = serde_json::from_str(body).map_err(|error| refused(&error.to_string()))?;
        catalog.check().map_err(|why| refused(&why))?;
        Ok(Self { catalog, author })
    }

    /// The author as 64 hex digits.
    pub fn author(&self) -> String {
        hex(self.author.as_bytes())
    }
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    data_encoding::HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// The catalog of this release.
///
/// # Errors
/// None that a test has not seen.
pub fn shipped() -> Result<Signed> {
    Signed::read(SHIPPED)
}

fn folder(home: &Path) -> PathBuf {
    home.join("catalogs")
}

fn file_of(home: &Path, author: NodeId) -> PathBuf {
    folder(home).join(format!("{}.txt", hex(author.as_bytes())))
}

/// The catalogs that count here: this release's, or a newer one of its author, and those of the authors that the user trusts. A
/// file that is damaged counts for nothing.
///
/// # Errors
/// Those of reading the folder.
pub fn known(home: &Path) -> Result<Vec<Signed>> {
    kept(home, &mut |error| {
        tracing::warn!(%error, "a catalog is left out");
        Ok(())
    })
}

/// As [`known`], where every file is sound.
///
/// # Errors
/// [`Error::Usage`] for a file that is damaged; those of reading.
pub fn sound(home: &Path) -> Result<Vec<Signed>> {
    kept(home, &mut Err)
}

fn kept(home: &Path, damaged: &mut dyn FnMut(Error) -> Result<()>) -> Result<Vec<Signed>> {
    let mut all = vec![shipped()?];
    let entries = match fs::read_dir(folder(home)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
        Err(error) => return Err(shard::Error::io(folder(home), error).into()),
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "txt"));
    paths.sort();
    for path in paths.iter().take(MAX_CATALOGS) {
        let found = fs::read_to_string(path).ok().and_then(|text| Signed::read(&text).ok());
        let Some(found) = found.filter(|signed| file_of(home, signed.author) == *path) else {
            let path = path.display();
            damaged(Error::usage(format!("{path} is damaged; remove it and trust its author again")))?;
            continue;
        };
        match all.iter_mut().find(|known| known.author == found.author) {
            Some(known) if known.catalog.sequence < found.catalog.sequence => *known = found,
            Some(_) => {}
            None => all.push(found),
        }
    }
    Ok(all)
}

/// Whether catalogs of `author` count here.
///
/// # Errors
/// As for [`known`].
pub fn trusts(home: &Path, author: NodeId) -> Result<bool> {
    Ok(known(home)?.iter().any(|known| known.author == author))
}

/// Keeps a catalog, whose author is trusted from here on.
///
/// # Errors
/// [`Error::Usage`] for one that is older than what is kept, and when too many authors are trusted.
pub fn keep(home: &Path, text: &str) -> Result<Signed> {
    let signed = Signed::read(text)?;
    let known = sound(home)?;
    match known.iter().find(|known| known.author == signed.author) {
        Some(known) if known.catalog.sequence > signed.catalog.sequence => {
            return Err(Error::usage(format!(
                "this catalog is older than the one that is kept (version {} and {}): ask its author for the newest",
                signed.catalog.sequence, known.catalog.sequence
            )));
        }
        None if known.len() > MAX_CATALOGS => {
            return Err(Error::usage(format!(
                "{MAX_CATALOGS} authors are trusted already; `shoal model catalog forget AUTHOR` makes room"
            )));
        }
        _ => {}
    }
    write(home, &signed, text)?;
    Ok(signed)
}

/// The catalog of `author` that counts here, where it is newer than version `sequence`.
pub fn newer(home: &Path, author: NodeId, sequence: u64) -> Option<String> {
    let texts = [Some(SHIPPED.to_owned()), fs::read_to_string(file_of(home, author)).ok()];
    let read = texts.into_iter().flatten().filter_map(|text| Some((Signed::read(&text).ok()?, text)));
    let theirs = read.filter(|(signed, _)| signed.author == author && signed.catalog.sequence > sequence);
    theirs.max_by_key(|(signed, _)| signed.catalog.sequence).map(|(_, text)| text)
}

/// Keeps a newer catalog of an author that is trusted already. Its signature is checked before anything of it is read.
///
/// # Errors
/// [`Error::Usage`] for one of another author, for one that is not newer, and where the author is not trusted.
pub fn renew(home: &Path, author: NodeId, text: &[u8]) -> Result<Signed> {
    let refused = |why: &str| Error::usage(format!("this catalog does not count: {why}"));
    let text = std::str::from_utf8(text).map_err(|_| refused("it is no text"))?;
    let last = text.trim_end().lines().next_back().unwrap_or_default();
    if last.split(' ').nth(1) != Some(&hex(author.as_bytes())) {
        return Err(refused("it is of another author"));
    }
    let signed = Signed::read(text)?;
    let known = known(home)?;
    let Some(before) = known.iter().find(|known| known.author == author) else {
        return Err(refused("its author is not trusted"));
    };
    if before.catalog.sequence >= signed.catalog.sequence {
        return Err(refused("it is not newer than the one that is kept"));
    }
    write(home, &signed, text)?;
    Ok(signed)
}

fn write(home: &Path, signed: &Signed, text: &str) -> Result<()> {
    fs::create_dir_all(folder(home)).map_err(|error| shard::Error::io(folder(home), error))?;
    Ok(p2p::blob::sparse::replace(&file_of(home, signed.author), &[text.as_bytes()])?)
}

/// Trusts an author no more; whether one was trusted. `author` is the beginning of its hex digits, unmistakable.
///
/// # Errors
/// [`Error::Usage`] when several authors begin so; those of removing.
pub fn forget(home: &Path, author: &str) -> Result<bool> {
    let all = known(home)?;
    let meant: Vec<&Signed> =
        all.iter().filter(|known| !author.is_empty() && known.author().starts_with(author)).collect();
    let [one] = meant.as_slice() else {
        return match meant.len() {
            0 => Ok(false),
            _ => Err(Error::usage(format!("several authors begin with {author}: give more digits"))),
        };
    };
    match fs::remove_file(file_of(home, one.author)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(shard::Error::io(file_of(home, one.author), error).into()),
    }
}

/// The model called `name`, or whose id that is; the release's catalog first.
pub fn find<'a>(known: &'a [Signed], name: &str) -> Option<&'a Model> {
    let mut models = known.iter().flat_map(|signed| &signed.catalog.models);
    models.find(|model| model.name == name || model.id == name)
}

/// The models that all of `words` are about, smallest first; each id once.
pub fn search<'a>(known: &'a [Signed], words: &[String]) -> Vec<&'a Model> {
    let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let mut ids = BTreeSet::new();
    let models = known.iter().flat_map(|signed| &signed.catalog.models);
    let mut found: Vec<&Model> =
        models.filter(|model| model.is_about(&words) && ids.insert(&model.id)).collect();
    found.sort_by_key(|model| model.bytes);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> Model {
        Model {
            name: name.into(),
            title: "A model".into(),
            family: "llama".into(),
            format: "q8_0".into(),
            bytes: 5,
            license: "MIT".into(),
            id: "ab".repeat(32),
            context: 64,
            mirrors: vec!["https://mirror.example/a.gguf".into()],
        }
    }

    fn catalog(sequence: u64) -> Catalog {
        Catalog { name: "ours".into(), sequence, models: vec![model("one"), model("two")] }
    }

    #[test]
    fn only_a_newer_catalog_of_a_trusted_author_renews_one() {
        let home = tempfile::TempDir::new().unwrap();
        let home = home.path();
        let (author, other) = (Identity::from_seed([1; 32]), Identity::from_seed([2; 32]));
        let signed = |sequence, identity: &Identity| catalog(sequence).sign(identity).unwrap();
        let renew = |text: &str| super::renew(home, author.node(), text.as_bytes());
        let why = |text: &str| renew(text).unwrap_err().to_string();
        assert!(why(&signed(1, &author)).contains("not trusted"));
        keep(home, &signed(2, &author)).unwrap();
        assert!(why(&signed(2, &author)).contains("not newer"));
        assert!(why(&signed(3, &other)).contains("another author"));
        assert!(why("").contains("another author"));
        let spoilt = signed(3, &author).replacen("ours", "hers", 1);
        assert!(why(&spoilt).contains("signature"));
        assert_eq!(newer(home, author.node(), 2), None);
        assert_eq!(renew(&signed(3, &author)).unwrap().catalog.sequence, 3);
        assert_eq!(newer(home, author.node(), 2), Some(signed(3, &author)));
        assert_eq!((newer(home, author.node(), 3), newer(home, other.node(), 0)), (None, None));
        let shipped = shipped().unwrap();
        assert_eq!(newer(home, shipped.author, 0).as_deref(), Some(SHIPPED));
    }

    #[test]
    fn every_byte_of_a_catalog_is_signed() {
        let author = Identity::from_seed([1; 32]);
        let text = catalog(1).sign(&author).unwrap();
        let read = Signed::read(&text).unwrap();
        assert_eq!((read.catalog, read.author), (catalog(1), author.node()));
        for at in 0..text.len() - 1 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let changed = String::from_utf8(bytes).unwrap();
            assert!(Signed::read(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn what_would_mislead_is_refused_although_it_is_signed() {
        let author = Identity::from_seed([1; 32]);
        let mut twice = catalog(1);
        twice.models[1].name = "one".into();
        assert!(twice.sign(&author).is_err());
        type Change = fn(&mut Model);
        let changes: [Change; 6] = [
            |model| model.id = "12".into(),
            |model| model.name = "a/b".into(),
            |model| model.bytes = 0,
            |model| model.license = "a\nb".into(),
            |model| model.mirrors = vec!["file:///etc/passwd".into()],
            |model| model.mirrors = vec!["https://a.example/x".into(); MAX_MIRRORS + 1],
        ];
        for (at, change) in changes.iter().enumerate() {
            let mut wrong = catalog(1);
            change(&mut wrong.models[0]);
            assert!(wrong.sign(&author).is_err(), "change {at}");
        }
    }

    #[test]
    fn an_older_catalog_replaces_no_newer_one() {
        let (home, author) = (tempfile::tempdir().unwrap(), Identity::from_seed([1; 32]));
        assert!(!trusts(home.path(), author.node()).unwrap());
        keep(home.path(), &catalog(2).sign(&author).unwrap()).unwrap();
        assert!(trusts(home.path(), author.node()).unwrap());
        assert!(keep(home.path(), &catalog(1).sign(&author).unwrap()).is_err());
        keep(home.path(), &catalog(3).sign(&author).unwrap()).unwrap();
        let all = known(home.path()).unwrap();
        assert_eq!(all.last().unwrap().catalog.sequence, 3);
        assert_eq!(find(&all, "two").unwrap().bytes, 5);
        assert!(forget(home.path(), &hex(&author.node().as_bytes()[..4])).unwrap());
        assert!(!trusts(home.path(), author.node()).unwrap());
    }

    #[test]
    fn a_damaged_file_names_no_model_and_stops_no_command_but_its_own() {
        let (home, author) = (tempfile::tempdir().unwrap(), Identity::from_seed([1; 32]));
        let text = catalog(1).sign(&author).unwrap();
        keep(home.path(), &text).unwrap();
        fs::write(folder(home.path()).join("notes.txt"), "no catalog").unwrap();
        assert_eq!(find(&known(home.path()).unwrap(), "two").unwrap().bytes, 5);
        for why in [sound(home.path()).unwrap_err(), keep(home.path(), &text).unwrap_err()] {
            assert!(why.to_string().contains("notes.txt"), "{why}");
        }
    }

    #[test]
    fn the_catalog_of_this_release_is_signed_and_sound() {
        let shipped = shipped().unwrap();
        assert!(find(std::slice::from_ref(&shipped), "smollm2").is_some());
        let words = ["llama".to_owned(), "APACHE".to_owned()];
        assert_eq!(search(std::slice::from_ref(&shipped), &words).len(), 1);
        assert!(search(&[shipped], &["nothing of the kind".to_owned()]).is_empty());
    }
}
