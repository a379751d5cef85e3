//! What a node that joins should hold: the layers the swarm lacks most.

use std::time::Duration;

use p2p::{Event, Events};
use scheduler::{
    LayerRange, LayerSet, ModelId, NodeId,
    place::{self, Room},
    view::SwarmView,
};
use tokio::time::{Instant, timeout_at};

/// A node that knows others hears from them within one round of gossip; one that knows no peer should not wait longer
/// than a person notices.
const LISTEN_MS: u64 = 1_500;
/// After the first announcement the others follow at once.
const SETTLE_MS: u64 = 300;
/// Events kept while listening; more means a flood, and listening ends.
const MAX_HEARD: usize = 4_096;

/// Listens to what others hold of `model` and says what to hold of its `num_layers` layers, as far as there is `room`; and what was
/// heard meanwhile.
pub(crate) async fn choose(
    events: &mut Events,
    model: ModelId,
    num_layers: u32,
    room: &Room,
) -> (Option<LayerRange>, Vec<Event>) {
    let mut heard = Vec::new();
    let mut held = vec![ends(num_layers).collect::<LayerSet>()];
    let mut until = Instant::now() + Duration::from_millis(LISTEN_MS);
    while heard.len() < MAX_HEARD
        && let Ok(Some(event)) = timeout_at(until, events.next()).await
    {
        if let Event::Announcement(announcement, _) = &event
            && let Some(holding) = announcement.capability.holding(model)
        {
            held.push(holding.held_set());
            until = until.min(Instant::now() + Duration::from_millis(SETTLE_MS));
        }
        heard.push(event);
    }
    let found = LayerRange::new(0, num_layers).and_then(|all| place::scarcest(all, &held, room));
    (found, heard)
}

/// Which of the `num_layers` layers of `model` a node with `room` should hold, by what `view` knows of everybody but `me`.
pub(crate) fn lacking(
    view: &SwarmView,
    me: NodeId,
    model: ModelId,
    num_layers: u32,
    room: &Room,
) -> Option<LayerRange> {
    let snapshot = view.snapshot(model, num_layers, me).ok()?;
    let others = snapshot.hosts().iter().filter(|host| host.id != me && !host.held().is_empty());
    let mut held: Vec<LayerSet> = others.map(|host| host.held()).collect();
    held.push(ends(num_layers).collect());
    place::scarcest(LayerRange::new(0, num_layers)?, &held, room)
}

/// What to load: what is served, and both ends, so that own prompts can be conducted.
pub(crate) fn with_ends(serve: &[LayerRange], num_layers: u32) -> Vec<LayerRange> {
    LayerSet::new(serve.iter().copied().chain(ends(num_layers))).ranges().to_vec()
}

/// The first and the last layer: a requester holds them for itself, so they lack least where no node offers them.
fn ends(num_layers: u32) -> impl Iterator<Item = LayerRange> {
    let last = num_layers.saturating_sub(1);
    [LayerRange::new(0, 1), LayerRange::new(last, num_layers)].into_iter().flatten()
}
