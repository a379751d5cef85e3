//! From a name and some sources to layers on this disk.
//!
//! ```text
//! tree      kept from before, else from the first source that has it
//! header    when only layers are wanted: 2 MiB at a time until it can be read, then it says which bytes they are
//! budget    what all models take together stays below the cap, and the disk keeps a reserve
//! fetch     the missing groups, from all sources at once
//! ```
//!
//! [`prepare`] does the first three and fetches nothing but tree and header, so that a caller can say what comes before it
//! comes; [`Prepared::fetch`] does the rest. A node that decides by the header what it wants takes the same steps one by
//! one: [`open`], [`Prepared::header`], [`Prepared::want_layers`], [`Prepared::fetch`]. A mirror without a tree beside its file is left to [`fetch_plain`].

use std::{fs, io::Read, path::PathBuf, sync::Arc, time::Duration};

use p2p::blob::{
    self, Event, GroupSet, HttpSource, Options, Outboard, Pace, Report, Source, SparseFile, plain, source,
    sparse,
};
use scheduler::{LayerRange, ModelId};
use sha2::{Digest, Sha256};
use shard::gguf::MAX_HEADER;
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{disk_used, folder, hex, is_ours, layer_groups, models_folder};
use crate::{
    Error, Result,
    header::Header,
    library::{Entry, Library},
    platform::files,
    reports::PullPlan,
};

/// Bytes of a header that are fetched at once: most small models' headers fit the first step, and a large vocabulary's
/// 16 MiB need eight round trips.
const HEADER_STEP: u64 = 2 << 20;
/// Disk that is left free whatever the cap: a full disk breaks more than a pull.
const RESERVE_BYTES: u64 = 256 << 20;
/// How long a source may take for 64 KiB.
const PATIENCE: Duration = Duration::from_secs(15);

/// What to fetch.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Below which folder everything is kept.
    pub home: PathBuf,
    /// The model; `None` when only an address is known.
    pub id: Option<ModelId>,
    /// What to call it; `None` for the mirror's file name, else the id's first digits.
    pub name: Option<String>,
    /// Mirrors' addresses, remembered with the model.
    pub from: Vec<String>,
    /// The layers; none for the whole file.
    pub layers: Vec<LayerRange>,
    /// Most disk that all pulled models may take together.
    pub disk_bytes: Option<u64>,
    /// How fast at most.
    pub pace: Arc<Pace>,
    /// The SHA-256 of the whole file, where another registry says it: a file of which nothing else is known is checked by it.
    pub sha256: Option<[u8; 32]>,
}

impl Ask {
    /// The whole of `id` as fast as it comes.
    pub fn new(home: impl Into<PathBuf>, id: Option<ModelId>) -> Self {
        let (from, layers, pace) = (Vec::new(), Vec::new(), Arc::new(Pace::new(None)));
        Self { home: home.into(), id, name: None, from, layers, disk_bytes: None, pace, sha256: None }
    }

    /// Whether the model's tree is here already: then a pull may have nothing left to fetch.
    pub fn is_kept(&self) -> bool {
        self.id.is_some_and(|id| sparse::outboard_path(&folder(&self.home, id)).is_file())
    }

    /// The mirrors as sources.
    ///
    /// # Errors
    /// [`Error::Usage`] for an address that cannot be one of a model.
    pub fn mirrors(&self) -> Result<Vec<Box<dyn Source>>> {
        let mirror = |url: &String| match HttpSource::new(url) {
            Ok(source) => Ok(Box::new(source) as Box<dyn Source>),
            Err(e) => Err(Error::usage(e.to_string())),
        };
        self.from.iter().map(mirror).collect()
    }

