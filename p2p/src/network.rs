//! The handle on a running network, and what it tells.
//!
//! [`spawn`] starts one event loop, which alone owns the libp2p swarm. A [`Network`] is a cloneable sender of commands to
//! it; [`Events`] is its one stream of events. Bytes of open streams and the words of asks do not pass through the
//! loop: only opening does.
//!
//! | channel | bound | at the bound |
//! |---|---|---|
//! | commands | [`MAX_COMMANDS`] | the caller waits |
//! | events | [`MAX_EVENTS`] | comings and goings wait their turn; announcements and round trips are dropped, they come again; asks and streams are refused |

use std::time::Duration;

use libp2p::swarm::ConnectionId;
use scheduler::{ModelId, NodeId};
use tokio::sync::{mpsc, oneshot};

use crate::config::Config;
use crate::control::{self, ReplyTo};
use crate::error::{Error, HopError, Result};
use crate::event::{Command, Event, NamedBy, PeerInfo, RefusedPeer};
use crate::event_loop;
use crate::governor::Governor;
use crate::link::{Stream, behaviour::NotOpened, links::Links};
use crate::link_kind::LinkKind;
use crate::plane::{Lane, Plane};
use crate::wire::control::{Answer, Ask, Contact};

/// Commands waiting for the event loop.
pub(crate) const MAX_COMMANDS: usize = 256;
/// Events waiting for the node.
pub(crate) const MAX_EVENTS: usize = 1_024;
/// How long opening a stream may take: the substream is negotiated lazily, so only a stuck loop or connection needs it.
const OPEN_DEADLINE: Duration = Duration::from_secs(5);
/// How long a connection to a contact is waited for: every transport's own handshake deadline is shorter.
const DIAL_DEADLINE: Duration = Duration::from_secs(15);
/// How often a silent contact is asked: it is dialed beside its old connections, these are closed, it is dialed alone.
const REACHES: u32 = 4;
/// Between two of them, and between two attempts to open a stream at a limit: for the loop to see what has closed.
const PAUSE: Duration = Duration::from_millis(20);

/// A handle on the network. Cheap to clone; the network stops when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Network {
    me: NodeId,
    commands: mpsc::Sender<Command>,
    governor: Governor,
    links: Links,
}

/// What happens, in order of its happening.
#[derive(Debug)]
pub struct Events {
    receiver: mpsc::Receiver<Event>,
}

impl Events {
    /// The next event, `None` once the network has stopped.
    pub async fn next(&mut self) -> Option<Event> {
        self.receiver.recv().await
    }
}

/// Starts a node's network: listens, dials bootstrap and cached peers, and runs until [`Network::shutdown`] or until
/// every handle is dropped. Returns once it listens.
///
/// # Errors
/// [`Error::Address`] for an address that cannot be used, [`Error::Listen`] when none can be listened on.
pub async fn spawn(config: Config) -> Result<(Network, Events)> {
    let governor = Governor::new(config.limits.others);
    spawn_under(governor, config).await
}

/// As [`spawn`], under a governor that other doors of this process ask too; its limits hold, not those of `config`.
///
/// # Errors
/// As there.
pub async fn spawn_under(governor: Governor, config: Config) -> Result<(Network, Events)> {
    let (commands, inbox) = mpsc::channel(MAX_COMMANDS);
    let (outbox, receiver) = mpsc::channel(MAX_EVENTS);
    let me = config.identity.node();
    let links = Links::start(&config, governor.clone())?;
    event_loop::start(config, governor.clone(), links.clone(), inbox, outbox).await?;
    Ok((Network { me, commands, governor, links }, Events { receiver }))
}

impl Network {
    /// Who this node is.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// What others hold of this node and may still take; every door asks it.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// Where this node can be reached, with `/p2p/`, those that reach furthest first. Empty after shutdown.
    pub async fn addresses(&self) -> Vec<String> {
        self.told(Command::Addresses).await.unwrap_or_default()
    }

    /// Those of [`Network::addresses`] that this swarm may hear of: how a home numbers its network is said in a swarm of that
    /// network only ([`crate::home`]).
    pub async fn announced_addresses(&self) -> Vec<String> {
        self.told(Command::Announced).await.unwrap_or_default()
    }

    /// This node as others should know it: its first eight addresses.
    pub async fn contact(&self) -> Contact {
        let mut addresses = self.addresses().await;
        addresses.truncate(crate::wire::control::MAX_ADDRESSES);
        Contact { node: self.me, addresses }
    }

    /// Connects to the node that answers at `address`, which should end in `/p2p/`.
    ///
    /// # Errors
    /// [`Error::Address`] for what is no address, this node's own or not allowed; [`Error::Unreachable`] when no node of
    /// this swarm answers there.
    pub async fn dial(&self, address: &str) -> Result<NodeId> {
        self.dial_all(vec![address.to_owned()], None, None).await
    }

    /// Connects to `contact`; at once if it is connected already.
    ///
    /// # Errors
    /// As [`Network::dial`].
    pub async fn connect(&self, contact: &Contact) -> Result<()> {
        self.connect_named(contact, None).await
    }

