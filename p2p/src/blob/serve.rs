//! The other side: a node hands out what its owner shares.
//!
//! A request never makes this node fetch anything: what is not on the [`Shelf`] is refused. Every group is
//! checked against the tree before it leaves, so a file that was edited after it was shared is refused too instead of
//! making this node a liar.
//!
//! Bounds: one request at a time per stream, one group in memory; a stream is left when no request comes for
//! [`Limits::idle`] or a group is not taken within [`Limits::stall`]; bytes are paced by the shared [`Pace`]. How many
//! streams there are is for the caller to bound.

use std::{fs::File, io, ops::Range, path::PathBuf, sync::Arc, time::Duration};

use scheduler::ModelId;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::spawn_blocking,
    time::timeout,
};

use super::{
    Error, GROUP_BYTES, GroupSet, Outboard, Pace,
    file_at::FileAt,
    outboard::encoded_len,
    pack::Packer,
    wire::{Answer, Description, Form, REQUEST_BYTES, Request, Status},
};

/// A model, or some groups of one, that others may have.
#[derive(Debug)]
pub struct Held {
    tree: Outboard,
    outboard: File,
    file: File,
    have: GroupSet,
}

impl Held {
    /// The groups `have` of the file at `path`, whose outboard is kept at `outboard`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] if the outboard is not that of `id` or the file has another length.
    pub fn open(
        id: ModelId,
        path: PathBuf,
        outboard: PathBuf,
        have: Option<GroupSet>,
    ) -> Result<Self, Error> {
        let tree = Outboard::open(&outboard, Some(id))?;
        let file = File::open(&path).map_err(|e| Error::io(&path, e))?;
        let bytes = file.metadata().map_err(|e| Error::io(&path, e))?.len();
        if bytes != tree.bytes() {
            let why = format!("it has {bytes} bytes where {} belong", tree.bytes());
            return Err(Error::Damaged { path, why });
        }
        let have = have.unwrap_or_else(|| GroupSet::all(tree.groups()));
        let outboard = File::open(&outboard).map_err(|e| Error::io(outboard, e))?;
        Ok(Self { tree, outboard, file, have })
    }

    /// Group `group`, checked; `None` if it is not what it was.
    fn read(&self, group: u32) -> io::Result<Option<Vec<u8>>> {
        let mut data = vec![0; self.tree.group_len(group)];
        self.file.read_exact_at(&mut data, u64::from(group) * GROUP_BYTES)?;
        Ok(self.tree.check(group, &data).then_some(data))
    }

    /// Up to 64 KiB of the outboard.
    fn read_tree(&self, at: u64) -> io::Result<Vec<u8>> {
        let len = (encoded_len(self.tree.bytes()) - at).min(GROUP_BYTES);
        let mut data = vec![0; len as usize];
        self.outboard.read_exact_at(&mut data, at)?;
        Ok(data)
    }
}

/// What this node hands out.
pub trait Shelf: Send + Sync + 'static {
    /// The model called `id`, if its owner shares it. May read the disk; called on a thread that may block.
    fn find(&self, id: ModelId) -> Option<Arc<Held>>;
}

/// How long a stranger is waited for.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Longest silence between two requests. 2 min: a puller that waits for other sources keeps its stream.
    pub idle: Duration,
    /// Longest time for 64 KiB to be taken.
    pub stall: Duration,
    /// Shared by everything this node sends of models.
    pub pace: Arc<Pace>,
}

impl Default for Limits {
    fn default() -> Self {
        let (idle, stall) = (Duration::from_secs(120), Duration::from_secs(30));
        Self { idle, stall, pace: Arc::new(Pace::new(None)) }
    }
}

/// What one stream took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests answered, refusals too.
    pub requests: u64,
    /// Bytes of groups and trees sent.
    pub bytes: u64,
}

