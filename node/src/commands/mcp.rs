//! `shoal mcp`: what this node can do as tools of another program's model, over standard input and output.

use std::{
    io::{self, Read, Write},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use api::{
    Inference,
    choice::{Draft, Mode},
};
use p2p::Governor;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};

use super::obtain;
use crate::{
    Error, Result,
    cli::{EngineArgs, McpArgs, swarm::Via},
    control,
    inference::{
        local::confined::{Confined, Retention},
        swarm::{Door, Preferences, Swarmed},
    },
    private_folder,
};

/// Memory for the caches of all calls.
const KV_BYTES: usize = 512 << 20;
/// Bytes on their way between a standard stream and the protocol.
const PIPE_BYTES: usize = 64 << 10;
/// A running node has this long to say that it can be asked, before the first call.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// Parts of standard input that were read and are not understood yet.
const PARTS: usize = 4;

pub(super) fn run(mut args: McpArgs) -> Result<()> {
    let home = args.home.path()?;
    private_folder::prepare(&home)?;
    let runs = control::is_running(&home);
    let swarm = match args.via {
        Via::Local => false,
        Via::Auto => runs,
        Via::Swarm if runs => true,
        Via::Swarm => {
            return Err(control::runs_nowhere());
        }
    };
    if !swarm {
        // Standard input belongs to the protocol: there is no one to ask.
        let terms = obtain::Terms { sources: &args.sources, yes: args.yes, json: true };
        args.engine.model = Some(obtain::model(args.engine.model(), terms)?);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let preferences = swarm.then(|| Preferences {
        trusted: Default::default(),
        mode: None::<Mode>,
        draft: Draft::default(),
        wire: args.wire.choice(),
        home: home.clone(),
    });
    runtime.block_on(async { serve(inference(&args.engine, &Draft::default(), preferences).await?).await })
}

/// What answers: the node whose home `swarm` names and its swarm, else a process of this command.
///
/// # Errors
/// When that process cannot be started.
pub(super) async fn inference(
    engine: &EngineArgs,
    draft: &Draft,
    swarm: Option<Preferences>,
) -> Result<Arc<dyn Inference>> {
    if let Some(preferences) = swarm {
        let swarmed = Swarmed::start(Door::Socket(preferences.home.clone()), preferences);
        // What the node says of itself is on its way; a node that is not ready says why.
        let until = Instant::now() + FIRST_LOOK;
        while swarmed.readiness().is_err() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        return Ok(swarmed);
    }
    let alone = Confined::start(engine, KV_BYTES, draft.clone(), Governor::default(), Retention::default())?;
    while alone.loaded().is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(alone)
}

/// Carries standard input and output, which only threads can wait for, to the protocol and back. The thread that reads ends
/// with the process.
async fn serve(inference: Arc<dyn Inference>) -> Result<()> {
    let (mut to, input) = tokio::io::duplex(PIPE_BYTES);
    let (output, mut from) = tokio::io::duplex(PIPE_BYTES);
    let (send, mut read) = mpsc::channel::<Vec<u8>>(PARTS);
    thread::spawn(move || {
        let mut part = vec![0; PIPE_BYTES];
        while let Ok(bytes @ 1..) = io::stdin().read(&mut part) {
            if send.blocking_send(part[..bytes].to_vec()).is_err() {
                break;
            }
        }
    });
    tokio::spawn(async move {
        while let Some(part) = read.recv().await {
            if to.write_all(&part).await.is_err() {
                break;
            }
        }
    });
    let written = tokio::spawn(async move {
        let mut part = vec![0; PIPE_BYTES];
        while let bytes @ 1.. = from.read(&mut part).await? {
            let mut out = io::stdout().lock();
            out.write_all(&part[..bytes]).and_then(|()| out.flush())?;
        }
        io::Result::Ok(())
    });
    api::mcp::serve(inference, input, output).await?;
    match written.await {
        Ok(written) => Ok(written?),
        Err(error) => Err(Error::Failed(error.to_string())),
    }
}
