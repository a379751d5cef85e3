//! The models this machine knows by name.
//!
//! A name stands for a file somewhere on disk and its id, the BLAKE3 hash it had when it was added; files are never copied
//! or moved. The list is one small JSON file, replaced atomically. The embedded model is always there.
//!
//! What belongs to a model beyond its name is in a folder called by its id, see [`crate::content`]: the tree that makes
//! any part of it checkable and, for a model that was pulled, the file itself, maybe with only some layers in it.

pub mod kept;

use std::{
    env, fs, io,
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use scheduler::ModelId;
use serde::{Deserialize, Serialize, Serializer};
use shard::{
    gguf::{Gguf, split},
    kernels::panel_file::PanelFile,
};

use crate::{Error, Result, confine};

/// The name of the model inside the binary.
pub const DEFAULT_MODEL: &str = "minnow";
/// Digits of an id that say which model is meant.
const ID_DIGITS: usize = 12;

static EMBEDDED: &[u8] = include_bytes!("../../../shard/minnow/minnow.gguf");

/// A named file, as the list keeps it and `shoal model list --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What the user calls it.
    pub name: String,
    /// Where the file is.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// BLAKE3 of the file when it was added, in hex: the model's name in the swarm.
    pub id: String,
    /// The file's length then.
    pub bytes: u64,
    /// Whether other nodes may fetch it from this one. Lists from before sharing lack this field and the next ones.
    #[serde(default)]
    pub shared: bool,
    /// Whether the owner took it back, so that serving it does not share it.
    #[serde(default)]
    pub withheld: bool,
    /// The mirrors it was pulled from.
    #[serde(default)]
    pub from: Vec<String>,
    /// What it is called in another registry, where it was fetched or linked by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// When the file was last written then, in milliseconds of Unix time; `None` where that is not known.
    pub modified_ms: Option<u64>,
}

fn lossy<S: Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// The list of named files.
#[derive(Debug)]
pub struct Library {
    file: PathBuf,
    entries: Vec<Entry>,
}

/// The data folder that the config file names, set once when the command line was read.
static HOME: OnceLock<PathBuf> = OnceLock::new();

/// From now on [`home`] is this folder, unless `SHOAL_HOME` says otherwise. Only the first call counts.
pub fn set_home(home: PathBuf) {
    // A second value would move the files of a command under way.
    let _ = HOME.set(home);
}

/// The file list lives in `$SHOAL_HOME`, else where the config file says, else in the platform's data folder.
pub fn home() -> Result<PathBuf> {
    if let Some(home) = env::var_os("SHOAL_HOME") {
        return Ok(home.into());
    }
    if let Some(home) = HOME.get() {
        return Ok(home.clone());
    }
    directories::ProjectDirs::from("", "", "shoal").map(|dirs| dirs.data_dir().to_owned()).ok_or_else(|| {
        Error::usage("no home folder is known here; set SHOAL_HOME to a folder for Shoal's data")
    })
}

/// Opens a whole model by name, id or path. The embedded model needs no library, so it works without a home folder.
///
/// # Errors
/// [`Error::Usage`] for an unknown name, and for a model of which only some layers are here.
pub fn open(model: &str) -> Result<Gguf> {
    parse(locate(model)?.as_ref())
}

/// As [`open`], in a process that gives up everything but computing before it looks into the file.
///
/// # Errors
/// As for [`open`].
pub fn open_confined(model: &str) -> Result<Gguf> {
    let located = locate(model)?;
    confine::command("cpu");
    parse(located.as_ref())
}

/// A model's file, open and not looked into.
#[derive(Debug)]
pub struct Located {
    /// The file.
    pub file: fs::File,
    /// Its length.
    pub bytes: u64,
    /// Where it is, for messages.
    pub path: PathBuf,
    /// Of a model in several files the other parts, in order, with their lengths.
    pub rest: Vec<(fs::File, u64)>,
    /// Where its packed weights lie or may be written ([`crate::panel_cache`]).
    pub panels: Option<Arc<fs::File>>,
}

