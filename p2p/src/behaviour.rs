//! The protocols of a node, one doc line each.

use std::sync::Arc;
use std::time::Duration;

use libp2p::connection_limits::ConnectionLimits;
use libp2p::swarm::NetworkBehaviour;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{autonat, connection_limits, dcutr, identify, mdns, relay, upnp};

use crate::config::{Config, Names};
use crate::doors::Doors;
use crate::error::{Error, Result};
use crate::gossip::{self, Gossipsub};
use crate::governor::Governor;
use crate::introduction::Introduction;
use crate::kademlia::Kademlia;
use crate::link::behaviour as link;
use crate::pulse;
use crate::relay::Relay;
use crate::watch::Watch;

/// Bytes of a relayed circuit, each way: a long conversation at 5 KiB a token, not a model.
const CIRCUIT_BYTES: u64 = 1 << 30;
/// How long a relayed circuit lives; libp2p's own two minutes would end most conversations.
const CIRCUIT_LIFE: Duration = Duration::from_secs(3_600);

/// Every protocol of a node.
#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    /// Refuses connections beyond the limits. First, so that nothing else is built for a refused one.
    pub limits: connection_limits::Behaviour,
    /// Refuses what others opened beyond the limits for them, and knows where peers come from.
    pub doors: Doors,
    /// Streams: data, delegate, blob and control.
    pub link: link::Behaviour,
    /// Announcements.
    pub gossip: Gossipsub,
    /// Who speaks, which swarm, which addresses.
    pub identify: Introduction,
    /// Round trips.
    pub pulse: pulse::Behaviour,
    /// Finds peers, and who holds a model.
    pub kad: Kademlia,
    /// Finds peers of the local network.
    pub mdns: Toggle<mdns::tokio::Behaviour>,
    /// Is reached through others.
    pub relay_client: relay::client::Behaviour,
    /// Lets others be reached through this node.
    pub relay: Toggle<Relay>,
    /// Turns a relayed connection into a direct one.
    pub dcutr: Toggle<dcutr::Behaviour>,
    /// Asks others whether this node can be reached, and notes who did.
    pub watch: Watch,
    /// Tells others whether they can be.
    pub autonat_server: Toggle<autonat::v2::server::Behaviour>,
    /// Asks the router to forward a port.
    pub upnp: Toggle<upnp::tokio::Behaviour>,
}

impl Behaviour {
    /// The protocols of `config`.
    ///
    /// # Errors
    /// [`Error::Listen`] when gossip or mDNS cannot be set up.
    pub fn new(
        config: &Config,
        names: &Arc<Names>,
        governor: &Governor,
        relay_client: relay::client::Behaviour,
    ) -> Result<Self> {
        let key = config.identity.keypair().public();
        let me = key.to_peer_id();
        let wide = !config.loopback_only;
        let mdns = (config.mdns && wide).then(|| mdns::tokio::Behaviour::new(mdns::Config::default(), me));
        let mdns = mdns.transpose().map_err(|e| Error::Listen(format!("local discovery: {e}")))?;
        let limits = &config.limits;
        Ok(Self {
            limits: connection_limits::Behaviour::new(
                ConnectionLimits::default()
                    .with_max_pending_outgoing(Some(limits.outgoing))
                    .with_max_established_outgoing(Some(limits.outgoing))
                    .with_max_established_per_peer(Some(limits.per_peer)),
            ),
            doors: Doors::new(governor.clone(), config.admission.members.clone()),
            link: link::Behaviour::new(names.clone(), governor.clone(), limits.streams_per_peer),
            gossip: gossip::behaviour(config, names)?,
            identify: Introduction::new(
                identify::Config::new(names.version.clone(), key)
                    .with_agent_version(with_life(&config.agent)?)
                    .with_push_listen_addr_updates(true)
                    .with_cache_size(0),
                config.loopback_only,
            ),
            pulse: pulse::Behaviour::default(),
            kad: Kademlia::new(me, names, config.loopback_only),
            mdns: mdns.into(),
            relay_client,
            relay: config.relay.then(|| Relay::new(me, relay_limits(), governor.clone())).into(),
            dcutr: config.reach.punch.then(|| dcutr::Behaviour::new(me)).into(),
            watch: Watch::new(wide),
            autonat_server: wide.then(autonat::v2::server::Behaviour::default).into(),
            upnp: (config.reach.upnp && wide).then(upnp::tokio::Behaviour::default).into(),
        })
    }
}

/// `agent` and a random number of this process, so that others see when a node was started again.
fn with_life(agent: &str) -> Result<String> {
    Ok(format!("{agent} {:016x}", getrandom::u64().map_err(Error::Random)?))
}

/// What [`with_life`] made, in its parts; strangers may send anything.
pub(crate) fn split_life(agent: &str) -> (&str, Option<u64>) {
    let parts = agent.rsplit_once(' ').filter(|(_, life)| life.len() == 16);
    let parts = parts.and_then(|(agent, life)| Some((agent, u64::from_str_radix(life, 16).ok()?)));
    parts.map_or((agent, None), |(agent, life)| (agent, Some(life)))
}

/// Volunteer relays carry conversations, so the defaults (128 KiB, two minutes) are raised; the governor and
/// the default rate limits bound what they give.
fn relay_limits() -> relay::Config {
    relay::Config {
        max_circuits: 64,
        max_circuits_per_peer: 8,
        max_circuit_bytes: CIRCUIT_BYTES,
        max_circuit_duration: CIRCUIT_LIFE,
        ..relay::Config::default()
    }
}