    /// As [`Network::connect`], and makes sure that `contact` is there: where a process has died, or where a way carries one
    /// direction only, connections say nothing for seconds, and what is sent to them is lost. A connection over which there is
    /// no answer within `patience` is used no more until there is, and the node is dialed once more beside it, under every
    /// address known of it, through relays too; one that was started again says so, its old connections are closed, and it is
    /// asked again. Returns whether it has answered, after [`REACHES`] tries at most.
    ///
    /// # Errors
    /// As [`Network::dial`].
    pub async fn reach(&self, contact: &Contact, patience: Duration) -> Result<bool> {
        self.reach_by(contact, None, patience).await
    }

    /// As [`Network::reach`], for a contact that the node `by` named. Only addresses that the contact announced itself or
    /// that this node knows it by are dialed, and only so many for one who names them.
    ///
    /// # Errors
    /// As [`Network::dial`]; [`Error::Unreachable`] also when no address may be dialed.
    pub async fn reach_named(&self, contact: &Contact, by: NodeId, patience: Duration) -> Result<bool> {
        self.reach_by(contact, Some(by), patience).await
    }

    async fn connect_named(&self, contact: &Contact, by: NamedBy) -> Result<()> {
        self.dial_all(contact.addresses.clone(), Some(contact.node), by).await.map(drop)
    }

    async fn reach_by(&self, contact: &Contact, by: NamedBy, patience: Duration) -> Result<bool> {
        for _ in 0..REACHES {
            self.connect_named(contact, by).await?;
            match self.ping_once(contact, by, patience).await {
                Some((_, true)) => return Ok(true),
                Some((_, false)) => {}
                // What there was is closed now.
                None => tokio::time::sleep(PAUSE).await,
            }
        }
        Ok(false)
    }

    /// Asks `contact` whether it is there, and again over whatever connection there is then each time that it has not
    /// answered for `patience`; see [`Network::reach`]. Each of the later tries waits twice as long. Says whether it answered
    /// over the connection that was the best at first, early or late; `None` when it did not at all. `by`: who named the contact,
    /// see [`Network::reach_named`].
    pub async fn ping(&self, contact: &Contact, by: NamedBy, patience: Duration) -> Option<bool> {
        let mut first = None;
        for attempt in 0..REACHES {
            self.connect_named(contact, by).await.ok()?;
            match self.ping_once(contact, by, patience * (1 << attempt)).await {
                Some((connection, true)) => return Some(*first.get_or_insert(connection) == connection),
                Some((connection, false)) => {
                    first.get_or_insert(connection);
                }
                None => tokio::time::sleep(PAUSE).await,
            }
        }
        None
    }

    /// Over which connection it was asked, and whether there is an answer; one without is doubted. `None` where it closed.
    async fn ping_once(
        &self,
        contact: &Contact,
        by: NamedBy,
        patience: Duration,
    ) -> Option<(ConnectionId, bool)> {
        let stream = self.open_lane(contact.node, Lane::Control).await.ok()?;
        let connection = stream.connection();
        match tokio::time::timeout(patience, control::call(stream, &Ask::Ping)).await {
            // Of another version, and there.
            Ok(Ok(_) | Err(HopError::Corrupt)) => Some((connection, true)),
            Ok(Err(_)) => None,
            Err(_) => {
                tracing::debug!(node = %contact.node, "connected and silent, dialed once more");
                let doubt = Command::Doubt { contact: contact.clone(), by, connection };
                // A network that has stopped reaches no node.
                self.commands.send(doubt).await.ok()?;
                Some((connection, false))
            }
        }
    }

    async fn dial_all(&self, addresses: Vec<String>, peer: Option<NodeId>, by: NamedBy) -> Result<NodeId> {
        let dialed = self.told(|reply| Command::Dial { addresses, peer, by, reply });
        match tokio::time::timeout(DIAL_DEADLINE, dialed).await {
            Ok(dialed) => dialed.ok_or(Error::Closed)?,
            Err(_) => Err(Error::Unreachable("no answer in time".into())),
        }
    }

    /// Announces `announcement`, sealed by this node, to the swarm, or says by a [`Renewal`](crate::wire::renewal::Renewal) that the
    /// last one holds on. At most one a second leaves; of several given faster the last one does.
    ///
    /// # Errors
    /// [`Error::Announcement`] when others would refuse it.
    pub async fn publish(&self, announcement: Vec<u8>) -> Result<()> {
        self.told(|reply| Command::Publish { bytes: announcement, reply }).await.ok_or(Error::Closed)?
    }

    /// Asks a connected peer for something and waits at most `limit` for its answer.
    ///
    /// A stream that cannot be opened is tried once more, on whatever connection is best by then; an ask that has been
    /// sent is never sent again.
    ///
    /// # Errors
    /// See [`HopError`].
    pub async fn ask(&self, node: NodeId, ask: &Ask, limit: Duration) -> Result<Answer, HopError> {
        let called = async {
            let stream = match self.open_lane(node, Lane::Control).await {
                Err(HopError::Closed) => self.open_lane(node, Lane::Control).await?,
                opened => opened?,
            };
            control::call(stream, ask).await
        };
        tokio::time::timeout(limit, called).await.unwrap_or(Err(HopError::Timeout))
    }