    /// Bytes that the model in `folder` may take, by the cap and by what is free.
    fn offered_bytes(&self, folder: &std::path::Path) -> Result<u64> {
        let models = models_folder(&self.home);
        fs::create_dir_all(&models).map_err(|e| shard::Error::io(&models, e))?;
        let mine = disk_used(folder);
        let others = disk_used(&models).saturating_sub(mine);
        let free = files::free_bytes(&models).map_err(|e| shard::Error::io(&models, e))?;
        let free = free.saturating_sub(RESERVE_BYTES);
        let by_cap = self.disk_bytes.map_or(u64::MAX, |cap| cap.saturating_sub(others));
        Ok(by_cap.min(mine.saturating_add(free)))
    }
}

/// A pull of which everything is known and nothing but the header is here.
pub struct Prepared {
    ask: Ask,
    entry: Entry,
    file: SparseFile,
    wanted: GroupSet,
    num_layers: Option<u32>,
    offered_bytes: u64,
}

/// What [`prepare`] found.
pub enum Found {
    /// It can be fetched.
    Pull(Box<Prepared>),
    /// It is a file that was added to the library: nothing is to be fetched.
    Here(Entry),
    /// No source has the tree; why, by source.
    NoTree(Vec<String>),
}

/// Finds out what a pull of `ask` would fetch. Sources that lie are removed from `sources`.
///
/// # Errors
/// [`Error::Usage`] for layers the model does not have; [`Error::Model`] when no source gives the header, the disk offered is
/// too small, or another process works on the model; those of the engine for a header that is not sound.
pub async fn prepare(
    ask: Ask,
    sources: &mut Vec<Box<dyn Source>>,
    on: &mut (dyn FnMut(Event) + Send),
) -> Result<Found> {
    let mut found = open(ask, sources).await?;
    if let Found::Pull(prepared) = &mut found {
        if prepared.ask.layers.is_empty() {
            prepared.want(GroupSet::all(prepared.file.tree().groups()))?;
        } else {
            let header = prepared.header(sources, on).await?;
            prepared.want_layers(&header, prepared.ask.layers.clone())?;
        }
    }
    Ok(found)
}

/// The beginning of [`prepare`]: the tree, and the file that is to be filled, of which nothing is wanted yet.
///
/// # Errors
/// As [`prepare`].
pub async fn open(ask: Ask, sources: &mut Vec<Box<dyn Source>>) -> Result<Found> {
    let library = Library::load(&ask.home)?;
    let known = ask.id.and_then(|id| library.entries().iter().find(|entry| entry.model() == Some(id)));
    if let Some(entry) = known.filter(|entry| !is_ours(&ask.home, entry)) {
        return Ok(Found::Here(entry.clone()));
    }
    let kept = ask.id.map(|id| sparse::outboard_path(&folder(&ask.home, id)));
    let (tree, encoded) = match kept.and_then(|path| fs::read(path).ok()) {
        Some(encoded) => (Outboard::from_bytes(&encoded, ask.id)?, encoded),
        None => match source::tree(sources, ask.id, blob::MAX_FILE_BYTES, PATIENCE).await {
            Ok(tree) => tree,
            Err(blob::Error::NoSource { why, .. }) => return Ok(Found::NoTree(why)),
            Err(e) => return Err(e.into()),
        },
    };
    let id = tree.id();
    let known = library.entries().iter().find(|entry| entry.model() == Some(id));
    if let Some(entry) = known.filter(|entry| !is_ours(&ask.home, entry)) {
        return Ok(Found::Here(entry.clone()));
    }
    let folder = folder(&ask.home, id);
    let offered_bytes = ask.offered_bytes(&folder)?;
    let least = sparse::disk_bytes(tree.bytes(), &GroupSet::empty(tree.groups()));
    if least > offered_bytes {
        return Err(blob::Error::TooLarge { needed: least, offered: offered_bytes }.into());
    }
    let path = sparse::model_path(&folder);
    let mut entry = Entry {
        name: name_for(&ask, known, &library, id),
        path,
        id: hex(id),
        bytes: tree.bytes(),
        shared: known.is_none_or(|entry| entry.shared),
        withheld: known.is_some_and(|entry| entry.withheld),
        from: known.map(|entry| entry.from.clone()).unwrap_or_default(),
        reference: known.and_then(|entry| entry.reference.clone()),
        modified_ms: None,
    };
    crate::library::check_name(&entry.name)?;
    for url in &ask.from {
        if !entry.from.contains(url) {
            entry.from.push(url.clone());
        }
    }
    let file = SparseFile::open(&folder, Arc::new(tree), &encoded)?;
    let wanted = GroupSet::empty(file.tree().groups());
    Ok(Found::Pull(Box::new(Prepared { ask, entry, file, wanted, num_layers: None, offered_bytes })))
}