impl Located {
    /// Opens `path`.
    ///
    /// # Errors
    /// [`Error::Usage`] when there is no such file, or when it is one of several parts and another is missing; those of the
    /// system.
    pub fn open(path: &Path) -> Result<Self> {
        let file = fs::File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::usage(format!(
                "there is no file {}; give a path to a .gguf file or a name from `shoal model list`",
                path.display()
            )),
            _ => shard::Error::io(path, error).into(),
        })?;
        let about = file.metadata().map_err(|error| shard::Error::io(path, error))?;
        if !about.is_file() {
            return Err(shard::Error::invalid(format!("{} is not a file", path.display())).into());
        }
        let path = path.to_owned();
        match split::open_parts(&path)? {
            None => Ok(Self { file, bytes: about.len(), path, rest: Vec::new(), panels: None }),
            Some(mut parts) => {
                let (file, bytes) = parts.remove(0);
                Ok(Self { file, bytes, path, rest: parts, panels: None })
            }
        }
    }

    /// Where [`Self::files`] are.
    pub fn paths(&self) -> Vec<PathBuf> {
        split::parts(&self.path).unwrap_or_else(|| vec![self.path.clone()])
    }

    /// The files that hold the model, in order, with their lengths.
    pub fn files(&self) -> impl Iterator<Item = (&fs::File, u64)> {
        std::iter::once((&self.file, self.bytes)).chain(self.rest.iter().map(|(file, len)| (file, *len)))
    }

    /// Refuses a model in several files where it has to be one, whose hash is its name.
    ///
    /// # Errors
    /// [`Error::Usage`] saying how it becomes one.
    pub fn whole(&self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let (path, parts) = (self.path.display(), self.rest.len() + 1);
        Err(Error::usage(format!(
            "{path} is one of {parts} parts; they run on this machine as they are, but a swarm knows a model by one file: \
             `shoal convert {path} --output MODEL.gguf` joins them"
        )))
    }
}

/// Looks into a located model; `None` is the embedded one.
///
/// # Errors
/// Those of the engine for a file that is not sound, which name it.
pub fn parse(located: Option<&Located>) -> Result<Gguf> {
    let Some(located) = located else { return Ok(Gguf::from_bytes(EMBEDDED)?) };
    let panels = located.panels.clone().map(PanelFile::new);
    let gguf = Gguf::of_parts(located.files(), &located.path).map(|gguf| gguf.with_panels(panels));
    gguf.map_err(|error| match error {
        shard::Error::Malformed { field, why } => {
            shard::Error::malformed(format!("{}: {field}", located.path.display()), why).into()
        }
        other => other.into(),
    })
}

/// Opens the file of a whole model by name, id or path, without looking into it; `None` is the embedded one.
///
/// # Errors
/// [`Error::Usage`] for an unknown name, and for a model of which only some layers are here.
pub fn locate(model: &str) -> Result<Option<Located>> {
    if model == DEFAULT_MODEL {
        return Ok(None);
    }
    if looks_like_a_path(model) {
        return Located::open(Path::new(model)).map(Some);
    }
    let home = home()?;
    let library = Library::load(&home)?;
    let entry = library.find(model)?;
    match kept::present(&home, entry)? {
        Some(have) if have.len() != have.groups() => {
            return Err(Error::usage(format!(
                "only a part of {} is here; `shoal model pull {}` fetches the rest",
                entry.name, entry.name
            )));
        }
        // What was pulled was checked group by group.
        Some(_) => {}
        None => entry.check_unchanged()?,
    }
    Located::open(&entry.path).map(Some)
}

