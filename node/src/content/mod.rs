//! Models by content: what this machine keeps of each, fetches and hands out.
//!
//! ```text
//! HOME/models.json               names, see `library`
//! HOME/models/ID/model.obao      the hash tree of a model that was added, shared or pulled
//! HOME/models/ID/model.gguf      a pulled model; groups that were not fetched are holes
//! HOME/models/ID/model.have      which groups are there, see `p2p::blob::sparse`
//! HOME/models/incoming-HASH/     a download whose id is not known yet, by the hash of its address
//! ```
//!
//! [`register`] gives a file an id and a tree, [`pull`] fetches, [`HomeShelf`] hands out what is shared and [`held`] says
//! which layers are here. The daemon uses the same functions as the commands.
//!
//! Only models whose owner shares them leave this machine; nothing is fetched because a peer asks for it.

pub mod peers;
pub mod pull;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use p2p::blob::{GroupSet, Held, Outboard, Shelf, sparse};
use scheduler::{LayerRange, LayerSet, ModelId};
use shard::executor::Ends;

pub use crate::library::kept::{folder, hex, is_ours, models_folder, parse_id, present};
use crate::{
    Error, Result,
    header::Header,
    library::{Entry, Library},
    platform::files,
};

/// What is here of a model, in layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// How many layers the model has.
    pub num_layers: u32,
    /// The layers that are here whole.
    pub layers: LayerSet,
    /// Whether the embedding is.
    pub embedding: bool,
    /// Whether the head is.
    pub head: bool,
}

/// Which layers and ends of `entry` can be loaded from this machine's disk.
///
/// # Errors
/// Those of [`Header::of_file`] when the header is not here or not sound.
pub fn held(home: &Path, entry: &Entry) -> Result<Holding> {
    let header = Header::of_file(&entry.path)?;
    let num_layers = header.num_layers();
    let have = present(home, entry)?;
    let here = |layers, ends| -> Result<bool> {
        let Some(have) = have.as_ref() else { return Ok(true) };
        Ok(have.covers(&GroupSet::of_bytes(entry.bytes, &header.byte_ranges(layers, ends)?)))
    };
    let mut held = Vec::new();
    for layer in (0..num_layers).filter_map(|layer| LayerRange::new(layer, layer + 1)) {
        if here(layer, Ends::NONE)? {
            held.push(layer);
        }
    }
    // The ends do not depend on layers; the first one held stands for any.
    let [embedding, head] = match held.first() {
        Some(&any) => [
            here(any, Ends { embedding: true, head: false })?,
            here(any, Ends { embedding: false, head: true })?,
        ],
        None => [false; 2],
    };
    Ok(Holding { num_layers, layers: LayerSet::new(held), embedding, head })
}

/// What each of `layers` is of a file of `bytes`; the embedding comes with the first of the model, the head with the last.
///
/// # Errors
/// [`Error::Usage`] for layers the model does not have.
pub fn layer_groups(
    header: &Header,
    bytes: u64,
    layers: &[LayerRange],
) -> Result<Vec<(LayerRange, GroupSet)>> {
    let count = header.num_layers();
    if let Some(beyond) = layers.iter().find(|range| range.end() > count) {
        return Err(Error::usage(format!("layers {beyond} of a model with {count}")));
    }
    let single = layers.iter().flat_map(|range| range.start()..range.end());
    let groups = single.filter_map(|layer| LayerRange::new(layer, layer + 1)).map(|layer| {
        let ends = Ends { embedding: layer.start() == 0, head: layer.end() == count };
        let ranges = header.byte_ranges(layer, ends).map_err(|error| Error::usage(error.to_string()))?;
        Ok((layer, GroupSet::of_bytes(bytes, &ranges)))
    });
    groups.collect()
}