/// Answers the requests on `stream`, on which groups travel in this form, from `shelf` until the peer closes it.
///
/// # Errors
/// [`Error::Io`]: the peer went away or was too slow (kind `TimedOut`), said what is no request (`InvalidData`), or a
/// file could not be read.
pub async fn serve<S>(
    mut stream: S,
    form: Form,
    shelf: Arc<dyn Shelf>,
    limits: &Limits,
) -> Result<Served, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut served = Served::default();
    let io = |e| Error::io("", e);
    let mut packer = match form {
        Form::Plain => None,
        Form::Packed => Some(Packer::new().map_err(io)?),
    };
    loop {
        let mut bytes = [0; REQUEST_BYTES];
        match timeout(limits.idle, stream.read_exact(&mut bytes)).await {
            Ok(Ok(_)) => {}
            Ok(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(served),
            Ok(Err(e)) => return Err(io(e)),
            Err(_) => return Err(io(io::ErrorKind::TimedOut.into())),
        }
        served.requests += 1;
        let request = match Request::decode(&bytes) {
            Ok(request) => request,
            Err(why) => {
                head(&mut stream, bytes[4], Status::Malformed, 0, limits).await?;
                return Err(io(io::Error::new(io::ErrorKind::InvalidData, why)));
            }
        };
        let (Request::Describe { model } | Request::Tree { model } | Request::Groups { model, .. }) = request;
        let found = {
            let shelf = shelf.clone();
            blocking(move || Ok(shelf.find(model))).await?
        };
        let kind = request.kind();
        let Some(held) = found else {
            head(&mut stream, kind, Status::NotHeld, 0, limits).await?;
            continue;
        };
        match request {
            Request::Describe { .. } => {
                let description = Description { bytes: held.tree.bytes(), have: held.have.clone() };
                let payload = description.encode();
                head(&mut stream, kind, Status::Fine, payload.len() as u64, limits).await?;
                send(&mut stream, &payload, limits).await?;
            }
            Request::Tree { .. } => {
                let len = encoded_len(held.tree.bytes());
                head(&mut stream, kind, Status::Fine, len, limits).await?;
                let mut at = 0;
                while at < len {
                    let held = held.clone();
                    let part = blocking(move || held.read_tree(at)).await?;
                    send(&mut stream, &part, limits).await?;
                    at += part.len() as u64;
                }
                served.bytes += len;
            }
            Request::Groups { first, count, .. } => {
                // A run that would end beyond the last number there is becomes empty, which no node holds.
                let run = first..first.checked_add(count).unwrap_or(first);
                served.bytes += groups(&mut stream, &held, run, &mut packer, limits).await?;
            }
        }
    }
}

/// Answers a request for groups; the bytes sent. A group that has gone bad ends the stream if others were promised.
async fn groups<S: AsyncWrite + Unpin>(
    stream: &mut S,
    held: &Arc<Held>,
    run: Range<u32>,
    packer: &mut Option<Packer>,
    limits: &Limits,
) -> Result<u64, Error> {
    let (first, count) = (run.start, run.end - run.start);
    let kind = Request::Groups { model: held.tree.id(), first, count }.kind();
    if run.is_empty() || !run.clone().all(|group| held.have.contains(group)) {
        head(stream, kind, Status::NotHeld, 0, limits).await?;
        return Ok(0);
    }
    let len = run.clone().map(|group| held.tree.group_len(group) as u64).sum();
    let mut sent = 0;
    for group in run {
        let (reader, mut own) = (held.clone(), packer.take());
        let read = move || {
            let data = reader.read(group).map(|data| {
                data.map(|data| match &mut own {
                    Some(packer) => packer.pack(&data),
                    None => data,
                })
            });
            Ok((data, own))
        };
        let (data, own) = blocking(read).await?;
        *packer = own;
        match data {
            Ok(Some(data)) => {
                if group == first {
                    head(stream, kind, Status::Fine, len, limits).await?;
                }
                send(stream, &data, limits).await?;
                sent += data.len() as u64;
            }
            _ if group == first => {
                head(stream, kind, Status::Failed, 0, limits).await?;
                return Ok(0);
            }
            Ok(None) => {
                let why = format!("group {group} of model {} has changed on disk", held.tree.id());
                return Err(Error::io("", io::Error::new(io::ErrorKind::InvalidData, why)));
            }
            Err(e) => return Err(Error::io("", e)),
        }
    }
    Ok(sent)
}