/// Where a model's file is; `None` for the one inside the binary.
pub fn path(model: &str) -> Result<Option<PathBuf>> {
    if model == DEFAULT_MODEL {
        return Ok(None);
    }
    if looks_like_a_path(model) {
        return Ok(Some(std::path::absolute(model)?));
    }
    Ok(Some(Library::load(&home()?)?.find(model)?.path.clone()))
}

/// The name of a model in the swarm: the BLAKE3 of its file.
pub fn id(model: &str) -> Result<ModelId> {
    let Some(path) = path(model)? else { return Ok(ModelId::new(embedded_hash())) };
    // What is on the list was hashed when it was added, and opening it noticed any change since.
    if !looks_like_a_path(model)
        && let Some(id) = Library::load(&home()?)?.find(model)?.model()
    {
        return Ok(id);
    }
    let located = Located::open(&path)?;
    located.whole()?;
    let hash = blake3::Hasher::new().update_reader(located.file)?.finalize();
    Ok(ModelId::new(*hash.as_bytes()))
}

/// Whether `text` may be an id, or so much of one as lists show.
fn is_id(text: &str) -> bool {
    text.len() >= ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether `text` is `id` or so much of its beginning as lists show.
fn begins(id: &str, text: &str) -> bool {
    is_id(text) && id.get(..text.len()).is_some_and(|head| head.eq_ignore_ascii_case(text))
}

/// A model whose id is cut short, as lists show it, by what every command and node knows: its name where it is the one inside
/// the binary, else the whole id. Anything else as it is.
pub fn unabbreviated(model: &str) -> String {
    // Before anything is read or hashed: most names are none.
    if !is_id(model) {
        return model.to_owned();
    }
    if begins(&embedded().0, model) {
        return DEFAULT_MODEL.to_owned();
    }
    let listed = home().and_then(|home| Library::load(&home));
    let found = listed.as_ref().ok().and_then(|library| library.find(model).ok());
    found.filter(|entry| entry.name != model).map_or_else(|| model.to_owned(), |entry| entry.id.clone())
}

/// As [`id`], where it is known without reading the file.
pub fn known_id(model: &str) -> Option<ModelId> {
    if model == DEFAULT_MODEL {
        return Some(ModelId::new(embedded_hash()));
    }
    let library = Library::load(&home().ok()?).ok()?;
    let entry = match looks_like_a_path(model) {
        true => {
            let path = std::path::absolute(model).ok()?;
            library.entries().iter().find(|entry| entry.path == path)?
        }
        false => library.find(model).ok()?,
    };
    let found = fs::metadata(&entry.path).ok()?;
    let unchanged = entry.modified_ms.is_none() || modified_ms(&found) == entry.modified_ms;
    entry.model().filter(|_| unchanged && found.len() == entry.bytes)
}

pub(crate) fn looks_like_a_path(model: &str) -> bool {
    model.contains(['/', '\\']) || model.ends_with(".gguf") || Path::new(model).is_file()
}

/// BLAKE3 of the embedded model.
pub fn embedded_hash() -> [u8; 32] {
    *blake3::hash(EMBEDDED).as_bytes()
}

/// The bytes of the embedded model.
pub fn embedded_bytes() -> &'static [u8] {
    EMBEDDED
}

/// The embedded model as it would stand in a list: BLAKE3 in hex, bytes.
pub fn embedded() -> (String, u64) {
    (blake3::hash(EMBEDDED).to_hex().to_string(), EMBEDDED.len() as u64)
}

