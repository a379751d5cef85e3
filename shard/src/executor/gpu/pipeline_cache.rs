//! Compiled kernels on disk, so that the next process need not compile them: one file a device and driver in a private folder.
//!
//! A driver gives its compiled pipelines as bytes and takes them back from a process of the same device. The file holds these bytes
//! behind the hashes of the sources that they were compiled from and a sum over all; what is damaged, of another driver or too long
//! is not read, and every kernel is compiled again. It is written at the end of a pass that compiled something, first under another
//! name.
//!
//! Limits: Vulkan only, since other systems keep such files themselves. Two processes that compile different kernels at once
//! leave the file of the later one.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::Mutex,
};

use super::driver::locked;

/// What a file begins with; another layout has another one.
const MAGIC: [u8; 16] = *b"shoal pipelines1";
/// Longest file that is read: a model's kernels take some MB.
const MAX_BYTES: u64 = 64 << 20;
/// Bytes of a hash.
const HASH: usize = 32;

/// The name of a kernel's source.
type Name = [u8; HASH];

/// The compiled kernels of a device, those of the file and those of this process.
pub(super) struct PipelineCache {
    cache: wgpu::PipelineCache,
    path: PathBuf,
    /// What the driver was given.
    found: HashSet<Name>,
    /// What it has compiled or found since.
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    names: HashSet<Name>,
    /// Whether the file lacks some of them.
    unsaved: bool,
}

/// How many kernels this process asked the driver for, and how many of them an earlier process had compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipelineCounts {
    /// Kernels that were made ready.
    pub made: u64,
    /// Those whose source was in the file.
    pub hits: u64,
}

impl PipelineCache {
    /// The file of the device of `about` in `folder`, with what it holds; `None` where the device keeps no such bytes.
    pub fn open(device: &wgpu::Device, about: &wgpu::AdapterInfo, folder: &Path) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let key = wgpu::util::pipeline_cache_key(about)?;
        let whole = format!("{key} {} {} {}", about.name, about.driver, about.driver_info);
        let path = folder.join(format!("{}.bin", &blake3::hash(whole.as_bytes()).to_hex()[..32]));
        let (found, data) = read(&path).unwrap_or_default();
        let data = Some(data).filter(|data| !data.is_empty());
        let descriptor =
            wgpu::PipelineCacheDescriptor { label: Some("kernels"), data: data.as_deref(), fallback: true };
        // SAFETY: the bytes came from `get_data` of a device of this name and driver, which the file's name says, in a process of
        // this user, since the folder is private, and they are as they were, since their sum is right. With `fallback` a driver that
        // refuses them begins with none.
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(Self { cache, path, found, used: Mutex::default() })
    }

    /// What a pipeline is made with.
    pub fn inner(&self) -> &wgpu::PipelineCache {
        &self.cache
    }

    /// A kernel with this source is made ready.
    pub fn note(&self, source: &str) {
        let name = *blake3::hash(source.as_bytes()).as_bytes();
        let mut used = locked(&self.used);
        used.unsaved |= !self.found.contains(&name);
        used.names.insert(name);
    }

    /// What became of the kernels so far.
    pub fn counts(&self) -> PipelineCounts {
        let names = &locked(&self.used).names;
        PipelineCounts { made: names.len() as u64, hits: names.intersection(&self.found).count() as u64 }
    }

    /// Writes the file if it lacks kernels. One that cannot be written costs the next process its time, nothing else.
    pub fn save(&self) {
        let mut used = locked(&self.used);
        if !std::mem::take(&mut used.unsaved) {
            return;
        }
        let Some(data) = self.cache.get_data() else { return };
        let names: HashSet<Name> = used.names.union(&self.found).copied().collect();
        if let Err(error) = write(&self.path, &names, &data) {
            tracing::debug!(%error, path = %self.path.display(), "compiled kernels are not kept");
        }
    }
}

/// The names and the driver's bytes of a file that is as it was written.
fn read(path: &Path) -> Option<(HashSet<Name>, Vec<u8>)> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (sum, rest) = rest.split_first_chunk::<HASH>()?;
    if blake3::hash(rest) != *sum {
        return None;
    }
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let names_bytes = (u32::from_le_bytes(*count) as usize).checked_mul(HASH)?;
    let (names, data) = rest.split_at_checked(names_bytes)?;
    Some((names.as_chunks::<HASH>().0.iter().copied().collect(), data.to_vec()))
}

fn write(path: &Path, names: &HashSet<Name>, data: &[u8]) -> std::io::Result<()> {
    let mut rest = (names.len() as u32).to_le_bytes().to_vec();
    names.iter().for_each(|name| rest.extend_from_slice(name));
    rest.extend_from_slice(data);
    if (MAGIC.len() + HASH + rest.len()) as u64 > MAX_BYTES {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        private_folder(folder)?;
    }
    let other = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = File::create(&other)?;
    file.write_all(&MAGIC)?;
    file.write_all(blake3::hash(&rest).as_bytes())?;
    file.write_all(&rest)?;
    fs::rename(&other, path)
}

#[cfg(unix)]
fn private_folder(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn private_folder(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)
}