    /// Sends the answer to an ask, in the background: an asker that is gone or does not read is ignored.
    pub fn answer(&self, reply: ReplyTo, answer: Answer) {
        tokio::spawn(async move {
            let node = reply.node();
            if let Err(error) = reply.send(&answer).await {
                tracing::debug!(%node, %error, "an answer was not delivered");
            }
        });
    }

    /// Opens a stream to a connected peer, on the best connection there is. Frames of the data plane may take another link where
    /// the peer is a neighbor that takes it.
    ///
    /// Negotiation is lazy: a peer that does not take the stream shows when it is first read.
    ///
    /// # Errors
    /// [`HopError::Closed`] when the peer is not connected, [`HopError::Timeout`] when the limit of streams lasts.
    pub async fn open(&self, node: NodeId, plane: Plane) -> Result<Stream, HopError> {
        if plane == Plane::Data {
            let network = self.clone();
            let links = async move { network.open_lane(node, Lane::Links).await };
            if let Some(neighbor) = self.links.neighbor(node, links).await {
                let stream = self.open_lane(node, Lane::Linked).await?;
                // Another connection may lead to another process of the peer, which knows nothing of the session.
                if stream.connection() == neighbor.connection {
                    return stream.linked(neighbor, true).await;
                }
                // A session on the connection that is used now takes its place.
                neighbor.close();
            }
        }
        self.open_lane(node, Lane::Plane(plane)).await
    }

    /// Uses this link to a neighbor from now on, until it is measured again; false where there is no session with it. For tests and
    /// benches: a node chooses by what it measures.
    #[doc(hidden)]
    pub fn use_link(&self, node: NodeId, kind: LinkKind) -> bool {
        self.links.of(node).map(|neighbor| neighbor.use_link(kind)).is_some()
    }

    /// Sends no datagram any more, as a network that drops them all: for tests.
    #[doc(hidden)]
    pub fn cut_datagrams(&self) {
        self.links.cut();
    }

    /// Sends no datagram longer than this any more, as a network with shorter packets: for tests.
    #[doc(hidden)]
    pub fn shrink_datagrams(&self, longest: usize) {
        self.links.shrink(longest);
    }

    /// Datagrams that were read and named no session: for tests.
    #[doc(hidden)]
    pub fn strange_datagrams(&self) -> u64 {
        self.links.strange()
    }

    /// The port of its datagrams: for tests.
    #[doc(hidden)]
    pub fn datagram_port(&self) -> Option<u16> {
        self.links.port()
    }

    /// At a limit of streams it waits until one has ended.
    async fn open_lane(&self, node: NodeId, lane: Lane) -> Result<Stream, HopError> {
        let opened = async {
            loop {
                match self.told(|reply| Command::Open { node, lane, reply }).await {
                    Some(Ok(stream)) => return Ok(stream),
                    Some(Err(NotOpened::Full)) => tokio::time::sleep(PAUSE).await,
                    Some(Err(NotOpened::Failed(error))) => return Err(error),
                    None => return Err(HopError::Closed),
                }
            }
        };
        tokio::time::timeout(OPEN_DEADLINE, opened).await.unwrap_or(Err(HopError::Timeout))
    }

    /// Lets others find this node as a holder of `model`, until shutdown.
    ///
    /// # Errors
    /// [`Error::Full`] beyond the models one node may provide.
    pub async fn provide(&self, model: ModelId) -> Result<()> {
        self.told(|reply| Command::Provide { model, reply }).await.ok_or(Error::Closed)?
    }

    /// Takes [`Network::provide`] back. Others may still find this node until what they were told expires.
    pub async fn withdraw(&self, model: ModelId) {
        // A network that has stopped provides nothing.
        let _ = self.commands.send(Command::Withdraw { model }).await;
    }

    /// Who says they hold `model`, beyond those whose announcements are heard: a hint, at most 64 nodes, within ten
    /// seconds. Connect to them to hear more.
    pub async fn holders(&self, model: ModelId) -> Vec<NodeId> {
        self.told(|reply| Command::Holders { model, reply }).await.unwrap_or_default()
    }

    /// All connected peers, by name.
    pub async fn peers(&self) -> Vec<PeerInfo> {
        self.told(Command::Peers).await.unwrap_or_default()
    }

    /// Peers of this swarm that were refused lately because they speak another version, the latest last.
    pub async fn refused(&self) -> Vec<RefusedPeer> {
        self.told(Command::Refused).await.unwrap_or_default()
    }

    /// Closes every connection to `node` and does not dial it again by itself for a while.
    pub async fn close(&self, node: NodeId) {
        self.told(|reply| Command::Close { node, reply }).await;
    }

    /// Says good-bye to every peer, writes the cache and stops. Returns when that is done.
    pub async fn shutdown(&self) {
        self.told(Command::Shutdown).await;
    }

    async fn told<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}