impl Library {
    /// Reads the list below `home`; a missing file is an empty list.
    pub fn load(home: &Path) -> Result<Self> {
        let file = home.join("models.json");
        let entries = match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| {
                Error::usage(format!("{} is damaged; move it away and add the models again", file.display()))
            })?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(shard::Error::io(file, e).into()),
        };
        Ok(Self { file, entries })
    }

    /// All named files, in the order they were added.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The model called `model`, or whose id that is, or begins so: lists show twelve digits.
    ///
    /// # Errors
    /// [`Error::Usage`] naming those there are.
    pub fn find(&self, model: &str) -> Result<&Entry> {
        let begins = |entry: &&Entry| begins(&entry.id, model);
        let other = |found: &&Entry| self.entries.iter().filter(begins).any(|entry| entry.id != found.id);
        let by_id = self.entries.iter().find(begins);
        if let Some(found) = by_id.filter(|_| self.get(model).is_none()).filter(other) {
            return Err(Error::usage(format!(
                "several ids begin with {model}, {} among them: write more of it",
                found.id
            )));
        }
        self.get(model).or(by_id).ok_or_else(|| {
            let names = self.entries.iter().map(|e| e.name.as_str());
            let known: Vec<_> = std::iter::once(DEFAULT_MODEL).chain(names).collect();
            Error::usage(format!("no model is called \"{model}\" here; known: {}", known.join(", ")))
        })
    }

    /// The file called `name`.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.name == name)
    }

    /// Reads the list, changes it and saves it while no other process does.
    pub fn change<T>(home: &Path, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        fs::create_dir_all(home).map_err(|e| shard::Error::io(home, e))?;
        let path = home.join("models.lock");
        let lock = fs::File::create(&path).map_err(|e| shard::Error::io(&path, e))?;
        lock.lock().map_err(|e| shard::Error::io(&path, e))?;
        work(&mut Self::load(home)?)
    }

    /// Adds a file under a free name and saves the list. A file that is known by that name is checked again whether it is
    /// shared and where it came from.
    pub fn add(&mut self, entry: Entry) -> Result<()> {
        check_name(&entry.name)?;
        match self.entries.iter_mut().find(|known| known.name == entry.name) {
            Some(known) if known.path != entry.path || known.id != entry.id => {
                return Err(Error::usage(format!(
                    "\"{}\" already names {}; choose another with --name or run `shoal model rm {}` first",
                    entry.name,
                    known.path.display(),
                    entry.name
                )));
            }
            Some(known) => {
                let reference = entry.reference.or(known.reference.take());
                *known = Entry { reference, ..entry };
            }
            None => self.entries.push(entry),
        }
        self.save()
    }

    /// Removes a name and saves the list.
    pub fn remove(&mut self, name: &str) -> Result<Entry> {
        let at = self.entries.iter().position(|e| e.name == name).ok_or_else(|| {
            Error::usage(format!("no model is called \"{name}\" here; see `shoal model list`"))
        })?;
        let entry = self.entries.remove(at);
        self.save()?;
        Ok(entry)
    }

    fn save(&self) -> Result<()> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|e| shard::Error::io(folder, e))?;
        let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer_pretty(&mut temporary, &self.entries)?;
        temporary.flush()?;
        temporary.as_file().sync_all()?;
        temporary.persist(&self.file).map_err(|e| shard::Error::io(&self.file, e.error))?;
        Ok(())
    }
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    if name == DEFAULT_MODEL {
        return Err(Error::usage(format!(
            "\"{DEFAULT_MODEL}\" is the embedded model; choose another --name"
        )));
    }
    if name.is_empty() || name.len() > 128 || !name.chars().all(plain) || name.ends_with(".gguf") {
        return Err(Error::usage(format!(
            "\"{name}\" cannot be a model's name: 1 to 128 letters, digits, dots, dashes, colons, not ending in .gguf"
        )));
    }
    Ok(())
}

impl Entry {
    /// The row of the model inside the binary.
    pub fn embedded() -> Self {
        let (id, bytes) = embedded();
        Self {
            name: DEFAULT_MODEL.into(),
            path: "(inside the binary)".into(),
            id,
            bytes,
            shared: false,
            withheld: false,
            from: Vec::new(),
            reference: None,
            modified_ms: None,
        }
    }