/// The name the model has, or was asked to get, or that fits it and is free.
fn name_for(ask: &Ask, known: Option<&Entry>, library: &Library, id: ModelId) -> String {
    if let Some(name) = ask.name.clone().or(known.map(|entry| entry.name.clone())) {
        return name;
    }
    let short = &hex(id)[..12];
    let name = ask.from.first().map(|url| name_of(url)).filter(|name| !name.is_empty());
    match name {
        Some(name) if library.get(&name).is_none() && name != crate::library::DEFAULT_MODEL => name,
        Some(name) => format!("{name}-{short}"),
        None => short.to_owned(),
    }
}

/// The file name in an address, without `.gguf` and without what a name must not have.
pub fn name_of(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    let stem = file.strip_suffix(".gguf").unwrap_or(file);
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    stem.chars().take(100).map(plain).collect()
}

impl Prepared {
    /// The model as it will be on the list.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// How many layers the model has, if the header was needed.
    pub fn num_layers(&self) -> Option<u32> {
        self.num_layers
    }

    /// Bytes of what was asked for.
    pub fn total_bytes(&self) -> u64 {
        self.wanted.bytes(self.entry.bytes)
    }

    /// Bytes of it that are not here.
    pub fn missing_bytes(&self) -> u64 {
        self.wanted.minus(self.file.have()).bytes(self.entry.bytes)
    }

    /// Fetches what is missing from `sources` and from those that arrive on `more`. The model is on the list from the start,
    /// so that a pull that is stopped can be taken up by its name.
    ///
    /// # Errors
    /// As [`blob::pull()`] says; [`Error::Usage`] when the name is taken.
    pub async fn fetch(
        &mut self,
        sources: &mut [Box<dyn Source>],
        more: Option<mpsc::Receiver<Box<dyn Source>>>,
        on: &mut (dyn FnMut(Event) + Send),
    ) -> Result<Report> {
        let entry = self.entry.clone();
        Library::change(&self.ask.home, |library| library.add(entry))?;
        let options = self.options(self.wanted.clone());
        Ok(blob::pull(&mut self.file, sources, more, &options, on).await?)
    }

    /// Flushes what is here, after a fetch that was stopped.
    ///
    /// # Errors
    /// [`Error::Model`] of the disk.
    pub fn save(&self) -> Result<()> {
        Ok(self.file.checkpoint().commit()?)
    }

    fn options(&self, wanted: GroupSet) -> Options {
        Options {
            disk_bytes: Some(self.offered_bytes),
            pace: self.ask.pace.clone(),
            group_timeout: PATIENCE,
            ..Options::new(wanted)
        }
    }

    /// Bytes that the model may take on this disk, with what is here of it.
    pub fn offered_bytes(&self) -> u64 {
        self.offered_bytes
    }

    /// The file, with holes where nothing was fetched.
    pub fn path(&self) -> PathBuf {
        self.file.path()
    }

    /// Wants `layers` and nothing else; the embedding comes with the first layer, the head with the last.
    ///
    /// # Errors
    /// [`Error::Usage`] for layers the model does not have; [`Error::Model`] when they need more disk than is offered.
    pub fn want_layers(&mut self, header: &Header, layers: Vec<LayerRange>) -> Result<()> {
        self.ask.layers = layers;
        let wanted = self.layers(header)?;
        self.want(wanted)
    }