/// Hashes the file at `path`, keeps its tree and puts it on the list as `name`.
///
/// `progress` is told the bytes hashed and returns whether to go on; `name` says what to call a file of that id, 64 hex digits. A
/// file that is known already, unchanged in length, is hashed again: its bytes may have changed.
///
/// # Errors
/// [`Error::Interrupted`] when `progress` says so; [`Error::Usage`] for a name that is taken; [`Error::Model`].
pub fn register(
    home: &Path,
    path: &Path,
    name: &dyn Fn(&str) -> String,
    shared: bool,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Entry> {
    // Before the hash: a file that is written meanwhile then looks changed, and not the other way around.
    let modified_ms = fs::metadata(path).ok().as_ref().and_then(crate::library::modified_ms);
    let (tree, encoded) = Outboard::make(path, progress)?;
    let folder = folder(home, tree.id());
    fs::create_dir_all(&folder).map_err(|e| shard::Error::io(&folder, e))?;
    sparse::replace(&sparse::outboard_path(&folder), &[&encoded])?;
    let id = hex(tree.id());
    let entry = Entry {
        name: name(&id),
        path: path.to_owned(),
        id,
        bytes: tree.bytes(),
        shared,
        withheld: false,
        from: Vec::new(),
        reference: None,
        modified_ms,
    };
    Library::change(home, |library| library.add(entry.clone()))?;
    Ok(entry)
}

/// Writes a whole model to `output` and its tree to `output` + `.obao`, each group checked on the way.
///
/// # Errors
/// [`Error::Usage`] when a part of the model is not here; [`Error::Model`] when the file is not what it was;
/// [`Error::Interrupted`] as for [`register`].
pub fn export(
    home: &Path,
    entry: &Entry,
    output: &Path,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<PathBuf> {
    use std::io::{Read, Write};
    if present(home, entry)?.is_some_and(|have| have.len() != have.groups()) {
        let name = &entry.name;
        return Err(Error::usage(format!(
            "only a part of {name} is here; `shoal model pull {name}` fetches the rest"
        )));
    }
    let id = entry.model().ok_or_else(|| Error::usage(format!("the id of {} is damaged", entry.name)))?;
    let kept = sparse::outboard_path(&folder(home, id));
    let encoded = fs::read(&kept).map_err(|e| shard::Error::io(&kept, e))?;
    let tree = Outboard::from_bytes(&encoded, Some(id))?;
    let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = tempfile::NamedTempFile::new_in(parent)?;
    let mut file = fs::File::open(&entry.path).map_err(|e| shard::Error::io(&entry.path, e))?;
    let mut data = vec![0; p2p::blob::GROUP_BYTES as usize];
    let mut done = 0;
    for group in 0..tree.groups() {
        let data = &mut data[..tree.group_len(group)];
        file.read_exact(data).map_err(|e| shard::Error::io(&entry.path, e))?;
        if !tree.check(group, data) {
            return Err(p2p::blob::Error::Damaged {
                path: entry.path.clone(),
                why: format!("group {group} of 64 KiB has changed since it was added"),
            }
            .into());
        }
        temporary.write_all(data)?;
        done += data.len() as u64;
        if !progress(done) {
            return Err(Error::Interrupted);
        }
    }
    temporary.as_file().sync_all()?;
    let beside = obao_beside(output);
    sparse::replace(&beside, &[&encoded])?;
    // Temporary files are private; an exported model is there to be served.
    files::let_all_read(temporary.path())?;
    temporary.persist(output).map_err(|e| shard::Error::io(output, e.error))?;
    Ok(beside)
}

/// `FILE.obao` for `FILE`.
pub fn obao_beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".obao");
    name.into()
}

/// Bytes of disk that everything below `folder` takes; 0 if it is not there.
pub fn disk_used(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => disk_used(&entry.path()),
            Ok(meta) => files::disk_bytes(&meta),
            Err(_) => 0,
        })
        .sum()
}

/// The models others may fetch from this machine: what a daemon provides to the swarm.
///
/// # Errors
/// Those of [`Library::load`].
pub fn shared(home: &Path) -> Result<Vec<(ModelId, Entry)>> {
    let library = Library::load(home)?;
    let shared = library.entries().iter().filter(|entry| entry.shared);
    Ok(shared.filter_map(|entry| Some((entry.model()?, entry.clone()))).collect())
}

/// Most models whose trees are kept in memory; beyond it all are read again.
const MAX_OPEN: usize = 16;

/// What this machine hands out: the shared models of the library below a home folder.
///
/// Trees are kept in memory once they are proven. A model that is being pulled is handed out as far as its record goes,
/// which is looked at again with every request.
#[derive(Debug)]
pub struct HomeShelf {
    home: PathBuf,
    open: Mutex<HashMap<ModelId, (GroupSet, Arc<Held>)>>,
}

impl HomeShelf {
    /// The shelf of the library below `home`.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        Self { home: home.into(), open: Mutex::default() }
    }

    /// Whether its owner shares the model, by the list as it is now.
    pub fn is_shared(&self, id: ModelId) -> bool {
        shared(&self.home).is_ok_and(|shared| shared.iter().any(|(shared, _)| *shared == id))
    }

    fn look_up(&self, id: ModelId) -> Result<Option<Arc<Held>>> {
        let shared = shared(&self.home)?;
        let Some((_, entry)) = shared.into_iter().find(|(shared, _)| *shared == id) else {
            self.lock().remove(&id);
            return Ok(None);
        };
        let all = GroupSet::all(p2p::blob::group_count(entry.bytes));
        let have = present(&self.home, &entry)?.unwrap_or(all);
        let mut open = self.lock();
        if let Some((_, held)) = open.get(&id).filter(|(known, _)| *known == have) {
            return Ok(Some(held.clone()));
        }
        let kept = sparse::outboard_path(&folder(&self.home, id));
        let held = Arc::new(Held::open(id, entry.path, kept, Some(have.clone()))?);
        if open.len() >= MAX_OPEN {
            open.clear();
        }
        open.insert(id, (have, held.clone()));
        Ok(Some(held))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ModelId, (GroupSet, Arc<Held>)>> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Shelf for HomeShelf {
    fn find(&self, id: ModelId) -> Option<Arc<Held>> {
        self.look_up(id).unwrap_or_else(|error| {
            tracing::warn!(%error, model = %id, "a shared model cannot be handed out");
            None
        })
    }
}