async fn head<S: AsyncWrite + Unpin>(
    stream: &mut S,
    kind: u8,
    status: Status,
    len: u64,
    limits: &Limits,
) -> Result<(), Error> {
    send(stream, &Answer { kind, status, len }.encode(), limits).await
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, data: &[u8], limits: &Limits) -> Result<(), Error> {
    limits.pace.take(data.len()).await;
    let sent = timeout(limits.stall, async {
        stream.write_all(data).await?;
        stream.flush().await
    });
    match sent.await {
        Ok(result) => result.map_err(|e| Error::io("", e)),
        Err(_) => Err(Error::io("", io::ErrorKind::TimedOut.into())),
    }
}

/// Runs `work` where blocking is allowed.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let done = spawn_blocking(work).await.unwrap_or_else(|e| Err(io::Error::other(e)));
    done.map_err(|e| Error::io("", e))
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::blob::testing::{OneModel, model};

    async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &[u8]) -> Answer {
        stream.write_all(request).await.unwrap();
        let mut head = [0; 16];
        stream.read_exact(&mut head).await.unwrap();
        Answer::decode(&head).unwrap()
    }

    #[tokio::test]
    async fn what_is_not_shared_or_not_here_is_refused_and_the_stream_goes_on() {
        let (_, file) = model(5 << 16, 1);
        let have = GroupSet::of_bytes(5 << 16, &[0..2 << 16]);
        let (id, shelf) = OneModel::new(file.path(), Some(have));
        let (mut asker, stream) = duplex(1 << 20);
        let server = tokio::spawn(async move { serve(stream, Form::Plain, shelf, &Limits::default()).await });
        let other = Request::Tree { model: ModelId::numbered(3) };
        assert_eq!(answer(&mut asker, &other.encode()).await.status, Status::NotHeld);
        for (first, count) in [(2, 1), (1, 2), (u32::MAX, 1), (5, 1)] {
            let request = Request::Groups { model: id, first, count };
            assert_eq!(answer(&mut asker, &request.encode()).await.status, Status::NotHeld, "{request:?}");
        }
        let held = answer(&mut asker, &Request::Groups { model: id, first: 0, count: 2 }.encode()).await;
        assert_eq!((held.status, held.len), (Status::Fine, 2 << 16));
        let mut data = vec![0; 2 << 16];
        asker.read_exact(&mut data).await.unwrap();
        assert_eq!(data, std::fs::read(file.path()).unwrap()[..2 << 16]);
        assert_eq!(answer(&mut asker, &[0xff; 64]).await.status, Status::Malformed);
        assert!(server.await.unwrap().is_err(), "a malformed request ends the stream");
    }

    #[tokio::test]
    async fn a_file_edited_after_it_was_shared_is_not_handed_out() {
        let (mut data, file) = model(3 << 16, 1);
        let (id, shelf) = OneModel::new(file.path(), None);
        data[(1 << 16) + 5] ^= 1;
        std::fs::write(file.path(), &data).unwrap();
        let (mut asker, stream) = duplex(1 << 20);
        let server = tokio::spawn(async move { serve(stream, Form::Plain, shelf, &Limits::default()).await });
        let failed = answer(&mut asker, &Request::Groups { model: id, first: 1, count: 1 }.encode()).await;
        assert_eq!(failed.status, Status::Failed);
        let first = answer(&mut asker, &Request::Groups { model: id, first: 0, count: 3 }.encode()).await;
        assert_eq!(first.status, Status::Fine);
        let mut sent = Vec::new();
        asker.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, data[..1 << 16], "the bad group does not leave");
        assert!(server.await.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_or_takes_nothing_is_left() {
        let (_, file) = model(4 << 16, 1);
        let (id, shelf) = OneModel::new(file.path(), None);
        let (silent, stream) = duplex(1 << 10);
        let ended = serve(stream, Form::Plain, shelf.clone(), &Limits::default()).await;
        assert!(matches!(ended, Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::TimedOut));
        drop(silent);
        let (mut stuck, stream) = duplex(1 << 10);
        stuck.write_all(&Request::Groups { model: id, first: 0, count: 4 }.encode()).await.unwrap();
        let ended = serve(stream, Form::Plain, shelf, &Limits::default()).await;
        assert!(matches!(ended, Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::TimedOut));
    }
}