    fn want(&mut self, wanted: GroupSet) -> Result<()> {
        self.file.recheck(&wanted, &mut |_| true)?;
        let needed = sparse::disk_bytes(self.entry.bytes, &self.file.have().union(&wanted));
        if needed > self.offered_bytes {
            return Err(blob::Error::TooLarge { needed, offered: self.offered_bytes }.into());
        }
        self.wanted = wanted;
        Ok(())
    }

    /// Reads every group that is here again and forgets those that have gone bad; bytes of them. They are missing then.
    ///
    /// # Errors
    /// [`Error::Model`] of the disk.
    pub fn verify(&mut self) -> Result<u64> {
        let bad = self.file.verify(&mut |_| true)?;
        if !bad.is_empty() {
            self.save()?;
        }
        Ok(bad.bytes(self.entry.bytes))
    }

    /// Fetches as much of the beginning as it takes to read the header.
    ///
    /// # Errors
    /// [`Error::Model`] when no source gives it, those of the engine for a header that is not sound.
    pub async fn header(
        &mut self,
        sources: &mut Vec<Box<dyn Source>>,
        on: &mut (dyn FnMut(Event) + Send),
    ) -> Result<Header> {
        let most = (MAX_HEADER + HEADER_STEP).min(self.entry.bytes);
        let mut here = 0;
        loop {
            here = (here + HEADER_STEP).min(most);
            let wanted = GroupSet::of_bytes(self.entry.bytes, std::slice::from_ref(&(0..here)));
            self.file.recheck(&wanted, &mut |_| true)?;
            self.bring(wanted, sources, on).await?;
            // A header that reached into a hole would have ended there: nothing in it may be empty, or zero.
            let path = self.file.path().to_owned();
            let read = spawn_blocking(move || Header::of_file(&path)).await;
            match read.unwrap_or_else(|error| Err(Error::Failed(error.to_string()))) {
                Ok(header) if header.header_len <= here => return Ok(header),
                Ok(_) | Err(_) if here < most => {}
                Ok(_) => return Err(Error::usage("the header of this model is longer than any may be")),
                Err(e) => return Err(e),
            }
        }
    }

    /// Brings `wanted` from one source after the other, so that each stays usable.
    async fn bring(
        &mut self,
        wanted: GroupSet,
        sources: &mut Vec<Box<dyn Source>>,
        on: &mut (dyn FnMut(Event) + Send),
    ) -> Result<()> {
        let options = self.options(wanted);
        let (mut missing, mut all_why) = (0, Vec::new());
        while let Some(first) = sources.first_mut() {
            match blob::pull(&mut self.file, std::slice::from_mut(first), None, &options, on).await {
                Ok(_) => return Ok(()),
                // Whatever became of it, its stream may be in the middle of something.
                Err(blob::Error::NoSource { missing: left, why }) => {
                    missing = left;
                    all_why.extend(why);
                    drop(sources.remove(0));
                }
                Err(e) => return Err(e.into()),
            }
        }
        if self.file.have().covers(&options.wanted) {
            return Ok(());
        }
        Err(blob::Error::NoSource { missing, why: all_why }.into())
    }

    /// What is about to be fetched for `layers`, none for the whole file.
    pub fn plan(&self, layers: &[LayerRange]) -> PullPlan {
        PullPlan {
            name: self.entry.name.clone(),
            id: self.entry.id.clone(),
            file_bytes: self.entry.bytes,
            total_bytes: self.total_bytes(),
            missing_bytes: self.missing_bytes(),
            num_layers: self.num_layers(),
            layers: layers.iter().map(|range| [range.start(), range.end()]).collect(),
            from: self.entry.from.clone(),
        }
    }

    /// The groups of the layers asked for: the embedding comes with the first, the head with the last.
    fn layers(&mut self, header: &Header) -> Result<GroupSet> {
        self.num_layers = Some(header.num_layers());
        let groups = layer_groups(header, self.entry.bytes, &self.ask.layers)?;
        let none = GroupSet::empty(self.file.tree().groups());
        Ok(groups.iter().fold(none, |wanted, (_, groups)| wanted.union(groups)))
    }
}