    /// Refuses a file that is not the one that was added: its hash is the model's name, and answers under a wrong name
    /// would be taken for lies. Only a file that was written since is read and hashed again.
    ///
    /// # Errors
    /// What changed, and what to do; nothing about a file that is gone, which opening reports.
    pub fn check_unchanged(&self) -> Result<()> {
        let Ok(found) = fs::metadata(&self.path) else { return Ok(()) };
        let same_length = found.len() == self.bytes;
        if same_length && self.modified_ms.is_some() && modified_ms(&found) == self.modified_ms {
            return Ok(());
        }
        if same_length && hash_file(&self.path, |file| file)? == self.id {
            return Ok(());
        }
        Err(Error::usage(format!(
            "{} has changed since it was added as \"{}\"; run `shoal model rm {}` and add it again",
            self.path.display(),
            self.name,
            self.name
        )))
    }

    /// Its name in the swarm; `None` if the list was written by another hand.
    pub fn model(&self) -> Option<ModelId> {
        kept::parse_id(&self.id)
    }
}

/// When a file was last written, in milliseconds of Unix time.
pub fn modified_ms(file: &fs::Metadata) -> Option<u64> {
    let since = file.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

/// BLAKE3 of a file in hex, read through what `wrap` makes of it.
pub fn hash_file<R: io::Read>(path: &Path, wrap: impl FnOnce(fs::File) -> R) -> Result<String> {
    let file = fs::File::open(path).map_err(|e| shard::Error::io(path, e))?;
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut wrap(file), &mut hasher).map_err(|e| shard::Error::io(path, e))?;
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Entry {
        let from = vec!["https://mirror.example/a.gguf".into()];
        Entry {
            name: name.into(),
            path: "/models/a.gguf".into(),
            id: "00".into(),
            bytes: 1,
            shared: true,
            withheld: false,
            from,
            reference: None,
            modified_ms: Some(5),
        }
    }

    #[test]
    fn what_is_added_is_there_after_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let mut library = Library::load(home.path()).unwrap();
        library.add(entry("a")).unwrap();
        library.add(entry("a")).unwrap();
        let mut other = entry("a");
        other.path = "/models/b.gguf".into();
        assert!(library.add(other).is_err());
        assert_eq!(Library::load(home.path()).unwrap().entries(), [entry("a")]);
        library.remove("a").unwrap();
        assert!(library.remove("a").is_err());
        assert!(Library::load(home.path()).unwrap().entries().is_empty());
    }

    #[test]
    fn names_that_would_confuse_are_refused() {
        for name in ["", "minnow", "x.gguf", "a/b", "a b"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert!(check_name("llama3.2:1b-q4_0").is_ok());
    }

    #[test]
    fn a_file_that_changed_is_noticed_by_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        fs::write(&path, "one").unwrap();
        let id = blake3::hash(b"one").to_hex().to_string();
        let of = |modified_ms| Entry {
            name: "a".into(),
            path: path.clone(),
            id: id.clone(),
            bytes: 3,
            shared: false,
            withheld: true,
            from: Vec::new(),
            reference: None,
            modified_ms,
        };
        let now = modified_ms(&fs::metadata(&path).unwrap());
        assert!(now.is_some());
        of(now).check_unchanged().unwrap();
        // Touched, or added before times were kept: the hash decides.
        of(Some(1)).check_unchanged().unwrap();
        of(None).check_unchanged().unwrap();
        fs::write(&path, "two").unwrap();
        assert!(of(Some(1)).check_unchanged().unwrap_err().to_string().contains("has changed"));
        assert!(of(None).check_unchanged().is_err());
        fs::write(&path, "three").unwrap();
        assert!(of(modified_ms(&fs::metadata(&path).unwrap())).check_unchanged().is_err(), "another length");
        fs::remove_file(&path).unwrap();
        of(now).check_unchanged().unwrap();
    }

    #[test]
    fn a_damaged_list_is_not_overwritten() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("models.json"), "[{]").unwrap();
        assert!(Library::load(home.path()).is_err());
    }
}
