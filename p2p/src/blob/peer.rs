//! A peer as a source: requests and answers of [`super::wire`] over any stream of bytes.

use std::{io, ops::Range, time::Duration};

use futures::future::{BoxFuture, FutureExt};
use scheduler::ModelId;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    time::timeout,
};
use zstd::bulk::Decompressor;

use super::{
    Outboard, group_len,
    outboard::encoded_len,
    pack::{PACKED_HEAD, frame_len, unpack},
    source::{Described, Source, SourceError, Tree},
    wire::{ANSWER_BYTES, Answer, Description, Form, MAX_DESCRIPTION, Request, Status},
};

/// A peer at the other end of a stream that it [serves](super::serve()).
pub struct PeerSource<S> {
    name: String,
    stream: S,
    /// Where packed groups are unpacked; `None` on a stream that packs nothing.
    packed: Option<(Decompressor<'static>, Vec<u8>)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> PeerSource<S> {
    /// The peer called `name`, for messages, behind `stream`, on which groups travel in this form and nothing has been
    /// said yet.
    ///
    /// # Errors
    /// There is no memory to unpack in.
    pub fn new(name: impl Into<String>, stream: S, form: Form) -> io::Result<Self> {
        let packed = match form {
            Form::Plain => None,
            Form::Packed => Some((Decompressor::new()?, Vec::new())),
        };
        Ok(Self { name: name.into(), stream, packed })
    }

    /// Fills `group` with the next group.
    async fn read_group(&mut self, group: &mut [u8]) -> Result<(), SourceError> {
        let Some((decoder, frame)) = &mut self.packed else {
            self.stream.read_exact(group).await?;
            return Ok(());
        };
        let mut head = [0; PACKED_HEAD];
        self.stream.read_exact(&mut head).await?;
        match frame_len(head, group.len())? {
            None => drop(self.stream.read_exact(group).await?),
            Some(len) => {
                frame.resize(len, 0);
                self.stream.read_exact(frame).await?;
                unpack(decoder, frame, group)?;
            }
        }
        Ok(())
    }

    /// Sends `request` and reads the head of the answer; how many bytes follow.
    async fn ask(&mut self, request: Request) -> Result<u64, SourceError> {
        self.stream.write_all(&request.encode()).await?;
        self.stream.flush().await?;
        let mut head = [0; ANSWER_BYTES];
        self.stream.read_exact(&mut head).await?;
        let answer = Answer::decode(&head)?;
        if answer.kind != request.kind() {
            return Err(SourceError::Lied("the answer to another question".into()));
        }
        match answer.status {
            Status::Fine => Ok(answer.len),
            Status::NotHeld => Err(SourceError::Refused("it does not have it, or does not share it".into())),
            Status::Malformed => Err(SourceError::Refused("it does not understand the request".into())),
            Status::Failed => Err(SourceError::Refused("it could not read it".into())),
        }
    }

    async fn read_tree(
        &mut self,
        model: ModelId,
        most: u64,
        patience: Duration,
    ) -> Result<Tree, SourceError> {
        let asked = timeout(patience, self.ask(Request::Tree { model })).await;
        let len = asked.map_err(|_| SourceError::Slow)??;
        let mut reader = BufReader::with_capacity(64 << 10, (&mut self.stream).take(len));
        let read = Outboard::read(&mut reader, Some(model), most, patience).await;
        if read.is_err() && reader.get_ref().limit() == 0 && reader.buffer().is_empty() {
            return Err(SourceError::Lied("a tree that ends too early".into()));
        }
        let (tree, encoded) = read?;
        match encoded_len(tree.bytes()) == len {
            true => Ok((tree, encoded)),
            false => Err(SourceError::Lied("a tree of another length".into())),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Source for PeerSource<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn retries(&self) -> u32 {
        0
    }

    fn describe(&mut self, model: ModelId) -> BoxFuture<'_, Result<Described, SourceError>> {
        async move {
            let len = self.ask(Request::Describe { model }).await?;
            let len = usize::try_from(len).ok().filter(|&len| len <= MAX_DESCRIPTION);
            let mut payload = vec![0; len.ok_or_else(|| SourceError::Lied("a long description".into()))?];
            self.stream.read_exact(&mut payload).await?;
            let description = Description::decode(&payload)?;
            Ok(Described { bytes: description.bytes, have: Some(description.have) })
        }
        .boxed()
    }

    fn tree(
        &mut self,
        id: Option<ModelId>,
        most: u64,
        patience: Duration,
    ) -> BoxFuture<'_, Result<Tree, SourceError>> {
        async move {
            let unnamed = || SourceError::Refused("peers know models by their id only".into());
            self.read_tree(id.ok_or_else(unnamed)?, most, patience).await
        }
        .boxed()
    }

    fn start<'a>(
        &'a mut self,
        tree: &'a Outboard,
        run: Range<u32>,
    ) -> BoxFuture<'a, Result<(), SourceError>> {
        async move {
            let count = run.end.saturating_sub(run.start);
            let expected: u64 = run.clone().map(|group| group_len(tree.bytes(), group) as u64).sum();
            match self.ask(Request::Groups { model: tree.id(), first: run.start, count }).await? {
                len if len == expected => Ok(()),
                _ => Err(SourceError::Lied("groups of another length".into())),
            }
        }
        .boxed()
    }

    fn next<'a>(&'a mut self, group: &'a mut [u8]) -> BoxFuture<'a, Result<(), SourceError>> {
        async move {
            self.read_group(group).await.map_err(|error| match error {
                SourceError::Closed(_) => SourceError::Closed("it ended in the middle of a group".into()),
                other => other,
            })
        }
        .boxed()
    }
}
