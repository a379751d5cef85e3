//! The network of a node that joins: which swarm, how to reach others, and who may come.

use std::path::Path;

use p2p::{Identity, SwarmId, invite::Invite};

use crate::{Error, Result, cli::swarm::ReachArgs, members};

/// How to reach others, and what an invite of this node says about the swarm.
pub(super) fn network(
    reach: &ReachArgs,
    home: &Path,
    identity: Identity,
    invite: Option<Invite>,
) -> Result<(p2p::Config, Invite)> {
    let (swarm, name, psk, contacts) = match invite {
        Some(invite) => (invite.swarm, invite.name, invite.psk, invite.contacts),
        None => {
            let name = reach.swarm.clone();
            (SwarmId::named(&name), Some(name), private_key(reach, home)?, Vec::new())
        }
    };
    let mut config = p2p::Config::new(identity);
    config.swarm = swarm;
    config.admission.psk = psk;
    if let Some(list) = &reach.members {
        config.admission.members.set(members::read(list)?);
    }
    config.loopback_only = reach.loopback;
    config.mdns = !reach.loopback && !reach.no_discovery;
    config.reach.upnp = !reach.loopback && !reach.no_discovery;
    config.relay = !reach.loopback || reach.carry;
    config.reach.relays.clone_from(&reach.relay);
    config.reach.external.clone_from(&reach.announce);
    config.reach.punch = !reach.no_punch;
    reach.links.apply(&mut config)?;
    config.cache = Some(home.join("peers"));
    if !reach.listen.is_empty() {
        config.listen = reach.listen.clone();
    } else if reach.loopback {
        config.listen = ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"].map(str::to_owned).to_vec();
    }
    config.bootstrap = reach.peer.clone();
    config.bootstrap.extend(contacts.iter().flat_map(|contact| contact.addresses.iter().cloned()));
    Ok((config, Invite { swarm, name, model: None, psk, contacts: Vec::new() }))
}

/// The key of a private swarm, made once.
fn private_key(reach: &ReachArgs, home: &Path) -> Result<Option<[u8; 32]>> {
    if !reach.private {
        return Ok(None);
    }
    let seed = Identity::load_or_create(&home.join(format!("swarm-{}.key", reach.swarm)));
    let seed = seed.map_err(|e| Error::Failed(e.to_string()))?;
    Ok(Some(*blake3::hash(&seed.sign("shoal/private/1", reach.swarm.as_bytes())).as_bytes()))
}