/// The SHA-256 of a file, by which other registries know it. `on` is told the bytes done and returns whether to go on.
fn sha256_of(path: &std::path::Path, on: &mut dyn FnMut(u64) -> bool) -> Result<[u8; 32]> {
    let mut file = fs::File::open(path).map_err(|e| shard::Error::io(path, e))?;
    let (mut hasher, mut done, mut part) = (Sha256::new(), 0, vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut part).map_err(|e| shard::Error::io(path, e))?;
        if read == 0 {
            return Ok(hasher.finalize().into());
        }
        hasher.update(&part[..read]);
        done += read as u64;
        if !on(done) {
            return Err(Error::Interrupted);
        }
    }
}

/// What [`fetch_plain`] is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bytes come.
    Fetching,
    /// The whole file is hashed.
    Hashing,
}

/// Fetches a whole file whose tree no source has from the first mirror of `ask`, hashes it and takes it into the library.
/// `on` is told the step, its bytes done and to do, and returns whether to go on.
///
/// # Errors
/// [`Error::Interrupted`] by `on`; [`Error::Model`] as [`plain::fetch`] says and, when it is not the model asked for,
/// [`blob::Error::Mismatch`]: it is removed then.
pub async fn fetch_plain(ask: &Ask, on: &mut (dyn FnMut(Step, u64, u64) -> bool + Send)) -> Result<Entry> {
    let url = ask.from.first().ok_or_else(|| Error::usage("name a mirror with --from URL"))?;
    let incoming = format!("incoming-{}", &blake3::hash(url.as_bytes()).to_hex()[..16]);
    let incoming = models_folder(&ask.home).join(incoming);
    let disk_bytes = Some(ask.offered_bytes(&incoming)?);
    let options = plain::Options { disk_bytes, pace: ask.pace.clone(), timeout: PATIENCE };
    let complete =
        plain::fetch(&incoming, url, &options, &mut |done, all| on(Step::Fetching, done, all)).await?;
    let bytes = complete.bytes;
    if let Err(error) = Header::of_file(&complete.path) {
        // A page about a model, a part of one, or something else.
        fs::remove_dir_all(&incoming).map_err(|e| shard::Error::io(&incoming, e))?;
        return Err(Error::usage(format!("what {url} sends is no model: {error}")));
    }
    if let Some(wanted) = ask.sha256 {
        let found = sha256_of(&complete.path, &mut |done| on(Step::Hashing, done, bytes))?;
        if found != wanted {
            fs::remove_dir_all(&incoming).map_err(|e| shard::Error::io(&incoming, e))?;
            let what = format!("the file at {url}, whose SHA-256 is not the one that its registry names,");
            return Err(blob::Error::Mismatch { what }.into());
        }
    }
    // Hashing blocks this thread, which has nothing else to do.
    let (tree, encoded) = Outboard::make(&complete.path, &mut |done| on(Step::Hashing, done, bytes))?;
    let id = tree.id();
    if ask.id.is_some_and(|wanted| wanted != id) {
        fs::remove_dir_all(&incoming).map_err(|e| shard::Error::io(&incoming, e))?;
        let what = format!("the file at {url}, whose id is {},", hex(id));
        return Err(blob::Error::Mismatch { what }.into());
    }
    let folder = folder(&ask.home, id);
    sparse::adopt(&folder, &complete.path, Arc::new(tree), &encoded)?;
    let library = Library::load(&ask.home)?;
    let known = library.entries().iter().find(|entry| entry.model() == Some(id));
    let entry = Entry {
        name: name_for(ask, known, &library, id),
        path: sparse::model_path(&folder),
        id: hex(id),
        bytes,
        shared: true,
        withheld: false,
        from: ask.from.clone(),
        reference: None,
        modified_ms: None,
    };
    Library::change(&ask.home, |library| library.add(entry.clone()))?;
    // What is left there are a lock and a state that mean nothing any more.
    if let Err(error) = fs::remove_dir_all(&incoming) {
        tracing::debug!(%error, "an empty download folder stays");
    }
    Ok(entry)
}
