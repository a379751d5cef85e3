//! The lease and epoch protocol, checked exhaustively for small worlds, breadth first.
//!
//! Every order of a few messages ([`WORLDS`]), lost and restored connections and ends of sessions, with up to [`TICKS`]
//! steps of time anywhere between them, is played against the real door ([`scheduler::door::Door`], [`Terms`]); equal states
//! are visited once. In every state nothing has an effect that must not, no place is spent twice or leaked, and when the
//! second requester stops there, the first gets a place soon.
//!
//! A model checker of its own takes 60 lines here; the crate `stateright` would compile a web server and a log for the same
//! search. `SHOAL_MODEL=full` goes one message further.
//!
//! [`Terms`]: scheduler::door::Terms

mod model;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use model::{Action, World};

/// Slots, sessions, and messages and other events of one run: two requesters that want one place, and one that takes both
/// before the other comes.
const WORLDS: [(u32, &[u64], u32); 2] = [(1, &[1, 2], 4), (2, &[1, 2, 3], 3)];
/// Steps of time of one run: enough for every limit of the door to pass, and for two to pass one after the other.
const TICKS: u64 = 4;

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.picture().hash(&mut hasher);
    hasher.finish()
}

/// Visits all states; returns how many, how many steps led to them and the longest wait for a place.
fn explore(slots: u32, sessions: &[u64], messages: u32) -> (usize, usize, u64) {
    let first = World::new(slots, sessions);
    let mut seen = BTreeSet::from([fingerprint(&first)]);
    let mut layer = vec![first];
    let (mut steps, mut longest) = (0, 0);
    // A layer has all states after so many messages; time passes within it.
    for message in 0..=messages {
        let mut next = Vec::new();
        let mut at = 0;
        while at < layer.len() {
            let world = layer[at].clone();
            at += 1;
            let waited = world.settles();
            assert!(waited.is_some(), "the first requester never gets a place: {world:?}");
            longest = longest.max(waited.unwrap_or(0));
            for action in world.actions() {
                let tick = action == Action::Tick;
                if (tick && world.ticks() >= TICKS) || (!tick && message == messages) {
                    continue;
                }
                let mut after = world.clone();
                after.step(action);
                steps += 1;
                if seen.insert(fingerprint(&after)) {
                    if tick { &mut layer } else { &mut next }.push(after);
                }
            }
        }
        layer = next;
    }
    (seen.len(), steps, longest)
}

#[test]
fn all_orders_of_few_messages_are_safe_and_let_the_honest_in() {
    let full = std::env::var_os("SHOAL_MODEL").is_some_and(|value| value == "full");
    for (slots, sessions, messages) in WORLDS {
        let (states, steps, longest) = explore(slots, sessions, messages + u32::from(full));
        println!("{slots} slots: {states} states, {steps} steps, {longest} ticks at most");
        assert!(states > 1_000, "{states} states are no world");
    }
}
